"""What this release promises: ``test_covers`` wants a test behind every id, ``test_shape`` every name.

The ids are the numbered behaviours of the requirements; those of MySQL come with its backend.
"""

from __future__ import annotations


def _ids(prefix: str, *ranges: tuple[int, int]) -> tuple[str, ...]:
    return tuple(f"{prefix}-{number}" for first, last in ranges for number in range(first, last + 1))


BEHAVIOURS = (
    *_ids("L", (1, 26), (28, 37)),
    *_ids("D", (1, 33)),
    *_ids("N", (1, 28)),
    *_ids("A", (1, 42)),
    *_ids("R", (1, 20)),
    *_ids("M", (2, 2), (51, 51), (53, 54)),
)

FACES = (("Locks", "AsyncLocks"), ("Lock", "AsyncLock"), ("Hold", "AsyncHold"))

ERRORS = (
    "BackendError",
    "BackendRefused",
    "BackendUnavailable",
    "CommitConflict",
    "Conflict",
    "HoldLost",
    "LockTimeout",
    "NotHeld",
    "OperationConflict",
    "StaleFence",
    "TableUpdateConflict",
    "TakeholdError",
    "UnknownOutcome",
    "UsageError",
    "WouldDeadlock",
)

NAMES = (
    *(face for pair in FACES for face in pair),
    *ERRORS,
    "AdaptiveTimeout",
    "HoldRecord",
    "Key",
    "Mode",
    "Owner",
    "Statistics",
    "TransactionHold",
    "__version__",
    "advisory",
    "shared",
)
