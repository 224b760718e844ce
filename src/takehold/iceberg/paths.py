"""Where each record is, and which names there can be.

Frozen: other catalogs on the same store compute the same paths, and the same paths are the lock keys.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

import xxhash

from takehold import UsageError
from takehold.iceberg.words import Identifier, Namespace

__all__ = [
    "SHARDS",
    "WAREHOUSES",
    "checked_name",
    "checked_namespace",
    "encoded",
    "encoded_namespace",
    "function",
    "pending",
    "pending_of",
    "pointer",
    "pointers_of",
    "registry",
    "shard",
    "shard_number",
    "shards",
]

SHARDS: Final = 16
WAREHOUSES: Final = "catalog/warehouse.bin"
LONGEST: Final = 255
SEPARATOR: Final = "\x1f"
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


@lru_cache(maxsize=4096)
def encoded(text: str) -> str:
    """Percent-encoded outside of letters, digits, `_` and `-`: no name leads anywhere, not even `..`."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode())


def encoded_namespace(namespace: Namespace) -> str:
    """The levels as one part of a path."""
    return encoded(SEPARATOR.join(namespace))


def registry(warehouse: str) -> str:
    """The namespaces of a warehouse."""
    return f"catalog/{encoded(warehouse)}/namespace.bin"


def function(warehouse: str, namespace: Namespace) -> str:
    """The key of whoever wants all shards of a namespace; nothing is stored there."""
    return f"catalog/{encoded(warehouse)}/namespaces/{encoded_namespace(namespace)}"


def shard(warehouse: str, namespace: Namespace, number: int) -> str:
    """A 16th of the names in a namespace."""
    return f"{function(warehouse, namespace)}/table-registry-shard-{number}.bin"


def shards(warehouse: str, namespace: Namespace, count: int = SHARDS) -> list[str]:
    """All of them, in byte order."""
    return sorted(shard(warehouse, namespace, number) for number in range(count))


def shard_number(name: str, count: int = SHARDS) -> int:
    """Which shard a name belongs to."""
    return xxhash.xxh64_intdigest(name.encode()) & (count - 1)


def pointers_of(warehouse: str) -> str:
    """The directory of all pointers."""
    return f"catalog/{encoded(warehouse)}/tables"


def pointer(warehouse: str, uuid: str) -> str:
    """The one object that a commit changes."""
    return f"{pointers_of(warehouse)}/{encoded(uuid)}.bin"


def pending_of(warehouse: str) -> str:
    """The directory of the changes that are under way."""
    return f"catalog/{encoded(warehouse)}/.tx/pending"


def pending(warehouse: str, tx: str) -> str:
    """The record of one change of several records."""
    return f"{pending_of(warehouse)}/{encoded(tx)}.bin"


def checked_name(name: object, what: str) -> str:
    """The name, or `UsageError` when there can be nothing of that name."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what} has a name of at least one character, not {name!r}")
    return _checked(name, name, what)


def checked_namespace(namespace: object) -> Namespace:
    """The levels as a tuple, or `UsageError`."""
    if not isinstance(namespace, tuple | list) or not namespace:
        raise UsageError(f"a namespace is a tuple of one or more levels, not {namespace!r}")
    for level in namespace:
        checked_name(level, "a level of a namespace")
    _checked(SEPARATOR.join(namespace), ".".join(namespace), "a namespace", separators=len(namespace) - 1)
    return tuple(namespace)


def checked_identifier(identifier: Identifier, what: str) -> Identifier:
    """The identifier of a table or view, or `UsageError`."""
    namespace, name = identifier
    return Identifier(checked_namespace(namespace), checked_name(name, what))


def _checked(text: str, shown: str, what: str, separators: int = 0) -> str:
    try:
        length = len(encoded(text))
    except UnicodeEncodeError:
        raise UsageError(f"{what} is named in Unicode text, not {shown!r:.100}") from None
    if length > LONGEST:
        raise UsageError(f"{what} of {length} bytes, percent-encoded; at most {LONGEST} are allowed: {shown!r:.60}...")
    if sum(unicodedata.category(letter) == "Cc" for letter in text) > separators:
        raise UsageError(f"{what} has a control character in its name: {shown!r:.100}")
    return text
