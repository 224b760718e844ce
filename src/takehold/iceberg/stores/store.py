"""The port: six calls that everything above is written against, what they raise, and which paths there are."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol
from unicodedata import category

from takehold import Conflict, UsageError

__all__ = ["AlreadyThere", "Changed", "Store", "Stored", "below", "checked"]

LONGEST_PATH = 900
"""Bytes. S3 allows 1024, some of which the prefix in the bucket takes."""
LONGEST_PART = 255
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of letters that a reader of a log would not see, or that would turn the line around."""


class AlreadyThere(Conflict):
    """Something is stored at that path already."""

    path: str = ""


class Changed(Conflict):
    """What is stored at that path is no longer what the tag stood for, or it is gone."""

    path: str = ""


class Stored(NamedTuple):
    """What `get` found: the bytes, and the tag that stands for exactly this write of them."""

    data: bytes
    tag: str


class Store(Protocol):
    """Objects by path, changed by compare-and-set. Every store passes `takehold.testing.stores`.

    An object is written whole: a reader sees all of one write or nothing of it. What a call has acknowledged, or
    shown to a reader, survives a crash. A tag stands for one write: it never comes back, not even when the same
    bytes are written again or when the object is deleted and made anew.

    A call that raises `Conflict`, `UsageError`, `BackendUnavailable` or `BackendRefused` changed nothing. After
    `UnknownOutcome` the change may have happened, or may even still happen: the caller looks. To be able to,
    each write should carry something of its own, such as a uuid.

    A path is one or more parts joined by `/`; no path is also a directory of another. Paths are checked by
    `checked` in every store, so that a name that works on one works on all.
    """

    location: str
    """Where other programs find the same objects: `file:///srv/lake`, `s3://bucket/prefix`. No `/` at the end."""

    async def get(self, path: str) -> Stored | None:
        """What is stored there, or None."""

    async def put_new(self, path: str, data: bytes) -> str:
        """Store it and return its tag; `AlreadyThere` when something is there. Of several at once one succeeds."""

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        """Replace what has this tag and return the new tag; `Changed` when it has another one or is gone."""

    async def delete_if(self, path: str, tag: str | None) -> None:
        """Delete what has this tag; `Changed` when it has another one or is gone.

        With `None`: delete whatever is there, if anything. That is how immutable files are purged.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Store an immutable file. Its name is fresh (it has a uuid), so there is nothing to compare with."""

    async def list(self, prefix: str) -> list[str]:
        """Every path below a directory, sorted; `""` for all. `a/b` lists `a/b/c`, never `a/bc`."""

    async def prepare(self, prefix: str) -> None:
        """Make a directory in which other programs will put files, where the store has directories."""

    async def close(self) -> None:
        """Let go of threads and connections; twice is a no-op."""


def checked(path: str) -> str:
    """The path, or `UsageError` when some store could not have it or it could lead out of the store."""
    if why := _unfit(path):
        raise UsageError(f"{path!r:.200} is no path of a store: {why}")
    return path


def below(prefix: str) -> str:
    """What the paths below a directory start with: `a/b` and `a/b/` become `a/b/`, and `""` stays."""
    prefix = prefix.removesuffix("/")
    return f"{checked(prefix)}/" if prefix else ""


@lru_cache(8192)
def _unfit(path: str) -> str | None:
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        return "it is not Unicode text"
    if length > LONGEST_PATH:
        return f"{length} bytes, and at most {LONGEST_PATH} are allowed"
    for part in path.split("/"):
        # Azure drops a dot at the end of a part, and "." and ".." lead elsewhere in a file system.
        if not part or part.endswith("."):
            return "a part of it is empty or ends with a dot"
        if len(part.encode()) > LONGEST_PART:
            return f"a part of it has more than {LONGEST_PART} bytes"
    if path.startswith(".takehold"):
        return "names that start with .takehold are the store's own"
    if "\\" in path or any(category(letter) in UNSEEN for letter in path):
        return "it has a control character, an invisible one or a backslash"
    return None
