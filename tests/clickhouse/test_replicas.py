"""Several replicas: a writer may have been connected to another one. And how often an append asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import clickhouse_connect
import pytest

from takehold import BackendRefused, Locks
from takehold.clickhouse import Table
from takehold.clickhouse.appending import query_tag
from takehold.testing.faces import eventually
from tests.clickhouse.appends import COLUMNS, ENGINE, ROW_BY_ROW, Writer, rows_of, runs
from tests.clickhouse.front import Front, Trips, front
from tests.servers.clickhouse import PAIR, ClickHouse

pytestmark = pytest.mark.slow

DATABASE = "replicated"


@pytest.fixture
def locks(postgres_url: str) -> Iterator[Locks]:
    made = Locks(postgres_url, label="this")
    made.init()
    with made:
        yield made


@pytest.fixture
def fronts(clickhouse_pair: tuple[ClickHouse, ClickHouse]) -> Iterator[list[tuple[Front, int]]]:
    """One before each replica; the table is at both, as if nothing had been replicated yet."""
    one, two = clickhouse_pair
    for server in clickhouse_pair:
        server.database(DATABASE)
        server.query(f"CREATE TABLE events {COLUMNS} {ENGINE}", database=DATABASE)
    with ExitStack() as opened:
        yield [opened.enter_context(front(one, two)), opened.enter_context(front(two, one))]
    for server in clickhouse_pair:
        server.evict(DATABASE)
        server.query(f"DROP DATABASE {DATABASE} SYNC")


def client(port: int) -> Any:
    options: dict[str, Any] = {"database": DATABASE, "autogenerate_session_id": False}
    return closing(clickhouse_connect.get_client(host="127.0.0.1", port=port, **options))


@pytest.mark.covers("A-41")
def test_a_server_with_replicas_is_refused_without_the_name_of_its_cluster(
    clickhouse_pair: tuple[ClickHouse, ClickHouse], fronts: list[tuple[Front, int]], locks: Locks
) -> None:
    with client(clickhouse_pair[0].port) as first:
        sentence = "reports 2 replicas in the cluster 'pair'; KILL QUERY reaches only the connected one.*cluster='pair'"
        with pytest.raises(BackendRefused, match=sentence):
            Table(first, "events", locks=locks).append(rows_of(1, 1, 1))
        assert first.command("SELECT count() FROM events") == 0
        assert not list(locks.who())


@pytest.mark.crash
@pytest.mark.covers("A-38", "A-41")
def test_the_insert_of_a_dead_writer_ends_at_whichever_replica_it_runs(
    clickhouse_pair: tuple[ClickHouse, ClickHouse],
    fronts: list[tuple[Front, int]],
    locks: Locks,
    postgres_url: str,
) -> None:
    (here, port), (_, other_port) = fronts
    with (
        client(port) as first,
        client(clickhouse_pair[1].port) as second,
        Writer(port=other_port, database=DATABASE, locks=postgres_url, table="events", cluster=PAIR) as dying,
    ):
        dying.go(writer=1, rows=30_000, slow=0.01, settings=ROW_BY_ROW)
        eventually(lambda: second.command("SELECT count() FROM events") >= 3, "it is in the middle, at the other one")
        dying.kill()
        table = Table(first, "events", locks=locks, cluster=PAIR)
        block = table.append(rows_of(2, 1, 10))
        assert block.finished
        ours = f"SELECT count() FROM system.processes WHERE startsWith(query_id, '{query_tag(table.name.key)}')"
        assert second.command(ours) == 0, "ended before our first row"
        assert runs(first, "events") == [(2, 1)]
        assert [sql.split(" ON ")[0] for sql in here.everywhere][-1] == "KILL QUERY"
        dead, _ = table.blocks()
        assert (dead.state, dead.writer.split(":")[1]) == ("unfinished", str(dying.pid))


@pytest.mark.covers("A-10", "A-11")
def test_an_append_asks_three_times_more_often_than_its_insert(
    clickhouse_server: ClickHouse, clickhouse_client: Any, postgres_server: Any, postgres_url: str
) -> None:
    """To take the lock, to record the block, to let go. A client's own `insert` asks once more than INSERT too."""
    clickhouse_client.command(f"CREATE TABLE events {COLUMNS} {ENGINE}")
    rows = rows_of(1, 1, 10)
    Locks(postgres_url).init()  # before any session is opened: one that is has no fences
    with Trips(clickhouse_server.port) as http, Trips(postgres_server.port) as sql:
        options: dict[str, Any] = {"database": clickhouse_client.database, "autogenerate_session_id": False}
        with (
            closing(clickhouse_connect.get_client(host="127.0.0.1", port=http.port, **options)) as counted,
            Locks(sql.url(postgres_url)) as locks,
        ):
            table = Table(counted, "events", locks=locks)
            table.append(rows)  # which also looks at the table, and opens the connection
            begun = http.trips, sql.trips
            for _ in range(10):
                table.append(rows)
            assert (http.trips - begun[0], sql.trips - begun[1]) == (20, 20)
            begun = http.trips, sql.trips
            counted.insert("events", [[1, 1, 1]], ["w", "b", "n"])
            assert (http.trips - begun[0], sql.trips - begun[1]) == (2, 0)
