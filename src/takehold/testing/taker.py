"""A process that takes a lock and waits to be killed.

    with Taker("file:/run/app", "orders/42") as taker:      # it holds the key when this line is reached
        assert locks.lock("orders/42").try_acquire() is None
        taker.kill()
        locks.lock("orders/42", timeout=5).acquire()        # the key is free again

    with Taker(url, "orders/42", wait=True) as waiter: ...  # it asks, and may have to wait

Also `python -m takehold.testing.taker URL KEY`, which says on its standard output what happens to it and takes
`release`, `then KEY` (take a further key) and `end` on its standard input.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from takehold.errors import TakeholdError
from takehold.locks._sync import Hold, Locks
from takehold.testing.pipe import readable

__all__ = ["Taker"]

PATIENCE = 20.0


class Taker:
    """A child process with one key, or on its way to it. Killed at the end of the block, if it still lives."""

    def __init__(  # noqa: PLR0913 - each is a word of its own
        self,
        url: str,
        key: str,
        *,
        shared: bool = False,
        namespace: str = "",
        label: str = "taker",
        wait: bool = False,
        quiet: bool = False,
    ) -> None:
        """`wait`: do not wait until it holds the key. `quiet`: its traceback is expected, and not shown."""
        self._wait = wait
        self._errors = subprocess.DEVNULL if quiet else None
        self._args = [url, key, "--namespace", namespace, "--label", label, *(["--shared"] if shared else [])]
        self._fence: int | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, *self._args]
        # -W: a warning in a child would be seen by nobody.
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0, env=environment
        )
        try:
            self.says("asking")
            if not self._wait:
                self.until_held()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def fence(self) -> int:
        """The fence of its hold; waits until it has one."""
        if self._fence is None:
            self.until_held()
        assert self._fence is not None
        return self._fence

    def until_held(self, within: float = PATIENCE) -> None:
        """Come back when it says that it holds the key."""
        self._fence = int(self.says("holding", within=within))

    def says(self, word: str, *, within: float = PATIENCE) -> str:
        """Wait until it says this word next; what it says about it."""
        said, _, about = self._line(within).partition(" ")
        if said != word:
            raise AssertionError(f"the taker was expected to say {word!r}, and said {said!r} {about}")
        return about

    def _line(self, within: float) -> str:
        pipe = self._process.stdout
        assert pipe is not None
        until = time.monotonic() + within
        while b"\n" not in self._unread:
            if not readable(pipe.fileno(), until - time.monotonic()):
                raise AssertionError(f"the taker said nothing within {within:g} s")
            if not (more := os.read(pipe.fileno(), 4096)):
                raise AssertionError(f"the taker ended with {self._process.wait()}")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def tell(self, command: str) -> None:
        """Give it a command: `release`, `then KEY`, `end`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    def release(self) -> None:
        """Let it give everything back; it lives on."""
        self.tell("release")
        self.says("released")

    def kill(self) -> None:
        """SIGKILL: it cannot tidy up."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGSTOP: it is there and does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def cont(self) -> None:
        """SIGCONT: it goes on as if nothing had happened."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def interrupt(self) -> None:
        """SIGINT, as from Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def lost_or_dead(self, key: str) -> bool:
        """Whether it has ended, or says that it has lost the key."""
        try:
            return self.says("lost") == key
        except AssertionError:
            return self.wait() < 0

    def wait(self, within: float = PATIENCE) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        return self._process.wait(within)


# -- in the child ------------------------------------------------------------------------------------------


def _say(word: str, about: object = "") -> None:
    sys.stdout.write(f"{word} {about}".rstrip() + "\n")
    sys.stdout.flush()


class _Child:
    """Takes keys, says what came of it, and does as it is told."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._holds: list[Hold] = []

    def take(self, key: str, mode: str = "exclusive") -> None:
        _say("asking", key)
        try:
            hold = self._locks.lock(key, mode=mode, timeout=None).acquire()
        except TakeholdError as error:
            _say("refused", f"{type(error).__name__} {error}")
            return
        hold.on_lost(lambda: _say("lost", key))
        self._holds.append(hold)
        _say("holding", hold.fence)

    def release(self) -> None:
        while self._holds:
            self._holds.pop().release()
        _say("released")

    def obey(self) -> None:
        for line in sys.stdin:
            word, _, about = line.strip().partition(" ")
            if word == "release":
                self.release()
            elif word == "then":
                self.take(about)
            elif word == "end":
                return


def _count(locks: Locks, key: str, rounds: int, path: Path) -> None:
    """Add one to a number in a file, again and again; reading and writing are apart, the lock joins them."""
    for _ in range(rounds):
        with locks.lock(key, timeout=PATIENCE):
            number = int(path.read_text())
            os.sched_yield()
            path.write_text(str(number + 1))


def main(arguments: list[str] | None = None) -> None:
    """Take a key, say so, and wait for commands or for the end."""
    parser = argparse.ArgumentParser(prog="python -m takehold.testing.taker", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("--namespace", default="")
    parser.add_argument("--label", default=None)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--count", type=Path, help="instead, count under the key in this file")
    parser.add_argument("--rounds", type=int, default=100)
    asked: Any = parser.parse_args(arguments)
    with Locks(asked.url, namespace=asked.namespace, label=asked.label) as locks:
        if asked.count is not None:
            _count(locks, asked.key, asked.rounds, asked.count)
            return
        child = _Child(locks)
        child.take(asked.key, "shared" if asked.shared else "exclusive")
        child.obey()
        child.release()


if __name__ == "__main__":
    main()
