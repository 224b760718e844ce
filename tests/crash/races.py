"""Races at the boundary: a holder lets go at the very moment when somebody stops waiting, and the server is asked.

Each lane has one advisory number, a raw connection that holds it, and a thread that lets it go on time. Whether
the waiter gave up or got it is about even: the moment moves towards whatever happens less.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg

PATIENCE = 0.010
"""Seconds that a waiter of a race waits."""

GIVEN_BACK_WITHIN = 1.0
"""Seconds after which something that is still held is a phantom: nobody will give it back. What goes back sooner is
counted as late; on two cores with twenty busy processes that took up to 50 ms."""

_OTHERS = """
SELECT l.pid, l.granted FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.classid = 0 AND l.objid = %s AND l.pid <> pg_backend_pid()
"""


class Aim:
    """When to let go, in seconds after the waiter began: adapts until half of the waiters give up."""

    def __init__(self, rng: random.Random, around: float = PATIENCE) -> None:
        self._rng = rng
        self._around = around
        self._step = 0.002

    def next(self) -> float:
        """The next moment."""
        return max(0.0, self._around + self._rng.uniform(-1, 1) * min(0.0003, self._step))

    def seen(self, gave_up: bool) -> None:
        """The waiter gave up: earlier next time. It got the lock: later."""
        self._around += -self._step if gave_up else self._step
        self._step = max(0.00008, self._step * 0.9)


@dataclass
class Tally:
    """What came out of many races."""

    races: int = 0
    gave_up: int = 0
    phantoms: int = 0
    """Waiters that were told no, and held it all the same, or still waited for it."""
    late: int = 0
    """Waiters that were told no while what they were granted was still on its way back."""
    latest: float = 0.0
    hollow: int = 0
    """Waiters that were told yes, and held nothing."""
    notes: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Another lane's."""
        self.races += other.races
        self.gave_up += other.gave_up
        self.phantoms += other.phantoms
        self.late += other.late
        self.latest = max(self.latest, other.latest)
        self.hollow += other.hollow
        self.notes += other.notes
        for name, count in other.errors.items():
            self.errors[name] = self.errors.get(name, 0) + count

    def row(self, name: str) -> str:
        """One line of the table."""
        share = 100 * self.phantoms / max(1, self.gave_up)
        late = f"{self.late} ({self.latest * 1000:.1f} ms)" if self.late else "0"
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items()))
        numbers = f"{self.races:>7}{self.gave_up:>9}{self.phantoms:>10}{share:>8.1f} %{late:>14}{self.hollow:>8}"
        return f"{name:<40}{numbers}  {kinds}"

    HEADER = f"{'who waits':<40}{'races':>7}{'gave up':>9}{'phantoms':>10}{'':>10}{'late':>14}{'hollow':>8}"


class Lane:
    """One number, its holder, and the results."""

    ends_phantoms = True
    """Without that the next race would wait for ever."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        self.number = number
        self.rng = random.Random(seed)
        self.aim = Aim(self.rng)
        self.tally = Tally()
        self._holder = psycopg.connect(url, autocommit=True, application_name="race-holder")
        self._hand = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hand.shutdown()
        self._holder.close()

    def take(self) -> None:
        """Hold the number; whoever has it must let go of it soon."""
        self._ask("SET statement_timeout = '20s'")
        self._ask("SELECT pg_advisory_lock(%s)", self.number)

    def let_go_in(self, seconds: float) -> Future[None]:
        """Let go so many seconds from now."""
        return self._hand.submit(self._let_go, time.monotonic() + seconds)

    def let_go(self) -> Future[None]:
        """Let go now."""
        return self._hand.submit(self._let_go, 0.0)

    def _let_go(self, moment: float) -> None:
        if (left := moment - time.monotonic()) > 0:
            time.sleep(left)
        self._ask("SELECT pg_advisory_unlock(%s)", self.number)

    def others(self) -> list[tuple[int, bool]]:
        """Server processes, without the holder's, that hold the number (True) or wait for it (False)."""
        return self._ask(_OTHERS, self.number)

    def judge(self, gave_up: bool) -> None:
        """After a race, when the holder has let go and the waiter has what it got."""
        self.tally.races += 1
        self.tally.gave_up += gave_up
        if gave_up and (there := self.others()):
            self._look_again(there)
        self.aim.seen(gave_up)

    def _look_again(self, there: list[tuple[int, bool]]) -> None:
        """It is on its way back, without a further call; or it is not."""
        began = time.monotonic()
        while there and time.monotonic() < began + GIVEN_BACK_WITHIN:
            there = self.others()
        if there:
            self.tally.phantoms += 1
            self.tally.notes.append(f"number {self.number}, race {self.tally.races}: {there}")
            for pid, _ in there if self.ends_phantoms else ():
                self._ask("SELECT pg_terminate_backend(%s, 1000)", pid)
        else:
            self.tally.late += 1
            self.tally.latest = max(self.tally.latest, time.monotonic() - began)

    def _ask(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        with self._holder.execute(sql.encode(), params or None) as cursor:
            return cursor.fetchall() if cursor.description else []
