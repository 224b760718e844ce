"""How an object that changes is written down: a line that no other write has, then the bytes.

    takehold object 1 <version> <token> <digest>

The version counts the writes of this object, the token is of this write alone, the digest covers version, token
and bytes. The tag `<version>-<token>` says which write was seen; times and inode numbers could come back.
An immutable file has no such line, so that other programs can read it; its tag is the digest of its bytes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from takehold import BackendRefused

__all__ = ["Record", "plain", "read", "written"]

_MAGIC = b"takehold object "
_FORMAT = b"1"


class Record(NamedTuple):
    """One object as it was found."""

    data: bytes
    version: int
    token: str

    @property
    def tag(self) -> str:
        """What stands for this write."""
        return f"{self.version}-{self.token}"


def written(data: bytes, version: int, token: str) -> bytes:
    """The bytes of an object with its line."""
    stamp = f"{version} {token}".encode()
    return b"%b%b %b %b\n%b" % (_MAGIC, _FORMAT, stamp, _digest(stamp, data), data)


def plain(data: bytes, token: str) -> bytes:
    """The bytes of an immutable file: as they are, unless they look like an object with a line."""
    return written(data, 0, token) if data.startswith(_MAGIC) else data


def read(path: str, blob: bytes) -> Record:
    """What was written, or `BackendRefused` when it is damaged."""
    if not blob.startswith(_MAGIC):
        return Record(blob, 0, blake2b(blob, digest_size=16).hexdigest())
    line, _, data = blob.partition(b"\n")
    words = line[len(_MAGIC) :].split(b" ")
    if words[0] != _FORMAT:
        raise BackendRefused(f"{path} is in format {words[0][:20]!r}, which this release of takehold does not know")
    if len(words) != 4 or words[3] != _digest(b" ".join(words[1:3]), data):
        raise BackendRefused(f"{path} is damaged: its digest is not that of its bytes; restore it from a backup")
    return Record(data, int(words[1]), words[2].decode())


def _digest(stamp: bytes, data: bytes) -> bytes:
    made = blake2b(stamp, digest_size=8)
    made.update(b"\n")
    made.update(data)
    return made.hexdigest().encode()
