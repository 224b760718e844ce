"""`memory:` - the desk alone: threads and tasks of one process, both faces in one queue.

`memory:NAME` is one space for the whole process; a bare `memory:` belongs to its `Locks` object.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable
from typing import Any

from takehold.core.backend import Capabilities, Grant, Losses, Session, Turn
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.want import Want
from takehold.runtime import Runtime

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """Grants everything: what excludes is the desk in front of it."""

    capabilities = Capabilities(across="process", waiting="local", evict="ask")
    solo = True

    def __init__(self, name: str = "") -> None:
        self.identity: Hashable = ("memory", name or id(self))

    def place(self, encoded: bytes, number: int | None) -> tuple[Hashable, Any]:
        """The encoding itself: nothing can collide."""
        return encoded, None

    def open_now(self, rt: Runtime, losses: Losses) -> MemorySession:
        """A session that cannot fail."""
        return MemorySession(rt)

    async def open(self, rt: Runtime, losses: Losses, seconds: float) -> Session:
        """The same."""
        return self.open_now(rt, losses)

    async def who(self, rt: Runtime) -> list[HoldRecord]:
        """Nobody but this process, which the desk knows."""
        return []

    async def evict(self, rt: Runtime, hold_id: str, *, terminate: bool, timeout: float) -> bool:
        """The desk knows every hold there is and was asked before: this one is gone."""
        return True

    async def init(self, rt: Runtime, *, fence_from: int | None) -> str:
        """Nothing to make."""
        return "memory: needs no preparation"


_fences = itertools.count(1)
"""For the whole process: the fences of `memory:NAME` must not start again with its next `Locks`."""


class MemorySession:
    """Fences and nothing else."""

    instant = True
    usable = True
    board = None

    def __init__(self, rt: Runtime) -> None:
        self.lost: str | None = None
        self._now = rt.now_ns
        self._fence = _fences
        self.name = str(os.getpid())

    def attend(self) -> None:
        """Nothing can go wrong with it."""

    def take_alone(self, seat: Seat) -> bool:
        """Always."""
        seat.fence = next(self._fence)
        seat.at = self._now()
        return True

    def give_alone(self, seat: Seat) -> None:
        """Nothing to give back."""

    def take(self, want: Want, beside: bool) -> Grant | None:
        """Always."""
        return Grant(self, want, next(self._fence), self._now())

    def give(self, grant: Grant) -> None:
        """Nothing to give back."""

    def forget(self, want: Want) -> None:
        """Nothing to forget."""

    def refence(self, grant: Grant) -> tuple[int | None, int]:
        """The next number."""
        return next(self._fence), self._now()

    def turn(self, want: Want, beside: bool, seat: Seat) -> Turn:
        """Never needed: `take` always grants."""
        raise AssertionError("nobody waits at the memory backend")

    def doubt(self, seat: Seat) -> str | None:
        """Memory does not lie."""
        return None

    def deadlock(self, seat: Seat) -> str | None:
        """The desk sees every cycle there can be."""
        return None

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Nobody else."""
        return []

    def descriptors(self, seat: Seat) -> tuple[int, ...]:
        """None: a child process is another memory."""
        return ()

    def close(self) -> None:
        """Nothing to close."""

    def after_fork(self) -> None:
        """The child's memory is its own."""
