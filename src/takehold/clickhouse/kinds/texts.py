"""Texts, and what travels as text: the server reads it only when it casts, so it is checked here first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from takehold.clickhouse.kinds.base import Kind, Misfit

__all__ = ["Address", "Choice", "FixedText", "Json", "Text", "Uuid"]

_UUID: Final = "^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32})$"


def _is_text(kind: pa.DataType) -> bool:
    return any(is_(kind) for is_ in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    return any(is_(kind) for is_ in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


class Text(Kind):
    """String: any bytes; a str goes as UTF-8."""

    native = frozenset({str, bytes, bytearray})
    _takes = "str and bytes"

    def _one(self, value: Any) -> Any:
        return value if isinstance(value, str | bytes | bytearray | memoryview) else super()._one(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
            return array.cast(pa.large_binary())
        if _is_text(array.type) or _is_binary(array.type):
            return array
        return array.cast(self.arrow) if pa.types.is_fixed_size_binary(array.type) else self._refuse(array)


@dataclass(frozen=True)
class FixedText(Text):
    """FixedString(N): the server fills up what is shorter with zero bytes."""

    size: int

    def _check(self, array: pa.Array) -> None:
        longest = pc.max(pc.binary_length(array)).as_py()
        if longest is not None and longest > self.size:
            raise Misfit(f"it takes {self.size} bytes")


class _Readable(Kind):
    """Travels as a text that the server reads."""

    native = frozenset({str})

    def _one(self, value: Any) -> Any:
        return value if isinstance(value, str) else super()._one(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        if array.type == self.arrow:
            return array
        return array.cast(self.arrow) if _is_text(array.type) or _is_binary(array.type) else self._refuse(array)


@dataclass(frozen=True)
class Choice(_Readable):
    """Enum8 and Enum16, by name."""

    names: tuple[str, ...]

    @property
    def _takes(self) -> str:
        return f"one of {', '.join(map(repr, self.names))}"

    def _check(self, array: pa.Array) -> None:
        # The server would also read '1' as the name with that number.
        known = pa.array([*self.names, None], type=self.arrow)
        if not pc.all(pc.is_in(array, value_set=known)).as_py():
            raise Misfit(f"it takes {self._takes}")


class Uuid(_Readable):
    """UUID, also from Arrow's own type for it."""

    _takes = "uuid.UUID, or its text"

    def _one(self, value: Any) -> str:
        return str(value) if isinstance(value, UUID) else super()._one(value)

    def _cast(self, array: pa.Array) -> pa.Array:
        array = array.storage if array.type == pa.uuid() else array
        if pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == 16:
            return self._taken([value and UUID(bytes=value) for value in array.to_pylist()])
        return super()._cast(array)

    def _check(self, array: pa.Array) -> None:
        if pc.all(pc.match_substring_regex(array, _UUID)).as_py() is False:
            raise Misfit(f"it takes {self._takes}")


@dataclass(frozen=True)
class Address(_Readable):
    """IPv4, or IPv6 that also takes IPv4 as the server does."""

    versions: tuple[type[IPv4Address | IPv6Address], ...]

    @property
    def _takes(self) -> str:
        return f"addresses, as {' or '.join(version.__name__ for version in self.versions)} or text"

    def _one(self, value: Any) -> str:
        return str(value) if isinstance(value, self.versions) else super()._one(value)

    def _check(self, array: pa.Array) -> None:
        for value in pc.unique(array).to_pylist():
            if value is not None and ("%" in value or not any(_reads(version, value) for version in self.versions)):
                raise Misfit(f"it takes {self._takes}")


def _reads(version: type[IPv4Address | IPv6Address], value: str) -> bool:
    try:
        version(value)
    except ValueError:
        return False
    return True


class Json(_Readable):
    """JSON: objects, as dict or as their text."""

    native = frozenset()
    _takes = "dict, or the text of a JSON object"

    def _one(self, value: Any) -> str:
        if isinstance(value, dict):
            return json.dumps(value, allow_nan=False, ensure_ascii=False)
        if isinstance(value, str) and isinstance(json.loads(value), dict):
            return value
        return str(super()._one(None))

    def _cast(self, array: pa.Array) -> pa.Array:
        return self._taken(array.to_pylist())
