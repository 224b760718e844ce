"""What is protected: plain text, a `Key` of parts, or a raw number; and the frozen encoding of each.

Encoding, format 1: one domain byte, then namespace and parts, each as a 2-byte big-endian length and its
UTF-8 bytes. A raw number is its domain byte and 8 big-endian bytes, outside every namespace. The 64-bit id
is BLAKE2b of that, personalised with the format number. Golden vectors guard all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias
from uuid import UUID

from takehold.errors import UsageError

__all__ = [
    "KEY_FORMAT",
    "Advisory",
    "AnyKey",
    "Key",
    "advisory",
    "encode",
    "hashed",
    "template_of",
    "text_of",
]

KEY_FORMAT: Final = 1
MAX_KEY_BYTES: Final = 1024
MAX_NAMESPACE_BYTES: Final = 255

TEXT, TREE, BODY, RAW = b"\x01", b"\x02", b"\x03", b"\x04"
_HASHER: Final = blake2b(digest_size=8, person=b"takehold.key.%d" % KEY_FORMAT)
_ACCEPTED: Final = "a key is text, takehold.Key(part, ...) or takehold.advisory(number)"


@dataclass(frozen=True, slots=True, init=False)
class Key:
    """A key made of parts, which can be locked with everything below it.

    Text parts are fixed and int or UUID parts vary, which gives its template: `Key("orders", 42)` is one of
    `orders/*`. `42` and `"42"` are the same part. A `Key` is never the same key as a plain string.
    """

    parts: tuple[str, ...]
    template: str

    def __init__(self, *parts: str | int | UUID) -> None:
        if not parts:
            raise UsageError("Key() needs at least one part; parts are text, int or UUID")
        texts: list[str] = []
        pattern: list[str] = []
        for part in parts:
            if isinstance(part, bool) or not isinstance(part, (str, int, UUID)):
                raise UsageError(f"a part of a Key is text, int or UUID, not {type(part).__name__}: {part!r}")
            text = str(part)
            checked(text, "a part of a Key")
            texts.append(text)
            pattern.append(_escape(text) if isinstance(part, str) else "*")
        object.__setattr__(self, "parts", tuple(texts))
        object.__setattr__(self, "template", "/".join(pattern))
        if len(self.text.encode()) > MAX_KEY_BYTES:
            raise UsageError(f"a key is at most {MAX_KEY_BYTES} bytes of UTF-8; this one starts {self.text[:40]!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.parts == self.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Key({', '.join(map(repr, self.parts))})"

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The parts joined by slashes, with slashes inside a part escaped: what `who` shows."""
        return "/".join(map(_escape, self.parts))

    @property
    def ancestors(self) -> list[tuple[str, ...]]:
        """The parts of every proper ancestor, root first."""
        return [self.parts[:depth] for depth in range(1, len(self.parts))]


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


@dataclass(frozen=True, slots=True)
class Advisory:
    """A raw 64-bit lock number, shared with programs that do not use Takehold. Made by `advisory`."""

    number: int
    label: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Advisory) and other.number == self.number

    def __hash__(self) -> int:
        return hash((Advisory, self.number))

    @property
    def text(self) -> str:
        """Number and label, as `who` shows them."""
        return f"#{self.number}" + (f" {self.label}" if self.label else "")


AnyKey: TypeAlias = str | Key | Advisory


def advisory(number: int, label: str | None = None) -> Advisory:
    """The key that *is* this 64-bit number, unhashed: it excludes hand-written `pg_advisory_lock(number)`."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise UsageError(f"advisory() takes an int, not {type(number).__name__}: {number!r}")
    if not -(2**63) <= number < 2**63:
        raise UsageError(f"advisory() takes a number in -2**63 .. 2**63-1, not {number}")
    if label is not None:
        checked(label, "a label")
    return Advisory(number, label)


def checked(text: str, what: str, limit: int = MAX_KEY_BYTES) -> bytes:
    """The UTF-8 of a text that may be (part of) a key, or `UsageError`."""
    if not text:
        raise UsageError(f"{what} is empty; {_ACCEPTED}")
    if "\0" in text:
        raise UsageError(f"{what} has a NUL byte: {text!r}")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not valid Unicode: {text!r}") from error
    if len(raw) > limit:
        raise UsageError(f"{what} is at most {limit} bytes of UTF-8, this one has {len(raw)}: {text[:40]!r}...")
    return raw


def checked_namespace(namespace: object) -> str:
    """A namespace, or `UsageError`."""
    if not isinstance(namespace, str):
        raise UsageError(f"a namespace is text, not {type(namespace).__name__}: {namespace!r}")
    if namespace:
        checked(namespace, "a namespace", MAX_NAMESPACE_BYTES)
    return namespace


def text_of(key: object) -> str:
    """The key as people read it, or `UsageError` when it is none."""
    if isinstance(key, str):
        checked(key, "a key")
        return key
    if isinstance(key, (Key, Advisory)):
        return key.text
    raise UsageError(f"{_ACCEPTED}, not {type(key).__name__}: {key!r}")


def encode(domain: bytes, namespace: str, *parts: str) -> bytes:
    """The canonical bytes of one lockable thing."""
    fields = [text.encode() for text in (namespace, *parts)]
    return domain + b"".join(len(field).to_bytes(2, "big") + field for field in fields)


def encode_raw(number: int) -> bytes:
    """The canonical bytes of `advisory(number)`."""
    return RAW + number.to_bytes(8, "big", signed=True)


def hashed(encoded: bytes) -> int:
    """The unsigned 64-bit id of an encoding, the same on every machine."""
    hasher = _HASHER.copy()  # half the price of making one with its parameters
    hasher.update(encoded)
    return int.from_bytes(hasher.digest(), "big")


_VARIABLE = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|[0-9a-fA-F]{8,}|[0-9]+)(?![0-9A-Za-z])"
)


def template_of(key: AnyKey) -> str:
    """The key with its varying parts as `*`: what statistics and the order checker count by."""
    if isinstance(key, str):
        return _VARIABLE.sub("*", key)
    return key.template if isinstance(key, Key) else "#*"
