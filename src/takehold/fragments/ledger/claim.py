"""A claim: the right to work on a fragment now, and what the ledger knew when it was taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from takehold import HoldLost

__all__ = ["DONE", "DUE", "FAILED", "Claim", "Past"]

DONE: Final = "done"
FAILED: Final = "failed"
DUE: Final = "due"


@dataclass(frozen=True, slots=True)
class Past:
    """A run that the ledger knows."""

    status: str
    attempts: int
    error: str | None

    @property
    def done(self) -> bool:
        """Whether its results are there and wanted."""
        return self.status == DONE

    def failed(self, limit: int) -> bool:
        """Whether it was tried as often as it may."""
        return self.status == FAILED and self.attempts >= limit


@dataclass(eq=False)
class Claim:
    """One fragment in the hands of one replica, from the grant of its locks to their release."""

    identity: str
    corpus: str
    document: str
    hash: str
    fence: int
    reason: str | None = None
    """Why it was lost."""
    row: int = 0
    past: Mapping[str, Past] = field(default_factory=dict)
    """What was known of it in this profile when it was stamped, by hash."""
    outdated: bool = False
    """Whether something was known of it in another version of the profile."""

    @property
    def attempts(self) -> int:
        """How often this content was tried before."""
        known = self.past.get(self.hash)
        return known.attempts if known else 0

    def lose(self) -> None:
        """The locks are no longer ours. From any thread."""
        self.reason = self.reason or "its lock was lost"

    def check(self) -> None:
        """`HoldLost` if that is known already."""
        if self.reason is not None:
            raise self.lost(self.reason)

    def lost(self, reason: str) -> HoldLost:
        """What to raise."""
        return HoldLost(f"{self.identity!r} was not written: {reason}", key=self.identity, reason=reason)
