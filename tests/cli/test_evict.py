"""``takehold evict`` on `file:`: owners that do not answer, and what is ended is a process, when somebody said so."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from takehold import Locks
from tests.cli.conftest import (
    PATIENCE,
    Process,
    Processes,
    RunTakehold,
    alive,
    ask,
    ids,
    is_free,
    line,
    screen_until,
    until,
)
from tests.cli.test_run import DEAF

pytestmark = [pytest.mark.crash, pytest.mark.covers("L-29")]


def test_eviction_of_a_shared_key_ends_every_reader(takehold: RunTakehold, processes: Processes, url: str) -> None:
    readers = [
        processes.takehold("run", "-k", "k", "--shared", "--", "sh", "-c", "echo in; sleep 60") for _ in range(2)
    ]
    for reader in readers:
        line(reader)
    assert takehold("evict", "--key", "k").returncode == 0
    assert [reader.wait(PATIENCE) for reader in readers] == [76, 76]
    assert is_free(url)


def test_eviction_of_nothing_is_a_failure_that_says_so(takehold: RunTakehold, processes: Processes, url: str) -> None:
    for words, sentence in (
        (["1.abc-0-1"], "there is no hold '1.abc-0-1' in"),
        (["--key", "k"], "nobody holds 'k' in"),
        (["--pid", "1"], "process 1 holds nothing in"),
    ):
        done = takehold("evict", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert sentence in done.stderr
    processes.holder(url, "k")
    processes.takehold("run", "-k", "k", "--", "true")
    locks = Locks(url)
    until(lambda: len(locks.who("k")) == 2)
    waiter = next(record.id for record in locks.who("k") if record.state == "waiting")
    assert "only waits" in takehold("evict", waiter).stderr


# -- owners that do not answer -----------------------------------------------------------------------


def frozen(processes: Processes, url: str, *keys: str) -> Process:
    holder = processes.holder(url, *keys)
    holder.send_signal(signal.SIGSTOP)
    return holder


def test_a_silent_owner_is_reported_and_left_alone(takehold: RunTakehold, processes: Processes, url: str) -> None:
    holder = frozen(processes, url, "a", "b")
    done = takehold("evict", "--key", "a", "--timeout", "0.05")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("is still held: no answer within 0.05 s; --terminate ends it\n")
    assert alive(holder.pid)
    holder.send_signal(signal.SIGCONT)
    # It finds the question when it wakes up.
    assert [ask(holder, key) for key in "ab"] == ["lost", "held"]


def test_terminate_without_a_terminal_wants_yes(takehold: RunTakehold, processes: Processes, url: str) -> None:
    holder = frozen(processes, url, "a")
    done = takehold("evict", "--key", "a", "--terminate", "--timeout", "0.05")
    assert done.returncode == 2
    assert "say --yes" in done.stderr
    assert alive(holder.pid)
    assert not is_free(url, "a")


def test_terminate_ends_a_silent_owner_and_only_that(takehold: RunTakehold, processes: Processes, url: str) -> None:
    holder, bystander = frozen(processes, url, "a", "b"), processes.holder(url, "c")
    done = takehold("evict", "--key", "a", "--terminate", "--yes", "--timeout", "0.05")
    assert (done.returncode, done.stderr) == (0, "")
    assert holder.wait(PATIENCE) == -signal.SIGKILL
    assert is_free(url, "a")
    assert is_free(url, "b")
    assert ask(bystander, "c") == "held"


@pytest.mark.parametrize(("words", "answer"), [(["--terminate"], "n"), (["--terminate"], "y"), ([], "y")])
def test_on_a_terminal_it_asks_and_lists_what_dies(
    processes: Processes, url: str, words: list[str], answer: str
) -> None:
    """Also without --terminate, once the owner has not answered."""
    holder = frozen(processes, url, "a", "b")
    evicting, master = processes.at_a_terminal("evict", "--key", "a", "--timeout", "0.05", *words)
    shown = screen_until(master, "kill? [y/N]")
    assert f"process {holder.pid}, " in shown
    assert "  'a' held for " in shown
    assert "  'b' held for " in shown
    assert alive(holder.pid)
    os.write(master, f"{answer}\n".encode())
    assert evicting.wait(PATIENCE) == (0 if answer == "y" else 1)
    os.close(master)
    if answer == "y":
        assert holder.wait(PATIENCE) == -signal.SIGKILL
    else:
        assert alive(holder.pid)


def test_a_reused_pid_is_never_hit(takehold: RunTakehold, processes: Processes, url: str) -> None:
    """The board says which pid, and when that process started; here the pid has become somebody else's."""
    holder = frozen(processes, url, "a")
    innocent = processes("sleep", "60")
    board = Path(url.removeprefix("file:")) / "boards" / ids(holder)[0].rsplit("-", 2)[0]
    with board.open("r+b") as file:
        magic, number, pid = struct.unpack("<8sII", file.read(16))
        assert (magic, pid) == (b"takehold", holder.pid)
        file.seek(0)
        file.write(struct.pack("<8sII", magic, number, innocent.pid))
    done = takehold("evict", "--pid", str(innocent.pid), "--terminate", "--yes", "--timeout", "0.1")
    # Who really keeps the key is found by its open board, and ended.
    assert done.returncode == 0
    assert holder.wait(PATIENCE) == -signal.SIGKILL
    assert alive(innocent.pid)
    assert innocent.poll() is None


def test_a_key_kept_by_what_a_dead_runner_left_can_be_had_back(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    script = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, DEAF]
    runner = processes.takehold("run", "-k", "k", "--", *script, stdin=subprocess.DEVNULL)
    left = processes.also_end(int(line(runner)))
    runner.kill()
    runner.wait(PATIENCE)
    done = takehold("evict", "--key", "k", "--timeout", "0.05")
    assert done.returncode == 1
    assert f"kept by {left} (" in done.stderr
    done = takehold("evict", "--key", "k", "--timeout", "0.2", "--terminate", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: not alive(left))
    assert is_free(url)


def test_a_frozen_runner_is_ended_with_its_whole_group(takehold: RunTakehold, processes: Processes, url: str) -> None:
    runner = processes.takehold("run", "-k", "k", "--", sys.executable, "-c", DEAF)
    child = processes.also_end(int(line(runner)))
    runner.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    done = takehold("evict", "--key", "k", "--timeout", "0.1", "--terminate", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 5
    until(lambda: not alive(child))
    assert is_free(url)
