"""What is still to be done, and in which order: decisions only, under a mutex. `run` acts on them."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from takehold.fragments.fragment import Fragment

__all__ = ["Backlog", "Step", "Work"]

Step: TypeAlias = "Work | float | Literal['read', 'sift'] | None"
"""Work on this; wait so many seconds; read on in the corpus; ask what others have done; nothing is left."""

SOON: Final = 0.02
LATE: Final = 2.0
"""Seconds before a fragment that somebody else holds is offered again, at first and at most."""
IDLE: Final = 0.01
SIFT_EVERY: Final = 0.1
"""Seconds between two questions for what others have done meanwhile."""


@dataclass(eq=False, slots=True)
class Work:
    """A fragment to extract, or one that is gone and whose results are to be removed."""

    identity: str
    corpus: str
    document: str
    hash: str
    fragment: Fragment | None
    version: object = None
    """Of its document, when it was read."""
    skipped: int = 0
    """How often it was held by somebody else, in a row."""
    refused: int = 0
    """How often its stamp was refused."""
    held: bool = False


class Backlog:
    """Fragments that are ready, that come later, and that are being worked on."""

    def __init__(self, low: int, patience: float) -> None:
        self._mutex = threading.Lock()
        self._ready: deque[Work] = deque()
        self._later: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self._low = low
        self._patience = patience
        self._running = 0
        self._reading = False
        self._sifting = False
        self._collided = False
        self._sifted = 0.0
        self._moved = 0.0
        self.exhausted = False
        """The whole corpus was read."""

    def step(self, now: float) -> Step:
        """What the caller is to do now. Work is its own until `finished` or `again`."""
        with self._mutex:
            if not self.exhausted and not self._reading and len(self._ready) < self._low:
                self._reading = True
                return "read"
            if self._collided and not self._sifting and now - self._sifted >= SIFT_EVERY and self._waiting() > 1:
                self._sifting = True
                return "sift"
            if self._ready:
                self._running += 1
                return self._ready.popleft()
            if self._later and self._later[0][0] <= now:
                self._running += 1
                return heapq.heappop(self._later)[2]
            if self._running or self._reading or self._sifting or not self.exhausted:
                return IDLE
            if not self._later or now - self._moved > self._patience:
                return None
            return min(IDLE, self._later[0][0] - now)

    def _waiting(self) -> int:
        return len(self._ready) + len(self._later)

    def read(self, works: Iterable[Work], *, exhausted: bool, now: float) -> None:
        """More of the corpus. Not in its order: replicas that read the same would try the same."""
        works = list(works)
        random.shuffle(works)
        with self._mutex:
            self._ready.extend(works)
            self._reading = False
            self.exhausted = exhausted
            self._moved = now

    def not_read(self) -> None:
        """Reading failed; somebody may try again."""
        with self._mutex:
            self._reading = False

    def waiting(self) -> list[Work]:
        """Everything that nobody here works on."""
        with self._mutex:
            return [*self._ready, *(work for _, _, work in self._later)]

    def sifted(self, gone: set[str], now: float) -> list[Work]:
        """Take out what others have done; what that was."""
        with self._mutex:
            self._sifting = self._collided = False
            self._sifted = now
            out = [work for work in self._ready if work.identity in gone]
            out += [work for _, _, work in self._later if work.identity in gone]
            if out:
                self._moved = now
                self._ready = deque(work for work in self._ready if work.identity not in gone)
                self._later = [entry for entry in self._later if entry[2].identity not in gone]
                heapq.heapify(self._later)
            return out

    def finished(self, now: float, *, by_others: bool = False) -> None:
        """The work in the caller's hands is done with."""
        with self._mutex:
            self._running -= 1
            self._moved = now
            self._collided = self._collided or by_others

    def again(self, work: Work, now: float, seconds: float | None = None) -> None:
        """Offer it once more: after so many seconds, or, as somebody else holds it, after longer and longer."""
        with self._mutex:
            self._running -= 1
            if seconds is None:
                work.skipped += 1
                work.held = True
                seconds = random.uniform(0.5, 1) * min(LATE, SOON * 2 ** min(work.skipped, 10))
                self._collided = True
            else:
                work.skipped, work.held = 0, False
                self._moved = now
            heapq.heappush(self._later, (now + seconds, next(self._numbers), work))

    def count(self) -> tuple[int, int]:
        """How many are not done with, and how many of these somebody else holds."""
        with self._mutex:
            return self._waiting() + self._running, sum(work.held for _, _, work in self._later)
