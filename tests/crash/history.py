"""Histories of holds, written by processes that may be killed at any moment, and the checker that reads them.

Each record is one small O_APPEND write: *enter* after the grant, *exit* before the release, both with the
system-wide monotonic clock and the fence. So every logged interval lies inside the real hold, and any overlap
of two that exclude each other is a violation. A hold whose owner was killed ends at the clock *before* the
signal was sent. The checker knows nothing of Takehold.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

RECORD = struct.Struct("<BBHIqq")  # enter or exit, shared, key, hold number, time, fence
ENTER, EXIT = 1, 2


class Recorder:
    """Writes one process's history."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._numbers = itertools.count(1)

    def enter(self, key: int, shared: bool, fence: int) -> int:
        """A hold was granted."""
        number = next(self._numbers)
        os.write(self._fd, RECORD.pack(ENTER, shared, key, number, time.monotonic_ns(), fence))
        return number

    def exit(self, key: int, shared: bool, number: int) -> None:
        """The hold is about to be released."""
        os.write(self._fd, RECORD.pack(EXIT, shared, key, number, time.monotonic_ns(), 0))


@dataclass(slots=True)
class Interval:
    """One hold: from after its grant to before its release."""

    key: int
    shared: bool
    start: int
    fence: int
    owner: str
    end: int | None = None
    number: int = 0


@dataclass(slots=True)
class Verdict:
    """What the checker found."""

    holds: int = 0
    exclusive: int = 0
    unfinished: int = 0
    overlaps: list[tuple[Interval, Interval]] = field(default_factory=list)
    stale_fences: list[tuple[Interval, Interval]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether there was no violation."""
        return not self.overlaps and not self.stale_fences


def read(path: Path, killed_at: int | None) -> list[Interval]:
    """One process's holds; the last may be cut short by its death."""
    data = path.read_bytes()
    intervals: dict[int, Interval] = {}
    for offset in range(0, len(data) - RECORD.size + 1, RECORD.size):
        kind, shared, key, number, moment, fence = RECORD.unpack_from(data, offset)
        if kind == ENTER:
            intervals[number] = Interval(key, bool(shared), moment, fence, path.stem, number=number)
        elif kind == EXIT:
            intervals[number].end = moment
    for interval in intervals.values():
        if interval.end is None:
            assert killed_at is not None, f"{path.stem} ended in good order with a hold open"
            interval.end = max(killed_at, interval.start)
    return list(intervals.values())


def check(intervals: list[Interval]) -> Verdict:
    """Sweep over each key in order of entering: who is inside when somebody enters?"""
    verdict = Verdict(holds=len(intervals))
    by_key: dict[int, list[Interval]] = {}
    for interval in intervals:
        by_key.setdefault(interval.key, []).append(interval)
        verdict.exclusive += not interval.shared
    for holds in by_key.values():
        holds.sort(key=lambda interval: interval.start)
        inside: list[Interval] = []
        newest: Interval | None = None
        for interval in holds:
            inside = [other for other in inside if other.end is not None and other.end > interval.start]
            for other in inside:
                if not (other.shared and interval.shared):
                    verdict.overlaps.append((other, interval))
            inside.append(interval)
            if not interval.shared:
                if newest is not None and interval.fence <= newest.fence:
                    verdict.stale_fences.append((newest, interval))
                newest = interval
    return verdict
