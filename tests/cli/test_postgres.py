"""The commands on `postgresql:`, against a real server: others are on other hosts, and some of them are not ours."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psycopg
import pytest

from takehold import Key, Locks
from tests.cli.conftest import PATIENCE, TAKEHOLD, Processes, RunTakehold, alive, ids, is_free, line, until
from tests.cli.onlookers import Strangers, listed, number_of, prepared
from tests.cli.test_run import DEAF, TALKATIVE
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.crash]


@pytest.fixture
def url(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return prepared(postgres_url, monkeypatch)


# -- ls and who --------------------------------------------------------------------------------------


@pytest.mark.covers("L-28")
def test_ls_lists_holder_and_waiter_by_key_text_with_who_blocks_whom(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    holder = processes.holder(url, "orders/42")
    waiter = processes.takehold("run", "-k", "orders/42", "--label", "late", "--", "true")
    until(lambda: len(listed(takehold)) == 2)
    held, waits = sorted(listed(takehold), key=lambda one: one["state"])
    assert (held["key"], held["state"], held["mode"], held["silent"]) == ("orders/42", "held", "exclusive", False)
    assert (held["owner"]["pid"], held["owner"]["label"]) == (holder.pid, "holder")
    assert held["owner"]["site"].rpartition(":")[0].endswith("holder.py")
    assert held["fence"] > 0
    assert held["id"] == ids(holder)[0]
    assert (waits["state"], waits["owner"]["pid"], waits["blocked_by"]) == ("waiting", waiter.pid, [held["id"]])
    _, *rows = takehold("ls").stdout.splitlines()
    assert rows[1].endswith(f":{holder.pid} (holder)")
    assert f"  behind {socket.gethostname()}:{holder.pid} (holder)" in takehold("who", "orders/42").stdout


@pytest.mark.covers("L-28", "L-33")
def test_a_plain_client_is_shown_with_its_number_and_marked_silent(takehold: RunTakehold, stranger: Strangers) -> None:
    one, other = stranger("legacy"), stranger("late")
    one.run("SELECT pg_advisory_lock(-4711)")
    other.await_lock("pg_advisory_lock_shared(-4711)")
    held, waits = listed(takehold)
    assert (held["key"], held["state"], held["silent"], held["owner"]["pid"]) == ("#-4711", "held", True, one.pid)
    assert held["owner"]["label"] == "legacy"
    assert (waits["state"], waits["mode"], waits["blocked_by"]) == ("waiting", "shared", [held["id"]])
    assert "held silent" in takehold("ls").stdout
    shown = takehold("who", "#-4711").stdout
    assert f"server process {one.pid}, role postgres" in shown
    assert "state  held silent" in shown


@pytest.mark.covers("L-28")
def test_our_waiter_is_shown_behind_a_plain_client(
    takehold: RunTakehold, processes: Processes, stranger: Strangers, url: str
) -> None:
    one = stranger()
    one.run(f"SELECT pg_advisory_lock({number_of(url, 'k')})")
    processes.takehold("run", "-k", "k", "--", "true")
    until(lambda: any(record["state"] == "waiting" for record in listed(takehold)))
    waits = next(record for record in listed(takehold) if record["state"] == "waiting")
    assert [id.partition(".")[0] for id in waits["blocked_by"]] == [str(one.pid)]


@pytest.mark.covers("L-28")
def test_a_frozen_owner_is_still_listed_and_named_when_its_key_is_asked_for(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    holder = processes.holder(url, "a/b")
    holder.send_signal(signal.SIGSTOP)
    until(lambda: listed(takehold)[0]["silent"])
    record = listed(takehold)[0]
    assert record["key"].startswith("#")
    assert record["owner"]["pid"] == holder.pid
    for words in (["who", "a/b", "--json"], ["ls", "a/b", "--json"]):
        [found] = json.loads(takehold(*words).stdout)
        assert (found["key"], found["id"], found["silent"]) == ("a/b", record["id"], True)
    assert f"'a/b' is held by {socket.gethostname()}:{holder.pid}\n" in takehold("who", "a/b").stdout
    assert "nobody holds 'other'" in takehold("who", "other").stdout


@pytest.mark.covers("L-28", "L-37")
def test_a_silent_owner_is_named_in_its_namespace_and_for_a_key_of_parts(
    takehold: RunTakehold, stranger: Strangers, url: str
) -> None:
    one = stranger()
    for key in ("k", Key("a/b", 7)):
        one.run(f"SELECT pg_advisory_lock({number_of(url, key, 'shop')})")
    for text in ("k", "a%2Fb/7"):
        [found] = json.loads(takehold("who", text, "--namespace", "shop", "--json").stdout)
        assert (found["key"], found["namespace"]) == (text, "shop")


@pytest.mark.covers("L-30")
def test_an_old_hold_is_flagged_stuck(takehold: RunTakehold, processes: Processes, url: str) -> None:
    processes.holder(url, "k")
    assert "stuck?" not in takehold("ls").stdout
    assert "held stuck?" in takehold("ls", "--stuck-after", "0").stdout
    assert listed(takehold, "--stuck-after", "0")[0]["stuck"] is True


def test_behind_a_pooler_and_on_a_standby_ls_refuses_instead_of_seeing_nobody(
    takehold: RunTakehold, bouncer: PgBouncer, standby_server: Postgres, url: str
) -> None:
    for _ in range(2):  # a second look must not stumble over what the first one left in the pool
        done = takehold("ls", "--url", bouncer.url("takehold_tests"))
        assert (done.returncode, done.stdout) == (69, "")
        assert f"use lease+{bouncer.url('takehold_tests')}, which needs no session" in done.stderr
    done = takehold("ls", "--url", standby_server.url("postgres"))
    assert (done.returncode, done.stdout) == (69, "")
    assert "this server is a standby" in done.stderr


# -- run ---------------------------------------------------------------------------------------------


@pytest.mark.covers("L-31")
def test_a_run_has_the_exit_code_of_its_command_and_its_key_and_fence_in_the_environment(
    takehold: RunTakehold, url: str
) -> None:
    fences = []
    for code in (0, 7):
        words = ["sh", "-c", f'echo "$TAKEHOLD_KEY $TAKEHOLD_FENCE $TAKEHOLD_HOLD"; exit {code}']
        done = takehold("run", "-k", "orders/42", "--", *words)
        assert (done.returncode, done.stderr) == (code, "")
        key, fence, _ = done.stdout.split()
        assert key == "orders/42"
        fences.append(int(fence))
    assert fences == sorted(set(fences))
    assert is_free(url, "orders/42")


def test_before_init_a_run_works_and_has_no_fence_in_the_environment(
    takehold: RunTakehold, postgres_server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = postgres_server.database("takehold_unprepared")
    monkeypatch.setenv("TAKEHOLD_FENCE", "of a run around this one")
    done = takehold("run", "-v", "-k", "k", "--url", plain, "--", "sh", "-c", 'echo "<$TAKEHOLD_FENCE>"')
    assert (done.returncode, done.stdout) == (0, "<>\n")
    assert "without a fence (to have one: takehold init URL)" in done.stderr


@pytest.mark.covers("L-31", "L-28")
def test_a_busy_key_is_75_and_names_the_owner(takehold: RunTakehold, processes: Processes, url: str) -> None:
    holder = processes.holder(url, "k")
    done = takehold("run", "-k", "k", "--timeout", "0", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("takehold: 'k' not acquired after 0.")
    assert f":{holder.pid} (holder) at " in done.stderr


def test_a_limit_on_transactions_does_not_throw_a_waiting_run_out_of_the_queue(
    processes: Processes, postgres_server: Postgres, url: str
) -> None:
    """A wait is a transaction to the server."""
    limited = postgres_server.database("takehold_limited")
    if not postgres_server.query("SELECT 1 FROM pg_settings WHERE name = 'transaction_timeout'"):
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    postgres_server.query("ALTER DATABASE takehold_limited SET transaction_timeout = '200ms'")
    first = processes.takehold("run", "-k", "k", "--url", limited, "--", "sh", "-c", "echo in; read line")
    line(first)
    second = processes.takehold("run", "-k", "k", "--url", limited, "--", "echo", "in")

    def waiting() -> list[int]:
        return [row[6] for row in postgres_server.advisory_locks() if not row[5]]

    until(waiting)
    before = waiting()
    time.sleep(0.5)
    assert waiting() == before
    first.communicate("\n", timeout=PATIENCE)
    assert second.communicate(timeout=PATIENCE)[0] == "in\n"


@pytest.mark.covers("L-31")
def test_a_run_inside_a_run_of_the_same_key_is_refused_at_once(takehold: RunTakehold, url: str) -> None:
    inner = [*TAKEHOLD, "run", "-k", "k", "--timeout", "none", "--", "echo", "never"]
    done = takehold("run", "-k", "k", "--", *inner)
    assert (done.returncode, done.stdout) == (75, "")
    assert "which started this command and waits for its end" in done.stderr


@pytest.mark.covers("L-31", "L-13")
def test_the_group_is_dead_within_100_ms_of_the_end_of_its_session(
    processes: Processes, postgres_server: Postgres, url: str
) -> None:
    words = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, DEAF]
    took = []
    for _ in range(3):  # the best of them: a busy machine may hold any one up
        runner = processes.takehold("run", "-k", "k", "--grace", "30", "--", *words)
        child = processes.also_end(int(line(runner)))
        [pid] = {row[6] for row in postgres_server.advisory_locks()}
        with psycopg.connect(url, autocommit=True) as operator:
            operator.execute("SELECT pg_terminate_backend(%s)", [pid])
            took.append(death_of(child))
        assert runner.wait(PATIENCE) == 76
        assert runner.stderr is not None
        assert "'k' was lost: " in runner.stderr.read()
    assert min(took) < 0.1


def death_of(pid: int) -> float:
    """How long it lives on."""
    began = time.monotonic()
    until(lambda: not alive(pid))
    return time.monotonic() - began


@pytest.mark.covers("L-31", "L-29")
def test_an_evicted_run_keeps_its_key_until_its_group_is_gone(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    """While the command tidies up its runner does not answer: that must not pass for being gone."""
    tidy = "trap 'sleep 0.6; echo end; exit' TERM; echo in; while :; do sleep 0.01; done"
    first = processes.takehold("run", "-k", "k", "--grace", "5", "--", "bash", "-c", tidy, stdin=subprocess.DEVNULL)
    line(first)
    began = time.monotonic()
    done = takehold("evict", "--key", "k", "--timeout", "10")
    assert (done.returncode, done.stderr) == (0, "")
    assert 0.6 < time.monotonic() - began < 8
    assert is_free(url)
    out, err = first.communicate(timeout=PATIENCE)
    assert out == "end\n"
    assert err.endswith("takehold: 'k' was lost: evicted by an operator; the command was stopped\n")
    assert first.returncode == 76


@pytest.mark.covers("L-29")
def test_the_library_is_told_as_soon_as_an_evicted_runner_is_gone(processes: Processes, url: str) -> None:
    """It does not answer: it goes away."""
    runner = processes.takehold("run", "-k", "k", "--grace", "0.3", "--", sys.executable, "-c", DEAF)
    processes.also_end(int(line(runner)))
    with Locks(url) as locks:
        [record] = locks.who("k")
        began = time.monotonic()
        assert locks.evict(record.id, timeout=PATIENCE)
        assert 0.3 < time.monotonic() - began < PATIENCE / 2
    assert runner.wait(PATIENCE) == 76


@pytest.mark.covers("L-31", "L-14")
def test_a_killed_runner_takes_its_command_along_and_frees_the_key(processes: Processes, url: str) -> None:
    runner = processes.takehold("run", "-k", "k", "--", sys.executable, "-c", TALKATIVE, "SIGTERM")
    child = processes.also_end(int(line(runner)))
    runner.kill()
    assert line(runner) == "SIGTERM"
    until(lambda: not alive(child))
    until(lambda: is_free(url))


def test_the_runner_stays_for_what_its_command_left_in_the_group(processes: Processes, url: str) -> None:
    """Nothing of a connection can be inherited: only the runner keeps the key."""
    runner = processes.takehold("run", "-k", "k", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; exit 4")
    left = processes.also_end(int(line(runner)))
    assert not is_free(url)
    assert runner.poll() is None
    os.kill(left, signal.SIGKILL)
    assert runner.wait(PATIENCE) == 4
    assert is_free(url)


# -- init, bench, and no server ----------------------------------------------------------------------


def test_init_twice_does_no_harm_also_as_another_role(
    takehold: RunTakehold, postgres_server: Postgres, url: str
) -> None:
    fresh = postgres_server.database("takehold_fresh")
    for role in ("postgres", "postgres", "takehold_weak"):
        if role != "postgres":
            postgres_server.query("DROP ROLE IF EXISTS takehold_weak")
            postgres_server.query("CREATE ROLE takehold_weak LOGIN")
        done = takehold("init", fresh.replace("postgres@", f"{role}@"))
        assert (done.returncode, done.stderr) == (0, "")
        assert "holds have fences from now on" in done.stdout
    last = 2**40
    done = takehold("init", fresh, "--fence-from", str(last))
    assert done.returncode == 0
    with Locks(fresh) as locks, locks.lock("k") as hold:
        assert hold.fence > last


@pytest.mark.covers("L-32")
@pytest.mark.parametrize(
    "words",
    [["run", "-k", "k", "--", "true"], ["ls"], ["who", "k"], ["evict", "--key", "k"], ["init"], ["doctor"], ["bench"]],
)
def test_a_server_that_is_down_is_69_and_one_line_without_the_password(takehold: RunTakehold, words: list[str]) -> None:
    name, *rest = words
    done = takehold(name, "--url", "postgresql://app:sesame@127.0.0.1:1/app", *rest)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("takehold: no ")
    assert done.stderr.count("\n") == 1
    assert "postgresql://app:***@127.0.0.1:1/app" in done.stderr
    assert "Connection refused" in done.stderr
    assert "sesame" not in done.stderr


def test_bench_measures_the_server_and_leaves_nothing(takehold: RunTakehold, url: str) -> None:
    done = takehold("bench", "--seconds", "0.1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert len(told["results"]) == 4
    assert told["conditions"]["url"] == url
    assert listed(takehold) == []
