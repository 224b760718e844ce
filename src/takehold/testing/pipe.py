"""Waiting for the other end of a pipe."""

from __future__ import annotations

import select

__all__ = ["readable"]


def readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read within so many seconds. Not `select`, which knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
