"""Snowflake ids: 63 bits, ascending, in the layout of ClickHouse's `generateSnowflakeID()`.

From the left: 0, 41 bits of milliseconds since 1970 (until September 2039), 10 bits of machine number, 12 bits of
sequence. No two processes of a fleet mint the same id, because each mints only inside `Range`s that a registry has
reserved for it: a machine number for a stretch of time that nobody else gets. That needs no heartbeat and no agreement
of clocks, and a number is free for the next process when its stretch is over, whatever became of the first.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from takehold import UsageError

__all__ = ["Exhausted", "Minter", "Range", "Reserve", "bind", "new", "unbind"]

MACHINES = 1 << 10
SEQUENCES = 1 << 12
END_MS = 1 << 41


@dataclass(frozen=True, slots=True)
class Range:
    """The milliseconds from `from_ms` to before `until_ms`, in which one process alone mints as `machine`."""

    machine: int
    from_ms: int
    until_ms: int

    def __post_init__(self) -> None:
        if not (0 <= self.machine < MACHINES and 0 <= self.from_ms < self.until_ms <= END_MS):
            raise UsageError(f"{self} does not fit into an id: is the clock of this host right?")


Reserve: TypeAlias = Callable[[int], Range]
"""Gives a range that begins at this millisecond, or later where no machine number is free by then."""


class Exhausted(UsageError):
    """The reserved ids are used up, and whoever mints here cannot wait for more."""


class Minter:
    """Ids from ranges, each greater than the one before; for any number of threads. Does no IO but what `reserve` does.

    A clock that goes back, or too many ids for one millisecond, makes it go on from the last millisecond, ahead of the
    clock: it never waits, and which ids it may mint is a matter of the range alone.
    """

    def __init__(self, reserve: Reserve | None = None, clock: Callable[[], float] = time.time) -> None:
        self._reserve = reserve
        self._clock = clock
        self._range: Range | None = None
        self._next = 0  # milliseconds * SEQUENCES + sequence
        self._forget_threads()
        _minters.add(self)

    def new(self, n: int = 1) -> list[int]:
        """So many ids; `Exhausted` if they are used up and there is no `reserve` to ask."""
        if self._reserve is None:
            return self.at_hand(n)
        ids = self.take(checked(n))
        while len(ids) < n:
            self.refill(self._reserve)
            ids += self.take(n - len(ids))
        return ids

    def at_hand(self, n: int = 1) -> list[int]:
        """So many ids of the range; `Exhausted` if it has not so many. Asks nobody for more."""
        ids = self.take(checked(n))
        if len(ids) < n:
            raise Exhausted("the reserved ids are used up: `await registry.reserve()` first, twice a minute")
        return ids

    def take(self, n: int) -> list[int]:
        """Up to so many ids, as the range gives: without IO."""
        with self._mutex:
            reserved = self._range
            if reserved is None:
                return []
            first = max(self._next, self._now() * SEQUENCES, reserved.from_ms * SEQUENCES)
            last = min(first + n, reserved.until_ms * SEQUENCES)
            self._next = max(first, last)
        machine = reserved.machine << 12
        return [(at >> 12) << 22 | machine | at & (SEQUENCES - 1) for at in range(first, last)]

    def wanted(self, ahead_ms: int = 0) -> int | None:
        """Where a new range has to begin, or None if this one goes on for `ahead_ms` from now."""
        with self._mutex:
            position = max(self._next_ms(), self._now())
            lasts = self._range is not None and position + ahead_ms < self._range.until_ms
            return None if lasts else position

    def add(self, reserved: Range) -> None:
        """Go on in this range, and leave the rest of the one before unused."""
        with self._mutex:
            # In a millisecond of its own: the machine number stands before the sequence, and may be a smaller one.
            self._next = self._next_ms() * SEQUENCES
            self._range = reserved

    def follow(self, other: Minter) -> None:
        """Mint only what is greater than all that the other has minted."""
        with self._mutex:
            self._next = max(self._next, other._next_ms() * SEQUENCES)

    def refill(self, reserve: Reserve, ahead_ms: int = 0) -> None:
        """Get a new range unless this one goes on for `ahead_ms`; of several threads one asks, for all of them."""
        with self._refilling:
            if (wanted := self.wanted(ahead_ms)) is not None:
                self.add(reserve(wanted))

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _next_ms(self) -> int:
        return -(-self._next // SEQUENCES)

    def _forget_threads(self) -> None:
        self._mutex = threading.Lock()
        self._refilling = threading.Lock()

    def _after_fork(self) -> None:
        """The range is the parent's, and so are the threads that may stand inside a lock."""
        self._range = None
        self._forget_threads()


def checked(n: Any) -> int:
    """A number of ids that can be asked for."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise UsageError(f"this takes a number of ids, 0 or more, not {n!r}")
    return n


_minters: weakref.WeakSet[Minter] = weakref.WeakSet()


def _at_random(from_ms: int) -> Range:
    return Range(random.randrange(MACHINES), from_ms, END_MS)


_unbound = Minter(_at_random)
_minter = _unbound


def new(n: int = 1) -> list[int]:
    """So many ids, ascending; never one of them twice.

    Unique in the fleet as soon as a registry is bound (`registry.bind()`); before that the machine number is a random
    one, and only this process is sure not to mint an id again.
    """
    return _minter.new(n)


def bind(minter: Minter) -> None:
    """Let `new` mint there from now on."""
    global _minter  # noqa: PLW0603 - one per process is the point
    minter.follow(_minter)
    _minter = minter


def unbind(minter: Minter) -> None:
    """Let `new` mint with a random machine number again, if this is where it mints."""
    if _minter is minter:
        bind(_unbound)


def _after_fork() -> None:
    for minter in _minters:
        minter._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
