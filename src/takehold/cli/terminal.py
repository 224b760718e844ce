"""The terminal of `takehold run`. Its command lives in a process group of its own, and only one group at a time
may read the keyboard and be reached by Ctrl-C: this module says which, and gives it back.
"""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress
from typing import Final

__all__ = ["Terminal"]

STDIN: Final = 0
STDOUT: Final = 1


class Terminal:
    """Our controlling terminal, on standard input."""

    def __init__(self) -> None:
        self._modes = termios.tcgetattr(STDIN)

    @classmethod
    def ours(cls) -> Terminal | None:
        """The terminal, or None when standard input is something else or another session's."""
        try:
            os.tcgetpgrp(STDIN)
            return cls()
        except (OSError, termios.error):
            return None

    @property
    def foreground(self) -> bool:
        """Whether the keyboard belongs to the process group we are in."""
        return self._reader() == os.getpgrp()

    @property
    def at_once(self) -> bool:
        """Whether the command gets it before it asks.

        Not in `takehold run ... | less`: there the keyboard is for less, until the command really reads it.
        """
        return self.foreground and os.isatty(STDOUT)

    def give(self, group: int) -> bool:
        """Let the group have the keyboard if it is ours to give."""
        if not self.foreground:
            return False
        _set_reader(group)
        return True

    def take_back(self, group: int) -> None:
        """End the group's turn, if it still has it."""
        if self._reader() == group:
            _set_reader(os.getpgrp())

    def restore(self) -> None:
        """Undo raw mode: a command that is killed cannot."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with suppress(termios.error):
                termios.tcsetattr(STDIN, termios.TCSADRAIN, self._modes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @staticmethod
    def _reader() -> int:
        try:
            return os.tcgetpgrp(STDIN)
        except OSError:  # hung up
            return -1


def _set_reader(group: int) -> None:
    # From the background this raises SIGTTOU, which would stop us, unless it is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with suppress(OSError):  # hung up, or the group is gone
            os.tcsetpgrp(STDIN, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
