"""Histories in which holds may be lost: who was told, when, and whether that was soon enough.

Beside entering and leaving, a worker notes the session that each hold stands on, the moment when a hold was
reported lost, and the moment when a session was. The nemesis notes when it cut which session, and when it
paused whom. The checker knows nothing of Takehold: it reads clocks, and the order of one shared log of writes.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.history import ENTER, RECORD, Interval, Recorder, read

ON, LOST, OPENED, DIED = 3, 4, 5, 6
WRITE = struct.Struct("<HIqq16s")  # key, hold, fence, time, owner
PERPETUAL = 1 << 62


class LossRecorder(Recorder):
    """One process's history, with its sessions and losses."""

    def enter_on(self, key: int, shared: bool, fence: int, session: int) -> int:
        """A hold was granted, on that session."""
        number, now = next(self._numbers), time.monotonic_ns()
        entered = RECORD.pack(ENTER, shared, key, number, now, fence)
        os.write(self._fd, entered + RECORD.pack(ON, shared, key, number, now, session))
        return number

    def lost(self, key: int, number: int) -> None:
        """The hold was reported lost."""
        os.write(self._fd, RECORD.pack(LOST, 0, key, number, time.monotonic_ns(), 0))

    def opened(self, session: int, pid: int) -> None:
        """A session was seen for the first time; the server process of its keeper."""
        os.write(self._fd, RECORD.pack(OPENED, 0, 0, session, time.monotonic_ns(), pid))

    def died(self, session: int) -> None:
        """A session was seen dead."""
        os.write(self._fd, RECORD.pack(DIED, 0, 0, session, time.monotonic_ns(), 0))


class Register:
    """What all processes write to under their exclusive holds: one log, in which the order of writes is a fact.

    A write counts unless a newer fence was there before it; the reader decides, as a resource would have.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._owner = owner.encode()

    def write(self, key: int, number: int, fence: int) -> None:
        """Write under a hold, or under what once was one."""
        os.write(self._fd, WRITE.pack(key, number, fence, time.monotonic_ns(), self._owner))


@dataclass(slots=True)
class Life:
    """One process: its holds and sessions, and when it could not notice anything."""

    owner: str
    holds: list[Interval] = field(default_factory=list)
    on: dict[int, int] = field(default_factory=dict)
    """Hold to session."""
    lost: dict[int, int] = field(default_factory=dict)
    """Hold to when it was reported lost."""
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Session to when it was first seen, and the server process of its keeper."""
    died: dict[int, int] = field(default_factory=dict)
    pauses: list[tuple[int, int]] = field(default_factory=list)
    until: int = PERPETUAL
    """When the process was killed or had ended."""

    @classmethod
    def read(cls, path: Path, killed_at: int | None, pauses: list[tuple[int, int]]) -> Life:
        """One history."""
        life = cls(path.stem, read(path, killed_at), pauses=pauses, until=killed_at or PERPETUAL)
        data = path.read_bytes()
        for offset in range(0, len(data) - RECORD.size + 1, RECORD.size):
            kind, _, _, number, moment, value = RECORD.unpack_from(data, offset)
            if kind == ON:
                life.on[number] = value
            elif kind == LOST:
                life.lost.setdefault(number, moment)
            elif kind == OPENED:
                life.opened[number] = (moment, value)
            elif kind == DIED:
                life.died.setdefault(number, moment)
        if killed_at is None:
            life.until = max([hold.end or 0 for hold in life.holds] + list(life.died.values()), default=0)
        return life

    def told(self, number: int) -> int:
        """When this hold was known to be lost, by itself or with its session; never, if it was not."""
        session = self.died.get(self.on.get(number, 0), PERPETUAL)
        return min(self.lost.get(number, PERPETUAL), session)

    def awake(self, start: int, end: int) -> int:
        """How much of that time it was not paused."""
        paused = sum(max(0, min(end, last) - max(start, first)) for first, last in self.pauses)
        return max(0, end - start - paused)


@dataclass(slots=True)
class Cut:
    """Something that ended sessions: all of these server processes, by this moment."""

    at: int
    pids: frozenset[int]


@dataclass(slots=True)
class Judgement:
    """What the checker found."""

    holds: int = 0
    exclusive: int = 0
    lost: int = 0
    overlaps: list[str] = field(default_factory=list)
    """Between two holds of which neither was reported lost."""
    excused: int = 0
    """Overlaps of which one hold was lost, and reported in time."""
    late: list[str] = field(default_factory=list)
    """Losses that were reported too late, or never."""
    fences: list[str] = field(default_factory=list)
    """Fences that did not grow."""
    refused: list[str] = field(default_factory=list)
    """Writes under a good hold that the fenced log had to refuse."""
    stale_rejected: int = 0
    stale_accepted: list[str] = field(default_factory=list)
    writes: int = 0
    slowest: int = 0
    """Nanoseconds from a cut to the report, pauses not counted."""

    @property
    def clean(self) -> bool:
        """Whether there was no violation."""
        return not (self.overlaps or self.late or self.fences or self.refused or self.stale_accepted)


class Checker:
    """All histories of one run."""

    def __init__(self, lives: Iterable[Life], cuts: Sequence[Cut], bound: int) -> None:
        self._lives = {life.owner: life for life in lives}
        self._cuts = cuts
        self._bound = bound
        self.found = Judgement()

    def check(self, writes: Path | None = None) -> Judgement:
        """Everything."""
        by_key: dict[int, list[Interval]] = {}
        for life in self._lives.values():
            self.found.lost += len(life.lost)
            for hold in life.holds:
                by_key.setdefault(hold.key, []).append(hold)
                self.found.holds += 1
                self.found.exclusive += not hold.shared
                self._check_told(life, hold)
            self._check_cuts(life)
        for holds in by_key.values():
            self._check_key(holds)
        if writes is not None and writes.exists():
            self._check_writes(writes.read_bytes())
        return self.found

    def _told(self, hold: Interval) -> int:
        return self._lives[hold.owner].told(hold.number)

    def _check_key(self, holds: list[Interval]) -> None:
        holds.sort(key=lambda hold: hold.start)
        inside: list[Interval] = []
        newest: Interval | None = None
        for hold in holds:
            # What is known to be lost is not held any more, whatever its owner still does.
            inside = [other for other in inside if min(other.end or 0, self._told(other)) > hold.start]
            if self._told(hold) <= hold.start:
                continue
            for other in inside:
                if not (other.shared and hold.shared):
                    self._check_pair(other, hold)
            inside.append(hold)
            if not hold.shared and self._told(hold) == PERPETUAL:
                if newest is not None and hold.fence <= newest.fence:
                    self.found.fences.append(f"{newest} then {hold}")
                newest = hold

    def _check_pair(self, first: Interval, second: Interval) -> None:
        """Two at once: one of them was lost before the other began, and its owner had to be told soon."""
        delays = [
            self._lives[hold.owner].awake(second.start, told)
            for hold in (first, second)
            if (told := self._told(hold)) != PERPETUAL
        ]
        if not delays:
            self.found.overlaps.append(f"{first} and {second}")
        elif min(delays) > self._bound:
            self.found.late.append(f"{first} and {second}: told after {min(delays) / 1e6:.0f} ms")
        else:
            self.found.excused += 1

    def _check_told(self, life: Life, hold: Interval) -> None:
        """A hold that goes on after its session has died must be told itself."""
        died = life.died.get(life.on.get(hold.number, 0), PERPETUAL)
        if died == PERPETUAL or hold.end is None:
            return
        since = max(died, hold.start)
        told = min(life.lost.get(hold.number, PERPETUAL), life.until)
        if hold.end > since and life.awake(since, min(hold.end, told)) > self._bound:
            self.found.late.append(f"{hold}: its session died at {died}, told at {told}")

    def _check_cuts(self, life: Life) -> None:
        """A session that was cut must be known dead soon, unless its process ended first."""
        for session, (opened, pid) in life.opened.items():
            cuts = [cut.at for cut in self._cuts if pid in cut.pids and opened < cut.at]
            if not cuts or cuts[0] >= life.until:
                continue
            died = min(life.died.get(session, PERPETUAL), life.until)
            delay = life.awake(cuts[0], died)
            self.found.slowest = max(self.found.slowest, delay)
            if delay > self._bound:
                self.found.late.append(f"session {session} of {life.owner}: cut at {cuts[0]}, known at {died}")

    def _check_writes(self, data: bytes) -> None:
        starts = {(hold.owner, hold.number): hold for life in self._lives.values() for hold in life.holds}
        newest_fence: dict[int, int] = {}
        newest_good: dict[int, Interval] = {}
        for offset in range(0, len(data) - WRITE.size + 1, WRITE.size):
            key, number, fence, moment, owner = WRITE.unpack_from(data, offset)
            self.found.writes += 1
            hold = starts[owner.rstrip(b"\0").decode(), number]
            good = self._told(hold) == PERPETUAL
            if fence < newest_fence.get(key, 0):
                self.found.stale_rejected += 1
                if good:
                    self.found.refused.append(f"{hold} at {moment}: {fence} after {newest_fence[key]}")
                continue
            newest_fence[key] = fence
            after = newest_good.get(key)
            if not good and after is not None and after.start > hold.start:
                self.found.stale_accepted.append(f"{hold} at {moment}, after {after}")
            if good:
                newest_good[key] = hold
