"""The types of columns: their names, and since which format version there are any."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.values import INT_MAX, shown

__all__ = ["NESTED", "Primitive", "primitive"]

NESTED = frozenset({"struct", "list", "map"})
PLAIN = frozenset(
    [
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "timestamp_ns",
        "timestamptz_ns",
        "string",
        "uuid",
        "binary",
        "unknown",
        "variant",
        "geometry",
        "geography",
    ]
)
SINCE_3 = frozenset({"timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography"})
EDGES = frozenset({"spherical", "vincenty", "thomas", "andoyer", "karney"})

FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]", re.ASCII)
DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.ASCII)
GEOMETRY = re.compile(r"geometry\s*\(\s*([^)]*?)\s*\)", re.IGNORECASE)
GEOGRAPHY = re.compile(r"geography\s*\(\s*([^,)]*?)\s*(?:,\s*(\w*)\s*)?\)", re.IGNORECASE)


class Primitive(NamedTuple):
    """A type without parts; equal when they mean the same, however they were spelled."""

    kind: str
    name: str
    length: int = 0
    scale: int = 0

    @property
    def since(self) -> int:
        """The first format version that has it."""
        return 3 if self.kind in SINCE_3 else 1


@functools.lru_cache(maxsize=4096)
def primitive(said: str) -> Primitive:
    """The type that a string names."""
    name = said.lower()
    if name in PLAIN:
        return Primitive(name, name)
    if match := FIXED.fullmatch(name):
        length = _number(match[1], said)
        return Primitive("fixed", f"fixed[{length}]", length)
    if match := DECIMAL.fullmatch(name):
        precision, scale = _number(match[1], said), _number(match[2], said)
        if precision > 38:
            raise BadUpdate(f"Decimals with precision larger than 38 are not supported: {precision}")
        return Primitive("decimal", f"decimal({precision}, {scale})", precision, scale)
    if match := GEOMETRY.fullmatch(said):
        return Primitive("geometry", f"geometry({_crs(match[1])})")
    if match := GEOGRAPHY.fullmatch(said):
        edges = (match[2] or "spherical").lower()
        if edges not in EDGES:
            raise BadUpdate(f"Invalid edge interpolation algorithm: {match[2]}")
        return Primitive("geography", f"geography({_crs(match[1])}, {edges})")
    raise BadUpdate(f"Cannot parse type string to primitive: {shown(said)[1:-1]}")


def _number(digits: str, said: str) -> int:
    # int() of a very long text is slow, and then refused by Python itself.
    if len(digits) > 10 or int(digits) > INT_MAX:
        raise BadUpdate(f"Cannot parse type string to primitive: {shown(said)[1:-1]}")
    return int(digits)


def _crs(said: str) -> str:
    if not said:
        raise BadUpdate("Invalid CRS: (empty string)")
    return said
