"""``takehold doctor`` on a real server: what opening proves, what it lacks, and what other programs do to it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from takehold.cli import main
from tests.cli.conftest import PATIENCE, Processes, line, until
from tests.cli.onlookers import Strangers
from tests.cli.test_doctor import Checks, checked, verdicts
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres

pytestmark = pytest.mark.slow

NAMES = [
    "reachable", "direct", "primary", "exclusion", "may-lock", "fences", "lock-table", "connections", "clock",
    "tcp-keepalives", "client-check", "timeouts", "isolation", "durable", "failover", "may-see", "may-end",
    "idle-in-transaction", "idle-holders", "long-waits", "dead-waiters", "many-locks",
]  # fmt: skip
OF_THE_TEST_SERVER = {"tcp-keepalives", "client-check", "durable", "failover"}
"""Warnings that its settings deserve."""
WAITER = """
import psycopg, sys
with psycopg.connect(sys.argv[1], autocommit=True, application_name="doomed") as connection:
    print(connection.info.backend_pid, flush=True)
    connection.execute("SELECT pg_advisory_lock(1, 2)")
"""


@pytest.fixture
def fresh(postgres_server: Postgres, postgres_url: str) -> Iterator[str]:
    """A database that a test may spoil."""
    postgres_server.query('DROP DATABASE IF EXISTS "takehold_doctor" WITH (FORCE)')
    yield postgres_server.database("takehold_doctor")
    postgres_server.query('DROP DATABASE IF EXISTS "takehold_doctor" WITH (FORCE)')


@pytest.fixture
def weak(postgres_server: Postgres, fresh: str) -> Iterator[str]:
    """The same, as a role without any privilege."""
    postgres_server.query("DROP ROLE IF EXISTS takehold_weak")
    postgres_server.query("CREATE ROLE takehold_weak LOGIN")
    yield fresh.replace("postgres@", "takehold_weak@")
    postgres_server.query('DROP DATABASE IF EXISTS "takehold_doctor" WITH (FORCE)')
    postgres_server.query("DROP ROLE IF EXISTS takehold_weak")


def troubled(checks: Checks) -> set[str]:
    return {name for name, one in checks.items() if one["verdict"] != "ok"} - OF_THE_TEST_SERVER


# -- the server --------------------------------------------------------------------------------------


def test_a_good_server_passes_every_check_and_nothing_is_made_or_left_there(
    postgres_server: Postgres, fresh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = checked(capsys, fresh)
    assert list(checks) == NAMES
    assert troubled(checks) == {"fences"}
    assert checks["fences"]["verdict"] == "warning"
    assert checks["fences"]["advice"] == f"To have a fencing token with every hold, run: takehold init {fresh}"
    assert checks["reachable"]["facts"]["version"] >= 140_000
    assert postgres_server.advisory_locks() == []
    assert (
        postgres_server.query("SELECT 1 FROM pg_namespace WHERE nspname = 'takehold'", database="takehold_doctor") == []
    )
    [(written,)] = postgres_server.query(
        "SELECT tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = 'takehold_doctor'"
    )
    assert written == 0
    assert main(["init", fresh]) == 0
    capsys.readouterr()
    assert troubled(checked(capsys, fresh)) == set()


@pytest.mark.covers("L-22")
def test_a_pooler_is_trouble_and_the_advice_names_what_to_use(
    bouncer: PgBouncer, postgres_server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bouncer.url("takehold_tests")
    for _ in range(3):  # nothing is left in the pool that a next look would stumble over
        checks = checked(capsys, url, code=1)
        assert checks["direct"]["verdict"] == "trouble"
        assert f"lease+{url}" in checks["direct"]["advice"]
        assert "exclusion" not in checks
    assert "it pools transactions" in checked(capsys, f"{url}?pooler=session", code=1)["direct"]["found"]
    assert postgres_server.advisory_locks() == []


@pytest.mark.covers("L-22")
def test_a_pooler_of_sessions_is_fine_when_it_was_said(
    postgres_server: Postgres, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := PgBouncer.missing():
        pytest.skip(reason)
    with PgBouncer.start(postgres_server, "session", 5) as pooler:
        url = pooler.url("takehold_tests")
        assert checked(capsys, url, code=1)["direct"]["verdict"] == "trouble"
        checks = checked(capsys, f"{url}?pooler=session")
        assert checks["direct"]["verdict"] == "ok"
        assert checks["exclusion"]["verdict"] == "ok"


@pytest.mark.covers("L-22")
def test_a_standby_is_trouble(standby_server: Postgres, capsys: pytest.CaptureFixture[str]) -> None:
    checks = checked(capsys, standby_server.url(), code=1)
    assert checks["primary"]["facts"] == {"standby": True}
    assert checks["primary"]["verdict"] == "trouble"


def test_a_standby_that_follows_late_is_a_warning_about_fences(
    standby_server: Postgres, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(capsys, postgres_url)["failover"]
    assert found["verdict"] == "warning"
    assert "fences may go back" in found["found"]
    assert [one["sync"] for one in found["facts"]["standbys"]] == ["async"]


def test_a_schema_of_another_format_and_an_altered_sequence_are_trouble(
    postgres_server: Postgres, fresh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", fresh]) == 0
    capsys.readouterr()
    postgres_server.query("ALTER SEQUENCE takehold.fence INCREMENT BY 1 CACHE 20", database="takehold_doctor")
    found = checked(capsys, fresh, code=1)["fences"]
    assert "was altered (increment 1, cache 20" in found["found"]
    assert "ALTER SEQUENCE takehold.fence INCREMENT BY 1024 CACHE 1 NO CYCLE" in found["advice"]
    postgres_server.query("COMMENT ON SCHEMA takehold IS 'takehold format 99'", database="takehold_doctor")
    assert "has format 99, this release writes format 1" in checked(capsys, fresh, code=1)["fences"]["found"]


def test_what_a_role_may_not_do_comes_with_the_statement_that_lets_it(
    postgres_server: Postgres,
    weak: str,
    fresh: str,
    stranger: Strangers,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["init", fresh]) == 0
    capsys.readouterr()
    stranger(url=fresh).run("SELECT pg_advisory_lock(1)")
    postgres_server.query("REVOKE ALL ON SEQUENCE takehold.fence FROM PUBLIC", database="takehold_doctor")
    checks = checked(capsys, weak)
    assert troubled(checks) == {"fences", "may-see", "may-end"}
    assert 'GRANT USAGE ON SEQUENCE takehold.fence TO "takehold_weak"' in checks["fences"]["advice"]
    assert 'GRANT pg_read_all_stats TO "takehold_weak"' in checks["may-see"]["advice"]
    assert 'GRANT pg_signal_backend TO "takehold_weak"' in checks["may-end"]["advice"]
    assert checks["may-end"]["facts"]["other_roles"] == ["postgres"]
    postgres_server.query("REVOKE EXECUTE ON FUNCTION pg_advisory_lock(bigint) FROM PUBLIC", database="takehold_doctor")
    found = checked(capsys, weak, code=1)["may-lock"]
    assert found["advice"] == 'GRANT EXECUTE ON FUNCTION pg_advisory_lock(bigint) TO "takehold_weak".'
    assert found["facts"] == {"missing": ["pg_advisory_lock(bigint)"]}


def test_few_connections_left_for_a_role_are_told_before_they_run_out(
    postgres_server: Postgres, weak: str, stranger: Strangers, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres_server.query("ALTER ROLE takehold_weak CONNECTION LIMIT 4")
    found = checked(capsys, weak)["connections"]
    assert (found["verdict"], found["facts"]["left"]) == ("warning", 4)
    for _ in range(2):
        stranger(url=weak)
    assert checked(capsys, weak)["connections"]["facts"]["left"] == 2


@pytest.mark.covers("L-24")
def test_a_lock_table_that_fills_up_is_a_warning_and_then_trouble(
    stranger: Strangers, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capacity = checked(capsys, postgres_url)["lock-table"]["facts"]["capacity"]
    hoarder = stranger("hoarder")
    hoarder.run(f"SELECT pg_advisory_lock(n) FROM generate_series(1, {capacity // 4}) AS t(n)")
    checks = checked(capsys, postgres_url)
    assert checks["lock-table"]["verdict"] == "warning"
    assert checks["many-locks"]["verdict"] == "warning"
    [session] = checks["many-locks"]["facts"]["sessions"]
    assert (session["pid"], session["held"], len(session["keys"])) == (hoarder.pid, capacity // 4, 5)
    hoarder.run(f"SELECT pg_advisory_lock(-n) FROM generate_series(1, {capacity // 4}) AS t(n)")
    found = checked(capsys, postgres_url, code=1)["lock-table"]
    assert "Raise max_locks_per_transaction" in found["advice"]


def test_settings_that_the_application_lacks_or_suffers_from_are_found(
    postgres_server: Postgres, fresh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = checked(capsys, fresh)
    assert "keeps its locks for 2 h 11 min" in checks["tcp-keepalives"]["found"]
    assert "does not notice that its client died" in checks["client-check"]["found"]
    good = "-c tcp_keepalives_idle=60 -c tcp_keepalives_interval=10 -c client_connection_check_interval=10s"
    checks = checked(capsys, f"{fresh}?options={quote(good)}")
    assert (checks["tcp-keepalives"]["verdict"], checks["client-check"]["verdict"]) == ("ok", "ok")
    postgres_server.query("ALTER DATABASE takehold_doctor SET idle_session_timeout = '5min'")
    postgres_server.query("ALTER DATABASE takehold_doctor SET default_transaction_isolation = 'repeatable read'")
    checks = checked(capsys, fresh)
    assert checks["timeouts"]["found"] == "idle_session_timeout is 5 min (database)"
    assert checks["timeouts"]["verdict"] == "warning"
    assert checks["isolation"]["verdict"] == "warning"


# -- other programs ----------------------------------------------------------------------------------


def sessions(checks: Checks, name: str) -> list[int]:
    return [one["pid"] for one in checks[name]["facts"]["sessions"]]


def test_a_lock_in_a_transaction_that_sits_idle_is_found_and_is_trouble_when_somebody_waits(
    stranger: Strangers, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    idler = stranger("billing")
    idler.run("BEGIN")
    idler.run("SELECT pg_advisory_xact_lock(4711), 'a secret of that program'")
    assert checked(capsys, postgres_url)["idle-in-transaction"]["verdict"] == "ok", "it may go on any moment"
    assert checked(capsys, postgres_url, "--stuck-after", "0", code=1)["idle-in-transaction"]["verdict"] == "trouble"
    stranger("late").await_lock("pg_advisory_lock(4711)")
    assert main(["doctor", postgres_url, "--stuck-after", "0"]) == 1
    shown = capsys.readouterr().out
    assert f"pid {idler.pid}, role postgres, 'billing' from 127.0.0.1, idle in transaction for 0." in shown
    assert f"holds 4711, 1 behind it: SELECT pg_terminate_backend({idler.pid})" in shown
    assert "secret" not in shown
    idler.run("ROLLBACK")  # nobody ended it


def test_a_session_lock_in_a_pooled_connection_is_found_with_two_int_keys(
    stranger: Strangers, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leaked, _ = stranger("web"), stranger("web")
    leaked.run("SELECT pg_advisory_lock(-1, 2)")
    leaked.run("ROLLBACK")
    assert checked(capsys, postgres_url)["idle-holders"]["verdict"] == "ok"
    found = checked(capsys, postgres_url, "--stuck-after", "0.01")["idle-holders"]
    assert found["verdict"] == "warning"
    [session] = found["facts"]["sessions"]
    assert (session["pid"], session["keys"], session["pooled"], session["state"]) == (
        leaked.pid, ["(-1, 2)"], True, "idle"
    )  # fmt: skip
    stranger("late").await_lock("pg_advisory_lock_shared(-1, 2)")
    time.sleep(0.05)
    found = checked(capsys, postgres_url, "--stuck-after", "0.01", code=1)["idle-holders"]
    assert found["verdict"] == "trouble"
    assert "pg_advisory_xact_lock" in found["advice"]


def test_a_long_wait_is_shown_with_who_is_in_the_way(
    stranger: Strangers, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    holder, waiter = stranger("holder"), stranger("waiter")
    holder.run(f"SELECT pg_advisory_lock({-(2**63)})")
    waiter.await_lock(f"pg_advisory_lock({-(2**63)})")
    checks = checked(capsys, postgres_url)
    assert checks["long-waits"]["verdict"] == "ok"
    checks = checked(capsys, postgres_url, "--stuck-after", "0", code=1)
    assert sessions(checks, "long-waits") == [waiter.pid]
    [session] = checks["long-waits"]["facts"]["sessions"]
    assert (session["awaits"], session["blocked_by"]) == (str(-(2**63)), [holder.pid])
    main(["doctor", postgres_url, "--stuck-after", "0"])
    assert f"behind pid {holder.pid}, role postgres, 'holder' from 127.0.0.1, idle for " in capsys.readouterr().out


@pytest.mark.crash
def test_a_waiter_whose_client_was_killed_is_found(
    stranger: Strangers, processes: Processes, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger().run("SELECT pg_advisory_lock(1, 2)")
    client = processes(sys.executable, "-c", WAITER, postgres_url)
    pid = int(line(client))
    with psycopg.connect(postgres_url, autocommit=True) as other:
        until(lambda: other.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", [pid]).fetchall())
    assert sessions(checked(capsys, postgres_url), "dead-waiters") == []
    client.send_signal(signal.SIGKILL)
    client.wait(PATIENCE)
    checks = checked(capsys, postgres_url, code=1)
    assert sessions(checks, "dead-waiters") == [pid]
    assert "client_connection_check_interval" in checks["dead-waiters"]["advice"]
    main(["doctor", postgres_url])
    assert f"for (1, 2): SELECT pg_terminate_backend({pid})" in capsys.readouterr().out


def test_our_own_sessions_are_not_mistaken_for_forgotten_ones(
    postgres_url: str, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.holder(postgres_url, "k")
    checks = checked(capsys, postgres_url, "--stuck-after", "0")
    assert sessions(checks, "idle-holders") == sessions(checks, "idle-in-transaction") == []
    assert "1 sessions hold" in checks["may-see"]["found"]


def test_a_server_that_does_not_know_a_question_is_examined_all_the_same(
    postgres_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from takehold.backends._drivers.wire import Statement

    monkeypatch.setattr("takehold.backends.postgres.doctor._STANDBYS", Statement("", "SELECT no_such_function()"))
    checks = checked(capsys, postgres_url)
    assert list(checks) == NAMES
    assert "the server would not say: function no_such_function() does not exist" in checks["failover"]["found"]
    assert verdicts(checks) == {"ok", "warning"}


def test_a_lease_table_behind_a_pooler_is_fine_and_only_looked_at(
    fresh: str, bouncer: PgBouncer, postgres_server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lease+{bouncer.url('takehold_doctor')}"
    checks = checked(capsys, url)
    assert verdicts(checks) == {"ok"}
    assert checks["table"]["facts"]["format"] is None
    assert (
        postgres_server.query("SELECT 1 FROM pg_namespace WHERE nspname = 'takehold'", database="takehold_doctor") == []
    )
    assert main(["init", f"lease+{fresh}"]) == 0
    capsys.readouterr()
    checks = checked(capsys, url)
    assert list(checks) == ["reachable", "table", "silent-owners", "stuck-holds"]
    assert checks["table"]["facts"]["format"] == 1
