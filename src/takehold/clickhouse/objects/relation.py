"""A relation: which rows of which table an object stands for, and how they are selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from takehold import UsageError
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.columns import Column
from takehold.clickhouse.description import BLOCK, HIDDEN, ROW_ID, WRITER, Description, describe
from takehold.clickhouse.ledger import Ledger
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.objects.scopes import is_unshared
from takehold.clickhouse.objects.shapes import VALUE, Shape, comment_of, shape_of_comment
from takehold.clickhouse.quoting import identifier, text
from takehold.clickhouse.reading import PHYSICAL_ORDER

__all__ = ["Relation", "definition", "found", "planned", "snapshot"]


@dataclass(frozen=True, slots=True)
class Relation:
    """Columns of a table under the names that the object shows, in the order of the appends."""

    description: Description
    columns: tuple[Column, ...]
    """As the object shows them."""
    stored: tuple[str, ...]
    """What the table calls them."""
    shape: Shape

    @property
    def table(self) -> TableName:
        """Where the rows are."""
        return self.description.name

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [column.name for column in self.columns]

    def column(self, name: str) -> Relation:
        """One column, as an array."""
        if name not in self.names:
            raise UsageError(f"{self.table} has no column {name!r}; it has {', '.join(map(repr, self.names))}")
        place = self.names.index(name)
        only = replace(self.columns[place], name=VALUE)
        return replace(self, columns=(only,), stored=(self.stored[place],), shape="array")

    def select(self, where: str, names: Sequence[str] = ()) -> str:
        """The rows that `snapshot` saw, with columns under these names."""
        shown = ", ".join(
            f"{identifier(stored)} AS {identifier(name)}"
            for stored, name in zip(self.stored, names or self.names, strict=True)
        )
        described = self.description
        order = identifier(described.row_id) if described.row_id else PHYSICAL_ORDER
        ordered = "" if described.row_id is None and described.scattered else f" ORDER BY {order}"
        return f"SELECT {shown} FROM {self.table.sql}{where}{ordered}"


def planned(table: TableName, columns: Sequence[Column], shape: Shape) -> Relation:
    """What a table will be that `definition` makes."""
    for column in columns:
        if column.name in {ROW_ID, *HIDDEN}:
            raise UsageError(f"the column {column.name!r} is Takehold's own; give yours another name")
    own = Column(ROW_ID, "UInt64", "DEFAULT")
    described = Description(table, "MergeTree", (*columns, own), ROW_ID, (), deduplicates=True, scattered=None)
    return Relation(described, tuple(columns), tuple(column.name for column in columns), shape)


def definition(relation: Relation) -> str:
    """The statement that makes the table."""
    columns = [f"{identifier(column.name)} {column.type}" for column in relation.columns]
    columns += [f"{ROW_ID} UInt64 DEFAULT generateSnowflakeID()", HIDDEN[BLOCK], HIDDEN[WRITER]]
    columns += [f"INDEX {BLOCK} {BLOCK} TYPE minmax GRANULARITY 1"]
    # Without a key rows stay where an insert puts them, also when parts are merged.
    return (
        f"CREATE TABLE {relation.table.sql} ({', '.join(columns)}) ENGINE = MergeTree ORDER BY tuple()"
        f" SETTINGS non_replicated_deduplication_window = 1000 COMMENT {text(comment_of(relation.shape))}"
    )


async def found(channel: Channel, table: TableName) -> Relation | None:
    """A table that is there."""
    comments = await channel.rows(
        f"SELECT comment FROM system.tables WHERE database = {text(table.database)} AND name = {text(table.table)}"
    )
    if not comments:
        return None
    described = await describe(channel, table)
    columns = tuple(
        Column(column.name, column.type)
        for column in described.columns
        if column.name != described.row_id and column.default in {"", "DEFAULT"}  # as `SELECT *` shows it
    )
    shape = shape_of_comment(comments[0][0])
    return Relation(described, columns, tuple(column.name for column in columns), shape)


async def snapshot(channel: Channel, relation: Relation) -> str:
    """The condition for the rows that are there now, the same for every statement that has it.

    Of a shared table these are the blocks that are finished: what is being written is not read by halves, and what
    a dead writer left is skipped. Takes no lock.
    """
    if is_unshared(relation.table.table) or relation.description.lacks:
        return ""
    return f" WHERE {await Ledger(channel, relation.table).whole()}"
