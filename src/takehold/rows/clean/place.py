"""Where a value belongs: the names for events, and what the column's type says about texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Enum, String
from sqlalchemy.orm import QueryableAttribute
from sqlalchemy.types import TypeDecorator

from takehold import UsageError

Column: TypeAlias = QueryableAttribute[Any] | ColumnElement[Any] | tuple[type, str]
"""`Model.column`, `table.c.column` or `(Model, "column")`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A column, as far as texts are concerned; without names, no column that we know of."""

    table: str | None = None
    column: str | None = None
    textual: bool = False
    length: int | None = None

    @property
    def where(self) -> tuple[str | None, str | None]:
        """The names, for events."""
        return self.table, self.column

    @classmethod
    def of(cls, column: Column | None) -> Place:
        """What a caller meant. A model without that column is no error: its place takes everything."""
        if column is None:
            return NOWHERE
        if isinstance(column, tuple):
            model, name = column
            return cls._of(getattr(model, name, None), getattr(model, "__tablename__", None), name)
        if isinstance(column, QueryableAttribute | ColumnElement):
            return cls._of(column, None, column.key)
        raise UsageError(f"a column is Model.column or (Model, 'column'), not {column!r}")

    @classmethod
    def _of(cls, attribute: object, table: str | None, name: str | None) -> Place:
        # The table of the column itself: a subclass may keep it in that of its base.
        expression = getattr(attribute, "expression", None)
        kind = getattr(expression, "type", None)
        stored_in = getattr(expression, "table", None)
        return cls(getattr(stored_in, "name", table), name, _textual(kind), getattr(kind, "length", None))


NOWHERE: Final = Place()


def _textual(kind: object) -> bool:
    """An enum is not: a cut member would be no member, or another one."""
    if isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return isinstance(kind, String) and not isinstance(kind, Enum)
