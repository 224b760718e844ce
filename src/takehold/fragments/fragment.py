"""A fragment: the unit that one replica works on. Its name says where it is, its hash what it says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import xxhash

from takehold import Advisory, UsageError, advisory

__all__ = ["Fragment", "content_hash", "content_key", "locks_of"]

MAX_IDENTITY: Final = 960
"""Bytes of UTF-8: with what stands before it, an identity is a key, and a key has at most 1 024."""


@dataclass(frozen=True)
class Fragment:
    """A piece of a document, and where it stands."""

    corpus: str
    document: str
    name: str
    """Unique in its document, and the same as long as the fragment stands for the same thing."""
    content: str

    def __post_init__(self) -> None:
        check_identity(self.identity)

    @cached_property
    def identity(self) -> str:
        """Corpus, document and name, as `guides/install.md#on-linux`: what results refer to."""
        # The first # ends the document: one inside would make two of the same identity.
        document = self.document.replace("%", "%25").replace("#", "%23")
        return f"{self.corpus}/{document}#{self.name}"

    @cached_property
    def hash(self) -> str:
        """The xxh3_128 of the content, in hexadecimal."""
        return content_hash(self.content)

    @property
    def key(self) -> int:
        """What `pg_try_advisory_lock` takes."""
        return content_key(self.hash)


def content_hash(content: str) -> str:
    """The big-endian digest of the UTF-8, 32 hexadecimal digits; a lone surrogate counts as its three bytes."""
    return xxhash.xxh3_128_hexdigest(content.encode("utf-8", "surrogatepass"))


def content_key(digest: str) -> int:
    """The first 8 bytes of a digest as a signed number."""
    high = int(digest[:16], 16)
    return high - 2**64 if high >= 2**63 else high


def locks_of(identity: str, digest: str) -> tuple[str, Advisory]:
    """The two keys of a claim: the place whatever it says, and what it says wherever that stands."""
    return f"fragment/{identity}", advisory(content_key(digest), label=identity)


def check_identity(identity: str) -> None:
    """Raise `UsageError` unless databases and locks can take it."""
    try:
        size = len(identity.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the name of a fragment is not valid Unicode: {identity!r}") from None
    if size > MAX_IDENTITY or "\0" in identity:
        raise UsageError(
            f"corpus, document and name of a fragment have at most {MAX_IDENTITY} bytes together and no NUL, this one "
            f"has {size}: {identity[:60]!r}"
        )
