"""Every way Takehold says no, as one tree.

TakeholdError
├── LockTimeout (TimeoutError)        somebody else has it; it names them
├── WouldDeadlock                     waiting could never end
├── NotHeld                           a release of something we do not hold
├── HoldLost                          the backend no longer vouches for the hold
├── Conflict                          somebody was first: read again
│   ├── StaleFence
│   └── CommitConflict
│       ├── TableUpdateConflict
│       └── OperationConflict
├── UnknownOutcome                    it may or may not have happened
├── BackendError
│   ├── BackendUnavailable            no answer
│   └── BackendRefused                an answer: no
└── UsageError (ValueError)           the call itself is wrong

"No" and "I do not know" never share a class. All of them pickle, and carry their facts as attributes.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BackendError",
    "BackendRefused",
    "BackendUnavailable",
    "CommitConflict",
    "Conflict",
    "HoldLost",
    "LockOrderWarning",
    "LockTimeout",
    "NotHeld",
    "OperationConflict",
    "StaleFence",
    "TableUpdateConflict",
    "TakeholdError",
    "UnknownOutcome",
    "UsageError",
    "WouldDeadlock",
]


class TakeholdError(Exception):
    """Base of everything raised here. Facts given as keywords become attributes."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LockTimeout(TakeholdError, TimeoutError):
    """The key was not free within the timeout."""

    key: str | None = None
    waited: float = 0.0
    owner: Any = None
    """The `Owner` who was in the way, or None when the backend could not say."""
    held_for: float | None = None


class WouldDeadlock(TakeholdError):
    """Waiting for this key could never end, so nobody waited."""

    key: str | None = None


class NotHeld(TakeholdError):
    """A release of something that is not held here."""

    key: str | None = None


class HoldLost(TakeholdError):
    """The hold ended without its owner's doing: stop writing."""

    key: str | None = None
    reason: str = ""


class Conflict(TakeholdError):
    """Somebody changed it first; read again and retry."""


class StaleFence(Conflict):
    """A newer holder has already written."""


class CommitConflict(Conflict):
    """A catalog commit lost against another one."""


class TableUpdateConflict(CommitConflict):
    """The table moved on since it was read."""


class OperationConflict(CommitConflict):
    """Another operation is under way on the same object."""


class UnknownOutcome(TakeholdError):
    """It may or may not have happened: look before you repeat it."""


class BackendError(TakeholdError):
    """The backend could not do its part."""


class BackendUnavailable(BackendError):
    """The backend did not answer in time."""


class BackendRefused(BackendError):
    """The backend cannot be used like this; the message says what to use instead."""


class UsageError(TakeholdError, ValueError):
    """The call is wrong; the message says what is accepted."""


class LockOrderWarning(RuntimeWarning):
    """Two keys are taken in both orders: one day that will deadlock."""
