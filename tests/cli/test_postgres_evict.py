"""``takehold evict`` on `postgresql:`: owners are asked wherever they run, and what is ended is a session."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess

import psycopg
import pytest

from takehold import Locks
from takehold.backends._drivers.wire import Target, connect
from takehold.backends.postgres import _TERMINATE
from takehold.cli import main
from takehold.runtime import Threads, run
from tests.cli.conftest import PATIENCE, TAKEHOLD, Processes, ask, screen_text, until
from tests.cli.onlookers import RunTakehold, Strangers, ids, is_free, listed, prepared
from tests.servers.postgres import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.covers("L-29")]


@pytest.fixture
def url(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return prepared(postgres_url, monkeypatch)


@pytest.mark.parametrize("by", ["id", "key"])
def test_eviction_ends_one_hold_and_leaves_the_owners_others(
    takehold: RunTakehold, processes: Processes, url: str, by: str
) -> None:
    holder = processes.holder(url, "a", "b", "c")
    done = takehold("evict", *([ids(holder)[1]] if by == "id" else ["--key", "b"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"evicted 'b' ({ids(holder)[1]}) of ")
    assert is_free(url, "b")
    assert [ask(holder, key) for key in "abc"] == ["held", "lost", "held"]
    assert not is_free(url, "a")


def test_eviction_by_pid_takes_all_of_that_process_and_nothing_of_others(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    first, second = processes.holder(url, "a", "b"), processes.holder(url, "c")
    done = takehold("evict", "--pid", str(first.pid), "--json")
    assert done.returncode == 0
    told = [(one["key"], one["gone"], one["terminated"]) for one in json.loads(done.stdout)]
    assert told == [("a", True, False), ("b", True, False)]
    assert [ask(first, key) for key in "ab"] == ["lost", "lost"]
    assert ask(second, "c") == "held"


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


def test_terminate_does_not_end_a_session_whose_owner_answers(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    holder = processes.holder(url, "a", "b")
    done = takehold("evict", "--key", "a", "--terminate", "--yes", "--json")
    assert done.returncode == 0
    assert [(one["key"], one["terminated"]) for one in json.loads(done.stdout)] == [("a", False)]
    assert [ask(holder, key) for key in "ab"] == ["lost", "held"]


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
    master, slave = pty.openpty()
    command = [*TAKEHOLD, "evict", "--key", "a", "--timeout", "0.5"]
    evicting = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, text=True)
    processes.adopt(evicting)
    os.close(slave)
    shown = ""
    while "kill? [y/N]" not in shown:
        shown += screen_text(master)
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
