"""Partition and sort transforms: their names, and the types each one takes."""

from __future__ import annotations

import functools
import re

from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.schemas import Column, Schema
from takehold.iceberg.metadata.types import Primitive
from takehold.iceberg.metadata.values import INT_MAX, shown

__all__ = ["check_source", "transform"]

TIMES = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
DATES = TIMES | {"date"}
WIDE = frozenset({"int", "long", "string", "binary", "decimal"})
TAKES = {
    "year": DATES,
    "month": DATES,
    "day": DATES,
    "hour": TIMES,
    "truncate": WIDE,
    "bucket": WIDE | DATES | {"time", "fixed", "uuid"},
}
NOT_IDENTITY = frozenset({"variant", "geometry", "geography"})
WITH_WIDTH = re.compile(r"(bucket|truncate)\[(\d+)\]", re.IGNORECASE | re.ASCII)


@functools.lru_cache(maxsize=4096)
def transform(said: str) -> str:
    """The transform that a string names, as it is written."""
    name = said.lower()
    if name in ("identity", "year", "month", "day", "hour", "void"):
        return name
    if match := WITH_WIDTH.fullmatch(name):
        width = int(match[2]) if len(match[2]) <= 10 else INT_MAX + 1
        if not 0 < width <= INT_MAX:
            what = "number of buckets" if match[1] == "bucket" else "truncate width"
            raise BadUpdate(f"Invalid {what}: {match[2][:20]} (must be > 0)")
        return f"{match[1]}[{width}]"
    raise BadUpdate(f"Unknown transform: {shown(said)[1:-1]}")


def check_source(schema: Schema, source: int, by: str, verb: str, field: str) -> Column | None:
    """The column behind a partition or sort field, when the transform can take it; void takes even a lost one."""
    column = schema.columns.get(source)
    if by == "void" and verb == "partition":
        return column
    if column is None:
        raise BadUpdate(f"Cannot find source column for {verb} field: {field}")
    if not isinstance(column.kind, Primitive) or column.kind.kind == "variant":
        raise BadUpdate(f"Cannot {verb} by non-primitive source field: {column.type}")
    name = by.partition("[")[0]
    if name == "identity":
        fits = column.kind.kind not in NOT_IDENTITY
    else:
        fits = name == "void" or column.kind.kind in TAKES[name]
    if not fits:
        raise BadUpdate(f"Invalid source type {column.type} for transform: {by}")
    return column
