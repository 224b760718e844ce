"""From the name of a type, as `system.columns` says it, to its kind."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import pyarrow as pa

from takehold import UsageError
from takehold.clickhouse.kinds.base import Kind
from takehold.clickhouse.kinds.nested import Listing, Pairs, Record
from takehold.clickhouse.kinds.numbers import Boolean, Decimal, Floating, Whole, Wide
from takehold.clickhouse.kinds.texts import Address, Choice, FixedText, Json, Text, Uuid
from takehold.clickhouse.kinds.times import Day, Instant
from takehold.clickhouse.quoting import identifier

__all__ = ["kind_of"]

_PIECE: Final = re.compile(r"'(?:\\.|''|[^'\\])*'|`(?:\\.|[^`\\])*`|[(),]|[^'`(),]+", re.DOTALL)
_CHOICE: Final = re.compile(r"'((?:\\.|''|[^'\\])*)'\s*=\s*-?\d+", re.DOTALL)
_ELEMENT: Final = re.compile(r"(?:`((?:\\.|[^`\\])*)`|(\w+))\s+(.+)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}

_WHOLE: Final = [f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)]
_SIMPLE: Final[dict[str, Kind]] = {
    **{name: Whole(name, pa.type_for_alias(name.lower())) for name in _WHOLE},
    **{f"Int{bits}": Wide("String", pa.string(), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (128, 256)},
    **{f"UInt{bits}": Wide("String", pa.string(), 0, 2**bits - 1) for bits in (128, 256)},
    "Float32": Floating("Float32", pa.float32()),
    "Float64": Floating("Float64", pa.float64()),
    "BFloat16": Floating("Float32", pa.float32()),
    "Bool": Boolean("Bool", pa.bool_()),
    "String": Text("String", pa.binary()),
    "UUID": Uuid("String", pa.string()),
    "IPv4": Address("String", pa.string(), (IPv4Address,)),
    "IPv6": Address("String", pa.string(), (IPv6Address, IPv4Address)),
    "JSON": Json("String", pa.string()),
    "Date": Day("Date", pa.date32(), 0, 2**16 - 1),
    "Date32": Day("Date32", pa.date32(), -25_567, 120_529),  # 1900 to 2299
    "DateTime": Instant("DateTime", pa.timestamp("s", "UTC"), 0, 0, 2**32 - 1),
}
_GEOMETRY: Final = {
    "Point": "Tuple(Float64, Float64)",
    "Ring": "Array(Point)",
    "LineString": "Array(Point)",
    "MultiLineString": "Array(LineString)",
    "Polygon": "Array(Ring)",
    "MultiPolygon": "Array(Polygon)",
}
_NEVER_NULL: Final = (Listing, Pairs, Record)


@lru_cache(maxsize=4096)
def kind_of(type_: str) -> Kind:
    """The kind of a type, or a UsageError that names the type that cannot be carried."""
    name, arguments = _parts(type_)
    if name in _SIMPLE:  # also with arguments that do not matter here, such as JSON(a UInt8) and DateTime('UTC')
        return _SIMPLE[name]
    found = _wrapped(name, arguments) or _sized(name, arguments) or _nested(name, arguments)
    if found is None:
        raise UsageError(f"columns of type {type_} cannot be appended to: takehold does not carry that type")
    return found


def _wrapped(name: str, arguments: list[str]) -> Kind | None:
    match name, arguments:
        case "Nullable", [inner] if not isinstance(kind := kind_of(inner), _NEVER_NULL):
            return replace(kind, nullable=True)
        case "LowCardinality", [inner]:
            return kind_of(inner)
        case "SimpleAggregateFunction", [_, inner]:
            return kind_of(inner)
    return None


def _sized(name: str, arguments: list[str]) -> Kind | None:
    match name, arguments:
        case "FixedString", [size]:
            return FixedText(f"FixedString({size})", pa.binary(), int(size))
        case "DateTime64", [digits, *_]:
            return _instant(int(digits))
        case "Decimal", [precision, scale]:
            arrow = pa.decimal128 if int(precision) <= 38 else pa.decimal256
            return Decimal(f"Decimal({precision}, {scale})", arrow(int(precision), int(scale)))
        case (("Enum8" | "Enum16"), [*choices]):
            return Choice("String", pa.string(), tuple(_unescaped(_CHOICE.findall(choice)[0]) for choice in choices))
    return None


def _nested(name: str, arguments: list[str]) -> Kind | None:
    if name in _GEOMETRY:
        return kind_of(_GEOMETRY[name])
    match name, arguments:
        case "Array", [inner]:
            item = kind_of(inner)
            return Listing(f"Array({item.wire})", pa.large_list(item.arrow), item)
        case "Map", [key, value]:
            keys, values = kind_of(key), kind_of(value)
            return Pairs(f"Map({keys.wire}, {values.wire})", pa.map_(keys.arrow, values.arrow), keys, values)
        case "Tuple", [_, *_]:
            return _record(arguments)
        case "Nested", [_, *_]:
            return kind_of(f"Array(Tuple({', '.join(arguments)}))")
    return None


def _instant(digits: int) -> Instant:
    unit = ("s", "ms", "us", "ns")[-(-digits // 3)]
    return Instant(
        f"DateTime64({digits})", pa.timestamp(unit, "UTC"), digits, -2_208_988_800, 10_413_791_999
    )  # 1900 to 2299


def _record(arguments: list[str]) -> Record:
    elements = [_ELEMENT.fullmatch(argument) for argument in arguments]
    named = all(elements)
    names = tuple(
        (_unescaped(found[1]) if found[2] is None else found[2]) if found else str(place)
        for place, found in enumerate(elements, 1)
    )
    items = tuple(kind_of(found[3] if found else argument) for found, argument in zip(elements, arguments, strict=True))
    wires = (f"{identifier(name)} {item.wire}" if named else item.wire for name, item in zip(names, items, strict=True))
    arrow = pa.struct([(name, item.arrow) for name, item in zip(names, items, strict=True)])
    return Record(f"Tuple({', '.join(wires)})", arrow, names, items, named)


def _parts(type_: str) -> tuple[str, list[str]]:
    """`Map(String, Array(UInt8))` as `Map` and its arguments; commas inside quotes and brackets separate nothing."""
    head, bracket, rest = type_.partition("(")
    if not bracket:
        return head.strip(), []
    arguments, depth = [""], 0
    for piece in _PIECE.findall(rest.strip().removesuffix(")")):
        depth += (piece == "(") - (piece == ")")
        if piece == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += piece
    return head.strip(), [argument.strip() for argument in arguments]


def _unescaped(quoted: str) -> str:
    return re.sub(r"\\(.)|''", lambda found: _ESCAPES.get(found[1], found[1] or "'"), quoted, flags=re.DOTALL)
