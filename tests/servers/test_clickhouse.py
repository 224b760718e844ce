"""That the ClickHouse of the tests does what the tests take for granted; its entry point is a private name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from tests.servers.clickhouse import ClickHouse
from tests.servers.test_servers import eventually, refused

pytestmark = pytest.mark.slow

ENDLESS = "SELECT sleepEachRow(0.05) FROM system.numbers FORMAT Null"
ONE_BY_ONE = {"max_block_size": 1, "function_sleep_max_microseconds_per_block": 0}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ClickHouse]:
    """One that the test may take down."""
    if reason := ClickHouse.missing():
        pytest.skip(reason)
    server = ClickHouse.start(tmp_path)
    yield server
    if server.folder.exists():
        server.stop()


class Running:
    """A query without end, in a thread of its own."""

    def __init__(self, server: ClickHouse, client: Client, query_id: str) -> None:
        self.error: ClickHouseError | None = None
        self._client, self._id = client, query_id
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        seen = "SELECT count() FROM system.processes WHERE query_id = {id:String}"
        assert eventually(lambda: server.query(seen, id=query_id) == [(1,)])

    def _run(self) -> None:
        try:
            self._client.command(ENDLESS, settings=ONE_BY_ONE | {"query_id": self._id})
        except ClickHouseError as error:
            self.error = error

    def ended(self) -> bool:
        self._thread.join(10)
        return not self._thread.is_alive()


def test_it_is_a_server_of_today(clickhouse_server: ClickHouse, clickhouse_url: str, clickhouse_client: Client) -> None:
    database = clickhouse_url.rpartition("/")[2]
    assert clickhouse_url == f"clickhouse://default@127.0.0.1:{clickhouse_server.port}/{database}"
    ask = "SELECT currentDatabase(), uniqExact(generateSnowflakeID()), version() FROM numbers(3)"
    [(name, ids, version)] = clickhouse_client.query(ask).result_rows
    assert (name, ids) == (database, 3)
    assert int(version.partition(".")[0]) >= 26
    engine = clickhouse_server.query("SELECT engine FROM system.databases WHERE name = {name:String}", name=database)
    assert engine == [("Atomic",)]


def test_a_query_of_another_client_can_be_killed(clickhouse_server: ClickHouse, clickhouse_client: Client) -> None:
    running = Running(clickhouse_server, clickhouse_client, "endless")
    killed = clickhouse_server.query("KILL QUERY WHERE query_id = 'endless' SYNC")
    assert [(row[0], row[1]) for row in killed] == [("finished", "endless")]
    assert clickhouse_server.query("SELECT count() FROM system.processes WHERE query_id = 'endless'") == [(0,)]
    assert running.ended()
    assert isinstance(running.error, DatabaseError)
    assert running.error.code == 394


def test_threads_may_share_a_client(clickhouse_client: Client) -> None:
    answers: list[Any] = []
    ask = "SELECT sleep(0.2) + 1"  # at the same time, which a session would refuse
    threads = [threading.Thread(target=lambda: answers.append(clickhouse_client.command(ask))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [1, 1, 1, 1]


def test_a_database_goes_with_the_queries_that_run_in_it(clickhouse_server: ClickHouse) -> None:
    clickhouse_server.database("evicted")
    with closing(clickhouse_server.client(database="evicted")) as client:
        running = Running(clickhouse_server, client, "in evicted")
        clickhouse_server.evict("evicted")
        clickhouse_server.query("DROP DATABASE evicted SYNC")
        assert running.ended()


@pytest.mark.crash
@pytest.mark.parametrize("how", ["fast", "kill"])
def test_a_restart_ends_queries_and_keeps_port_and_data(how: str, own: ClickHouse) -> None:
    own.database("kept")
    own.query("CREATE TABLE t (n Int32) ENGINE = MergeTree ORDER BY n", database="kept")
    own.query("INSERT INTO t VALUES (5)", database="kept")
    with closing(own.client(database="kept")) as client:
        running = Running(own, client, "cut off")
        own.restart(how)  # type: ignore[arg-type]  # one of the two
        assert running.ended()
        assert (getattr(running.error, "code", None) == 394) is (how == "fast"), running.error
        assert client.query("SELECT n FROM t").result_rows == [(5,)]
    assert ("ended by SIGTERM" in own.log.read_text()) is (how == "fast")


@pytest.mark.crash
def test_a_stopped_one_leaves_nothing_behind_but_its_log(own: ClickHouse) -> None:
    own.stop()
    assert refused(own.port)
    assert refused(own.native)
    assert not own.folder.exists()
    assert "ended by SIGTERM" in own.log.read_text()


@pytest.mark.crash
def test_a_paused_one_answers_when_resumed(own: ClickHouse) -> None:
    asked = threading.Thread(target=own.query, args=["SELECT 1"])
    own.pause()
    try:
        asked.start()
        asked.join(0.2)
        assert asked.is_alive()
    finally:
        own.resume()
    asked.join(5)
    assert not asked.is_alive()


@pytest.mark.crash
def test_one_that_cannot_start_says_why() -> None:
    if reason := ClickHouse.missing():
        pytest.skip(reason)
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="Not a valid integer: 'no port'"):
        ClickHouse.start(http_port="no port")
    assert time.monotonic() - begin < 20, "it was waited for although it had ended"


def test_two_are_the_replicas_of_a_cluster(clickhouse_pair: tuple[ClickHouse, ClickHouse]) -> None:
    one, two = clickhouse_pair
    ports = sorted([(one.native,), (two.native,)])
    for server in clickhouse_pair:
        ask = "SELECT DISTINCT getServerPort('tcp_port') AS port FROM clusterAllReplicas('pair', system.processes)"
        assert server.query(f"{ask} ORDER BY port") == ports
        assert server.query("SELECT shard_num, sum(is_local), count() FROM system.clusters GROUP BY 1") == [(1, 1, 2)]


def test_without_a_keeper_nothing_runs_on_a_cluster(clickhouse_pair: tuple[ClickHouse, ClickHouse]) -> None:
    with pytest.raises(DatabaseError, match="Replicated DDL queries are disabled") as refusal:
        clickhouse_pair[0].query("KILL QUERY ON CLUSTER pair WHERE query_id = 'any' SYNC")
    assert refusal.value.code == 392
