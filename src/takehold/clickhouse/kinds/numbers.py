"""Numbers: whole, wide, floating, decimal, and Bool. A number that would be rounded or cut off is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal as Exact
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from takehold.clickhouse.kinds.base import Kind, Misfit

__all__ = ["Boolean", "Decimal", "Floating", "Whole", "Wide"]


def _whole(value: Any) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Exact) and isfinite(value) and value == int(value):
        return int(value)
    raise Misfit("it takes whole numbers")


class Boolean(Kind):
    """Bool."""

    native = frozenset({bool})
    _takes = "bool"

    def _one(self, value: Any) -> Any:
        return value if isinstance(value, bool) else super()._one(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        return array if pa.types.is_boolean(array.type) else self._refuse(array)


class Whole(Kind):
    """Int8 to Int64 and UInt8 to UInt64. Also takes bool, and floats without a fraction."""

    native = frozenset({int})
    _takes = "whole numbers"

    def _one(self, value: Any) -> int:
        return _whole(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        kind = array.type
        if kind == self.arrow:
            return array
        if any(
            is_(kind) for is_ in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating, pa.types.is_decimal)
        ):
            return array.cast(self.arrow)
        return self._refuse(array)


@dataclass(frozen=True)
class Wide(Kind):
    """Int128, UInt128, Int256 and UInt256: they travel as digits, since Arrow has no such integers."""

    low: int
    high: int

    _takes = "whole numbers"

    def _one(self, value: Any) -> str:
        number = _whole(value)
        # The server would wrap around: what it reads is already checked here.
        if not self.low <= number <= self.high:
            raise Misfit("it is out of range")
        return str(number)

    def _cast(self, array: pa.Array) -> pa.Array:
        return self._taken(array.to_pylist())


class Floating(Kind):
    """Float64, Float32 and BFloat16. Narrow ones round, as that is what they are for, but do not overflow."""

    native = frozenset({float, int})
    _takes = "float, or whole numbers that a float holds exactly"

    def _taken(self, values: Sequence[Any]) -> pa.Array:
        exact = Floating("Float64", pa.float64())
        return super()._taken(values) if self.arrow == exact.arrow else self._cast(exact._taken(values))

    def _one(self, value: Any) -> Any:
        if isinstance(value, float | int) and not isinstance(value, bool):
            return value
        return super()._one(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        if array.type == self.arrow:
            return array
        if pa.types.is_integer(array.type):
            return array.cast(self.arrow)
        if not pa.types.is_floating(array.type):
            return self._refuse(array)
        cast = array.cast(self.arrow)
        if pc.sum(pc.is_inf(cast)) != pc.sum(pc.is_inf(array)):
            raise Misfit("it is out of range")
        return cast


class Decimal(Kind):
    """Decimal(P, S)."""

    native = frozenset({Exact, int})
    _takes = "decimal.Decimal and int that fit its digits"

    def _one(self, value: Any) -> Any:
        return value if isinstance(value, Exact | int) and not isinstance(value, bool) else super()._one(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        if array.type == self.arrow:
            return array
        if pa.types.is_integer(array.type):
            # Arrow asks for room for every integer of that width, not for those that are there.
            return array.cast(pa.decimal256(76, min(self.arrow.scale, 56))).cast(self.arrow)
        return array.cast(self.arrow) if pa.types.is_decimal(array.type) else self._refuse(array)
