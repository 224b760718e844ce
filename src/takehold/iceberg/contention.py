"""Where operations met: counted per class of resource, for `takehold iceberg contention` and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

__all__ = ["CLASSES", "Contention", "Counts"]

CLASSES: Final = (
    "warehouse registry",
    "namespace registry",
    "shard",
    "pointer locked",
    "pointer cas",
    "all shards",
)


@dataclass(slots=True)
class Counts:
    """What happened at one class of resource."""

    grants: int = 0
    waits: int = 0
    """Locks that were not granted within a millisecond."""
    wait_seconds: float = 0.0
    timeouts: int = 0
    losses: int = 0
    """Compare-and-sets that somebody else won."""
    retries: int = 0
    """Attempts made after such a loss."""
    conflicts: int = 0
    """`OperationConflict`: somebody else was at work."""


@dataclass(slots=True)
class Contention:
    """Counts by class of resource, since the catalog was made."""

    classes: dict[str, Counts] = field(default_factory=lambda: {name: Counts() for name in CLASSES})

    def __getitem__(self, name: str) -> Counts:
        return self.classes[name]

    def __iter__(self) -> Iterator[tuple[str, Counts]]:
        return iter(self.classes.items())

    def waited(self, name: str, seconds: float) -> None:
        """A lock was granted after so long."""
        counts = self.classes[name]
        counts.grants += 1
        if seconds > 0.001:
            counts.waits += 1
            counts.wait_seconds += seconds
