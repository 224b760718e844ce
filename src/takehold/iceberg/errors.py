"""How a catalog says no, with what a REST answer needs: Java's exception type, and the status code.

`answer_of(error)` has both for every error that a catalog method raises, those of the layers below included.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from takehold import (
    BackendError,
    BackendUnavailable,
    CommitConflict,
    Conflict,
    HoldLost,
    LockTimeout,
    OperationConflict,
    TakeholdError,
    UnknownOutcome,
    UsageError,
)

__all__ = [
    "AlreadyExists",
    "Answer",
    "BrokenRecord",
    "NamespaceNotEmpty",
    "NoSuchNamespace",
    "NoSuchTable",
    "NoSuchView",
    "NoSuchWarehouse",
    "NotFound",
    "Unprocessable",
    "WarehouseNotEmpty",
    "answer_of",
]


class NotFound(TakeholdError):
    """There is nothing of that name."""

    type: ClassVar = "NotFoundException"
    code: ClassVar = 404


class NoSuchWarehouse(NotFound):
    """There is no warehouse of that name."""

    type: ClassVar = "NoSuchWarehouseException"


class NoSuchNamespace(NotFound):
    """There is no such namespace."""

    type: ClassVar = "NoSuchNamespaceException"


class NoSuchTable(NotFound):
    """There is no such table; a missing namespace is no table either."""

    type: ClassVar = "NoSuchTableException"


class NoSuchView(NotFound):
    """There is no such view."""

    type: ClassVar = "NoSuchViewException"


class AlreadyExists(Conflict):
    """The name is taken: by a warehouse, a namespace, a table or a view."""

    type: ClassVar = "AlreadyExistsException"
    code: ClassVar = 409


class NamespaceNotEmpty(Conflict):
    """There are tables, views or namespaces in it."""

    type: ClassVar = "NamespaceNotEmptyException"
    code: ClassVar = 409


class WarehouseNotEmpty(Conflict):
    """There are namespaces in it."""

    type: ClassVar = "WarehouseNotEmptyException"
    code: ClassVar = 409


class Unprocessable(UsageError):
    """The request contradicts itself."""

    type: ClassVar = "UnprocessableEntityException"
    code: ClassVar = 422


class BrokenRecord(TakeholdError):
    """An object of the catalog is not what was written there; nothing is guessed from it."""

    type: ClassVar = "ServiceFailureException"
    code: ClassVar = 500
    path: str = ""


class Answer(NamedTuple):
    """What REST says about an error."""

    code: int
    type: str
    retry_after: float | None = None
    """Seconds, where nothing was changed and trying again is worth it."""


_ANSWERS: Final[tuple[tuple[type[BaseException], Answer], ...]] = (
    # In this order: the first that fits.
    (OperationConflict, Answer(409, "CommitFailedException")),
    (CommitConflict, Answer(409, "CommitFailedException")),
    (LockTimeout, Answer(503, "ServiceUnavailableException", 1.0)),
    (HoldLost, Answer(503, "ServiceUnavailableException", 1.0)),
    (UnknownOutcome, Answer(500, "CommitStateUnknownException")),
    (BackendUnavailable, Answer(503, "ServiceUnavailableException", 1.0)),
    (BackendError, Answer(500, "ServiceFailureException")),
    (UsageError, Answer(400, "BadRequestException")),
    (Conflict, Answer(409, "CommitFailedException")),
)


def answer_of(error: BaseException) -> Answer:
    """The status code and exception type of an error; 500 for what no catalog method raises."""
    code, kind = getattr(error, "code", None), getattr(error, "type", None)
    if isinstance(error, TakeholdError) and isinstance(code, int) and isinstance(kind, str):
        return Answer(code, kind)
    return next(
        (answer for kind, answer in _ANSWERS if isinstance(error, kind)), Answer(500, "ServiceFailureException")
    )
