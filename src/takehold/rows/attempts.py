"""How often, and how long after: what `lock_rows`, `retry` and `transaction` have in common."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from takehold import UsageError

__all__ = ["Attempts"]


@dataclass(frozen=True, slots=True)
class Attempts:
    """How many there are, and the pause after the first; each pause is longer than the one before, with jitter."""

    count: int
    delay: float
    factor: ClassVar = 1.6
    longest: ClassVar = 5.0

    @classmethod
    def of(cls, count: int | None, delay: float | None) -> Attempts:
        """What was asked for; else the environment's, `DB_DEADLOCK_RETRY_ATTEMPTS` and `DB_DEADLOCK_RETRY_DELAY`."""
        made = cls(
            int(_from_environment("DB_DEADLOCK_RETRY_ATTEMPTS", 5)) if count is None else count,
            _from_environment("DB_DEADLOCK_RETRY_DELAY", 0.2) if delay is None else delay,
        )
        if made.count < 1 or made.delay < 0:
            raise UsageError(f"attempts= is 1 or more and delay= is not negative; got {made.count} and {made.delay}")
        return made

    def __iter__(self) -> Iterator[tuple[int, float | None]]:
        """Number and pause of each: a pause of None says that it is the last."""
        pause = self.delay
        for number in range(1, self.count + 1):
            # Two that deadlocked together must not meet again at the same instant.
            yield number, None if number == self.count else pause * (0.5 + random.random())
            pause = min(pause * self.factor, self.longest)


def _from_environment(name: str, default: float) -> float:
    value = os.environ.get(name)
    if value is None:
        return default
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{name} is a number; this environment says {value!r}") from None
