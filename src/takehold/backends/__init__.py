"""From a URL to a backend. Nothing is imported before its scheme is asked for."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from takehold.core.backend import Backend
from takehold.errors import BackendRefused, UsageError

__all__ = ["backend_for", "default_url", "masked"]

_SCHEMES: Final = "memory:, memory:NAME, file:DIRECTORY, sqlite:///FILE, postgresql://USER@HOST/DATABASE"


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
    url = _engine_url(url)
    if not isinstance(url, str):
        raise UsageError(f"a lock URL is text such as {_SCHEMES}; not {type(url).__name__}: {url!r}")
    scheme, colon, rest = url.partition(":")
    # A URL of SQLAlchemy names its driver too; we have our own connections, and our own drivers.
    scheme = _DRIVER.sub(r"\1", scheme)
    maker = _MAKERS.get(scheme)
    if not colon or maker is None:
        raise UsageError(f"{masked(url)!r} has no scheme known here; use one of: {_SCHEMES}")
    if "?" in rest and scheme not in _WITH_OPTIONS:
        raise UsageError(f"{scheme}: URLs take no options, {masked(url)!r} has some")
    return maker(rest)


def _engine_url(url: object) -> object:
    """The URL of a SQLAlchemy `Engine` or `AsyncEngine`, told by what it has; anything else as it is."""
    render = getattr(getattr(url, "url", None), "render_as_string", None)
    return url if render is None else render(hide_password=False)


def masked(url: str) -> str:
    """The URL without its password, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition(":")[0] + ":..."
    url = re.sub(r"(?<=[?&]password=)[^&]*", "***", url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@", 1)


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


def _postgres(rest: str) -> Backend:
    if not rest.startswith("//"):
        raise UsageError("postgresql: needs a server: postgresql://user@host/database")
    made: Any = import_module("takehold.backends.postgres").PostgresBackend("postgresql:" + rest)
    return made  # type: ignore[no-any-return]


def _lease_postgres(rest: str) -> Backend:
    made: Any = import_module("takehold.backends.lease").on_postgres(rest)
    return made  # type: ignore[no-any-return]


def _lease_sqlite(rest: str) -> Backend:
    made: Any = import_module("takehold.backends.lease").on_sqlite(rest)
    return made  # type: ignore[no-any-return]


_DRIVER: Final = re.compile(r"((?:lease\+)?(?:postgres(?:ql)?|sqlite))\+[a-z0-9_]+")
_WITH_OPTIONS: Final = frozenset(("postgresql", "postgres", "lease+postgresql", "lease+postgres", "lease+sqlite"))
_MAKERS: Final[dict[str, Callable[[str], Backend]]] = {
    "memory": _memory,
    "file": _file,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "lease+postgresql": _lease_postgres,
    "lease+postgres": _lease_postgres,
    "lease+sqlite": _lease_sqlite,
}
