"""Durations as users write them, instants as the core uses them, and pauses between attempts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar, Final, TypeAlias

from takehold.core.mutex import Mutex
from takehold.errors import UsageError

__all__ = ["DEFAULT", "AdaptiveTimeout", "Backoff", "Deadline", "Default", "Timeout", "seconds_of"]

_ACCEPTED: Final = "a timeout is seconds, a timedelta, 0 (one attempt), None (forever) or an AdaptiveTimeout"


class Default:
    """The type of `DEFAULT`: what the `Locks` object was given."""

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default()


class AdaptiveTimeout:
    """A timeout that learns: it grows while many waits fail, and comes down to what waits really take.

    Of the last 16 waits: more than a third timed out, and it grows by a quarter (at most a day); less than a
    tenth, and it goes half of the way down to 1.25 times the longest wait seen. Never below `minimum`.
    """

    WINDOW: Final = 16
    CEILING: Final = 86_400.0

    def __init__(self, start: float = 30, minimum: float = 5) -> None:
        if not 0 < minimum <= start:
            raise UsageError(f"AdaptiveTimeout needs 0 < minimum <= start, not {minimum!r} and {start!r}")
        self.minimum = float(minimum)
        self._seconds = float(start)
        self._recent: deque[float | None] = deque(maxlen=self.WINDOW)
        self._mutex = Mutex()

    @property
    def seconds(self) -> float:
        """What the next wait gets."""
        return self._seconds

    def succeeded(self, waited: float) -> None:
        """Learn from a wait that ended with the key."""
        self._learn(waited)

    def timed_out(self) -> None:
        """Learn from a wait that did not."""
        self._learn(None)

    def _learn(self, outcome: float | None) -> None:
        with self._mutex:
            self._recent.append(outcome)
            if len(self._recent) < self.WINDOW:
                return
            waits = [wait for wait in self._recent if wait is not None]
            failed = (self.WINDOW - len(waits)) / self.WINDOW
            if failed > 0.33:
                self._seconds = min(self._seconds * 1.25, self.CEILING)
            elif failed < 0.10:
                enough = 1.25 * max(waits)
                self._seconds = max((self._seconds + min(enough, self._seconds)) / 2, self.minimum)
            else:
                return
            self._recent.clear()

    def __repr__(self) -> str:
        return f"AdaptiveTimeout({self._seconds:g}, minimum={self.minimum:g})"


USUAL: Final = 1e9
"""Seconds up to which a number needs no further look."""
Timeout: TypeAlias = float | timedelta | AdaptiveTimeout | None


def seconds_of(timeout: object) -> float | None:
    """Seconds to wait, None for ever; `UsageError` for anything that is not a timeout."""
    if timeout is None:
        return None
    if (type(timeout) is int or type(timeout) is float) and 0 <= timeout < USUAL:
        return timeout
    if isinstance(timeout, AdaptiveTimeout):
        return timeout.seconds
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout != timeout:  # noqa: PLR0124 - NaN, also of huge ints
        raise UsageError(f"{_ACCEPTED}, not {timeout!r}")
    if timeout < 0:
        raise UsageError(f"{_ACCEPTED}; {timeout!r} is negative")
    try:
        return None if math.isinf(timeout) else float(timeout)
    except OverflowError:
        raise UsageError(f"{_ACCEPTED}; this number is too large") from None


class Deadline:
    """One instant that covers every key and every attempt of a call."""

    __slots__ = ("_now", "at", "started")
    longest: ClassVar = math.inf
    """`takehold.testing.no_waiting` makes it 0."""

    def __init__(self, now: Callable[[], float], seconds: float | None, began: float | None = None) -> None:
        self._now = now
        self.started = now() if began is None else began
        self.at = self.started + min(math.inf if seconds is None else seconds, self.longest)

    def left(self) -> float:
        """Seconds left: 0 when it has passed, infinity when there is none."""
        return max(0.0, self.at - self._now())

    def waited(self) -> float:
        """Seconds since the call began."""
        return self._now() - self.started


class Backoff:
    """Growing pauses with jitter, so that two that failed together do not try together."""

    __slots__ = ("_factor", "_most", "_pause", "_random")
    scale: ClassVar = 1.0
    """`takehold.testing.no_waiting` makes it 0."""

    def __init__(self, first: float, most: float, random: Callable[[], float], factor: float = 1.6) -> None:
        self._pause, self._most, self._factor, self._random = first, most, factor, random

    def next(self) -> float:
        """The next pause, between a half and the whole of what it has grown to."""
        pause, self._pause = self._pause, min(self._pause * self._factor, self._most)
        return pause * self.scale * (0.5 + self._random() / 2)
