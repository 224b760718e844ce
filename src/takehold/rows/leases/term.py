"""How long a worker may trust its lease: told by its own clock, from before the statement that took it was sent."""

from __future__ import annotations

import time
from dataclasses import dataclass

from takehold import UsageError

__all__ = ["Term", "now"]


def now() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Term:
    """`seconds` at the database; here a tenth less, for clocks that run at different speeds."""

    seconds: float
    beat: float | None

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise UsageError(f"seconds= is how long a lease lasts, more than 0; got {self.seconds}")
        if self.beat is not None and not 0 < self.beat <= self.seconds / 4:
            raise UsageError(
                f"heartbeat= is more than 0 and at most a quarter of seconds= ({self.seconds / 4:g}), or None when "
                f"you call heartbeat() yourself; got {self.beat}"
            )

    def is_due(self, sent: float, at: float) -> bool:
        """Half of it is gone: extend it."""
        return at >= sent + self.seconds / 2

    def is_over(self, sent: float, at: float) -> bool:
        """Somebody else may have the row by now, or soon."""
        return at >= sent + self.seconds * 0.9
