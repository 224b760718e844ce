"""Objects: a table as a value, with operators that give new ones."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from typing import Any, Generic, NoReturn, TypeVar

from takehold import UsageError
from takehold.clickhouse.objects.core import Core
from takehold.clickhouse.objects.operating import aggregated, combined, negated
from takehold.clickhouse.objects.relation import Relation
from takehold.clickhouse.objects.shapes import Shape, shown
from takehold.runtime import run

__all__ = ["AsyncObject", "BaseObject", "Object"]

R = TypeVar("R")


class BaseObject(ABC, Generic[R]):
    """What both faces share."""

    def __init__(self, core: Core, relation: Relation) -> None:
        self._core = core
        self._relation = relation
        # The garbage collector may come anywhere, also inside a statement: it leaves a note for the next call.
        self._finalizer = weakref.finalize(self, core.references.leave, relation.table.table)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        columns = ", ".join(f"{column.name} {column.type}" for column in self._relation.columns)
        return f"<{type(self).__name__} {self.table}: {self.shape} ({columns})>"

    @property
    def table(self) -> str:
        """The table's name."""
        return self._relation.table.table

    @property
    def shape(self) -> Shape:
        """What `value` gives: a scalar, an array, columns, records, or one record."""
        return self._relation.shape

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names; of a scalar or an array it is `value`."""
        return tuple(self._relation.names)

    @abstractmethod
    def _made(self, relation: Coroutine[Any, Any, Relation]) -> R:
        """A new object of this face."""

    # These are methods of the object, so that it lives until its table has been read.

    async def _combined(self, operator: str, left: Any, right: Any) -> Relation:
        sides = [side._relation if isinstance(side, BaseObject) else side for side in (left, right)]
        for side in (left, right):
            if isinstance(side, BaseObject) and side._core is not self._core:
                raise UsageError(f"{side!r} is of another store")
        return await self._core.materialized(await combined(self._core.channel, operator, *sides))

    async def _negated(self, operator: str) -> Relation:
        return await self._core.materialized(await negated(self._core.channel, operator, self._relation))

    async def _aggregated(self, name: str) -> Relation:
        return await self._core.materialized(await aggregated(self._core.channel, name, self._relation))

    async def _arrow(self) -> Any:
        return await self._core.arrow(self._relation)

    async def _value(self) -> Any:
        return shown(await self._arrow(), self.shape)

    async def _close(self) -> None:
        self._finalizer()
        await self._core.settle()

    def __add__(self, other: Any) -> R:
        return self._made(self._combined("+", self, other))

    def __radd__(self, other: Any) -> R:
        return self._made(self._combined("+", other, self))

    def __sub__(self, other: Any) -> R:
        return self._made(self._combined("-", self, other))

    def __rsub__(self, other: Any) -> R:
        return self._made(self._combined("-", other, self))

    def __mul__(self, other: Any) -> R:
        return self._made(self._combined("*", self, other))

    def __rmul__(self, other: Any) -> R:
        return self._made(self._combined("*", other, self))

    def __truediv__(self, other: Any) -> R:
        return self._made(self._combined("/", self, other))

    def __rtruediv__(self, other: Any) -> R:
        return self._made(self._combined("/", other, self))

    def __floordiv__(self, other: Any) -> R:
        return self._made(self._combined("//", self, other))

    def __rfloordiv__(self, other: Any) -> R:
        return self._made(self._combined("//", other, self))

    def __mod__(self, other: Any) -> R:
        return self._made(self._combined("%", self, other))

    def __rmod__(self, other: Any) -> R:
        return self._made(self._combined("%", other, self))

    def __pow__(self, other: Any) -> R:
        return self._made(self._combined("**", self, other))

    def __rpow__(self, other: Any) -> R:
        return self._made(self._combined("**", other, self))

    def __eq__(self, other: object) -> R:  # type: ignore[override]
        return self._made(self._combined("==", self, other))

    def __ne__(self, other: object) -> R:  # type: ignore[override]
        return self._made(self._combined("!=", self, other))

    def __lt__(self, other: Any) -> R:
        return self._made(self._combined("<", self, other))

    def __le__(self, other: Any) -> R:
        return self._made(self._combined("<=", self, other))

    def __gt__(self, other: Any) -> R:
        return self._made(self._combined(">", self, other))

    def __ge__(self, other: Any) -> R:
        return self._made(self._combined(">=", self, other))

    def __and__(self, other: Any) -> R:
        return self._made(self._combined("&", self, other))

    def __rand__(self, other: Any) -> R:
        return self._made(self._combined("&", other, self))

    def __or__(self, other: Any) -> R:
        return self._made(self._combined("|", self, other))

    def __ror__(self, other: Any) -> R:
        return self._made(self._combined("|", other, self))

    def __neg__(self) -> R:
        return self._made(self._negated("-"))

    def __invert__(self) -> R:
        return self._made(self._negated("~"))

    __hash__ = object.__hash__
    __iter__ = None

    def __bool__(self) -> NoReturn:
        raise UsageError("an object is neither true nor false; compare values: prices.value() == ...")

    def sum(self) -> R:
        """The sum, of each column where there are several; NULLs are left out, here and below."""
        return self._made(self._aggregated("sum"))

    def mean(self) -> R:
        """The mean."""
        return self._made(self._aggregated("mean"))

    def min(self) -> R:
        """The least value."""
        return self._made(self._aggregated("min"))

    def max(self) -> R:
        """The greatest value."""
        return self._made(self._aggregated("max"))

    def count(self) -> R:
        """How many rows there are."""
        return self._made(self._aggregated("count"))

    def std(self) -> R:
        """The standard deviation of these values, as numpy has it, not of a population they are a sample of."""
        return self._made(self._aggregated("std"))


class Object(BaseObject["Object"]):
    """A table of a store, or one column of it. Each operator writes its result into a table of its own.

    Two objects are aligned by the order of their rows and have one length; a scalar is applied to every row. Objects
    with several columns are combined column by column. Whole numbers divide as in Python; how far numbers reach is
    as in ClickHouse: `Int64` wraps, and `/`, `**` and `mean` give floats.
    """

    def __getitem__(self, column: str) -> Object:
        relation = self._relation.column(column)
        self._core.references.share(self.table)
        return Object(self._core, relation)

    def _made(self, relation: Coroutine[Any, Any, Relation]) -> Object:
        return Object(self._core, run(relation))

    def value(self) -> Any:
        """The rows in the shape in which they came."""
        return run(self._value())

    def arrow(self) -> Any:
        """The rows as an Arrow table, in the order in which they were appended; of finished blocks only."""
        return run(self._arrow())

    def close(self) -> None:
        """Say that it is no longer used; the table of a result goes with its last object."""
        run(self._close())


class AsyncObject(BaseObject[Awaitable["AsyncObject"]]):
    """`Object` for asyncio: operators and aggregates are awaited, `await (prices * 2)`."""

    def __getitem__(self, column: str) -> AsyncObject:
        relation = self._relation.column(column)
        self._core.references.share(self.table)
        return AsyncObject(self._core, relation)

    async def _made(self, relation: Coroutine[Any, Any, Relation]) -> AsyncObject:
        return AsyncObject(self._core, await relation)

    async def value(self) -> Any:
        """As `Object.value`."""
        return await self._value()

    async def arrow(self) -> Any:
        """As `Object.arrow`."""
        return await self._arrow()

    async def close(self) -> None:
        """As `Object.close`."""
        await self._close()
