"""``takehold evict`` on `postgresql:`: owners are asked wherever they run, and what is ended is a session."""

from __future__ import annotations

import json
import os
import signal
import socket

import psycopg
import pytest

from takehold import Locks
from takehold.backends._drivers.wire import Target, connect
from takehold.backends.postgres import _TERMINATE
from takehold.cli import main
from takehold.runtime import Threads, run
from tests.cli.conftest import PATIENCE, Processes, RunTakehold, ask, is_free, screen_until, until
from tests.cli.onlookers import Strangers, listed, prepared
from tests.servers.postgres import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.covers("L-29")]


@pytest.fixture
def url(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return prepared(postgres_url, monkeypatch)


def test_a_pid_that_two_hosts_have_is_refused(
    capsys: pytest.CaptureFixture[str], stranger: Strangers, url: str
) -> None:
    for number, name in enumerate(("takehold 0badcafe web-1:7", "takehold 0badf00d web-2:7")):
        stranger(name).run(f"SELECT pg_advisory_lock({number})")
    assert main(["evict", "--pid", "7", "--terminate", "--yes"]) == 2
    assert "there is a process 7 on web-1 and on web-2; give hold ids instead" in capsys.readouterr().err


def test_a_silent_owner_is_reported_with_what_to_do_and_left_alone(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    holder = processes.holder(url, "a", "b")
    holder.send_signal(signal.SIGSTOP)
    done = takehold("evict", "--key", "a", "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("no answer within 0.5 s; --terminate ends its session, with all it holds\n")
    assert not is_free(url, "a")
    holder.send_signal(signal.SIGCONT)
    until(lambda: ask(holder, "a") == "lost")  # it finds the question when it wakes up
    assert ask(holder, "b") == "held"


def test_terminate_ends_the_session_of_a_silent_owner_and_lists_what_died_with_it(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    holder, bystander = processes.holder(url, "a", "b"), processes.holder(url, "c")
    holder.send_signal(signal.SIGSTOP)
    done = takehold("evict", "--key", "a", "--terminate", "--timeout", "0.5")
    assert done.returncode == 2
    assert "say --yes" in done.stderr
    until(lambda: sum(record["silent"] for record in listed(takehold)) == 2)
    other = next(one["id"] for one in listed(takehold) if one["silent"] and one["id"] not in id_of(takehold, "a"))
    done = takehold("evict", "--key", "a", "--terminate", "--yes", "--timeout", "0.5")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("evicted 'a' (")
    assert second.startswith("ended with it: '#")
    assert second.endswith(f"held ({other})")
    assert is_free(url, "a")
    assert is_free(url, "b")
    holder.send_signal(signal.SIGCONT)
    until(lambda: [ask(holder, key) for key in "ab"] == ["lost", "lost"])
    assert ask(bystander, "c") == "held"
    assert holder.poll() is None, "the session was ended, not the process"


def id_of(takehold: RunTakehold, key: str) -> list[str]:
    return [one["id"] for one in json.loads(takehold("who", key, "--json").stdout)]


def test_a_plain_client_can_be_ended_by_its_number_or_its_server_process(
    takehold: RunTakehold, stranger: Strangers, url: str
) -> None:
    for by in ("--key", "--pid"):
        one = stranger()
        one.run("SELECT pg_advisory_lock(4711)")
        words = [by, "#4711" if by == "--key" else str(one.pid)]
        assert takehold("evict", *words, "--timeout", "0.1").returncode == 1
        done = takehold("evict", *words, "--timeout", "0.1", "--terminate", "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        with pytest.raises(psycopg.OperationalError):
            one.run("SELECT 1")


def test_a_recycled_server_process_or_one_that_let_go_of_the_key_is_never_ended(stranger: Strangers, url: str) -> None:
    one = stranger()
    one.run("SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
    with Locks(url) as locks:
        id = next(record.id for record in locks.who() if record.key == "#1")
        pid, started = id.partition("-")[0].split(".")
        recycled = f"{pid}.{int(started, 16) - 1:x}-1"
        assert locks.evict(recycled, terminate=True, timeout=0.05)
        one.run("SELECT pg_advisory_unlock(1)")
        assert locks.evict(id, terminate=True, timeout=0.05)
    # And when it changes between the look and the end: the statement itself looks once more.
    wire = run(connect(Threads(), Target(url, "operator"), PATIENCE))
    for start, key in ((int(started, 16) - 1, 2), (int(started, 16), 1)):
        assert run(wire.fetch(_TERMINATE, one.pid, start, key)) == [(0,)]
    one.run("SELECT 1")
    assert run(wire.fetch(_TERMINATE, one.pid, int(started, 16), 2)) == [(1,)]
    wire.close()


def test_at_a_terminal_it_asks_and_lists_what_dies(processes: Processes, url: str) -> None:
    holder = processes.holder(url, "a", "b")
    holder.send_signal(signal.SIGSTOP)
    evicting, master = processes.at_a_terminal("evict", "--key", "a", "--timeout", "0.5")
    shown = screen_until(master, "kill? [y/N]")
    assert f"the session of {socket.gethostname()}:{holder.pid}, server process " in shown
    assert "  'a' held for " in shown
    assert "  '#" in shown
    os.write(master, b"n\n")
    assert evicting.wait(PATIENCE) == 1
    os.close(master)
    assert not is_free(url, "a")


def test_a_role_that_may_not_end_a_session_is_told_so(
    takehold: RunTakehold, stranger: Strangers, postgres_server: Postgres, url: str
) -> None:
    postgres_server.query("DROP ROLE IF EXISTS takehold_weak")
    postgres_server.query("CREATE ROLE takehold_weak LOGIN")
    one = stranger()
    one.run("SELECT pg_advisory_lock(4711)")
    weak = url.replace("postgres@", "takehold_weak@")
    words = ["--url", weak, "--key", "#4711", "--timeout", "0.1", "--terminate", "--yes"]
    done = takehold("evict", *words)
    assert done.returncode == 1
    assert "is still held: this role could not end its session" in done.stderr
    one.run("SELECT 1")
