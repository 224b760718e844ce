"""That the servers of the tests do what the tests take for granted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.servers.clickhouse import ClickHouse
from tests.servers.mariadb import MariaDB
from tests.servers.network import Namespace
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
ORPHAN = """
import time
from tests.servers.{module} import {server}
server = {server}.start()
print(server.port, server.folder, flush=True)
time.sleep(600)
"""

LEAK = """
import psycopg
left = []
def test_that_leaks(postgres_url):
    left.append(psycopg.connect(postgres_url, autocommit=True))
    left[0].execute("SELECT pg_advisory_lock(4711)")
def test_that_does_not(postgres_url):
    pass
"""


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True, connect_timeout=10)


def eventually(is_so: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Asking:
    """A statement on its way in a thread of its own."""

    def __init__(self, connection: psycopg.Connection, sql: bytes) -> None:
        self.answer: object = None
        self._connection, self._sql = connection, sql
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.answer = self._connection.execute(self._sql).fetchone()
        except psycopg.Error as error:
            self.answer = error

    def answered_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


# ------------------------------------------------------------------------------------------------------- PostgreSQL


def test_a_test_that_leaves_an_advisory_lock_behind_fails_and_the_next_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_leak.py").write_text(LEAK)
    command = [sys.executable, "-m", "pytest", "-p", "tests.servers.fixtures", f"--rootdir={tmp_path}", "-c/dev/null"]
    done = subprocess.run([*command, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "('takehold_tests', 0, 4711, 1, 'ExclusiveLock', True, " in done.stdout


def test_the_server_answers_over_tcp_and_over_its_socket(postgres_server: Postgres, postgres_url: str) -> None:
    with connect(postgres_url) as tcp, connect(postgres_server.socket_url()) as unix:
        assert tcp.execute("SELECT current_database(), host(inet_server_addr())").fetchone() == (
            "takehold_tests",
            "127.0.0.1",
        )
        assert unix.execute("SELECT inet_server_addr(), current_setting('max_connections')").fetchone() == (None, "200")


def test_advisory_locks_of_every_database_are_listed_and_their_holders_can_be_evicted(
    postgres_server: Postgres, postgres_url: str
) -> None:
    with closing(connect(postgres_url)) as here, closing(connect(postgres_server.url())) as there:
        here.execute("SELECT pg_advisory_lock(7)")
        there.execute("SELECT pg_advisory_lock_shared(1, 2)")
        listed = {(row[0], row[2], row[4], row[6]) for row in postgres_server.advisory_locks()}
        assert listed == {
            ("takehold_tests", 7, "ExclusiveLock", here.info.backend_pid),
            ("postgres", 2, "ShareLock", there.info.backend_pid),
        }
        postgres_server.evict_holders()
        assert postgres_server.advisory_locks() == []


@pytest.mark.crash
@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_restart_ends_sessions_and_keeps_port_and_data(how: str) -> None:
    with Postgres.start() as server:
        url = server.database("kept")
        with closing(connect(url)) as before:
            before.execute("CREATE TABLE t AS SELECT 5 AS n")
            server.restart(how)  # type: ignore[arg-type]  # one of the three
            with pytest.raises(psycopg.OperationalError):
                before.execute("SELECT 1")
        with connect(url) as after:
            assert after.execute("SELECT n FROM t").fetchone() == (5,)


@pytest.mark.crash
def test_a_stopped_server_leaves_nothing_behind_but_its_log(tmp_path: Path) -> None:
    server = Postgres.start(tmp_path)
    server.stop("immediate")
    assert refused(server.port)
    assert not server.folder.exists()
    assert "ready to accept connections" in server.log.read_text()


@pytest.mark.crash
def test_a_server_that_cannot_start_says_why() -> None:
    before = set(Path("/tmp").glob("takehold-*"))
    with pytest.raises(RuntimeError, match="no_such_setting"):
        Postgres.start(no_such_setting="1")
    assert set(Path("/tmp").glob("takehold-*")) <= before


@pytest.mark.crash
def test_a_paused_server_answers_when_resumed(postgres_server: Postgres, postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        postgres_server.pause()
        try:
            asking = Asking(connection, b"SELECT 1")
            assert not asking.answered_within(0.2)
        finally:
            postgres_server.resume()
        assert asking.answered_within(5)
        assert asking.answer == (1,)


def test_a_standby_is_in_recovery_and_follows(postgres_server: Postgres, standby_server: Postgres) -> None:
    assert standby_server.query("SELECT pg_is_in_recovery()") == [(True,)]
    postgres_server.query("DROP TABLE IF EXISTS followed")
    postgres_server.query("CREATE TABLE followed ()")
    assert eventually(lambda: standby_server.query("SELECT to_regclass('followed') IS NOT NULL") == [(True,)])


@pytest.mark.crash
def test_a_promoted_standby_takes_writes_after_its_primary_was_killed() -> None:
    with Postgres.start() as primary, primary.standby() as standby:
        primary.down("kill")
        standby.promote()
        standby.query("CREATE TABLE written ()")
        assert standby.query("SELECT pg_is_in_recovery()") == [(False,)]


@pytest.mark.crash
@pytest.mark.parametrize("kind", [Postgres, MariaDB, ClickHouse])
def test_a_server_started_by_a_killed_process_dies_and_its_folder_goes(
    kind: type[Postgres | MariaDB | ClickHouse],
) -> None:
    if not issubclass(kind, Postgres) and (reason := kind.missing()):
        pytest.skip(reason)
    command = [sys.executable, "-c", ORPHAN.format(module=kind.__module__.rpartition(".")[2], server=kind.__name__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout
        port, folder = parent.stdout.readline().split()
        assert not refused(int(port))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert eventually(lambda: refused(int(port)))
    assert eventually(lambda: not os.path.exists(folder))


@pytest.mark.crash
def test_a_server_started_from_a_thread_outlives_it() -> None:
    started: list[Postgres] = []
    thread = threading.Thread(target=lambda: started.append(Postgres.start()))
    thread.start()
    thread.join()
    with started[0] as server:
        assert server.query("SELECT 1") == [(1,)]


# ---------------------------------------------------------------------------------------------------------- MariaDB


@pytest.fixture
def own_mariadb(tmp_path: Path) -> Iterator[MariaDB]:
    """One that the test may take down."""
    if reason := MariaDB.missing():
        pytest.skip(reason)
    server = MariaDB.start(tmp_path)
    yield server
    if server.folder.exists():
        server.stop()


def connect_mariadb(server: MariaDB, database: str) -> Any:
    return pymysql.connect(host=server.host, port=server.port, user="root", database=database, autocommit=True)


def test_mariadb_answers_over_tcp_with_the_settings_that_users_have(mariadb_server: MariaDB, mariadb_url: str) -> None:
    assert mariadb_url == f"mysql://root@127.0.0.1:{mariadb_server.port}/takehold_tests"
    with connect_mariadb(mariadb_server, "takehold_tests") as tcp, tcp.cursor() as cursor:
        cursor.execute("SELECT database(), @@tx_isolation, @@character_set_server, @@default_storage_engine, user()")
        assert cursor.fetchone() == ("takehold_tests", "REPEATABLE-READ", "utf8mb4", "InnoDB", "root@127.0.0.1")
        cursor.execute("CREATE OR REPLACE TABLE strict (name varchar(1))")
        with pytest.raises(pymysql.err.DataError):
            cursor.execute("INSERT INTO strict VALUES ('ab')")


def test_sessions_of_a_mariadb_database_can_be_evicted(mariadb_server: MariaDB, mariadb_url: str) -> None:
    with closing(connect_mariadb(mariadb_server, "takehold_tests")) as here:
        mariadb_server.evict("takehold_tests")
        with pytest.raises(pymysql.err.OperationalError), here.cursor() as cursor:
            cursor.execute("SELECT 1")


@pytest.mark.crash
@pytest.mark.parametrize("how", ["fast", "kill"])
def test_a_restart_of_mariadb_ends_sessions_and_keeps_port_and_data(how: str, own_mariadb: MariaDB) -> None:
    own_mariadb.database("kept")
    with closing(connect_mariadb(own_mariadb, "kept")) as before:
        with before.cursor() as cursor:
            cursor.execute("CREATE TABLE t (n int)")
            cursor.execute("INSERT INTO t VALUES (5)")
        own_mariadb.restart(how)  # type: ignore[arg-type]  # one of the two
        with pytest.raises(pymysql.err.OperationalError), before.cursor() as cursor:
            cursor.execute("SELECT 1")
    assert own_mariadb.query("SELECT n FROM t", database="kept") == [(5,)]


@pytest.mark.crash
def test_a_stopped_mariadb_leaves_nothing_behind_but_its_log(own_mariadb: MariaDB) -> None:
    own_mariadb.stop()
    assert refused(own_mariadb.port)
    assert not own_mariadb.folder.exists()
    assert "ready for connections" in own_mariadb.log.read_text()


@pytest.mark.crash
def test_a_paused_mariadb_answers_when_resumed(own_mariadb: MariaDB) -> None:
    asked = threading.Thread(target=own_mariadb.query, args=["SELECT 1"])
    own_mariadb.pause()
    try:
        asked.start()
        asked.join(0.2)
        assert asked.is_alive()
    finally:
        own_mariadb.resume()
    asked.join(5)
    assert not asked.is_alive()


@pytest.mark.crash
def test_a_mariadb_that_cannot_start_says_why() -> None:
    if reason := MariaDB.missing():
        pytest.skip(reason)
    with pytest.raises(RuntimeError, match="no_such_setting"):
        MariaDB.start(no_such_setting="1")


# -------------------------------------------------------------------------------------------------------- PgBouncer


def test_behind_the_bouncer_the_pid_told_at_startup_is_not_the_one_that_answers(
    bouncer: PgBouncer, postgres_url: str
) -> None:
    with connect(bouncer.url("takehold_tests")) as pooled, connect(postgres_url) as direct:
        assert direct.execute("SELECT pg_backend_pid()").fetchone() == (direct.info.backend_pid,)
        assert pooled.execute("SELECT pg_backend_pid()").fetchone() != (pooled.info.backend_pid,)


def test_the_bouncer_gives_one_server_session_to_two_clients(bouncer: PgBouncer) -> None:
    with connect(bouncer.url()) as one, connect(bouncer.url()) as two:
        ask = "SELECT pg_backend_pid()"
        assert one.execute(ask).fetchone() == two.execute(ask).fetchone()


# ------------------------------------------------------------------------------------------------------------ Proxy


def test_a_reset_is_seen_by_the_client_and_ends_the_session(
    proxy: Proxy, postgres_server: Postgres, postgres_url: str
) -> None:
    with closing(connect(proxy.url(postgres_url))) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")
        proxy.reset()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert proxy.resets == 1
    assert proxy.connections == 0
    assert eventually(lambda: postgres_server.advisory_locks() == [])
    with connect(proxy.url(postgres_url)) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)


def test_a_hold_keeps_bytes_back_until_it_is_over(proxy: Proxy, postgres_url: str) -> None:
    with connect(proxy.url(postgres_url)) as connection:
        proxy.hold()
        asking = Asking(connection, b"SELECT 1")
        assert not asking.answered_within(0.2)
        proxy.resume()
        assert asking.answered_within(5)
        assert asking.answer == (1,)


def test_a_cut_lets_exactly_so_many_bytes_of_a_reply_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(listener.getsockname()[1]) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            server, _ = listener.accept()
            with server:
                proxy.cut_after(5)
                server.sendall(b"abc")
                assert client.recv(100) == b"abc"
                server.sendall(b"defgh")
                assert client.recv(100) == b"de"
                with pytest.raises(ConnectionResetError):
                    client.recv(100)
                with pytest.raises(ConnectionResetError):
                    server.recv(100)
        assert proxy.resets == 1


def test_a_cut_of_the_request_is_reset_on_both_sides() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, Proxy(listener.getsockname()[1]) as proxy:
        proxy.cut_after(2, "client")
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"abc")
                assert server.recv(100) == b"ab"
                with pytest.raises(ConnectionResetError):
                    server.recv(100)
            with pytest.raises(ConnectionResetError):
                client.recv(100)


def test_a_dropped_reply_is_that_of_a_statement_that_was_done(
    proxy: Proxy, postgres_server: Postgres, postgres_url: str
) -> None:
    with closing(connect(proxy.url(postgres_url))) as connection:
        connection.execute("DROP TABLE IF EXISTS dropped_reply")
        proxy.drop_reply()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("CREATE TABLE dropped_reply ()")
    found = postgres_server.query("SELECT to_regclass('dropped_reply') IS NOT NULL", database="takehold_tests")
    assert found == [(True,)]


def test_a_delay_is_added_to_every_chunk(proxy: Proxy, postgres_url: str) -> None:
    with connect(proxy.url(postgres_url)) as connection:
        proxy.delay(0.1)
        begin = time.monotonic()
        connection.execute("SELECT 1")
        assert 0.2 <= time.monotonic() - begin < 2
        proxy.delay(0)


def test_a_refusing_proxy_keeps_the_old_connections(proxy: Proxy, postgres_url: str) -> None:
    with connect(proxy.url(postgres_url)) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(proxy.url(postgres_url))
        assert connection.execute("SELECT 1").fetchone() == (1,)
        proxy.refuse(False)
        connect(proxy.url(postgres_url)).close()


# ---------------------------------------------------------------------------------------------------------- Network


@pytest.mark.crash
def test_a_partition_loses_packets_until_it_is_healed(namespace: Namespace) -> None:
    server = namespace.server
    with connect(server.url()) as connection:
        namespace.partition()
        asking = Asking(connection, b"SELECT 1")
        assert not asking.answered_within(0.3)
        assert server.query("SELECT 2") == [(2,)], "the socket does not go through the network"
        namespace.heal()
        assert asking.answered_within(30)
        assert asking.answer == (1,)
