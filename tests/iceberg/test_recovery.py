"""Recovery, waiting and contention: what happens when operations meet, or their owners die."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from takehold import BackendUnavailable, LockTimeout, OperationConflict
from takehold.iceberg import Catalog, Fault, NoSuchTable, Retrying, TableChange, paths
from takehold.iceberg.changes import Change
from takehold.iceberg.locking import Ordered
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.stores import MemoryStore
from tests.iceberg.stage import Recorder, Stage, Turnstiles
from tests.iceberg.world import CREATE, NS, OTHER, UUID, WH, built, live, own, request, setting, table
from tests.lanes import scaled

A, B, C = table("a"), table("b"), table("c")
BOTH = [TableChange(A, (), setting(t="1")), TableChange(B, (), setting(t="1"))]


class Scene:
    """Some catalogs on one store with one set of locks, as so many processes."""

    def __init__(self, count: int = 2, seed: int = 1) -> None:
        self.stage = Stage(seed)
        self.store = MemoryStore(pause=self.stage.step)
        self.locks = Turnstiles(self.stage)
        self.recorder = Recorder(self.locks)
        self.catalogs = [
            Catalog(self.store, Ordered(self.recorder, self.stage.current), runtime=self.stage) for _ in range(count)
        ]
        self.play(built(self.catalogs[0], "a", "b"))

    def play(self, *acts: Coroutine[Any, Any, Any], schedule: list[str] | None = None) -> list[Any]:
        """Results or errors, in order; an assertion that failed is raised."""
        results = list(self.stage.play({str(n): act for n, act in enumerate(acts)}, schedule or []).values())
        for result in results:
            if isinstance(result, AssertionError):
                raise result
        return results

    def dies_in(self, what: str, state: str, *, keeps_locks: bool = False) -> None:
        """The first catalog begins this, and its process ends when the record is in that state."""
        lockers = Keeping(self.locks) if keeps_locks else self.locks
        catalog = Catalog(Mortal(self.store, state), lockers, runtime=self.stage)
        acts: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "transaction": lambda: catalog.transaction(WH, BOTH),
            "rename": lambda: catalog.rename_table(WH, A, C),
            "drop": lambda: catalog.drop_table(WH, A),
        }
        (error,) = self.play(acts[what]())
        assert isinstance(error, Killed), error


class Killed(BaseException):
    """The process is gone."""


class Mortal:
    """A store whose process is killed two calls after a pending record has a state: in the middle of what follows."""

    def __init__(self, store: MemoryStore, state: str) -> None:
        self._store, self._mark, self._left = store, f'"state":"{state}"'.encode(), 2
        self.location = store.location

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if name not in ("get", "put_new", "put_if", "delete_if", "put", "list"):
            return work

        async def call(*args: Any) -> Any:
            if self._left < 2 or any(self._mark in each.data for each in self._store._objects.values()):
                self._left -= 1
            if self._left < 0:
                raise Killed
            return await work(*args)

        return call


class Keeping:
    """Lockers of a process that is paused for ever: nothing is given back."""

    def __init__(self, lockers: Turnstiles) -> None:
        self._lockers = lockers

    def at(self, *paths: str, by: str) -> Any:
        locker = self._lockers.at(*paths, by=by)

        async def nothing(hold: Any) -> None:
            """It never comes to that."""

        locker.unlock = nothing  # type: ignore[method-assign]
        return locker


DEATHS = [
    pytest.param(what, state, id=f"{what} {state}")
    for what, state in itertools.product(("transaction", "rename", "drop"), ("pending", "committed"))
]


def after(what: str, state: str) -> dict[str, Any]:
    """Which tables there are then, and what they say."""
    if state == "pending":
        return {"a": {"born": "a"}, "b": {"born": "b"}}
    return {
        "transaction": {"a": {"born": "a", "t": "1"}, "b": {"born": "b", "t": "1"}},
        "rename": {"b": {"born": "b"}, "c": {"born": "a"}},
        "drop": {"b": {"born": "b"}},
    }[what]


async def tables_of(catalog: Catalog) -> dict[str, Any]:
    return {name: own(await catalog.load_table(WH, table(name))) for name in await catalog.list_tables(WH, NS)}


@pytest.mark.covers("M-25", "M-32", "M-34", "M-35")
@pytest.mark.parametrize(("what", "state"), DEATHS)
def test_a_reader_of_what_a_dead_owner_left_sees_what_was_decided_and_the_background_finishes_it(
    what: str, state: str
) -> None:
    scene = Scene()
    scene.dies_in(what, state)
    catalog = scene.catalogs[1]

    async def act() -> None:
        began = scene.stage.now()
        assert await tables_of(catalog) == after(what, state)
        assert scene.stage.now() - began < 0.05, "a reader waited for a dead writer"
        if await catalog.transactions(WH):
            for name in ("a", "b", "c"):
                await catalog.table_exists(WH, table(name))
            await scene.stage.sleep(60)
        # A record whose intents are all settled, or not placed yet, is met by nobody: `recover` removes it.
        assert what == "transaction" or not await catalog.transactions(WH)
        assert await tables_of(catalog) == after(what, state)
        await catalog.recover([WH])
        assert not await catalog.transactions(WH)

    scene.play(act())


@pytest.mark.covers("M-32", "M-34", "M-53")
@pytest.mark.parametrize(("what", "state"), DEATHS)
def test_recovery_on_request_says_what_it_did_and_twice_is_harmless(what: str, state: str) -> None:
    scene = Scene()
    scene.dies_in(what, state)
    catalog = scene.catalogs[1]

    async def act() -> None:
        (report,) = await catalog.transactions(WH)
        assert (report.kind, report.state) == (what, state)
        assert "ns.a" in report.tables
        assert [fault.kind for fault in await catalog.fsck(WH) if fault.kind == "pending"]
        assert await catalog.transactions(WH), "fsck changes nothing unless told to"
        (done,) = await catalog.recover()
        assert done.outcome == ("finished" if state == "committed" else "undone")
        assert await catalog.recover() == []
        assert await tables_of(catalog) == after(what, state)
        assert not [fault for fault in await catalog.fsck(WH) if fault.kind != "orphan file"]

    scene.play(act())


@pytest.mark.covers("M-34")
def test_an_owner_that_is_at_work_is_busy_and_the_background_gives_up_within_its_bounds() -> None:
    scene = Scene()
    scene.dies_in("transaction", "pending", keeps_locks=True)
    catalog = scene.catalogs[1]

    async def act() -> None:
        (done,) = await catalog.recover()
        assert done.outcome == "busy"
        recovery = catalog._recovery
        (path,) = await scene.store.list(paths.pending_of(WH))
        began, tries = scene.stage.now(), []
        attend = recovery.attend

        async def counted(at: str) -> Any:
            tries.append(scene.stage.now())
            return await attend(at)

        recovery.attend = counted  # type: ignore[method-assign, assignment]
        recovery.notice(WH, path.rpartition("/")[2].removesuffix(".bin"))
        await scene.stage.sleep(400)
        assert len(tries) == Recovery.ATTEMPTS == 50
        assert tries[-1] - began < 300
        pauses = [later - earlier for earlier, later in itertools.pairwise([began, *tries])]
        assert pauses[0] < 0.06
        assert 0.4 < max(pauses) < 1.2
        assert not recovery._cared

    scene.play(act())


@pytest.mark.covers("M-25", "M-33")
def test_a_commit_waits_for_an_owner_at_work_but_not_for_ever() -> None:
    scene = Scene()
    scene.dies_in("transaction", "pending", keeps_locks=True)

    async def act() -> None:
        # The record is there, and the intents: a paused owner, which keeps its locks.
        began = scene.stage.now()
        await scene.catalogs[1].commit_table(WH, A, [], setting(x="1"))
        assert scene.stage.now() - began < 2 * Recovery.PATIENCE

    scene.play(act())


@pytest.mark.covers("M-25")
def test_a_reader_waits_two_seconds_for_a_paused_owner_and_then_reads_what_is_decided() -> None:
    scene = Scene()
    scene.dies_in("transaction", "pending", keeps_locks=True)

    async def act() -> None:
        began = scene.stage.now()
        assert own(await scene.catalogs[1].load_table(WH, A)) == {"born": "a"}
        assert 1.9 < scene.stage.now() - began < 2.5
        assert await scene.catalogs[1].table_exists(WH, B)

    scene.play(act())


@pytest.mark.covers("M-24", "M-30", "M-41")
def test_a_busy_pointer_is_a_conflict_at_once_and_nothing_is_written() -> None:
    scene = Scene()

    async def act() -> None:
        pointers = {name: (await scene.catalogs[0].load_table(WH, table(name))).uuid for name in ("a", "b")}
        last = max(paths.pointer(WH, uuid) for uuid in pointers.values())
        hold = await scene.locks.at(last, by="RenameTable").get_lock(0)
        before = await scene.store.list("")
        scene.recorder.released.clear()
        began = scene.stage.now()
        with pytest.raises(OperationConflict):
            await scene.catalogs[1].transaction(WH, BOTH)
        assert scene.stage.now() - began < 0.1
        assert await scene.store.list("") == before
        await scene.locks.at(last, by="RenameTable").unlock(hold)
        assert not scene.locks.held
        assert scene.catalogs[1].contention["pointer locked"].conflicts == 1
        await scene.catalogs[1].transaction(WH, BOTH)

    scene.play(act())


@pytest.mark.covers("M-50", "M-54")
def test_with_retry_a_transaction_goes_on_when_the_other_one_is_done_and_stops_at_its_deadline() -> None:
    scene = Scene()

    async def act() -> None:
        path = paths.pointer(WH, (await scene.catalogs[0].load_table(WH, A)).uuid)
        locker = scene.locks.at(path, by="RenameTable")
        hold = await locker.get_lock(0)
        began = scene.stage.now()
        with pytest.raises(OperationConflict):
            await scene.catalogs[1].transaction(WH, BOTH, retry=Retrying(), deadline=2)
        assert 1 < scene.stage.now() - began <= 2.5

        async def later() -> None:
            await scene.stage.sleep(1)
            await locker.unlock(hold)

        scene.stage.spawn(later(), "later")
        done = await scene.catalogs[1].transaction(WH, BOTH, retry=Retrying(), deadline=5)
        assert [own(each)["t"] for each in done] == ["1", "1"]

    scene.play(act())


@pytest.mark.covers("M-50")
@pytest.mark.parametrize("act", ["rename", "staged"])
def test_a_rename_or_a_staged_commit_waits_for_a_pointer_within_its_timeout(act: str) -> None:
    scene = Scene()
    catalog = scene.catalogs[1]

    async def acts() -> None:
        place = (await catalog.get_warehouse(WH)).location
        uuid = (await catalog.load_table(WH, A)).uuid if act == "rename" else UUID
        locker = scene.locks.at(paths.pointer(WH, uuid), by="Transaction")

        async def done() -> None:
            if act == "rename":
                await catalog.rename_table(WH, A, C)
            else:
                await catalog.commit_table(WH, C, CREATE, live(f"{place}/{UUID}"))

        hold = await locker.get_lock(0)
        before, began = await scene.store.list("catalog"), scene.stage.now()
        with pytest.raises(LockTimeout):
            await done()
        assert 29 < scene.stage.now() - began < 40
        assert await scene.store.list("catalog") == before

        async def later() -> None:
            await scene.stage.sleep(3)
            await locker.unlock(hold)

        scene.stage.spawn(later(), "later")
        await done()
        assert await catalog.table_exists(WH, C)

    scene.play(acts())


@pytest.mark.slow
@pytest.mark.covers("M-31", "M-36", "M-37", "M-50")
def test_no_seed_makes_any_of_these_wait_for_each_other_for_ever() -> None:
    """All kinds at once, in random order, on locks that keep their word: they all come to an end."""
    for seed in range(scaled(600)):
        scene = Scene(count=6, seed=seed)
        one, two, three, four, five, six = scene.catalogs
        rng = scene.stage._rng
        place = "memory:///warehouses/x"
        acts = [
            one.transaction(WH, BOTH, retry=Retrying(), deadline=20),
            two.transaction(WH, BOTH[::-1], retry=Retrying(), deadline=20),
            three.rename_table(WH, A, table("orders", rng.choice([NS, OTHER]))),
            four.rename_table(WH, B, table("customers")),
            five.delete_namespace(WH, OTHER),
            six.commit_table(WH, table("s", rng.choice([NS, OTHER])), CREATE, live(place)),
        ]
        schedule = [str(rng.randrange(6)) for _ in range(1500)]
        began = scene.stage.now()
        results = scene.play(*acts, schedule=schedule)
        assert scene.stage.now() - began < 29, (seed, results)
        assert not scene.locks.held, seed
        assert not [each for each in results if isinstance(each, LockTimeout)], (seed, results)


@pytest.mark.covers("M-39", "M-40")
def test_creates_serialize_in_a_shard_and_wait_for_a_namespace_that_is_deleted_only_in_that_one() -> None:
    scene = Scene()
    catalog = scene.catalogs[1]

    async def act() -> None:
        # customers and lineitem are in shard 8, orders in 5.
        locker = scene.locks.at(paths.shard(WH, NS, 8), by="CreateTable")
        hold = await locker.get_lock(0)
        began = scene.stage.now()
        await catalog.create_table(WH, NS, request("orders"))
        assert scene.stage.now() == began, "another shard waited"

        async def later() -> None:
            await scene.stage.sleep(2)
            await locker.unlock(hold)

        scene.stage.spawn(later(), "later")
        await catalog.create_table(WH, NS, request("customers"))
        assert scene.stage.now() - began >= 2
        every = scene.locks.at(*paths.shards(WH, NS), by="DeleteNamespace")
        hold = await every.get_lock(0)
        await catalog.create_table(WH, OTHER, request("customers"))
        with pytest.raises(LockTimeout):
            await catalog.create_table(WH, NS, request("lineitem"))
        await every.unlock(hold)
        counts = catalog.contention["shard"]
        assert counts.timeouts == 1
        assert counts.waits >= 1
        assert counts.wait_seconds >= 2

    scene.play(act())


@pytest.mark.covers("M-51")
def test_contention_is_counted_where_it_happens() -> None:
    scene = Scene()
    one, two = scene.catalogs
    scene.play(
        one.commit_table(WH, A, [], setting(x="1")),
        two.commit_table(WH, A, [], setting(y="1")),
        schedule=["0", "1"] * 100,
    )
    assert one.contention["pointer cas"].losses + two.contention["pointer cas"].losses >= 1
    assert one.contention["pointer cas"].retries + two.contention["pointer cas"].retries >= 1
    scene.play(
        one.delete_namespace(WH, OTHER), two.create_namespace(WH, ("n",)), one.create_warehouse("w"), schedule=["0"] * 5
    )
    assert one.contention["all shards"].grants >= 2
    assert one.contention["warehouse registry"].grants >= 1
    assert two.contention["namespace registry"].grants >= 1
    assert [name for name, _ in one.contention] == [
        "warehouse registry",
        "namespace registry",
        "shard",
        "pointer locked",
        "pointer cas",
        "all shards",
    ]


@pytest.mark.covers("M-35", "M-47")
def test_fsck_explains_and_repairs_orphans_beside_a_creator_that_is_only_slow() -> None:
    """A create stands still between pointer and shard; fsck takes its pointer; it goes on, and the table is there."""
    for stop in range(1, 20):
        scene = Scene()
        slow, other = scene.catalogs
        results = scene.play(
            slow.create_table(WH, NS, request("slow", properties={"born": "slow"})),
            other.fsck(WH, repair=True),
            schedule=["0"] * stop + ["1"] * 1000,
        )
        assert not isinstance(results[0], Exception), (stop, results)
        assert isinstance(results[1], list)

        async def act(catalog: Catalog = other) -> None:
            assert own(await catalog.load_table(WH, table("slow"))) == {"born": "slow"}
            faults: list[Fault] = [each for each in await catalog.fsck(WH) if each.kind != "orphan file"]
            assert not faults

        scene.play(act())


@pytest.mark.covers("M-26", "M-47")
def test_a_table_that_was_renamed_away_is_not_committed_to_by_its_old_name() -> None:
    scene = Scene()
    one, two = scene.catalogs

    async def act() -> None:
        await one.commit_table(WH, A, [], setting(x="1"))  # this process knows the name now
        await two.rename_table(WH, A, C)
        with pytest.raises(NoSuchTable):
            await one.commit_table(WH, A, [], setting(x="2"))
        await two.create_table(WH, NS, request("a", properties={"born": "new"}))
        assert own(await one.commit_table(WH, A, [], setting(x="3"))) == {"born": "new", "x": "3"}

    scene.play(act())


@pytest.mark.covers("M-32")
def test_a_store_that_goes_away_after_the_commit_point_makes_no_error() -> None:
    scene = Scene()
    catalog = scene.catalogs[0]

    async def act() -> None:
        async def away(self: Change, *, committed: bool) -> None:
            raise BackendUnavailable("the store is away")

        settle, Change._settle = Change._settle, away  # type: ignore[method-assign]
        try:
            await catalog.transaction(WH, BOTH)
        finally:
            Change._settle = settle  # type: ignore[method-assign]
        assert [own(each)["t"] for each in await scene.catalogs[1].load_tables(WH, [A, B])] == ["1", "1"]
        await scene.stage.sleep(5)
        assert not await catalog.transactions(WH), "the background finished it"

    scene.play(act())
