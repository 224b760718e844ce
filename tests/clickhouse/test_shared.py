"""Shared tables: one call is one block under one lock, seen from the server; and what is refused before any lock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import takehold
from takehold import LockTimeout, UnknownOutcome, UsageError, advisory, clickhouse
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.objects.embedded import AsyncEmbedded
from takehold.testing.faces import eventually
from tests.clickhouse.conftest import EMPTIED, everywhere
from tests.clickhouse.stores import Forbidden, Place, Stores, forbidden
from tests.lanes import scaled
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow

FOUR = {"w": [1, 1, 1, 1], "n": [0, 1, 2, 3]}


def sql(store: Any, statement: str) -> Any:
    """By a client of the store's, blocking or not."""
    core = store.made._core

    async def rows() -> Any:
        return await core.channel.rows(statement)

    return store._stores.done(rows) if store._stores.face == "asyncio" else takehold.runtime.run(rows())


def command(store: Any, statement: str) -> None:
    store._stores.done(store.made._core.channel.client.command, statement)


def small_blocks(store: Any) -> None:
    """Inserts of this store go in many blocks, which threads of the server could reorder."""
    client = store.made._core.channel.client
    client = client._client if isinstance(client, AsyncEmbedded) else client
    for name in ("max_block_size", "min_insert_block_size_rows", "max_insert_block_size"):
        client.set_client_setting(name, 1000)


def number_of(locks: list[tuple[Any, ...]]) -> list[tuple[int, int, bool]]:
    """Of each line of pg_locks the bigint, the backend, and whether it is granted."""
    return [((high << 32) | low, pid, granted) for _, high, low, part, _, granted, pid, *_ in locks if part == 1]


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch, look: Callable[[str], Any]) -> Iterator[list[tuple[str, Any, Any]]]:
    """Every statement that writes, and what was seen right before and right after it."""
    seen: list[tuple[str, Any, Any]] = []
    plain = Channel.command

    async def watched(self: Channel, sql: str, *args: Any, **settings: Any) -> Any:
        before = look(sql)
        try:
            return await plain(self, sql, *args, **settings)
        finally:
            seen.append((sql, before, look(sql)))

    with monkeypatch.context() as patched:
        patched.setattr(Channel, "command", watched)
        yield seen


# --------------------------------------------------------------------------------------------------- the lock of a call


@pytest.mark.covers("A-10", "A-11", "A-20")
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_one_backend_has_the_number_from_before_the_first_row_until_after_the_last(
    face: str, distributed: Place, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stores(face, distributed) as stores:
        store = stores.open()
        number = store.registry.advisory_id("p_new")
        calls: list[Callable[[], Any]] = [
            lambda: store.create(FOUR, "new"),
            lambda: store.insert("new", FOUR, FOUR, FOUR),
            lambda: store.concat(FOUR, FOUR, name="new"),
        ]
        for call in calls:
            assert postgres_server.advisory_locks() == []
            with statements(monkeypatch, lambda _: number_of(postgres_server.advisory_locks())) as seen:
                call()
            writing = [(before, after) for statement, before, after in seen if "`p_new`" in statement]
            assert writing
            backends = {tuple(locks) for pair in writing for locks in pair}
            ((held,),) = backends  # the same single line each time
            assert held[0] == number
            assert held[2]
            assert eventually(lambda: postgres_server.advisory_locks() == [])
        assert len(sql(store, "SELECT DISTINCT takehold_block FROM p_new")) == 3


@pytest.mark.covers("A-20")
def test_in_process_the_lock_is_a_file_of_this_host_and_no_server_is_asked(
    embedded: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection was opened"))
    with Stores("blocking", embedded) as stores:
        store = stores.open()
        number = store.registry.advisory_id("p_new")

        def taken(_: str) -> bool:
            with takehold.Locks(embedded.sql_url) as locks, ThreadPoolExecutor(1) as other:
                hold = other.submit(locks.lock(advisory(number)).try_acquire).result()
                if hold is not None:
                    hold.release()
                return hold is None

        with statements(monkeypatch, taken) as seen:
            store.create(FOUR, "new")
            store.insert("new", FOUR, FOUR)
        writing = [(before, after) for statement, before, after in seen if "`p_new`" in statement]
        assert len(writing) >= 4
        assert set(writing) == {(True, True)}
        assert not taken("")


@pytest.mark.covers("A-20", "A-22", "A-25", "A-36")
def test_threads_with_engines_of_their_own_in_one_process_append_one_after_the_other(embedded: Place) -> None:
    """Three connections to one embedded engine run at the same time: without the lock their rows mix."""
    writers, calls, rows = 4, scaled(20), 20_000
    with Stores("blocking", embedded) as stores:
        opened = [stores.open() for _ in range(writers)]
        for store in opened:
            small_blocks(store)

        def work(number: int) -> None:
            for call in range(calls):
                half = {"w": [number] * rows, "c": [call] * rows, "n": list(range(rows))}
                opened[number].made.concat(half, half, name="new")

        with ThreadPoolExecutor(writers) as threads:
            list(threads.map(work, range(writers)))
        check_runs(opened[0], writers * calls, 2 * rows)
        command(opened[0], "OPTIMIZE TABLE p_new FINAL")
        check_runs(opened[0], writers * calls, 2 * rows)


def check_runs(store: Any, calls: int, rows: int) -> None:
    """So many blocks, each together and in its order, and row ids that grow with them."""
    order = "toUInt32(splitByChar('_', _part)[2]), _part_offset"
    ((runs, descents, count),) = sql(
        store,
        "SELECT countIf(b != before), countIf(r <= last), count() FROM (SELECT takehold_block AS b, row_id AS r,"
        f" lagInFrame(takehold_block) OVER (ORDER BY {order}) AS before, lagInFrame(row_id) OVER (ORDER BY {order})"
        " AS last FROM p_new) SETTINGS max_block_size = 65536",
    )
    assert (runs, descents, count) == (calls, 0, calls * rows)
    assert [block.rows for block in store.blocks("new")] == [rows] * calls


@everywhere
@pytest.mark.covers("A-35", "A-36")
def test_row_ids_grow_with_the_order_of_the_rows_in_a_table_without_keys(stores: Stores) -> None:
    store = stores.open()
    store.create([0], "new")
    command(
        store, f"CREATE TABLE t_1 (value Int64) ORDER BY tuple() AS SELECT number FROM numbers({scaled(2_000_000)})"
    )
    many = store.object("t_1")
    small_blocks(store)
    for _ in range(2):
        store.insert("new", many)
    store.insert("new", [1, 2, 3])
    blocks = store.blocks("new")
    assert [block.rows for block in blocks] == [1, scaled(2_000_000), scaled(2_000_000), 3]
    for one, other in pairwise(blocks):
        assert one.last < other.first
    order = "toUInt32(splitByChar('_', _part)[2]), _part_offset"
    ((descents,),) = sql(
        store, f"SELECT countIf(d <= 0) - 1 FROM (SELECT row_id - lagInFrame(row_id) OVER (ORDER BY {order}) AS d"
        " FROM (SELECT row_id, _part, _part_offset FROM p_new))"
    )  # fmt: skip
    assert descents <= 0
    ((engine, sorting, partition, full),) = sql(
        store, "SELECT engine, sorting_key, partition_key, engine_full FROM system.tables WHERE name = 'p_new'"
    )
    assert (engine, sorting, partition) == ("MergeTree", "", "")
    assert "ORDER BY tuple()" in full


@everywhere
@pytest.mark.covers("A-22", "A-34")
def test_each_way_to_add_rows_to_a_shared_table_asks_for_its_lock_and_adds_none_without(stores: Stores) -> None:
    store = stores.open()
    store.create(FOUR, "there")
    there = store.object("there")
    ways: dict[str, Callable[[], Any]] = {
        "insert": lambda: store.insert("there", FOUR),
        "insert of an object": lambda: store.insert(there, there, FOUR),
        "create on existing": lambda: store.create(FOUR, "there"),
        "create of a new one": lambda: store.create(FOUR, "new"),
        "create for a job": lambda: store.create(FOUR, "new", job=7),
        "concat on existing": lambda: store.concat(there, FOUR, name="there"),
        "concat into a new one": lambda: store.concat(there, FOUR, name="new"),
    }
    for name, way in ways.items():
        with forbidden(store), pytest.raises(Forbidden.Asked):
            way()
        assert there.value() == FOUR, name
        assert store.tables() == ["p_there"], name
    for way in ways.values():
        way()
    assert [len(store.blocks(name)) for name in ("there", "new", "j_7_new")] == [5, 2, 1]


@pytest.mark.covers("A-12")
def test_an_error_in_the_middle_frees_the_lock_and_is_the_servers_own(store: Any) -> None:
    store.create(FOUR, "new")
    command(store, "ALTER TABLE p_new ADD COLUMN z UInt8 MATERIALIZED throwIf(n = 7, 'seven')")
    with pytest.raises(Exception, match="seven") as caught:
        store.insert("new", FOUR, {"w": [1], "n": [7]})
    assert type(caught.value).__module__.startswith("clickhouse_connect")
    assert any("is unfinished: 4 rows of it stay" in note for note in caught.value.__notes__)
    assert store.object("new").value() == FOUR, "what is unfinished is skipped"
    whole, part = store.blocks("new")
    assert (whole.state, part.state, part.rows) == ("finished", "unfinished", 4)
    assert store.insert("new", {"w": [2], "n": [0]}, timeout=5).rows == 1
    with pytest.raises(UsageError, match="unfinished=True"):
        store.read_block(part)
    assert store.read_block(part.id, unfinished=True).num_rows == 4
    assert store.read_block(whole.id)["n"].to_pylist() == FOUR["n"]


@pytest.mark.covers("A-39")
def test_each_call_leaves_a_record_by_which_its_rows_are_read_again(store: Any) -> None:
    store.create(FOUR, "new")
    block = store.insert("new", {"w": [2], "n": [9]}, {"w": [3, 3], "n": [8, 7]})
    first, second = store.blocks("new")
    assert (first.rows, second.rows, second.id) == (4, 3, block.id)
    assert first.fence < second.fence == block.fence
    assert first.last < second.first < second.last
    assert second.writer == block.writer
    assert second.at is not None
    assert store.read_block(block.id).to_pydict()["n"] == [9, 8, 7]
    assert store.table("new").read(block).num_rows == 3
    for wrong in (block.id + 1, "x", True):
        with pytest.raises(UsageError, match="block"):
            store.read_block(wrong)


@pytest.mark.covers("A-42")
def test_a_token_makes_a_call_one_block_however_often_also_after_the_table_was_made_again(store: Any) -> None:
    for _ in range(3):
        store.create(FOUR, "new", token="monday")
        store.insert("new", FOUR, FOUR, token="tuesday")
    assert [block.rows for block in store.blocks("new")] == [4, 8]
    store.drop("new")
    store.create(FOUR, "new", token="monday")
    assert [block.rows for block in store.blocks("new")] == [4]
    for wrong in ("", 7):
        with pytest.raises(UsageError, match="token"):
            store.insert("new", FOUR, token=wrong)
    with pytest.raises(UsageError, match="give it a name"):
        store.create(FOUR, token="monday")


# ------------------------------------------------------------------------------------------------ refused before a lock


@everywhere
@pytest.mark.covers("A-10", "A-36")
def test_bad_input_is_refused_before_any_lock_and_nothing_is_written(stores: Stores) -> None:
    store = stores.open()
    store.create(FOUR, "there")
    for name, keys in {"sorted": "ORDER BY n", "parted": "PARTITION BY w ORDER BY tuple()"}.items():
        command(store, f"CREATE TABLE p_{name} (w Int64, n Int64) ENGINE = MergeTree {keys}")
    command(store, "CREATE TABLE p_log (w Int64, n Int64) ENGINE = Log")
    calls: dict[str, Callable[[], Any]] = {
        "cannot hold 'x'": lambda: store.insert("there", {"w": [1], "n": ["x"]}),
        "cannot hold 1.5": lambda: store.insert("there", FOUR, {"w": [1], "n": [1.5]}),
        "has the columns": lambda: store.insert("there", {"w": [1]}),
        "what is given has": lambda: store.insert("there", [1, 2]),
        "has 2 rows and column": lambda: store.insert("there", {"w": [1, 2], "n": [1]}),
        "row 1 has no 'n'": lambda: store.create([{"w": 1, "n": 2}, {"w": 1}], "there"),
        "no one type": lambda: store.create([1, "a"], "new"),
        "there are no rows": lambda: store.create([], "new"),
        "has no type": lambda: store.create([None], "new"),
        "letters, digits and _": lambda: store.create(FOUR, "new-one"),
        "not begin with a digit": lambda: store.create(FOUR, "1new"),
        "begins like a whole": lambda: store.create(FOUR, "p_new"),
        "a job is a number": lambda: store.create(FOUR, "new", job=-1),
        "no table .*p_nothere": lambda: store.insert("nothere", FOUR),
        "there is no table": lambda: store.insert("j_1_new", FOUR),
        "did you mean .*p_there": lambda: store.insert("thre", FOUR),
        "Takehold's own": lambda: store.create({"row_id": [1]}, "new"),
        "sorted by": lambda: store.insert("sorted", FOUR),
        "partitioned by": lambda: store.concat(FOUR, FOUR, name="parted"),
        "the engine Log": lambda: store.create(FOUR, "log"),
    }
    with forbidden(store):
        for sentence, call in calls.items():
            with pytest.raises(UsageError, match=sentence):
                call()
    assert store.object("there").value() == FOUR
    assert store.tables() == ["p_log", "p_parted", "p_sorted", "p_there"]
    for name in ("sorted", "parted", "log"):
        assert sql(store, f"SELECT count() FROM p_{name}") == [(0,)]
    for name in ("sorted", "parted"):
        assert store.insert(name, FOUR, contiguous=False).rows == 4


@pytest.mark.covers("A-28")
def test_rows_that_were_mixed_before_stay_as_they_are(store: Any) -> None:
    command(store, "CREATE TABLE p_old (w Int64, n Int64) ENGINE = MergeTree ORDER BY tuple()")
    for number in range(4):
        command(store, f"INSERT INTO p_old VALUES ({number % 2}, {number})")
    store.insert("old", FOUR)
    command(store, "OPTIMIZE TABLE p_old FINAL")
    assert store.object("old").value() == {"w": [0, 1, 0, 1, 1, 1, 1, 1], "n": [0, 1, 2, 3, 0, 1, 2, 3]}
    assert [block.rows for block in store.blocks("old")] == [4]


# -------------------------------------------------------------------------------------------- the lock on PostgreSQL


@pytest.mark.covers("A-14")
def test_a_lock_that_is_held_is_idle_and_never_idle_in_transaction(
    distributed: Place, postgres_server: Postgres
) -> None:
    setting = "idle_in_transaction_session_timeout"
    postgres_server.query(f"ALTER DATABASE {EMPTIED} SET {setting} = '500ms'")
    try:
        with Stores("blocking", distributed) as stores, stores.open().made.table_lock("p_new") as hold:
            ((_, pid, granted),) = number_of(postgres_server.advisory_locks())
            assert granted
            until, state = time.monotonic() + 1.2, ""
            while time.monotonic() < until:
                ((state,),) = postgres_server.query("SELECT state FROM pg_stat_activity WHERE pid = %s", pid)
                assert state in {"idle", "active"}  # active: when it is asked whether it is there
                time.sleep(0.02)
            assert state == "idle"
            assert [one[1] for one in number_of(postgres_server.advisory_locks())] == [pid]
            hold.check()
    finally:
        postgres_server.query(f"ALTER DATABASE {EMPTIED} RESET {setting}")


@pytest.mark.covers("A-15", "A-18")
def test_a_lock_that_was_gone_when_it_is_given_back_is_a_loss_and_its_connection_ends(
    distributed: Place, postgres_server: Postgres
) -> None:
    with Stores("blocking", distributed) as stores:
        store, backends = stores.open().made, []

        def lose() -> None:
            with store.table_lock("p_new") as hold:
                ((_, pid, _),) = number_of(postgres_server.advisory_locks())
                postgres_server.query("SELECT pg_terminate_backend(%s)", pid)
                assert hold.wait_lost(10)
                backends.append(pid)

        with pytest.raises(takehold.HoldLost):
            lose()
        with store.table_lock("p_new", timeout=10) as hold:
            ((_, other, _),) = number_of(postgres_server.advisory_locks())
            assert [other] != backends
            hold.check()


@pytest.mark.covers("A-18", "A-42")
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_lock_lost_in_the_middle_of_a_call_is_an_unknown_outcome_with_the_block(
    face: str, distributed: Place, postgres_server: Postgres, clickhouse_client: Any
) -> None:
    running = (
        "SELECT count() FROM system.processes WHERE startsWith(query_id, 'takehold-')"
        " AND current_database = currentDatabase() AND written_rows > 0"
    )
    with Stores(face, distributed) as stores:
        store = stores.open()
        store.create([1], "new")
        command(store, "ALTER TABLE p_new ADD COLUMN z UInt8 MATERIALIZED sleepEachRow(0.05)")

        def cut() -> None:
            eventually(lambda: clickhouse_client.query(running).result_rows == [(1,)])
            ((_, pid, _),) = number_of(postgres_server.advisory_locks())
            postgres_server.query("SELECT pg_terminate_backend(%s)", pid)

        helper = threading.Thread(target=cut)
        helper.start()
        with pytest.raises(UnknownOutcome, match="its lock was lost") as caught:
            store.insert("new", [2] * 20, token="once")
        helper.join()
        command(store, "ALTER TABLE p_new DROP COLUMN z")
        assert store.insert("new", [2] * 20, token="once").id == caught.value.block  # type: ignore[attr-defined]
        assert store.object("new").value() == [1] + [2] * 20


@pytest.mark.covers("A-16")
def test_a_cancelled_writer_leaves_no_waiter_and_no_lock(distributed: Place, postgres_server: Postgres) -> None:
    async def cancelled() -> None:
        async with clickhouse.open_async(distributed.ch_url, distributed.sql_url) as store:
            waiting = asyncio.create_task(store.insert("new", FOUR))
            number = await store.registry.advisory_id("p_new")

            def lines(granted: bool) -> int:
                return sum(one == (number, one[1], granted) for one in number_of(postgres_server.advisory_locks()))

            while not await asyncio.to_thread(lines, False):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while await asyncio.to_thread(lines, False):
                await asyncio.sleep(0.01)

    with Stores("blocking", distributed) as stores:
        holder = stores.open()
        holder.create(FOUR, "new")
        with holder.made.table_lock("new") as hold:
            asyncio.run(cancelled())
            hold.check()
            assert [one[2] for one in number_of(postgres_server.advisory_locks())] == [True]
        assert eventually(lambda: postgres_server.advisory_locks() == [])
        assert holder.object("new").value() == FOUR
        assert holder.insert("new", FOUR, timeout=5).rows == 4


@pytest.mark.covers("A-17")
def test_the_body_has_its_pool_of_one_for_itself_whoever_waits(distributed: Place) -> None:
    url = distributed.sql_url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=20)
    inside = 0
    with Stores("blocking", distributed) as stores:
        store = stores.open().made

        def work(_: int) -> int:
            nonlocal inside
            with store.table_lock("p_new", timeout=60), engine.connect() as body:
                inside += 1
                assert inside == 1
                found = int(body.scalar(text("SELECT 1")) or 0)
                inside -= 1
                return found

        with ThreadPoolExecutor(11) as threads:
            assert list(threads.map(work, range(11))) == [1] * 11
    engine.dispose()


# ------------------------------------------------------------------------------------------ for an INSERT of one's own


@pytest.mark.covers("A-11", "A-37")
def test_the_lock_of_a_table_is_the_same_by_every_door_and_in_both_faces(place: Place) -> None:
    async def excluded(url: str) -> None:
        with pytest.raises(LockTimeout):
            async with clickhouse.table_lock("p_new", url, timeout=0.05):
                pytest.fail("two are in")

    with Stores("blocking", place) as stores:
        store = stores.open().made
        with store.table_lock("new") as hold:
            assert hold.keys == (advisory(store.registry.advisory_id("p_new"), label="p_new"),)
            asyncio.run(excluded(place.sql_url))
        with clickhouse.table_lock("p_new", registry=store.registry, locks=store.locks) as hold:
            asyncio.run(excluded(place.sql_url))
        with clickhouse.table_lock("p_new", place.sql_url) as hold:
            assert hold.keys[0] == advisory(store.registry.advisory_id("p_new"))
            with ThreadPoolExecutor(1) as other, pytest.raises(LockTimeout):
                other.submit(store.create, FOUR, "new", timeout=0.05).result()

    async def inside() -> None:
        async with clickhouse.open_async(place.ch_url, place.sql_url) as store:
            async with store.table_lock("new"):
                await asyncio.create_task(excluded(place.sql_url))
            async with clickhouse.table_lock("p_new", registry=store.registry, locks=store.locks) as hold:
                assert hold.fence > 0
                await asyncio.create_task(excluded(place.sql_url))

    asyncio.run(inside())


@pytest.mark.covers("A-12", "A-37")
def test_the_lock_goes_when_its_body_raises_and_the_error_is_the_bodys(place: Place) -> None:
    with Stores("blocking", place) as stores:
        store = stores.open().made
        for door in (store.table_lock, lambda table: clickhouse.table_lock(table, place.sql_url)):
            with pytest.raises(ZeroDivisionError), door("p_new"):
                raise ZeroDivisionError
            with ThreadPoolExecutor(1) as other:
                assert other.submit(store.create, FOUR, "new", timeout=5).result().table == "p_new"


@pytest.mark.covers("A-37")
def test_a_lock_without_a_place_or_of_the_other_face_is_refused(
    embedded: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAKEHOLD_URL", raising=False)
    with pytest.raises(UsageError, match="TAKEHOLD_URL"):
        clickhouse.table_lock("p_new")
    with Stores("blocking", embedded) as stores:
        store = stores.open().made
        monkeypatch.setenv("TAKEHOLD_URL", embedded.sql_url)
        lock = clickhouse.table_lock("p_new")
        with lock:
            pass
        with pytest.raises(UsageError, match="entered once"):
            lock.__enter__()

        async def wrong() -> None:
            async with clickhouse.table_lock("p_new", registry=store.registry):
                pass

        with pytest.raises(UsageError, match="takes AsyncRegistry"):
            asyncio.run(wrong())
        with pytest.raises(UsageError, match="is a result"), store.table_lock(store.create([1])):
            pass


@pytest.mark.covers("A-38")
def test_an_insert_of_ones_own_is_ended_before_the_next_writer_begins(distributed: Place) -> None:
    with Stores("blocking", distributed) as stores:
        store = stores.open()
        store.create([1], "new")
        server = store.made._core.channel.client
        slow = (
            "INSERT INTO p_new (value) SELECT toInt64(2 + sleepEachRow(0.02)) FROM numbers(3000) SETTINGS"
            " max_block_size = 1, min_insert_block_size_rows = 1, function_sleep_max_microseconds_per_block = 0"
        )
        with store.made.table_lock("new") as hold:
            query_id = clickhouse.query_id(hold)
        # Its writer has died: the lock is free, and the server goes on.
        orphan = threading.Thread(target=lambda: _ended(server, slow, query_id))
        orphan.start()
        running = f"SELECT count() FROM system.processes WHERE query_id = '{query_id}'"
        assert eventually(lambda: sql(store, running) == [(1,)])
        with store.made.table_lock("new"):
            assert sql(store, running) == [(0,)]
        orphan.join()


def _ended(client: Any, statement: str, query_id: str) -> None:
    with pytest.raises(Exception, match=r"cancelled|394"):
        client.command(statement, settings={"query_id": query_id})


def test_a_copy_that_fails_leaves_no_table_that_passes_for_the_whole(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store.create([1, 2, 3], name="source")
    core = store.made._core
    command = core.channel.command

    async def failing(sql: str, *args: Any, **settings: Any) -> Any:
        answer = await command(sql, *args, **settings)
        if sql.startswith("INSERT INTO"):
            raise ConnectionError("in the middle")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(core.channel, "command", failing)
        with pytest.raises(ConnectionError):
            store.copy(source, "target")
    assert store.tables() == ["p_source"]
    assert store.copy(source, "target").value() == [1, 2, 3]
    assert store.tables() == ["p_source", "p_target"]
    with pytest.raises(UsageError, match="is there already"):
        store.copy(source, "target")


@pytest.mark.parametrize("name", ["p_prices", "j_7_prices"])
def test_a_table_named_like_one_of_a_store_is_not_locked_by_its_name_unless_that_is_said(name: str) -> None:
    class Client:
        database = "default"

        def command(self) -> None: ...

    locks = takehold.Locks("sqlite:///never.db")
    with pytest.raises(UsageError, match=r"store\.table\('" + name):
        clickhouse.Table(Client(), name, locks=locks)
    assert clickhouse.Table(Client(), name, locks=locks, key=f"clickhouse/default.{name}").name.table == name
