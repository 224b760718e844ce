"""The bytes of a record: one line that says what it is and what it must add up to, then JSON.

Anything else is refused. A bit that flipped in storage, half of a file, or a record that was copied to another place
must never decide which table a name means.
"""

from __future__ import annotations

from typing import Any, Final, Self

import orjson
import xxhash

from takehold.iceberg.errors import BrokenRecord

__all__ = ["FORMAT", "RING", "Record", "advanced_ring", "seal", "unseal"]

FORMAT: Final = 1
RING: Final = 32
"""How many committed changes a record remembers."""


class Record:
    """What every kind of record can do. Records are values: a change makes another one."""

    kind: str
    version: int
    recent: tuple[str, ...]

    def body(self) -> dict[str, Any]:
        """As JSON has it, without version and ring."""
        raise NotImplementedError

    @classmethod
    def of(cls, body: dict[str, Any], version: int, recent: tuple[str, ...]) -> Self:
        """The record that this body was made from."""
        raise NotImplementedError


def advanced_ring(recent: tuple[str, ...], mark: str | None) -> tuple[str, ...]:
    """What was committed lately, with one more."""
    return recent if mark is None else (*recent, mark)[-RING:]


def seal(path: str, record: Record) -> bytes:
    """The bytes to store at that path."""
    text = orjson.dumps(
        {"path": path, "version": record.version, "recent": record.recent, **record.body()}, default=tuple
    )
    return b"takehold %s %d %016x\n%s" % (record.kind.encode(), FORMAT, xxhash.xxh64_intdigest(text), text)


def unseal(path: str, kind: str | None, data: bytes) -> dict[str, Any]:
    """The fields of what is stored there; `BrokenRecord` when it is not exactly what was written there."""
    head, _, text = data.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 4 or words[0] != b"takehold":
        raise BrokenRecord(f"{path} is no record of a catalog", path=path)
    if words[2] != b"%d" % FORMAT:
        raise BrokenRecord(f"{path} has format {words[2]!r:.20}; this release knows {FORMAT}", path=path)
    if words[3] != b"%016x" % xxhash.xxh64_intdigest(text):
        raise BrokenRecord(f"{path} is damaged: its bytes do not add up", path=path)
    fields: dict[str, Any] = orjson.loads(text)
    if kind is not None and words[1] != kind.encode():
        raise BrokenRecord(f"{path} is a record of kind {words[1]!r:.40}, not {kind!r}", path=path)
    if fields["path"] != path:
        raise BrokenRecord(f"{path} was written as {fields['path']}", path=path)
    return fields
