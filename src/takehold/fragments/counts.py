"""What a run has come to, while it runs and afterwards."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Counts", "Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A fragment, or a document, that could not be worked on."""

    identity: str
    error: str
    attempts: int


@dataclass(slots=True)
class Counts:
    """How many fragments of each kind, as this replica knows it."""

    documents: int = 0
    read: int = 0
    """Documents that were split."""
    seen: int = 0
    """Fragments in those."""
    done: int = 0
    """Written by this run."""
    elsewhere: int = 0
    """Found done by somebody else while this run went on."""
    unchanged: int = 0
    """Found done before anything was locked."""
    failed: int = 0
    """Not to be tried again before `takehold fragments retry`."""
    removed: int = 0
    """Results of fragments that are gone."""
    pending: int = 0
    """Neither: still to be done, or in somebody else's hands."""
    held: int = 0
    """Of these: in somebody else's hands when last looked at."""
    extracted: int = 0
    """Extractions that were begun; more than `done` when some failed or were lost."""
    lost: int = 0
    """Claims that were lost."""
    skipped: int = 0
    """Times that a key was held by somebody else."""
    stuck: int = 0
    """Fragments that this replica has had for longer than the threshold."""
    drained: bool = False
    """Told to stop before everything was done."""
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether everything that can be done is done."""
        return self.pending == 0 and not self.drained

    @property
    def rate(self) -> float:
        """Fragments per second that this replica has done."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def total(self) -> int:
        """Fragments of the corpus; estimated from the documents while some are still to be read."""
        if not self.read or self.read >= self.documents:
            return self.seen
        return max(self.seen, round(self.seen * self.documents / self.read))

    @property
    def settled(self) -> int:
        """Fragments that need nothing more."""
        return self.done + self.elsewhere + self.unchanged + self.failed

    @property
    def left(self) -> float:
        """Seconds to go, if everybody goes on as before; nan while nobody knows."""
        finished = self.done + self.elsewhere
        if not finished or not self.seconds:
            return math.nan
        return max(0, self.total - self.settled) * self.seconds / finished

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "total": self.total, "rate": round(self.rate, 1), "complete": self.complete}
