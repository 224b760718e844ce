"""A command and everything it starts, as one process group: started, signalled, reaped and seen gone together."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Final, NoReturn

from takehold.cli.processes import holding_open, inode, members

__all__ = ["CannotStart", "Group", "Plan"]

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
OUT_OF_THE_WAY: Final = 500
"""Inherited descriptors start here: scripts say `exec 9>file` and would close a lower one without knowing."""
_prctl = ctypes.PyDLL(None).prctl


class CannotStart(Exception):
    """The command could not be executed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.missing = isinstance(error, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start, and what it gets."""

    command: list[str]
    environment: dict[str, str]
    descriptors: frozenset[int] = frozenset()
    """To be inherited: they keep the key."""
    terminal: bool = False
    """Whether the group has the keyboard before the command runs."""


class Group:
    """One running command; making it starts it."""

    def __init__(self, plan: Plan) -> None:
        # Orphans of the group come to us, so that we see them end and a zombie never counts as alive.
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._kept = {inode(fd) for fd in plan.descriptors}
        copies = [_out_of_the_way(fd) for fd in plan.descriptors]
        self.code: int | None = None
        """The command's exit code once it has ended; 128 + n when signal n ended it."""
        self.stopped: int | None = None
        """The signal that stopped it, until somebody asks."""
        heard, told = os.pipe()
        # Blocked until the child has put its signals in order: our own handlers must never run there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            parent = os.getpid()
            with warnings.catch_warnings():
                # Python 3.12 warns that another thread exists (the lock's watch); the child only execs.
                warnings.simplefilter("ignore", DeprecationWarning)
                self.id = os.fork()
            if self.id == 0:
                _become(plan, copies, told, parent, before)
            # Both sides do it, so that neither can be early.
            with suppress(OSError):
                os.setpgid(self.id, self.id)
            os.close(told)
            failure = os.read(heard, 16)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for fd in (heard, *copies):
            os.close(fd)
        if failure:
            os.waitpid(self.id, 0)
            raise CannotStart(OSError(int(failure), os.strerror(int(failure))))

    def signal(self, number: int) -> None:
        """Send a signal to every process of the group."""
        # Gone, or all of it runs as somebody else (sudo), who must be asked there.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.id, number)

    def reap(self) -> None:
        """Note what happened to the command, and clean up after orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.id and os.WIFSTOPPED(status):
                self.stopped = os.WSTOPSIG(status)
            elif pid == self.id:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code

    @property
    def alive(self) -> bool:
        """Whether any process of the group is left."""
        try:
            os.killpg(self.id, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    @property
    def keeps_the_key(self) -> bool:
        """Whether somebody in the group still has the inherited descriptors: then the key outlives us."""
        return bool(self._kept and holding_open(self._kept, members(self.id)))

    def gone_within(self, seconds: float) -> bool:
        """Wait for the end of the whole group."""
        until = time.monotonic() + seconds
        while True:
            self.reap()
            if not self.alive:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.002)


def _out_of_the_way(fd: int) -> int:
    try:
        return fcntl(fd, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
    except OSError:  # few descriptors are allowed here
        return os.dup(fd)


def _become(plan: Plan, descriptors: list[int], told: int, parent: int, mask: Iterable[int]) -> NoReturn:
    """In the child, with every signal blocked: turn into the command."""
    try:
        os.setpgid(0, 0)
        # A killed runner takes its command along; a second look, because it may have died before we asked.
        _prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() == parent:
            if plan.terminal:
                with suppress(OSError):
                    os.tcsetpgrp(0, os.getpid())
            for fd in descriptors:
                os.set_inheritable(fd, True)
            _own_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvpe(plan.command[0], plan.command, plan.environment)  # noqa: S606 - it is what we are for
    except OSError as error:
        os.write(told, str(error.errno).encode())
    finally:
        os._exit(127)


def _own_signals() -> None:
    """What Python and we changed goes back to the default; what was ignored for us (nohup) stays ignored."""
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
