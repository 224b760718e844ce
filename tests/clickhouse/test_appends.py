"""Appends by several writers: each block together, dead writers out of the way."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import takehold
import takehold.clickhouse
from takehold import Locks, StaleFence, UnknownOutcome
from takehold.clickhouse import Table
from takehold.clickhouse.appending import Rows, query_tag
from takehold.clickhouse.block import Block
from takehold.clickhouse.channel import Body
from takehold.runtime import run
from takehold.testing.faces import eventually
from tests.clickhouse.appends import COLUMNS, ENGINE, ROW_BY_ROW, SMALL_BLOCKS, Writer, rows_of, runs, slow, together
from tests.lanes import scaled

pytestmark = [pytest.mark.slow, pytest.mark.crash]


@pytest.fixture
def locks(postgres_url: str) -> Iterator[Locks]:
    made = Locks(postgres_url, label="this")
    made.init()
    with made:
        yield made


@pytest.fixture
def table(clickhouse_client: Any, locks: Locks) -> Table:
    clickhouse_client.command(f"CREATE TABLE events {COLUMNS} {ENGINE}")
    return Table(clickhouse_client, "events", locks=locks)


@pytest.fixture
def usual(clickhouse_server: Any, clickhouse_database: str, postgres_url: str, table: Table) -> dict[str, Any]:
    """What every writer is told."""
    return {"port": clickhouse_server.port, "database": clickhouse_database, "locks": postgres_url, "table": "events"}


@pytest.fixture
def writer(usual: dict[str, Any]) -> Iterator[Callable[..., Writer]]:
    """Makes a process to kill."""
    started: list[Writer] = []

    def start(**orders: Any) -> Writer:
        started.append(Writer(**usual | orders))
        return started[-1]

    yield start
    for one in started:
        one.__exit__()


@pytest.fixture(scope="module")
def crew() -> Iterator[list[Writer]]:
    """Four processes for all tests that kill none."""
    with ExitStack() as started:
        yield [started.enter_context(Writer()) for _ in range(4)]


def running(client: Any, key: str) -> list[tuple[Any, ...]]:
    """The inserts of a key that the server is at."""
    rows = client.query(
        f"SELECT query_id, Settings FROM system.processes WHERE startsWith(query_id, '{query_tag(key)}')"
    ).result_rows
    return list(rows)


def count(client: Any, where: str = "1") -> int:
    return int(client.command(f"SELECT count() FROM events WHERE {where}"))


# -- together -----------------------------------------------------------------------------------------------------


def load(crew: list[Writer], usual: dict[str, Any], **orders: Any) -> list[int]:
    """All at once; the ids of their blocks."""
    together(crew, *(usual | {"writer": number, "settings": SMALL_BLOCKS} | orders for number in range(1, 5)))
    results = [one.result() for one in crew]
    assert all("blocks" in result for result in results), results
    return [number for result in results for number in result["blocks"]]


@pytest.mark.covers("A-25", "A-36")
def test_each_insert_of_four_processes_is_one_run_of_rows_also_after_a_merge(
    clickhouse_client: Any, table: Table, crew: list[Writer], usual: dict[str, Any]
) -> None:
    inserts, rows = max(4, scaled(25)), max(10_000, scaled(50_000))
    ids = load(crew, usual, inserts=inserts, rows=rows)
    assert len(runs(clickhouse_client, "events")) == 4 * inserts, "writer switches = inserts - 1"
    clickhouse_client.command("OPTIMIZE TABLE events FINAL")
    parts = "SELECT count() FROM system.parts WHERE active AND database = currentDatabase() AND table = 'events'"
    assert clickhouse_client.command(parts) == 1
    assert len(runs(clickhouse_client, "events")) == 4 * inserts
    assert count(clickhouse_client) == 4 * inserts * rows
    blocks = table.blocks()
    assert [(block.finished, block.rows) for block in blocks] == [(True, rows)] * (4 * inserts)
    assert sorted(block.id for block in blocks) == sorted(ids)
    for block in blocks[:: max(1, inserts // 2)]:
        assert table.read(block)["n"].to_pylist() == list(range(rows)), "in the order in which they were given"


@pytest.mark.covers("A-25")
def test_the_same_load_without_the_lock_interleaves(
    clickhouse_client: Any, crew: list[Writer], usual: dict[str, Any]
) -> None:
    inserts = max(4, scaled(25))
    load(crew, usual, inserts=inserts, rows=30_000, unlocked=True)
    assert count(clickhouse_client) == 4 * inserts * 30_000
    assert len(runs(clickhouse_client, "events")) > 4 * inserts


@pytest.mark.covers("A-26")
def test_inserts_into_two_tables_run_at_the_same_time(
    clickhouse_server: Any, clickhouse_client: Any, crew: list[Writer], usual: dict[str, Any]
) -> None:
    clickhouse_client.command(f"CREATE TABLE others {COLUMNS} {ENGINE}")
    names = ("events", "others")
    keys = [f"clickhouse/{clickhouse_client.database}.{name}" for name in names]
    together(crew[:2], *(usual | {"table": name, "writer": 1, "rows": 6_000, "slow": 0.01} for name in names))
    try:
        eventually(lambda: all(running(clickhouse_client, key) for key in keys), "the server is at both")
    finally:
        clickhouse_server.evict(clickhouse_client.database)
        assert all("was cancelled" in one.result()["error"] for one in crew[:2])


def _embedded(folder: Path, **orders: Any) -> dict[str, Any]:
    with Writer(embedded=str(folder), **orders) as one:  # which can have no other engine after this one
        one.go()
        return one.result()


@pytest.mark.covers("A-20", "A-25")
def test_embedded_connections_of_one_process_append_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("chdb")
    inserts = max(3, scaled(20))
    said = _embedded(tmp_path, inserts=inserts, rows=20_000)
    assert len(said["runs"]) == 4 * inserts
    assert said["blocks"] == [[20_000, "finished"]] * (4 * inserts)


@pytest.mark.covers("A-20")
def test_embedded_connections_interleave_without_the_lock(tmp_path: Path) -> None:
    pytest.importorskip("chdb")
    said = _embedded(tmp_path, inserts=3, rows=20_000, unlocked=True)
    assert len(said["runs"]) > 12


# -- what a block is ----------------------------------------------------------------------------------------------


@pytest.mark.covers("A-39")
def test_a_block_counts_its_own_rows_also_where_a_view_copies_them(clickhouse_client: Any, table: Table) -> None:
    clickhouse_client.command(f"CREATE TABLE copies {COLUMNS} {ENGINE}")
    clickhouse_client.command("CREATE MATERIALIZED VIEW copying TO copies AS SELECT w, b, n FROM events")
    block = run(table._appender.write([slow(1, 3, 0.0)]))
    given = table.append(rows_of(2, 1, 5))
    assert (block.rows, given.rows) == (3, 5)
    assert [one.rows for one in table.blocks()] == [3, 5]
    assert clickhouse_client.command("SELECT count() FROM copies") == 8


@pytest.mark.covers("A-25")
@pytest.mark.parametrize("how", ["narrowed", "sorted"])
def test_a_table_that_was_altered_since_it_was_looked_at_is_checked_again(
    clickhouse_client: Any, table: Table, how: str
) -> None:
    data = {"w": [1], "b": [300], "n": [1]}
    table.append(data)
    if how == "narrowed":
        clickhouse_client.command("ALTER TABLE events MODIFY COLUMN b UInt8")
    else:
        clickhouse_client.command("DROP TABLE events")
        clickhouse_client.command(f"CREATE TABLE events {COLUMNS} ENGINE = MergeTree ORDER BY n")
    with pytest.raises(takehold.UsageError, match="cannot hold 300" if how == "narrowed" else "is sorted by"):
        table.append(data)
    assert count(clickhouse_client) == (1 if how == "narrowed" else 0)
    if how == "narrowed":
        clickhouse_client.command("ALTER TABLE events MODIFY COLUMN b UInt64")
        assert table.read(table.append(data))["b"].to_pylist() == [300], "and what may go on goes on"


@pytest.mark.parametrize("name", ["n", "low", "high"])
def test_the_column_of_row_ids_may_have_any_name(clickhouse_client: Any, locks: Locks, name: str) -> None:
    columns = f"x UInt8, {name} UInt64 DEFAULT generateSnowflakeID()"
    clickhouse_client.command(f"CREATE TABLE named ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    named = Table(clickhouse_client, "named", locks=locks)
    block = named.append([{"x": 1}, {"x": 2}])
    (known,) = named.blocks()
    assert known.first == named.read(block)[name][0].as_py()


@pytest.mark.covers("A-38")
def test_what_a_later_writer_has_begun_is_not_ended_as_that_of_a_dead_one(
    clickhouse_client: Any, table: Table, writer: Callable[..., Writer]
) -> None:
    """It came between the question who is running and the KILL QUERY; and to `clear` under a hold that was lost."""
    later = writer(writer=2, rows=300, slow=0.01, settings=ROW_BY_ROW)
    later.go()
    eventually(lambda: count(clickhouse_client), "it is in the middle")
    run(table._appender.clear(Dead()))
    appender, rows = table._appender, table._appender.channel.rows
    block = Block(1, str(table.name), 0, "running", "", 1 << 40)

    async def listed_before(sql: str, **settings: Any) -> Any:
        if "log_comment" in sql:
            return [(f"{query_tag(table.name.key)}0-1-0", "of a dead writer")]
        return await rows(sql, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appender.channel, "rows", listed_before)
        run(appender._clear(block))
    assert "blocks" in later.result()


@pytest.mark.covers("A-42")
def test_an_append_does_not_read_what_was_in_the_table_before(clickhouse_client: Any, table: Table) -> None:
    """Parts from before our columns have no index of them: counting would go through every row."""
    clickhouse_client.command("INSERT INTO events SELECT 9, 9, number FROM numbers(1000000)")
    table.append(rows_of(1, 1, 10))
    before = int(clickhouse_client.command("SELECT value FROM system.events WHERE event = 'SelectedRows'"))
    table.append(rows_of(1, 2, 10))
    read = int(clickhouse_client.command("SELECT value FROM system.events WHERE event = 'SelectedRows'")) - before
    assert read < 500_000


@pytest.mark.covers("A-39")
def test_a_block_that_begins_while_a_table_is_read_is_not_read_by_halves(
    clickhouse_client: Any, table: Table, writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(writer=2, rows=30_000, slow=0.01, settings=ROW_BY_ROW)
    one.ready()
    table.append(rows_of(1, 1, 5))
    listed = table._reader.blocks

    async def then_another_begins(only: int | None = None) -> Any:
        found = await listed(only)
        one.go()
        eventually(lambda: count(clickhouse_client) > 7, "it is in the middle")
        return found

    monkeypatch.setattr(table._reader, "blocks", then_another_begins)
    assert table.read()["w"].to_pylist() == [1] * 5


def test_the_client_asks_rows_for_their_text_and_gets_none(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once this fails the client has stopped looking for SQL in bodies, and `Body` can go."""
    assert Body(b"INSERT INTO \xff").decode("utf-8", errors="surrogateescape") == ""
    asked: list[int] = []

    def decode(self: Body, *_: Any, **__: Any) -> str:
        asked.append(len(self))
        return ""

    monkeypatch.setattr(Body, "decode", decode)
    block = table.append(rows_of(1, 1, 1_000))
    assert asked
    assert table.read(block).num_rows == 1_000


@pytest.mark.covers("A-38")
def test_an_insert_runs_on_one_thread_and_past_no_buffer(
    clickhouse_client: Any, table: Table, writer: Callable[..., Writer]
) -> None:
    one = writer(writer=1, rows=1_000, slow=0.01)
    one.go()
    ((query_id, settings),) = eventually(lambda: running(clickhouse_client, table.name.key))
    assert {name: settings[name] for name in ("async_insert", "max_insert_threads", "max_threads")} == {
        "async_insert": "0",
        "max_insert_threads": "1",
        "max_threads": "1",
    }
    assert query_id.startswith(query_tag("clickhouse/" + str(table.name)))


# -- dead and overtaken writers -----------------------------------------------------------------------------------


@pytest.mark.covers("A-13", "A-27", "A-38", "A-39")
def test_the_insert_of_a_killed_writer_ends_before_the_next_begins(
    clickhouse_client: Any, table: Table, writer: Callable[..., Writer]
) -> None:
    dying = writer(writer=1, rows=30_000, slow=0.01, label="dying", settings=ROW_BY_ROW)
    dying.go()
    eventually(lambda: count(clickhouse_client) >= 5, "it is in the middle")
    (orphan,) = running(clickhouse_client, table.name.key)
    dying.kill()
    began = time.monotonic()
    block = table.append(rows_of(2, 1, 100))
    assert time.monotonic() - began < 20, "it waited neither for the 300 s of the insert nor for the lock's timeout"
    assert not running(clickhouse_client, table.name.key)
    assert runs(clickhouse_client, "events") == [(1, 1), (2, 1)]
    dead, ours = table.blocks()
    assert (dead.state, dead.writer) == ("unfinished", f"{dead.writer.split(':')[0]}:{dying.pid} (dying)")
    assert str(dead.id) in orphan[0]
    assert 5 <= dead.rows < 30_000
    assert dead.fence < ours.fence
    assert (ours.id, ours.rows, ours.finished) == (block.id, 100, True)
    assert table.read().num_rows == 100, "what is unfinished is left out"
    assert table.read().schema.metadata[b"takehold.unfinished"] == b"1"
    assert table.read(unfinished=True).num_rows == 100 + dead.rows
    assert table.read(dead, unfinished=True).num_rows == dead.rows
    with pytest.raises(takehold.UsageError, match="unfinished=True"):
        table.read(dead)


class Dead:
    """The hold of a writer that has died without knowing."""

    lost = False
    fence = 0
    owner = takehold.Owner("elsewhere", 7, None, "")

    def check(self) -> None: ...


@pytest.mark.covers("A-38")
def test_an_insert_that_arrives_after_its_writer_was_overtaken_is_refused(clickhouse_client: Any, table: Table) -> None:
    """It was on its way when the writer died: no KILL QUERY could have met it."""
    table.append(rows_of(2, 1, 1))
    with pytest.raises(StaleFence, match="nothing was written"):
        run(table._appender.write_held([slow(1, 3, 0.0)], Dead()))
    assert runs(clickhouse_client, "events") == [(2, 1)]


@pytest.mark.covers("A-12", "A-38")
def test_ctrl_c_ends_the_insert_frees_the_key_and_leaves_an_unfinished_block(
    clickhouse_client: Any, table: Table, writer: Callable[..., Writer]
) -> None:
    stopped = writer(writer=1, rows=30_000, slow=0.01, settings=ROW_BY_ROW)
    stopped.go()
    eventually(lambda: count(clickhouse_client) >= 3, "it is in the middle")
    stopped.kill(signal.SIGINT)
    assert stopped.result() == {"error": "KeyboardInterrupt"}
    assert not running(clickhouse_client, table.name.key)
    (block,) = table.blocks()
    assert (block.state, block.rows >= 3) == ("unfinished", True)
    assert table.append(rows_of(2, 1, 10), timeout=5).finished


@pytest.mark.covers("A-16", "A-38")
def test_a_cancelled_append_ends_its_insert_and_frees_the_key(
    clickhouse_server: Any, clickhouse_database: str, clickhouse_client: Any, table: Table, postgres_url: str
) -> None:
    async def cancelled() -> None:
        import clickhouse_connect

        client = await clickhouse_connect.get_async_client(
            host="127.0.0.1", port=clickhouse_server.port, database=clickhouse_database, settings=ROW_BY_ROW
        )
        async with takehold.AsyncLocks(postgres_url) as locks:
            appender = takehold.clickhouse.AsyncTable(client, "events", locks=locks)._appender
            task = asyncio.create_task(appender.write([slow(1, 30_000, 0.01)]))
            while not await asyncio.to_thread(count, clickhouse_client):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await asyncio.to_thread(running, clickhouse_client, table.name.key)
            assert not [record for record in await locks.who() if record.key == table.name.key]
        await client.close()

    asyncio.run(cancelled())
    (block,) = table.blocks()
    assert block.state == "unfinished"
    assert block.rows > 0


# -- lost, and again with a token ---------------------------------------------------------------------------------


def cut_off(postgres_server: Any) -> None:
    """End every lock session."""
    postgres_server.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'takehold%' AND pid != pg_backend_pid()"
    )


SLOW_COLUMN = "ALTER TABLE events ADD COLUMN z UInt8 MATERIALIZED sleepEachRow(0.02)"


@pytest.mark.covers("A-18", "A-42")
def test_a_hold_lost_in_the_middle_is_an_unknown_outcome_and_may_be_repeated_with_its_token(
    clickhouse_client: Any, table: Table, postgres_server: Any
) -> None:
    clickhouse_client.command(SLOW_COLUMN)
    for name, value in ROW_BY_ROW.items():
        clickhouse_client.set_client_setting(name, value)
    data = {"w": [1] * 100, "b": [1] * 100, "n": range(100)}

    def cut() -> None:
        eventually(lambda: running(clickhouse_client, table.name.key))
        cut_off(postgres_server)

    helper = threading.Thread(target=cut)
    helper.start()
    with pytest.raises(UnknownOutcome, match="its lock was lost") as caught:
        table.append(data, token="nightly")
    helper.join()
    block = table.append(data, token="nightly")
    assert block.id == caught.value.block  # type: ignore[attr-defined]
    assert count(clickhouse_client) == 100
    assert [one.finished for one in table.blocks()] == [True]


@pytest.mark.covers("A-18", "A-38", "A-39", "A-42")
def test_whoever_lost_its_hold_in_the_middle_and_was_overtaken_is_told_and_leaves_no_rows_behind_the_next(
    clickhouse_client: Any, table: Table, postgres_server: Any, writer: Callable[..., Writer]
) -> None:
    """Its process lives, its lock is gone: the next writer ends its insert as that of a dead one."""
    helper = threading.Thread(target=_overtake, args=[clickhouse_client, table, postgres_server, writer])
    helper.start()
    with pytest.raises(UnknownOutcome) as caught:
        run(table._appender.write([slow(1, 30_000, 0.01)]))
    helper.join()
    lost, other = table.blocks()
    assert lost.id == caught.value.block  # type: ignore[attr-defined]
    assert (lost.state, other.state) == ("unfinished", "finished")
    assert [one for one, _ in runs(clickhouse_client, "events")] in ([1, 2], [2])


def _overtake(client: Any, table: Table, postgres_server: Any, writer: Callable[..., Writer]) -> None:
    next_one = writer(writer=2, rows=10)
    next_one.ready()
    eventually(lambda: running(client, table.name.key))
    cut_off(postgres_server)
    next_one.go()
    assert "blocks" in next_one.result()


def three(writer: int) -> Rows:
    """Rows of which it is known before how many they are."""
    return Rows(
        ("w", "b", "n"),
        f"SELECT toUInt8({writer}) AS w, toUInt32(1) AS b, toUInt32(number) AS n FROM numbers(3)",
        count=3,
    )


@pytest.mark.covers("A-18", "A-42")
def test_a_call_of_two_parts_whose_first_answer_is_lost_is_unknown_and_repeated_with_its_token(
    clickhouse_client: Any, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = table._appender
    command, lost = appender.channel.command, list[str]()

    async def losing(sql: str, *args: Any, **settings: Any) -> Any:
        answer = await command(sql, *args, **settings)
        if sql.startswith(f"INSERT INTO {table.name.sql}") and not lost:
            lost.append(sql)
            raise ConnectionError("the answer got lost")
        return answer

    monkeypatch.setattr(appender.channel, "command", losing)
    with pytest.raises(UnknownOutcome, match="answer was lost") as caught:
        run(appender.write([three(1), three(2)], "nightly"))
    (block,) = table.blocks()
    assert (block.id, block.state, block.rows) == (caught.value.block, "unfinished", 3)  # type: ignore[attr-defined]
    assert run(appender.write([three(1), three(2)], "nightly")).rows == 6
    assert runs(clickhouse_client, "events") == [(1, 1), (2, 1)]


@pytest.mark.covers("A-18", "A-42")
@pytest.mark.parametrize("known", [True, False], ids=["of-known-length", "of-a-select"])
def test_a_writer_that_stalls_before_its_record_while_its_token_is_used_again_is_one_block(
    clickhouse_client: Any, table: Table, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Either the other one finds the whole block, and returns it, or it is the other one's and the first is told."""
    data = three(1) if known else replace(three(1), count=None)
    appender = table._appender
    other = Table(clickhouse_client, "events", locks=appender._locks)._appender
    table.append(rows_of(9, 1, 1))
    hold = appender.lock().acquire()
    hold.release()
    stalled = Dead()
    stalled.fence = hold.fence  # it was lost, and it does not know
    finish, blocks = appender.ledger.finish, list[Block]()

    async def too_late(*args: Any, **settings: Any) -> None:
        blocks.append(await other.write([data], "nightly"))
        await finish(*args, **settings)

    monkeypatch.setattr(appender.ledger, "finish", too_late)
    with pytest.raises(UnknownOutcome) as caught:
        run(appender.write_held([data], stalled, "nightly"))
    assert (blocks[0].id == caught.value.block) is known  # type: ignore[attr-defined]
    assert run(other.write([data], "nightly")).id == blocks[0].id
    assert count(clickhouse_client, "w = 1") == table.read(blocks[0]).num_rows == 3
    assert table.read().num_rows == 4
    assert [one.id for one in table.blocks() if one.finished and one.token] == [blocks[0].id]


@pytest.mark.covers("A-18", "A-38")
def test_whoever_is_overtaken_between_two_parts_is_not_told_that_nothing_was_written(
    clickhouse_client: Any, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = table._appender
    send = appender._send

    async def then_overtaken(rows: Rows, block: Block, query_id: str) -> int:
        written = await send(rows, block, query_id)
        await appender.ledger.begin(replace(block, id=block.id + 1, fence=block.fence + 1))
        return written

    monkeypatch.setattr(appender, "_send", then_overtaken)
    with pytest.raises(UnknownOutcome, match="a writer with fence"):
        run(appender.write([three(1), three(2)]))
    assert table.blocks()[0].rows == count(clickhouse_client) == 3


@pytest.mark.covers("A-42")
def test_a_writer_killed_in_the_middle_is_repeated_with_its_token_by_another(
    clickhouse_client: Any, table: Table, writer: Callable[..., Writer]
) -> None:
    clickhouse_client.command(SLOW_COLUMN)
    dying = writer(writer=1, rows=100, batch=1, token="nightly", settings=ROW_BY_ROW)
    dying.go()
    eventually(lambda: count(clickhouse_client) >= 3, "it is in the middle")
    dying.kill()
    table.append(rows_of(2, 1, 10))
    assert runs(clickhouse_client, "events") == [(1, 1), (2, 1)]
    assert 3 <= count(clickhouse_client, "w = 1") < 100
    block = table.append(rows_of(1, 1, 100), token="nightly")
    assert (block.finished, block.rows) == (True, 100)
    assert runs(clickhouse_client, "events") == [(2, 1), (1, 1)], "what the first attempt left is gone"
    assert count(clickhouse_client) == 110
    assert table.append(rows_of(1, 1, 100), token="nightly").id == block.id
    assert count(clickhouse_client) == 110
