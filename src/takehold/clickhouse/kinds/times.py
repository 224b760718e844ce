"""Dates and instants. One with a finer fraction than its column, or outside the column's range, is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import NoneType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from takehold.clickhouse.kinds.base import Kind, Misfit, within

__all__ = ["Day", "Instant"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
DAY: Final = 86_400 * 10**9


def _nanoseconds(value: Any) -> int:
    """Since 1970 in UTC; without a zone it is UTC already."""
    if isinstance(value, datetime) and type(value).__name__ != "NaTType":  # pandas says that NaT is a datetime
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        # A Timestamp of pandas has nanoseconds on top of its microseconds.
        return (aware - EPOCH) // timedelta(microseconds=1) * 1000 + getattr(value, "nanosecond", 0)
    if isinstance(value, date) and not isinstance(value, datetime):
        return (value - EPOCH.date()).days * DAY
    if getattr(getattr(value, "dtype", None), "str", "").endswith("M8[ns]"):
        return int(value.astype("int64"))
    raise Misfit("it takes datetime.datetime and datetime.date")


@dataclass(frozen=True)
class Day(Kind):
    """Date and Date32, in days since 1970. Also takes an instant that is midnight in UTC."""

    low: int
    high: int

    native = frozenset({date})
    _takes = "datetime.date"

    def _one(self, value: Any) -> int:
        days, rest = divmod(_nanoseconds(value), DAY)
        if rest:
            raise Misfit("it has a time of day")
        return days

    def _cast(self, array: pa.Array) -> pa.Array:
        if array.type == self.arrow:
            return array
        if pa.types.is_date64(array.type):
            return array.cast(self.arrow)
        if not pa.types.is_timestamp(array.type):
            return self._refuse(array)
        instants = array.cast(pa.timestamp(array.type.unit, "UTC")).cast(pa.timestamp(array.type.unit))
        days = instants.cast(self.arrow)
        if not days.cast(instants.type).equals(instants):
            raise Misfit("it has a time of day")
        return days

    def _check(self, array: pa.Array) -> None:
        if not within(array.cast(pa.int32()), self.low, self.high):
            raise Misfit("it is out of range")


@dataclass(frozen=True)
class Instant(Kind):
    """DateTime and DateTime64, in steps of `10 ** -digits` seconds; `low` and `high` are seconds since 1970."""

    digits: int
    low: int
    high: int

    native = frozenset({datetime})
    _takes = "datetime.datetime"

    def _taken(self, values: Sequence[Any]) -> pa.Array:
        if set(map(type, values)) <= self.native | {NoneType}:
            # First as exact as a datetime is: pyarrow would cut off what a coarser unit does not hold.
            return self._cast(pa.array(values, type=pa.timestamp("us", "UTC")))
        return super()._taken(values)

    def _one(self, value: Any) -> int:
        unit: int = 10 ** (9 - DIGITS[self.arrow.unit])
        steps, rest = divmod(_nanoseconds(value), unit)
        if rest:
            raise self._too_fine
        return steps

    def _cast(self, array: pa.Array) -> pa.Array:
        if array.type == self.arrow:
            return array
        if pa.types.is_date(array.type):
            return array.cast(pa.timestamp("s")).cast(self.arrow)
        if not pa.types.is_timestamp(array.type):
            return self._refuse(array)
        if DIGITS[array.type.unit] > self.digits:
            _steps_only(array, 10 ** (DIGITS[array.type.unit] - self.digits), self._too_fine)
        return array.cast(self.arrow)

    def _check(self, array: pa.Array) -> None:
        ticks, unit = array.cast(pa.int64()), 10 ** DIGITS[self.arrow.unit]
        if not within(ticks, self.low * unit, self.high * unit + unit - 1):
            raise Misfit("it is out of range")
        if DIGITS[self.arrow.unit] > self.digits:
            _steps_only(ticks, 10 ** (DIGITS[self.arrow.unit] - self.digits), self._too_fine)

    @property
    def _too_fine(self) -> Misfit:
        return Misfit("it would lose its fraction: round it first, or give the column more digits")


def _steps_only(array: pa.Array, step: int, otherwise: Misfit) -> None:
    ticks = array.cast(pa.int64())
    if pc.all(pc.equal(pc.multiply(pc.divide(ticks, step), step), ticks)).as_py() is False:
        raise otherwise
