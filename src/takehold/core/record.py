"""What `who()` and `statistics()` return: frozen, versioned, the same for command line, metrics and pages."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from takehold.core.owner import Owner

__all__ = ["RECORD_FORMAT", "HoldRecord", "Statistics", "TemplateCounts"]

RECORD_FORMAT: Final = 1
STUCK_AFTER: Final = 60.0


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """One holder or one waiter."""

    id: str
    key: str
    namespace: str
    mode: str
    state: str
    """`held` or `waiting`."""
    owner: Owner
    since: datetime
    age: float
    """Seconds since the grant, or since the wait began."""
    fence: int | None
    silent: bool = field(default=False, kw_only=True)
    """The owner did not answer; shown from what the server knows."""
    blocked_by: tuple[str, ...] = field(default=(), kw_only=True)
    """For a waiter: the ids of the holds in its way, as far as they are known."""

    def stuck(self, after: float = STUCK_AFTER) -> bool:
        """Whether it is held for so long that something is probably wrong."""
        return self.state == "held" and self.age > after

    def as_dict(self, stuck_after: float = STUCK_AFTER) -> dict[str, Any]:
        """For `--json`: one flat object, with the format number."""
        facts = asdict(self)
        facts["owner"] = asdict(self.owner)
        facts["since"] = self.since.isoformat()
        return {"format": RECORD_FORMAT, **facts, "stuck": self.stuck(stuck_after)}


def since(age: float, wall: float) -> datetime:
    """The moment `age` seconds ago."""
    return datetime.fromtimestamp(wall - age, UTC)


@dataclass(slots=True)
class TemplateCounts:
    """What happened to the keys of one template since counting began."""

    acquired: int = 0
    waited: int = 0
    handed_over: int = 0
    timeouts: int = 0
    deadlocks: int = 0
    lost: int = 0
    released: int = 0
    wait_seconds: float = 0.0
    hold_seconds: float = 0.0
    queue: int = 0
    """Waiting right now."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A picture of one `Locks` object."""

    held: int
    waiting: int
    counting_since: datetime
    templates: dict[str, TemplateCounts] = field(default_factory=dict)
