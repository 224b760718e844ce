"""Writes that stay right when somebody else writes too: take the key, carry the fence, commit, let go."""

import typing

from takehold.core.deadline import AdaptiveTimeout
from takehold.core.events import LockEvent
from takehold.core.key import Advisory, Key, advisory
from takehold.core.owner import Owner
from takehold.core.record import HoldRecord, Statistics
from takehold.core.want import Mode, shared
from takehold.errors import (
    BackendError,
    BackendRefused,
    BackendUnavailable,
    CommitConflict,
    Conflict,
    HoldLost,
    LockOrderWarning,
    LockTimeout,
    NotHeld,
    OperationConflict,
    StaleFence,
    TableUpdateConflict,
    TakeholdError,
    UnknownOutcome,
    UsageError,
    WouldDeadlock,
)
from takehold.locks._sync import Hold, Lock, Locks
from takehold.locks._transaction import TransactionHold

if typing.TYPE_CHECKING:
    from takehold.locks._async import AsyncHold, AsyncLock, AsyncLocks

__version__ = "0.1.0.dev0"

__all__ = [
    "AdaptiveTimeout",
    "Advisory",
    "AsyncHold",
    "AsyncLock",
    "AsyncLocks",
    "BackendError",
    "BackendRefused",
    "BackendUnavailable",
    "CommitConflict",
    "Conflict",
    "Hold",
    "HoldLost",
    "HoldRecord",
    "Key",
    "Lock",
    "LockEvent",
    "LockOrderWarning",
    "LockTimeout",
    "Locks",
    "Mode",
    "NotHeld",
    "OperationConflict",
    "Owner",
    "StaleFence",
    "Statistics",
    "TableUpdateConflict",
    "TakeholdError",
    "TransactionHold",
    "UnknownOutcome",
    "UsageError",
    "WouldDeadlock",
    "__version__",
    "advisory",
    "shared",
]


def __getattr__(name: str) -> typing.Any:
    """The asyncio face is loaded when it is first asked for: `takehold run` starts without asyncio."""
    if name in ("AsyncHold", "AsyncLock", "AsyncLocks"):
        from takehold.locks import _async

        for loaded in ("AsyncHold", "AsyncLock", "AsyncLocks"):
            face = getattr(_async, loaded)
            face.__module__ = __name__
            globals()[loaded] = face
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Tracebacks and reprs show where users import from.
for _name in __all__:
    if not _name.startswith(("Async", "_")):
        globals()[_name].__module__ = __name__
del _name
