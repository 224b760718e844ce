"""The database's own clock: what must be agreed between workers is never told by the clock of one of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Float, bindparam
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import TypeDecorator

from takehold.rows.dialects import MOMENT, dialect_named

__all__ = ["Clock", "Moment"]


class Moment(TypeDecorator[datetime]):
    """A moment in UTC, at least to the millisecond, the same on every database; always comes back with its zone."""

    impl = MOMENT
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """In UTC; without the zone where the database knows none."""
        if value is None:
            return None
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return aware if dialect_named(dialect.name).zones else aware.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """With its zone."""
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Clock(FunctionElement[datetime]):
    """`Clock()` is the moment at which the database begins the statement, `Clock(30)` half a minute later."""

    type = Moment()
    inherit_cache = True

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(*([] if seconds is None else [bindparam(None, float(seconds), Float(), unique=True)]))


@compiles(Clock)
def _compile_clock(element: Clock, compiler: Any, **options: Any) -> str:
    dialect = dialect_named(compiler.dialect.name)
    if not len(element.clauses):
        return dialect.clock
    return dialect.clock_after.format(seconds=compiler.process(element.clauses, **options))
