"""What a leased table has: the columns, and the conditions and values that leases are made of. Nothing is executed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, String, Update, and_, or_, update
from sqlalchemy.orm import Mapped, QueryableAttribute, RelationshipProperty, mapped_column

from takehold import UsageError
from takehold.rows.clock import Clock, Moment
from takehold.rows.identity import Identity, among, mapper_of, selected

__all__ = ["LONGEST_OWNER", "Leased", "change", "entity_of", "free", "lease_values", "parent_of", "unleased"]

LONGEST_OWNER = 200


class Leased:
    """Mixin for a mapped class whose rows are worked on for long: `class Job(rows.Leased, Base)`.

    Those who lease must not write these four themselves. An index on what the query asks for and `last_processed_at`
    makes a claim cheap.
    """

    lock_expires_at: Mapped[datetime | None] = mapped_column(Moment())
    """By the database's clock; the row is free when it is past, or None."""
    lock_token: Mapped[str | None] = mapped_column(String(32))
    """Of one claim; whoever writes with another one changes nothing."""
    lock_owner: Mapped[str | None] = mapped_column(String(255))
    """Which kind of worker has it, or is next: others leave the row alone, also when the lease has expired."""
    last_processed_at: Mapped[datetime | None] = mapped_column(Moment(), insert_default=Clock())
    """The oldest is claimed first; it begins as the moment of the INSERT."""


def entity_of(query: Any) -> type[Any]:
    """The class whose rows a query selects; `UsageError` when they cannot be leased."""
    model = selected(query)
    if model is None:
        raise UsageError(f"leases are for the rows of one class, as in select(Job).where(...); not {query!r}")
    if not issubclass(mapper_of(model).class_, Leased):
        name = model.__name__
        raise UsageError(f"{name} has no lease columns; declare it as class {name}(rows.Leased, ...)")
    return model  # type: ignore[no-any-return]


def parent_of(relation: QueryableAttribute[Any] | None) -> type[Any] | None:
    """The class that a many-to-one relationship leads to; `UsageError` when it has no lease columns."""
    if relation is None:
        return None
    found = getattr(relation, "property", None)
    if not isinstance(found, RelationshipProperty) or found.uselist or not issubclass(found.mapper.class_, Leased):
        raise UsageError(f"yields_to= takes a relationship to one leased row, as in Job.run; not {relation!r}")
    return found.mapper.class_


def free(model: Any, owner: str, yields_to: Any = None) -> ColumnElement[bool]:
    """Neither leased nor somebody else's; nor, if it never was leased, of a parent that somebody owns or waits for.

    An expired lease is nobody else's to recover: behind a parent that waits for it, it would never be free again.
    """
    never: ColumnElement[bool] = model.lock_expires_at.is_(None)
    if (parent := parent_of(yields_to)) is not None:
        never = and_(never, ~yields_to.has(parent.lock_owner.is_not(None)))
    return and_(
        or_(never, model.lock_expires_at <= Clock()),
        or_(model.lock_owner.is_(None), model.lock_owner == owner),
    )


def lease_values(token: str, owner: str, seconds: float) -> dict[str, Any]:
    """What a claim sets."""
    return {"lock_expires_at": Clock(seconds), "lock_token": token, "lock_owner": owner}


def unleased(*, keep_owner: bool = False, processed: bool = True) -> dict[str, Any]:
    """What a release sets. An owner that is kept goes on telling others to leave the row to it."""
    values: dict[str, Any] = {"lock_expires_at": None, "lock_token": None}
    if not keep_owner:
        values["lock_owner"] = None
    if processed:
        values["last_processed_at"] = Clock()
    return values


def change(model: Any, ids: Sequence[Identity], *conditions: ColumnElement[bool]) -> Update:
    """An UPDATE of these rows, of which the session is told nothing: it holds none of them."""
    return update(model).where(among(model, ids), *conditions).execution_options(synchronize_session=False)
