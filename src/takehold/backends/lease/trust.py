"""Trust: until when a session can be sure that the table still keeps its keys, by its own clock alone."""

from __future__ import annotations

import threading
from typing import Final

from takehold.runtime import Runtime

__all__ = ["Trust"]

SHARE: Final = 0.1
LEAST: Final = 0.2


class Trust:
    """Counted from the *send* of the last heartbeat that was answered, on a clock that runs while the host sleeps.

    It ends before the lease does, by a tenth of it: that is what a command needs to be stopped, and more than
    two clocks drift apart in that time. Once over, it stays over.
    """

    def __init__(self, rt: Runtime, ttl: float, sent: float) -> None:
        self._boot = rt.boot
        self._mutex = threading.Lock()
        self._seconds = ttl - max(ttl * SHARE, LEAST)
        self._over = False
        self.until = sent + self._seconds

    def over(self) -> bool:
        """Whether it has ended. Costs one look at the clock."""
        if not self._over and self._boot() >= self.until:
            with self._mutex:
                # A heartbeat may have been answered just now.
                self._over = self._boot() >= self.until
        return self._over

    def left(self) -> float:
        """Seconds."""
        return 0.0 if self.over() else max(0.0, self.until - self._boot())

    def renewed(self, sent: float) -> bool:
        """A heartbeat sent at that moment was answered; False when it came too late."""
        with self._mutex:
            self._over = self._over or self._boot() >= self.until
            if not self._over:
                self.until = max(self.until, sent + self._seconds)
            return not self._over
