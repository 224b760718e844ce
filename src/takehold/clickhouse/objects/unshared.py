"""Unshared tables: each is written by the one call that made it, so no lock is needed."""

from __future__ import annotations

from collections.abc import Sequence

from takehold.clickhouse.appending import SETTINGS, Rows
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.quoting import identifier

__all__ = ["fill"]


async def fill(channel: Channel, table: TableName, parts: Sequence[Rows]) -> None:
    """Insert the parts one after the other. The one place that writes without a lock: results, and copies."""
    for rows in parts:
        names = ", ".join(map(identifier, rows.columns))
        into = f"INSERT INTO {table.sql} ({names}) SELECT {names} FROM"
        if isinstance(rows.source, str):
            await channel.command(f"{into} ({rows.source})", **SETTINGS)
        else:
            with channel.source(rows.source, rows.structure) as (source, end, body):
                await channel.command(f"{into} {source}{end}", body, **SETTINGS)
