"""Where a lease table is, and what the URL may say about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from takehold.backends import masked
from takehold.errors import UsageError

__all__ = ["Address", "postgres_address", "sqlite_address"]

DEFAULT_TTL: Final = 15.0
SHORTEST_TTL: Final = 2.0
LONGEST_TTL: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Address:
    """A database with a lease table in it."""

    kind: Literal["postgresql", "sqlite"]
    dsn: str
    """For the driver; for SQLite the path of the file."""
    shown: str
    """The same for people, without a password."""
    ttl: float = DEFAULT_TTL
    """Seconds after its last heartbeat for which a session keeps its keys."""


def postgres_address(rest: str) -> Address:
    """From what follows `lease+postgresql:`."""
    parts = urlsplit("postgresql:" + rest)
    if not rest.startswith("//"):
        raise UsageError("lease+postgresql: needs a server: lease+postgresql://user@host/database")
    ttl, theirs = _own_options(parts.query)
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(theirs, quote_via=quote), ""))
    return Address("postgresql", dsn, masked(dsn), ttl)


def sqlite_address(rest: str) -> Address:
    """From what follows `lease+sqlite:`."""
    place, _, query = rest.partition("?")
    path = unquote(place.removeprefix("///"))
    if not place.startswith("///") or not path or path == ":memory:":
        raise UsageError("lease+sqlite: needs a database file: lease+sqlite:///app.db, lease+sqlite:////srv/app.db")
    ttl, others = _own_options(query)
    if others:
        raise UsageError(f"lease+sqlite: URLs take ?ttl=SECONDS and no other option, not {others[0][0]!r}")
    path = os.path.abspath(os.path.expanduser(path))
    return Address("sqlite", path, path, ttl)


def _own_options(query: str) -> tuple[float, list[tuple[str, str]]]:
    """Our option, and those of the driver."""
    ttl, theirs = DEFAULT_TTL, []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "ttl":
            theirs.append((name, value))
            continue
        try:
            ttl = float(value)
        except ValueError:
            ttl = 0.0
        if not SHORTEST_TTL <= ttl <= LONGEST_TTL:
            raise UsageError(f"?ttl= takes {SHORTEST_TTL:g} to {LONGEST_TTL:g} seconds, not {value!r}")
    return ttl, theirs
