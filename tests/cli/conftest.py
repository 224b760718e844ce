"""Processes for the tests of the command line: all of them, and what they started, end with their test."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from takehold import Locks
from takehold.testing.pipe import readable

PATIENCE = 20.0
TAKEHOLD = [sys.executable, "-m", "takehold"]
Done: TypeAlias = "subprocess.CompletedProcess[str]"
Process: TypeAlias = "subprocess.Popen[str]"
RunTakehold: TypeAlias = Callable[..., Done]


def until(condition: Callable[[], object], what: str = "") -> None:
    """Look again and again until it is so; fail after a long while."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never came true: {what or condition}"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A lock directory of this test's own. It is the default in every test: none may touch the user's."""
    here = f"file:{tmp_path / 'locks'}"
    monkeypatch.setenv("TAKEHOLD_URL", here)
    return here


@pytest.fixture
def takehold(url: str) -> RunTakehold:
    """Run a command to its end."""

    def run(*words: str, **options: Any) -> Done:
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE, **options}
        return subprocess.run([*TAKEHOLD, *words], capture_output=True, text=True, check=False, **settings)

    return run


class Processes:
    """Starts processes, and ends them with everything that descends from them."""

    def __init__(self) -> None:
        self._started: list[Process] = []
        self._others: list[int] = []

    def __call__(self, *words: str, **options: Any) -> Process:
        process = subprocess.Popen(
            words,
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._started.append(process)
        return process

    def takehold(self, *words: str, **options: Any) -> Process:
        return self(*TAKEHOLD, *words, **options)

    def holder(self, url: str, *keys: str) -> Process:
        """A process that holds these keys; `ids` of it are read already."""
        process = self(sys.executable, "-m", "tests.cli.holder", url, *keys)
        process.ids = [line(process) for _ in keys]  # type: ignore[attr-defined]
        return process

    def adopt(self, process: Process) -> None:
        """A process that the test started itself."""
        self._started.append(process)

    def at_a_terminal(self, *words: str) -> tuple[Process, int]:
        """A command on a terminal of its own, and the other side of that."""
        master, slave = pty.openpty()
        process = subprocess.Popen([*TAKEHOLD, *words], stdin=slave, stdout=slave, stderr=slave, text=True)
        self.adopt(process)
        os.close(slave)
        return process, master

    def also_end(self, pid: int) -> int:
        """A process that was started by another one."""
        self._others.append(pid)
        return pid

    def end(self) -> None:
        for process in self._started:
            for pid in [*descendants(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in self._others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait(PATIENCE)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [*descendants(int(child)), int(child)]
    return found


def line(process: Process, stream: str = "stdout") -> str:
    """The next line of its output; a failure when there is none for a long while."""
    pipe = getattr(process, stream).fileno()
    text = b""
    # Letter by letter: nothing is left in a buffer for select to overlook.
    while not text.endswith(b"\n"):
        assert readable(pipe, PATIENCE), f"it says nothing after {text!r}"
        letter = os.read(pipe, 1)
        assert letter, f"it ended: {process.wait(PATIENCE)}, {process.stderr.read() if process.stderr else ''}"
        text += letter
    return text.decode().rstrip("\n")


def screen_text(terminal: int) -> str:
    """What comes next on the other side of a terminal; empty when that was closed."""
    assert readable(terminal, PATIENCE), "nothing more came"
    try:
        return os.read(terminal, 4096).decode()
    except OSError:
        return ""


def screen_until(terminal: int, text: str) -> str:
    """All that comes, up to this."""
    shown = ""
    while text not in shown:
        shown += screen_text(terminal)
    return shown


def ids(holder: Process) -> list[str]:
    """The holds of a `Processes.holder`."""
    return holder.ids  # type: ignore[attr-defined, no-any-return]


def is_free(url: str, key: str = "k") -> bool:
    """Whether it can be had right now."""
    with Locks(url) as locks:
        hold = locks.lock(key).try_acquire()
        if hold is not None:
            hold.release()
        return hold is not None


def ask(process: Process, question: str) -> str:
    """What a holder answers."""
    assert process.stdin is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return line(process)


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.end()


@pytest.fixture
def stranger(postgres_url: str) -> Iterator[Callable[..., Any]]:
    """Makes sessions of programs that do not use takehold; all end with the test."""
    from tests.cli.onlookers import Stranger

    made: list[Stranger] = []

    def start(name: str = "legacy", url: str = postgres_url) -> Stranger:
        made.append(Stranger(url, name))
        return made[-1]

    yield start
    for one in made:
        one.end()


def state(pid: int) -> str:
    """What the kernel says it does: `S` when it sleeps, `T` when it is stopped, `X` when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    return state(pid) not in "ZX"
