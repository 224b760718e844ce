"""Primary keys: the columns, the condition and the desk's keys that name rows whatever they were found by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, inspect, tuple_
from sqlalchemy.orm import InstanceState, Mapper, Session

from takehold import Key, UsageError
from takehold.rows.desk import key_of

__all__ = [
    "Identity",
    "among",
    "identity_of",
    "key_columns",
    "key_names",
    "mapper_of",
    "reader",
    "row_key",
    "selected",
    "state_of",
]

Identity: TypeAlias = tuple[Any, ...]
"""The values of the primary key, in its order."""


def mapper_of(model: Any) -> Mapper[Any]:
    """That of a mapped class; `UsageError` for everything else."""
    found = inspect(model, raiseerr=False)
    if not isinstance(found, Mapper):
        raise UsageError(f"this takes a mapped class, not {model!r}")
    return found


def selected(query: Any) -> Any | None:
    """The one class, or alias of one, whose objects a query selects; None when it selects anything else."""
    described: Sequence[Any] = query.column_descriptions if isinstance(query, Select) else ()
    entity = described[0]["entity"] if len(described) == 1 else None
    return entity if entity is not None and described[0]["expr"] is entity else None


def state_of(row: object) -> InstanceState[Any]:
    """What SQLAlchemy knows of an object."""
    return inspect(row)  # type: ignore[no-any-return]


def key_names(model: Any) -> list[str]:
    """The attributes that are the primary key."""
    mapper: Mapper[Any] = inspect(model).mapper
    return [mapper.get_property_by_column(column).key for column in mapper.primary_key]


def key_columns(entity: Any) -> list[Any]:
    """The primary key of a mapped class, or of an alias of one."""
    return [getattr(entity, name) for name in key_names(entity)]


def among(entity: Any, identities: Sequence[Identity]) -> ColumnElement[bool]:
    """The condition that a row is one of these."""
    columns = key_columns(entity)
    if len(columns) == 1:
        return columns[0].in_([one for (one,) in identities])  # type: ignore[no-any-return]
    return tuple_(*columns).in_(identities)


def identity_of(row: object) -> Identity:
    """That of a persistent object."""
    return state_of(row).identity  # type: ignore[return-value]


def row_key(model: Any, identity: Identity) -> Key:
    """The desk's key of one row: the same for whoever locks or claims it."""
    names = key_names(inspect(model).mapper.base_mapper.class_)
    value = identity[0] if len(identity) == 1 else ",".join(map(str, identity))
    return key_of(model, value, ",".join(names))


def reader(session: Session) -> Session:
    """Another session on the same database, to look without making the snapshot of this one's transaction."""
    return Session(session.get_bind(), autoflush=False)
