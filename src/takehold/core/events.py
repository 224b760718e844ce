"""What happened, for metrics, traces and pages. Free while nobody listens; never raises into an acquire.

| kind        | when                                              | seconds             |
|-------------|---------------------------------------------------|---------------------|
| acquired    | a key was granted                                 | the wait            |
| waited      | a wait ended, however it ended                    | the wait            |
| handed over | a key went to a local waiter without a round trip | 0                   |
| released    | a hold was given back                             | the hold            |
| timeout     | a wait ran out                                    | the wait            |
| deadlock    | a wait was refused because it could not end       | the wait            |
| lost        | a hold ended without its owner's doing            | the hold            |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from takehold.core.mutex import Mutex
from takehold.core.record import TemplateCounts

__all__ = ["LockEvent", "Tally"]

log = logging.getLogger(__name__)
MAX_TEMPLATES: Final = 1000
OTHER: Final = "(other)"


@dataclass(frozen=True, slots=True)
class LockEvent:
    """One thing that happened to one key."""

    kind: str
    key: str
    template: str
    mode: str
    fence: int | None
    site: str
    seconds: float


Listener = Callable[[LockEvent], None]


class Tally:
    """Counts per key template, at most a thousand of them, then `(other)`."""

    def __init__(self) -> None:
        self.since = datetime.now(UTC)
        self._mutex = Mutex()
        self._counts: dict[str, TemplateCounts] = {}

    def __call__(self, event: LockEvent) -> None:
        """Count one event."""
        with self._mutex:
            counts = self._of(event.template)
            match event.kind:
                case "acquired":
                    counts.acquired += 1
                case "waited":
                    counts.waited += 1
                    counts.wait_seconds += event.seconds
                case "handed over":
                    counts.handed_over += 1
                case "released":
                    counts.released += 1
                    counts.hold_seconds += event.seconds
                case "timeout":
                    counts.timeouts += 1
                case "deadlock":
                    counts.deadlocks += 1
                case "lost":
                    counts.lost += 1

    def _of(self, template: str) -> TemplateCounts:
        counts = self._counts.get(template)
        if counts is None:
            if len(self._counts) >= MAX_TEMPLATES:
                template = OTHER
            counts = self._counts.setdefault(template, TemplateCounts())
        return counts

    def templates(self, queued: list[str]) -> dict[str, TemplateCounts]:
        """A copy, with the templates of those waiting now counted in `queue`."""
        with self._mutex:
            for counts in self._counts.values():
                counts.queue = 0
            for template in queued:
                self._of(template).queue += 1
            return {name: replace(counts) for name, counts in self._counts.items()}


def deliver(listeners: tuple[Listener, ...], event: LockEvent) -> None:
    """Tell everybody; a listener that raises is logged, never felt by the caller."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed", extra={"event": "listener.failed"})
