"""From a URL to a backend. Nothing is imported before its scheme is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from takehold.core.backend import Backend
from takehold.errors import BackendRefused, UsageError

__all__ = ["backend_for", "default_url", "masked"]

_SCHEMES: Final = "memory:, memory:NAME, file:DIRECTORY, sqlite:///FILE"


def default_url() -> str:
    """`TAKEHOLD_URL`, or the embedded file backend in the user's state directory."""
    from takehold.backends.file import default_directory

    return os.environ.get("TAKEHOLD_URL") or f"file:{default_directory()}"


def backend_for(url: object) -> Backend:
    """The backend that a URL names, or a third party's own backend object; no I/O."""
    if hasattr(url, "capabilities") and hasattr(url, "place"):
        made: Any = url
        return made  # type: ignore[no-any-return]
    if url is None:
        url = os.environ.get("TAKEHOLD_URL")
        if not url:
            raise UsageError(f"Locks() without a URL needs TAKEHOLD_URL in the environment; give one of: {_SCHEMES}")
    if not isinstance(url, str):
        raise UsageError(f"a lock URL is text such as {_SCHEMES}; not {type(url).__name__}: {url!r}")
    scheme, colon, rest = url.partition(":")
    maker = _MAKERS.get(scheme)
    if not colon or maker is None:
        raise UsageError(f"{masked(url)!r} has no scheme known here; use one of: {_SCHEMES}")
    if "?" in rest:
        raise UsageError(f"{scheme}: URLs take no options, {masked(url)!r} has some")
    return maker(rest)


def masked(url: str) -> str:
    """The URL without its password, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition(":")[0] + ":..."
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)


def _memory(rest: str) -> Backend:
    made: Any = import_module("takehold.backends.memory").MemoryBackend(rest)
    return made  # type: ignore[no-any-return]


def _file(rest: str) -> Backend:
    path = unquote(rest[2:] if rest.startswith("///") else rest)
    if not path or path.startswith("//"):
        raise UsageError("file: needs a directory of this host: file:/run/app/locks, file:///run/app/locks")
    return _file_backend(path)


def _sqlite(rest: str) -> Backend:
    path = unquote(rest.removeprefix("///"))
    if not rest.startswith("///") or not path or path == ":memory:":
        raise UsageError("sqlite: needs a database file: sqlite:///app.db, sqlite:////var/lib/app/app.db")
    return _file_backend(path + ".locks")


def _file_backend(path: str) -> Backend:
    if sys.platform != "linux":
        raise BackendRefused(
            f"file locks are proven on Linux only, this is {sys.platform}; run the shipped conformance suite "
            "(takehold.testing.suite) there first"
        )
    made: Any = import_module("takehold.backends.file").FileBackend(Path(path).expanduser())
    return made  # type: ignore[no-any-return]


_MAKERS: Final[dict[str, Callable[[str], Backend]]] = {"memory": _memory, "file": _file, "sqlite": _sqlite}
