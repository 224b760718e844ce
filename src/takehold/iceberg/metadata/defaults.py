"""Default values of columns: one JSON value that must fit the type of its column."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.types import Primitive
from takehold.iceberg.metadata.values import INT_MAX, LONG_MAX, UUID, shown

__all__ = ["check_default"]

DATE = r"[+-]?\d{4,9}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?"
SHAPES = {
    "date": re.compile(DATE, re.ASCII),
    "time": re.compile(TIME, re.ASCII),
    "timestamp": re.compile(f"{DATE}T{TIME}", re.ASCII),
    "timestamptz": re.compile(rf"{DATE}T{TIME}(\+00:00|Z)", re.ASCII),
}
SHAPES |= {"timestamp_ns": SHAPES["timestamp"], "timestamptz_ns": SHAPES["timestamptz"]}
HEX = re.compile(r"([0-9a-fA-F]{2})*")


def check_default(value: object, kind: Primitive) -> None:
    """Refuse a default that no column of this type could have."""
    if kind.kind in ("variant", "geometry", "geography", "unknown"):
        raise BadUpdate(f"Invalid default value for {kind.name}: {shown(value)} (must be null)")
    if not FITS.get(kind.kind, _shaped)(value, kind):
        raise BadUpdate(f"Cannot parse default as a {kind.name} value: {shown(value)}")


def _shaped(value: Any, kind: Primitive) -> bool:
    return isinstance(value, str) and SHAPES[kind.kind].fullmatch(value) is not None


def _decimal(value: Any, kind: Primitive) -> bool:
    if not isinstance(value, str) or len(value) > 64:
        return False
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    if not number.is_finite() or -int(number.as_tuple().exponent) != kind.scale:
        return False
    return len(number.as_tuple().digits) <= kind.length


FITS: dict[str, Callable[[Any, Primitive], bool]] = {
    "boolean": lambda value, _: isinstance(value, bool),
    "int": lambda value, _: type(value) is int and -INT_MAX - 1 <= value <= INT_MAX,
    "long": lambda value, _: type(value) is int and -LONG_MAX - 1 <= value <= LONG_MAX,
    "float": lambda value, _: isinstance(value, float),
    "double": lambda value, _: isinstance(value, float),
    "string": lambda value, _: isinstance(value, str),
    "uuid": lambda value, _: isinstance(value, str) and UUID.fullmatch(value) is not None,
    "decimal": _decimal,
    "binary": lambda value, _: isinstance(value, str) and HEX.fullmatch(value) is not None,
    "fixed": lambda value, kind: (
        isinstance(value, str) and len(value) == 2 * kind.length and HEX.fullmatch(value) is not None
    ),
}
