"""Hands out ranges of snowflake ids: one row per machine number, and until when it is somebody's."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from takehold.clickhouse.registry.schema import machine_ranges
from takehold.clickhouse.snowflake import Range

__all__ = ["SPAN_MS", "reserve"]

SPAN_MS = 60_000


def reserve(connection: Connection, from_ms: int) -> Range:
    """A range that begins at `from_ms`, or later if no number is free by then. It is ours once this is committed."""
    rows = select(machine_ranges.c.number, machine_ranges.c.until_ms).limit(1)
    # Of the free ones the last to have become free: a host whose clock is years ahead uses up one number, not all.
    free = rows.where(machine_ranges.c.until_ms <= from_ms).order_by(machine_ranges.c.until_ms.desc())
    # With all 1024 taken it is the first to become free, from then on: unique as ever, and ahead of the clock.
    soonest = rows.order_by(machine_ranges.c.until_ms)
    for query in (free, soonest):
        found = connection.execute(query.with_for_update(skip_locked=True)).first()
        if found is not None:
            break
    else:
        found = connection.execute(soonest.with_for_update()).one()
    number, until_ms = found
    reserved = Range(number, max(from_ms, until_ms), max(from_ms, until_ms) + SPAN_MS)
    connection.execute(
        update(machine_ranges).where(machine_ranges.c.number == number).values(until_ms=reserved.until_ms)
    )
    return reserved
