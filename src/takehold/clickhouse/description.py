"""What a table is: its columns, whether inserts stay contiguous in it, what it lacks for blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from takehold import BackendRefused, UsageError
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.columns import Column
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.quoting import text

__all__ = ["BLOCK", "HIDDEN", "ROW_ID", "WRITER", "Description", "altered", "check_replicas", "describe"]

BLOCK: Final = "takehold_block"
"""The hidden column that says to which block a row belongs; 0 for rows that came another way."""
WRITER: Final = "takehold_writer"
"""The hidden column with fence and writer, so that what a dead writer left can be told apart."""
ROW_ID: Final = "row_id"
"""The column of row ids in tables that we make."""
HIDDEN: Final = {
    BLOCK: f"{BLOCK} UInt64 MATERIALIZED 0",
    WRITER: f"{WRITER} LowCardinality(String) MATERIALIZED ''",
}
WINDOW: Final = re.compile(r"\bnon_replicated_deduplication_window = (\d+)")
FINGERPRINT: Final = "cityHash64(create_table_query)"
IN_ORDER_OF_ARRIVAL: Final = re.compile(r"(Replicated|Shared)?MergeTree")


@dataclass(frozen=True, slots=True)
class Description:
    """A table as the server describes it."""

    name: TableName
    engine: str
    columns: tuple[Column, ...]
    row_id: str | None
    """The column whose default is `generateSnowflakeID()`."""
    lacks: tuple[str, ...]
    """Definitions of the hidden columns that are not there yet."""
    deduplicates: bool
    scattered: str | None = field(repr=False)
    """Why the rows of one insert do not stay together in it; None when they do."""
    fingerprint: int = field(default=0, repr=False)
    """Of its definition."""

    def same(self, other: Description) -> bool:
        """Whether what was checked and made for the one may go into the other."""
        return replace(self, lacks=(), fingerprint=0) == replace(other, lacks=(), fingerprint=0)

    def check_contiguous(self) -> None:
        """Raise unless rows stay where an insert puts them."""
        if self.scattered:
            raise UsageError(
                f"{self.name} {self.scattered}: the rows of one append would not stay together. Use a table with"
                " ENGINE = MergeTree ORDER BY tuple() and no PARTITION BY, or write contiguous=False"
            )

    def check_token(self) -> None:
        """Raise unless the table remembers deduplication tokens."""
        if not self.deduplicates:
            raise UsageError(
                f"{self.name} remembers no deduplication tokens; set"
                f" ALTER TABLE {self.name.sql} MODIFY SETTING non_replicated_deduplication_window = 1000"
            )


async def describe(channel: Channel, name: TableName) -> Description:
    """Ask the server; an unknown table is a `UsageError`."""
    where = f"database = {text(name.database)}"
    found = await channel.rows(
        f"SELECT engine, sorting_key, partition_key, engine_full, {FINGERPRINT} FROM system.tables"
        f" WHERE {where} AND name = {text(name.table)}"
    )
    if not found:
        raise await _unknown(channel, name)
    engine, sorting_key, partition_key, engine_full, fingerprint = found[0]
    listed = await channel.rows(
        "SELECT name, type, default_kind, default_expression FROM system.columns"
        f" WHERE {where} AND table = {text(name.table)} ORDER BY position"
    )
    there = {column for column, *_ in listed}
    ids = [column for column, _, _, default in listed if default.startswith("generateSnowflakeID(")]
    window = WINDOW.search(engine_full)
    return Description(
        name=name,
        engine=engine,
        columns=tuple(Column(column, kind, default) for column, kind, default, _ in listed if column not in HIDDEN),
        row_id=ids[0] if ids else None,
        lacks=tuple(definition for column, definition in HIDDEN.items() if column not in there),
        deduplicates=engine != "MergeTree" or (window is not None and int(window[1]) > 0),
        scattered=_scattered(engine, sorting_key, partition_key),
        fingerprint=fingerprint,  # asked for before the columns: of two definitions the one that is noticed
    )


def altered(name: TableName, fingerprint: int) -> str:
    """A condition for SQL: the table is not what it was when it was described."""
    where = f"database = {text(name.database)} AND name = {text(name.table)}"
    return f"ifNull((SELECT {FINGERPRINT} FROM system.tables WHERE {where}), 0) != {fingerprint}"


def _scattered(engine: str, sorting_key: str, partition_key: str) -> str | None:
    if not IN_ORDER_OF_ARRIVAL.fullmatch(engine):
        return f"has the engine {engine}"
    if sorting_key:
        return f"is sorted by ({sorting_key})"
    if partition_key:
        return f"is partitioned by ({partition_key})"
    return None


async def _unknown(channel: Channel, name: TableName) -> UsageError:
    there = await channel.rows(f"SELECT name FROM system.tables WHERE database = {text(name.database)}")
    close = get_close_matches(name.table, [row[0] for row in there], n=1)
    hint = f"; did you mean {name.database}.{close[0]}?" if close else ""
    return UsageError(f"there is no table {name}{hint}")


async def check_replicas(channel: Channel) -> None:
    """Refuse a server beside which others answer too: an orphan there would go on while we write."""
    if channel.embedded or channel.cluster:
        return
    several = await channel.rows(
        "SELECT cluster, count() FROM system.clusters WHERE cluster NOT LIKE 'test\\_%' AND (cluster, shard_num) IN"
        " (SELECT cluster, shard_num FROM system.clusters WHERE is_local) GROUP BY cluster HAVING count() > 1"
    )
    if several:
        cluster, count = several[0]
        raise BackendRefused(
            f"this server reports {count} replicas in the cluster {cluster!r}; KILL QUERY reaches only the connected"
            f" one, so the insert of a dead writer could go on at another: write cluster={cluster!r}"
        )
