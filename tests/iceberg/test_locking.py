"""Which locks each operation takes, in which order, and what the lockers promise."""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import takehold
from takehold import AsyncLocks, HoldLost, LockTimeout, NotHeld, UsageError, WouldDeadlock
from takehold.iceberg import Catalog, NoSuchTable, TableChange
from takehold.iceberg.locking import ORDERS, KeyLockers, Ordered, Patience, adaptive, level_of
from takehold.iceberg.metadata import RequirementFailed
from takehold.iceberg.stores import MemoryStore
from takehold.testing import lose
from tests.iceberg.stage import Recorder, Stage, Trusting, Turnstiles
from tests.iceberg.world import (
    CREATE,
    NS,
    OTHER,
    UUID,
    WH,
    built,
    live,
    own,
    request,
    setting,
    table,
    view_request,
)
from tests.lanes import scaled

Do = Callable[[Catalog], Awaitable[Any]]


async def _staged(catalog: Catalog) -> None:
    place = (await catalog._registries.warehouse(WH))["location"]  # no lock of ours in the record
    updates = live(f"{place}/{UUID}")
    await catalog.commit_table(WH, table("s"), CREATE, updates)


async def _registered(catalog: Catalog) -> None:
    gone = await catalog.unregister_table(WH, table("a"))
    await catalog.register_table(WH, table("again"), str(gone.metadata_location))


def _transaction(*names: str) -> Do:
    return lambda c: c.transaction(WH, [TableChange(table(name), (), setting(t="1")) for name in names])


OPERATIONS: list[Any] = [
    pytest.param(ids, do, levels, id=f"{number} {levels[0] if levels else 'nothing'}")
    for number, (ids, do, levels) in enumerate(
        [
            ("M-14", lambda c: c.list_warehouses(), ["warehouse registry R"]),
            ("M-14", lambda c: c.get_warehouse(WH), ["warehouse registry R"]),
            ("M-15", lambda c: c.create_warehouse("w2"), ["warehouse registry W"]),
            ("M-16", lambda c: c.delete_warehouse("bare"), ["namespace registry W", "warehouse registry W"]),
            ("M-17", lambda c: c.list_namespaces(WH), ["namespace registry R"]),
            ("M-17", lambda c: c.load_namespace(WH, NS), ["namespace registry R"]),
            ("M-17", lambda c: c.namespace_exists(WH, NS), ["namespace registry R"]),
            ("M-18", lambda c: c.create_namespace(WH, ("n2",)), ["namespace registry W"]),
            ("M-18", lambda c: c.update_namespace(WH, NS, updates={"a": "1"}), ["namespace registry W"]),
            ("M-19", lambda c: c.delete_namespace(WH, OTHER), ["function W", "all shards W", "namespace registry W"]),
            ("M-20", lambda c: c.create_table(WH, NS, request("new")), ["shard W"]),
            ("M-20", lambda c: c.drop_table(WH, table("a")), ["shard W"]),
            ("M-21", lambda c: c.rename_table(WH, table("a"), table("z")), ["shard W", "pointer W"]),
            ("M-21", lambda c: c.rename_view(WH, table("v"), table("z")), ["shard W", "pointer W"]),
            ("M-22", lambda c: c.commit_table(WH, table("a"), [], setting(x="1")), []),
            ("M-23", _staged, ["pointer W", "shard W"]),
            ("M-24", _transaction("a", "b"), ["pointer W"]),
            ("M-49", _transaction("a"), []),
            ("M-49", _transaction("a", "a"), []),
            ("M-25", lambda c: c.load_table(WH, table("a")), ["pointer R"]),
            ("M-26", lambda c: c.create_table(WH, NS, request("st", **{"stage-create": True})), []),
            ("M-49", lambda c: c.list_tables(WH, NS), ["all shards R"]),
            ("M-49", lambda c: c.list_views(WH, NS), ["all shards R"]),
            ("M-49", lambda c: c.load_view(WH, table("v")), ["pointer R"]),
            ("M-49", lambda c: c.table_exists(WH, table("a")), ["pointer R"]),
            ("M-49", lambda c: c.view_exists(WH, table("v")), ["pointer R"]),
            ("M-49", lambda c: c.create_view(WH, NS, view_request("v2")), ["shard W"]),
            ("M-49", lambda c: c.drop_view(WH, table("v")), ["shard W"]),
            ("M-49", lambda c: c.replace_view(WH, table("v"), [], setting(x="1")), []),
            ("M-49", _registered, ["shard W", "shard W"]),
        ]
    )
]


@pytest.mark.covers(*(f"M-{number}" for number in (1, *range(14, 27), 36, 49)))
@pytest.mark.parametrize(("_ids", "do", "levels"), OPERATIONS)
def test_an_operation_takes_exactly_these_locks_in_this_order(_ids: str, do: Do, levels: list[str]) -> None:
    stage = Stage(1)
    recorder = Recorder(Turnstiles(stage))
    catalog = Catalog(MemoryStore(), Ordered(recorder, stage.current), runtime=stage)

    async def act() -> None:
        await built(catalog, "a", "b")
        await catalog.create_warehouse("bare")
        await catalog.create_view(WH, NS, view_request("v"))
        recorder.granted.clear()
        recorder.released.clear()
        await do(catalog)

    assert stage.play({"act": act()})["act"] is None
    assert recorder.levels() == levels
    assert recorder.released == [paths for _, _, paths in reversed(recorder.granted)] or len(set(levels)) == 1
    assert all(list(paths) == sorted(set(paths)) for _, _, paths in recorder.granted)


@pytest.mark.covers("M-13", "M-21")
@pytest.mark.parametrize(("to", "count"), [("customers", 1), ("orders", 2)])
def test_a_rename_locks_one_shard_when_both_names_are_in_it(to: str, count: int) -> None:
    stage = Stage(1)
    recorder = Recorder(Trusting())
    catalog = Catalog(MemoryStore(), recorder, runtime=stage)

    async def act() -> None:
        await built(catalog, "lineitem")
        recorder.granted.clear()
        await catalog.rename_table(WH, table("lineitem"), table(to))

    assert stage.play({"act": act()})["act"] is None
    assert len(recorder.granted[0][2]) == count


@pytest.mark.covers("M-26")
def test_a_staged_table_has_no_name_yet() -> None:
    stage = Stage(1)
    catalog = Catalog(MemoryStore(), Trusting(), runtime=stage)

    async def act() -> None:
        await built(catalog, "a")
        staged = await catalog.create_table(WH, NS, request("s", **{"stage-create": True}))
        assert staged.metadata_location is None
        with pytest.raises(NoSuchTable, match=r"Table does not exist: ns\.s"):
            await catalog.rename_table(WH, table("s"), table("t"))
        assert await catalog.list_tables(WH, NS) == ["a"]
        await catalog.rename_table(WH, table("a"), table("s"))
        with pytest.raises(RequirementFailed, match="Requirement failed: table already exists"):
            await catalog.commit_table(WH, table("s"), CREATE, live(staged.metadata["location"], staged.uuid))
        await catalog.commit_table(WH, table("t"), CREATE, live(staged.metadata["location"], staged.uuid))
        assert (await catalog.load_table(WH, table("t"))).uuid == staged.uuid
        pointers = await catalog._ground.store.list("catalog/wh/tables")
        assert f"catalog/wh/tables/{staged.uuid}.bin" in pointers

    result = stage.play({"act": act()})["act"]
    assert result is None, result


@pytest.mark.covers("M-38")
def test_an_order_that_is_not_registered_raises() -> None:
    async def act(locks: AsyncLocks) -> None:
        shard, pointer = "catalog/wh/namespaces/n/table-registry-shard-1.bin", "catalog/wh/tables/u.bin"
        lockers = Ordered(KeyLockers(locks), asyncio.current_task)
        first = lockers.at(shard, by="CreateTable")
        hold = await first.get_lock(1)
        with pytest.raises(WouldDeadlock, match="CreateTable takes pointer W"):
            await lockers.at(pointer, by="CreateTable").get_lock(1)
        with pytest.raises(WouldDeadlock):
            await lockers.at(pointer, by="CommitStaged").get_lock(1)
        # What does not wait is at home everywhere.
        recovery = lockers.at(pointer, by="Recovery")
        await recovery.unlock(await recovery.get_lock(Patience.NONE))
        await first.unlock(hold)
        with pytest.raises(WouldDeadlock):
            await lockers.at(pointer, by="Nobody").get_lock(1)
        await first.unlock(await first.get_lock(1))

    async def main() -> None:
        async with AsyncLocks("memory:", check_order="off") as locks:
            await act(locks)

    asyncio.run(main())


@pytest.mark.covers("M-36")
def test_only_a_commit_that_goes_live_and_a_transaction_take_a_pointer_before_a_shard() -> None:
    inverse = {
        by for by, steps in ORDERS.items() if "pointer W" in steps and "shard W" in steps[steps.index("pointer W") :]
    }
    assert inverse == {"CommitStaged", "Transaction"}
    assert level_of(("catalog/warehouse.bin",)) == "warehouse registry"


async def _body(hold: Any) -> None:
    async with hold:
        lose(hold)
        await asyncio.sleep(60)


@asynccontextmanager
async def lockers() -> AsyncIterator[KeyLockers]:
    async with AsyncLocks("memory:", check_order="off") as locks:
        yield KeyLockers(locks)


@pytest.mark.covers("M-1", "M-3")
def test_readers_share_a_writer_excludes_and_what_is_not_held_cannot_be_given_back() -> None:
    async def act() -> None:
        async with lockers() as made:
            locker = made.at("catalog/p.bin", by="LoadTable")
            one = await locker.get_rlock(1)

            async def other() -> None:
                two = await made.at("catalog/p.bin", by="LoadTable").get_rlock(1)
                with pytest.raises(LockTimeout):
                    await made.at("catalog/p.bin", by="DeleteTable").get_lock(0)
                await made.at("catalog/p.bin", by="LoadTable").runlock(two)
                with pytest.raises(NotHeld):
                    await made.at("catalog/p.bin", by="LoadTable").runlock(two)

            await asyncio.create_task(other())
            await locker.runlock(one)
            hold = await locker.get_lock(0)
            assert not hold.lost
            await locker.unlock(hold)
            with pytest.raises(NotHeld):
                await locker.unlock(hold)

    asyncio.run(act())


@pytest.mark.covers("M-1", "M-43", "M-46")
def test_the_hold_is_the_context_of_its_lock_and_loss_cancels_its_body() -> None:
    async def act() -> None:
        async with lockers() as made:
            locker = made.at("catalog/p.bin", by="DeleteTable")
            hold = await locker.get_lock(1)
            fence = hold.fence
            with pytest.raises(HoldLost):
                await _body(hold)
            assert hold.lost
            await locker.unlock(hold)
            again = await locker.get_lock(0)
            assert again.fence > fence
            await locker.unlock(again)

    asyncio.run(act())


@pytest.mark.covers("M-46")
def test_a_hold_that_is_lost_stops_an_operation_before_its_commit_point() -> None:
    class Losing(MemoryStore):
        armed = False
        locks: AsyncLocks

        async def put(self, path: str, data: bytes) -> None:
            await super().put(path, data)
            if self.armed:
                for record in await self.locks.who():
                    assert await self.locks.evict(record.id)

    async def act() -> None:
        async with AsyncLocks("memory:", check_order="off") as locks:
            store = Losing()
            store.locks = locks
            async with Catalog(store, locks) as catalog:
                await built(catalog, "a", "b")
                store.armed = True
                with pytest.raises(HoldLost):
                    await _transaction("a", "b")(catalog)
                store.armed = False
                assert [own(each) for each in await catalog.load_tables(WH, [table("a"), table("b")])] == [
                    {"born": "a"},
                    {"born": "b"},
                ]
                assert not await catalog.transactions(WH)

    asyncio.run(act())


@pytest.mark.covers("M-45")
def test_an_operator_sees_who_holds_which_path_since_when_and_can_end_it() -> None:
    async def act() -> None:
        async with AsyncLocks("memory:", check_order="off", label="replica 1") as locks:
            locker = KeyLockers(locks).at("catalog/wh/tables/u.bin", by="RenameTable")
            hold = await locker.get_lock(1)
            (record,) = await locks.who("catalog/wh/tables/*")
            assert (record.key, record.mode, record.state) == ("catalog/wh/tables/u.bin", "exclusive", "held")
            assert record.owner is not None
            assert record.owner.label == "replica 1"
            assert record.age >= 0
            assert await locks.who("catalog/*", stuck_after=3600) == []
            assert await locks.evict(record.id)
            assert hold.lost
            await locker.unlock(hold)

    asyncio.run(act())


@pytest.mark.slow
@pytest.mark.covers("M-3", "M-4")
def test_two_writers_are_never_in_and_nothing_is_left_of_a_lock() -> None:
    async def act() -> None:
        async with AsyncLocks("memory:", check_order="off") as locks:
            made, inside, most = KeyLockers(locks), 0, 0

            async def worker(seed: int) -> None:
                nonlocal inside, most
                rng = random.Random(seed)
                for _ in range(scaled(10_000) // 10):
                    locker = made.at(f"catalog/{rng.randrange(2)}.bin", "catalog/common.bin", by="RenameTable")
                    hold = await locker.get_lock(60)
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0)
                    inside -= 1
                    await locker.unlock(hold)

            await asyncio.gather(*map(worker, range(10)))
            assert most == 1
            statistics = locks.statistics()
            assert statistics.held == statistics.waiting == 0
            assert not await locks.who()

    asyncio.run(act())


@pytest.mark.covers("M-5", "M-6", "M-7")
def test_a_writer_gets_in_among_twenty_looping_readers() -> None:
    async def act() -> None:
        async with lockers() as made:
            done = False

            async def reader() -> None:
                while not done:
                    locker = made.at("catalog/p.bin", by="LoadTable")
                    hold = await locker.get_rlock(30)
                    await asyncio.sleep(0)
                    await locker.runlock(hold)

            readers = [asyncio.create_task(reader()) for _ in range(20)]
            await asyncio.sleep(0)
            for _ in range(20):
                locker = made.at("catalog/p.bin", by="DeleteTable")
                await locker.unlock(await locker.get_lock(10))
            done = True
            await asyncio.gather(*readers)

    asyncio.run(act())


@pytest.mark.covers("M-8", "M-10")
def test_timeouts_start_where_the_document_says() -> None:
    patience = Patience()
    assert (patience.tables.seconds, patience.tables.minimum) == (30, 5)
    assert (patience.all_shards.seconds, patience.all_shards.minimum) == (45, 30)
    assert (patience.NONE, patience.recovery) == (0, 300)

    async def act() -> None:
        async with lockers() as made:
            locker = made.at("catalog/p.bin", by="Transaction")
            hold = await locker.get_lock(Patience.NONE)  # free: it succeeds

            async def other() -> None:
                with pytest.raises(LockTimeout):
                    await made.at("catalog/p.bin", by="Transaction").get_lock(Patience.NONE)

            await asyncio.create_task(other())
            await locker.unlock(hold)

    asyncio.run(act())


def _learned(start: float, minimum: float, *waits: float | None) -> list[float]:
    """The value after each full window."""
    timeout, seen = adaptive(start, minimum), []
    for number, wait in enumerate(waits, 1):
        timeout.timed_out() if wait is None else timeout.succeeded(wait)
        if number % 16 == 0:
            seen.append(round(timeout.seconds, 6))
    return seen


@pytest.mark.covers("M-9")
def test_the_adaptive_timeout_follows_its_vectors() -> None:
    assert _learned(30, 5, *[None] * 16) == [37.5]
    assert _learned(30, 5, *[None] * 6, *[1.0] * 10) == [37.5]
    assert _learned(30, 5, *[None] * 5, *[1.0] * 11) == [30]
    assert _learned(30, 5, *[None] * 2, *[1.0] * 14) == [30]
    assert _learned(30, 5, None, *[1.0] * 15) == [15.625]
    assert _learned(30, 5, *[1.0] * 48) == [15.625, 8.4375, 5]
    assert _learned(45, 30, *[1.0] * 16) == [30]
    assert _learned(30, 5, *[28.0] * 16) == [30]  # 1.25 times the slowest is not smaller
    assert _learned(60, 1, *[20.0] * 32) == [42.5, 33.75]
    assert _learned(60, 1, *[None] * 32) == [75, 93.75]
    assert adaptive(5, 30).minimum == 5
    for start, minimum in ((0, 5), (5, 0), (-1, 1)):
        with pytest.raises(UsageError):
            adaptive(start, minimum)


@pytest.mark.covers("M-11")
def test_several_locks_have_one_deadline() -> None:
    async def act() -> None:
        async with lockers() as made:
            holds = [(made.at(f"catalog/{n}.bin", by="X"), n) for n in range(3)]
            kept = [await locker.get_lock(1) for locker, _ in holds[1:]]

            async def waiter() -> float:
                loop = asyncio.get_running_loop()
                began = loop.time()
                with pytest.raises(LockTimeout):
                    await made.at(*(f"catalog/{n}.bin" for n in range(3)), by="X").get_lock(0.2)
                return loop.time() - began

            assert await asyncio.create_task(waiter()) < 5
            # All or nothing: the free one was given back.
            hold = await holds[0][0].get_lock(0)
            await holds[0][0].unlock(hold)
            for (locker, _), other in zip(holds[1:], kept, strict=True):
                await locker.unlock(other)

    asyncio.run(act())


@pytest.mark.covers("M-36")
def test_no_inverted_order_is_reported_with_locks_made_for_the_catalog() -> None:
    async def act() -> None:
        from takehold.iceberg import open_catalog

        async with await open_catalog("memory:") as catalog:
            await built(catalog, "a", "b")
            await catalog.rename_table(WH, table("a"), table("z"))
            await _staged(catalog)

    with warnings.catch_warnings():
        warnings.simplefilter("error", takehold.LockOrderWarning)
        asyncio.run(act())
