"""Reading JSON values: each reader returns what it promises or says what was there instead.

The sentences are those of Iceberg's Java parser: clients and the compatibility kit match on them.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from takehold.iceberg.metadata.errors import BadUpdate

__all__ = [
    "INT_MAX",
    "Json",
    "bounded",
    "flag",
    "integer",
    "integers",
    "items",
    "long",
    "longs",
    "optional",
    "part",
    "record",
    "shown",
    "text",
    "text_map",
    "texts",
    "uuid_text",
]

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DEEPEST = 200
"""Levels of nesting. orjson writes 254, and what is added here ends up some levels down in a file."""

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def shown(value: object) -> str:
    """A value as it stands in an error message: JSON, cut where it gets long."""
    if isinstance(value, Mapping):
        value = dict(value)
    try:
        said = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        said = f"a {type(value).__name__}"
    return said if len(said) <= 200 else said[:200] + "..."


def bounded(value: object, what: str) -> None:
    """Refuse what could not be written to a file again: too deep, too large, not JSON."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                below.extend(one.values())
                for key in one:
                    _check_single(key if isinstance(key, str) else (), what)
            elif isinstance(one, list | tuple):
                below.extend(one)
            else:
                _check_single(one, what)
        if not below:
            return
        level = below
    raise BadUpdate(f"Cannot parse {what}: nested more than {DEEPEST} levels deep")


def _check_single(one: object, what: str) -> None:
    if isinstance(one, str):
        try:
            one.isascii() or one.encode()
        except UnicodeEncodeError:
            # Half a surrogate pair: JSON can say it, and no file can hold it.
            raise BadUpdate(f"Cannot parse {what}: text that is not Unicode") from None
    elif isinstance(one, int):
        if not -LONG_MAX - 1 <= one <= LONG_MAX:
            raise BadUpdate(f"Cannot parse {what}: number out of range: {shown(one)}")
    elif not (one is None or (isinstance(one, float) and math.isfinite(one))):
        raise BadUpdate(f"Cannot parse {what}: not a JSON value: {shown(one)}")


def part(name: str, node: Json) -> Any:
    """A field that must be there, of any type."""
    if (value := node.get(name)) is None:
        raise BadUpdate(f"Cannot parse missing field: {name}")
    return value


def record(value: object, what: str) -> Json:
    """An object."""
    if not isinstance(value, Mapping):
        raise BadUpdate(f"Cannot parse {what} from non-object: {shown(value)}")
    return value


def there(name: str, node: Json, kind: str) -> Any:
    """A field that must be there and may turn out to be null."""
    if name not in node:
        raise BadUpdate(f"Cannot parse missing {kind}: {name}")
    return node[name]


def integer(name: str, node: Json) -> int:
    """A number that fits into 32 bits."""
    value = there(name, node, "int")
    if type(value) is not int or not -INT_MAX - 1 <= value <= INT_MAX:
        raise BadUpdate(f"Cannot parse to an integer value: {name}: {shown(value)}")
    return value


def long(name: str, node: Json) -> int:
    """A number that fits into 64 bits."""
    value = there(name, node, "long")
    if type(value) is not int or not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise BadUpdate(f"Cannot parse to a long value: {name}: {shown(value)}")
    return value


def flag(name: str, node: Json) -> bool:
    """A boolean."""
    value = there(name, node, "boolean")
    if not isinstance(value, bool):
        raise BadUpdate(f"Cannot parse to a boolean value: {name}: {shown(value)}")
    return value


def text(name: str, node: Json) -> str:
    """A string."""
    value = there(name, node, "string")
    if not isinstance(value, str):
        raise BadUpdate(f"Cannot parse to a string value: {name}: {shown(value)}")
    return value


def optional(read: Callable[[str, Json], T], name: str, node: Json) -> T | None:
    """What `read` returns, or None for a field that is missing or null."""
    return None if node.get(name) is None else read(name, node)


def text_map(name: str, node: Json) -> dict[str, str]:
    """An object whose values are strings."""
    value = there(name, node, "map")
    if not isinstance(value, Mapping):
        raise BadUpdate(f"Cannot parse string map from non-object value: {name}: {shown(value)}")
    return {key: text(key, value) for key in value}


def items(name: str, node: Json) -> Sequence[Any]:
    """An array of anything."""
    value = there(name, node, "list")
    if not isinstance(value, list | tuple):
        raise BadUpdate(f"Cannot parse JSON array from non-array value: {name}: {shown(value)}")
    return value


def _each(fits: Callable[[Any], bool], sentence: str, name: str, node: Json) -> list[Any]:
    found = list(items(name, node))
    for one in found:
        if not fits(one):
            raise BadUpdate(f"{sentence} in {name}: {shown(one)}")
    return found


texts = functools.partial(_each, lambda one: isinstance(one, str), "Cannot parse string from non-text value")
integers = functools.partial(
    _each,
    lambda one: type(one) is int and -INT_MAX - 1 <= one <= INT_MAX,
    "Cannot parse integer from non-int value",
)
longs = functools.partial(
    _each,
    lambda one: type(one) is int and -LONG_MAX - 1 <= one <= LONG_MAX,
    "Cannot parse long from non-long value",
)


def uuid_text(name: str, node: Json) -> str:
    """A UUID in its usual 36 letters: it becomes part of object names."""
    value = text(name, node)
    if not UUID.fullmatch(value):
        raise BadUpdate(f"Invalid UUID string: {shown(value)}")
    return value
