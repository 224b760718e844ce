"""The unique keys of a model, as its table declares them: what insertions may collide on."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Column, Table, UniqueConstraint, inspect
from sqlalchemy.orm import Mapper, RelationshipProperty

from takehold import UsageError

__all__ = ["check_unique", "unique_keys"]

Key = tuple[Column[Any], ...]


def unique_keys(table: Table) -> list[Key]:
    """The primary key, the unique constraints and the unique indexes that hold for all rows."""
    found = [constraint.columns for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
    plain = [
        index.columns
        for index in table.indexes
        if index.unique and not any(option.endswith("_where") for option in index.kwargs)
        if all(isinstance(one, Column) for one in index.expressions)
    ]
    return [tuple(columns) for columns in (table.primary_key.columns, *found, *plain)]


def check_unique(model: type[Any], attributes: Collection[str]) -> None:
    """`UsageError` unless these attributes contain a unique key: without one, two callers could both insert."""
    mapper: Mapper[Any] = inspect(model)
    given: set[Any] = set()
    for name in attributes:
        attribute = mapper.attrs.get(name)
        if attribute is None:
            raise UsageError(f"{model.__name__} has no attribute {name!r}")
        given |= attribute.local_columns if isinstance(attribute, RelationshipProperty) else set(attribute.columns)
    if not any(
        given.issuperset(key) for table in mapper.tables if isinstance(table, Table) for key in unique_keys(table)
    ):
        raise UsageError(
            f"{model.__name__} has no unique key on ({', '.join(attributes)}): two callers could both insert. Declare "
            "one in the model and in the database, or name all attributes of one"
        )
