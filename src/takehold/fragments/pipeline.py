"""What is done with a fragment: extract, validate, write; and how its results are removed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection

from takehold import UsageError
from takehold.fragments.fragment import Fragment

__all__ = ["Pipeline"]

R = TypeVar("R")
MOST_OF_A_PROFILE: Final = 200


@dataclass(frozen=True)
class Pipeline(Generic[R]):
    """`extract -> validate -> write`, under the name of its profile.

    The profile names the kind of result, and after a slash its version: raise that (`terms/1`, `terms/2`) when results
    would be other ones. Everything is extracted again then, and what is new replaces what another version wrote:
    `remove` must delete that too. Any other profile is another kind of result; the two leave each other alone.

    `write` and `remove` run in one transaction with the ledger's own row, and may run twice: they must do nothing that
    a rollback does not undo. With an `AsyncWorker`, `extract` and `validate` may be coroutine functions.
    """

    profile: str
    extract: Callable[[Fragment], R | Awaitable[R]]
    write: Callable[[Connection, Sequence[tuple[Fragment, R]]], object]
    """Insert the results of these fragments: several that are finished at the same time are written together."""
    remove: Callable[[Connection, Sequence[str]], object]
    """Delete the results of these identities: before new ones are written, and when the fragments are gone."""
    validate: Callable[[Fragment, R], object] | None = None
    """Raises what is wrong with a result: it is not written then, and the fragment has failed."""
    prepare: Callable[[Connection], object] | None = None
    """Make the tables of the results unless they are there; once per run, one replica at a time."""

    def __post_init__(self) -> None:
        profile: object = self.profile
        if not isinstance(profile, str) or not 0 < len(profile.encode()) <= MOST_OF_A_PROFILE:
            raise UsageError(f"a profile is text of 1 to {MOST_OF_A_PROFILE} bytes, not {self.profile!r}")
        for part in ("extract", "write", "remove"):
            if not callable(getattr(self, part)):
                raise UsageError(f"{part}= takes a function, not {getattr(self, part)!r}")
        for part in ("write", "remove", "prepare"):
            if inspect.iscoroutinefunction(getattr(self, part)):
                raise UsageError(
                    f"{part}= runs inside the ledger's transaction and is a plain function, not a coroutine"
                )

    @property
    def asynchronous(self) -> bool:
        """Whether it needs an event loop."""
        parts: tuple[Any, ...] = (self.extract, self.validate)
        return any(inspect.iscoroutinefunction(part) for part in parts)
