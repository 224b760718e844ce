"""Sources: values and objects, as rows for a table that is to have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from takehold import UsageError
from takehold.clickhouse.appending import Rows
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.columns import Column, clickhouse_type, structure
from takehold.clickhouse.data import arrow_table, inferred, serialised
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.objects.relation import Relation, snapshot
from takehold.clickhouse.objects.shapes import Shape, shaped
from takehold.clickhouse.quoting import identifier, text

__all__ = ["Source", "Stored", "Values"]

NUMBER: Final = re.compile(r"U?Int\d+|Float\d+|Decimal\(.*\)")


class Source(Protocol):
    """Something that rows come from."""

    shape: Shape
    columns: tuple[Column, ...]
    """What a table made for it has."""

    async def rows(self, channel: Channel, target: TableName, columns: Sequence[Column]) -> Rows:
        """For a table with these columns; a `UsageError` if they do not fit. Takes no lock and writes nothing."""


class Values:
    """A value of Python."""

    def __init__(self, value: Any) -> None:
        self.shape, self._data = shaped(value)
        table = inferred(self._data)
        self.columns = tuple(Column(field.name, _type(field.name, table.column(field.name))) for field in table.schema)

    async def rows(self, channel: Channel, target: TableName, columns: Sequence[Column]) -> Rows:
        """As `Source.rows`."""
        table = arrow_table(self._data, columns, name=str(target))
        given = [column for column in columns if column.name in table.schema.names]
        return Rows(table.schema.names, serialised(table), structure(given), table.num_rows)


class Stored:
    """The rows of an object."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self.shape = relation.shape
        self.columns = relation.columns

    async def rows(self, channel: Channel, target: TableName, columns: Sequence[Column]) -> Rows:
        """As `Source.rows`."""
        given = {column.name: column for column in self.columns}
        wanted = [column for column in columns if column.writable and (column.required or column.name in given)]
        if given.keys() != {column.name for column in wanted}:
            raise UsageError(
                f"{self._relation.table} has the columns {_listed(self.columns)} and {target} has {_listed(columns)}"
            )
        cast = [column for column in wanted if column.type != given[column.name].type]
        for column in cast:
            self._check_cast(given[column.name], column, target)
        source = self._relation.select(await snapshot(channel, self._relation))
        if cast:
            await self._check_values(channel, source, cast, target)
            shown = ", ".join(_cast(column) if column in cast else identifier(column.name) for column in wanted)
            source = f"SELECT {shown} FROM ({source})"
        return Rows([column.name for column in wanted], source)

    def _check_cast(self, given: Column, wanted: Column, target: TableName) -> None:
        mine, theirs = _plain(given.type), _plain(wanted.type)
        if mine != theirs and not (NUMBER.fullmatch(mine) and NUMBER.fullmatch(theirs)):
            raise UsageError(
                f"the column {given.name!r} is {given.type} in {self._relation.table} and {wanted.type} in {target}"
            )

    async def _check_values(self, channel: Channel, source: str, cast: list[Column], target: TableName) -> None:
        misfits = ", ".join(
            f"countIf(isNull(accurateCastOrNull({name}, {text(_plain(column.type))}))"
            f" AND NOT (isNull({name}) AND {int(column.type.startswith('Nullable('))}))"
            for column in cast
            if (name := identifier(column.name))
        )
        counts = (await channel.rows(f"SELECT {misfits} FROM ({source})"))[0]
        for column, count in zip(cast, counts, strict=True):
            if count:
                raise UsageError(
                    f"{target}: the column {column.name!r} ({column.type}) cannot hold {count} of the values"
                    f" of {self._relation.table}"
                )


def _type(name: str, values: Any) -> str:
    try:
        return clickhouse_type(values.type, values.null_count > 0)
    except UsageError as error:
        raise UsageError(f"create: column {name!r}: {error}") from error


def _plain(kind: str) -> str:
    return kind.removeprefix("Nullable(").removesuffix(")") if kind.startswith("Nullable(") else kind


def _cast(column: Column) -> str:
    name = identifier(column.name)
    return f"accurateCast({name}, {text(column.type)}) AS {name}"


def _listed(columns: Sequence[Column]) -> str:
    return "(" + ", ".join(f"{column.name} {column.type}" for column in columns) + ")"
