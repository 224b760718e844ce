"""From the one URL of a worker to its locks and to the database of its ledger."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from sqlalchemy import Engine, create_engine, event

from takehold import UsageError

__all__ = ["Place", "place_of"]

OF_THE_LOCKS: Final = frozenset(("pooler", "max_held", "connect", "reply", "silence", "ttl"))
"""Options of a lock URL that a database driver does not know."""
BUSY_AFTER: Final = 60_000
"""Milliseconds that a statement waits for the writer of a SQLite file."""
ACCEPTED: Final = (
    "fragments need a database for their ledger: sqlite:///FILE, postgresql://USER@HOST/DATABASE, "
    "or lease+ before one of them"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A database, and how to reach it."""

    kind: Literal["postgresql", "sqlite"]
    target: str
    """For the driver: a URL of libpq, or the path of a file."""
    locks: str
    """For `Locks`."""
    pooled: bool = False
    """Perhaps behind a pooler in transaction mode: nothing may be set on a connection that is to stay there."""

    def engine(self, *, stamps: bool = False) -> Engine:
        """Of one connection. One for stamps commits each statement, on Postgres without waiting for the disk."""
        if self.kind == "sqlite":
            return _sqlite(self.target)
        engine = _postgres(self.target, pooled=self.pooled)
        if not stamps:
            return engine
        if not self.pooled:

            @event.listens_for(engine, "connect")
            def _(connection: Any, _: Any) -> None:
                # A stamp that a crash of the server takes along is one that nobody can refer to any more.
                connection.execute("SET synchronous_commit = off")
                connection.commit()

        return engine.execution_options(isolation_level="AUTOCOMMIT")


def place_of(url: object) -> Place:
    """The place that a URL, or the URL of a SQLAlchemy engine, names."""
    render = getattr(getattr(url, "url", None), "render_as_string", None)
    text = url if render is None else render(hide_password=False)
    if not isinstance(text, str):
        raise UsageError(f"{ACCEPTED}; not {url!r}")
    scheme, colon, rest = text.partition(":")
    lease = scheme.startswith("lease+")
    kind = scheme.removeprefix("lease+").partition("+")[0]
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return Place("postgresql", _libpq(rest), text, pooled=lease)
    if kind == "sqlite" and rest.startswith("///"):
        path = unquote(rest[3:].partition("?")[0])
        if path and path != ":memory:":
            return Place("sqlite", os.path.abspath(os.path.expanduser(path)), text)
    raise UsageError(f"{ACCEPTED}; not {scheme + colon if colon else 'something without a scheme'!r}")


def _libpq(rest: str) -> str:
    """The URL without the options of the locks."""
    parts = urlsplit("postgresql:" + rest)
    query = [
        (name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in OF_THE_LOCKS
    ]
    # By hand: `urlunsplit` drops the slashes of an empty host, and libpq takes no plus for a space.
    more = "?" + urlencode(query, safe="/", quote_via=quote) if query else ""
    return f"postgresql://{parts.netloc}{parts.path}{more}"


def _postgres(target: str, *, pooled: bool) -> Engine:
    try:
        import psycopg
    except ImportError as error:
        raise UsageError("a ledger on Postgres needs psycopg: pip install 'takehold[fragments,postgres]'") from error
    name = f"takehold-ledger {socket.gethostname()[:30]}:{os.getpid()}"

    def connect() -> Any:
        # Prepared statements live on a server connection, and a pooler gives us another one each time.
        return psycopg.connect(target, application_name=name, prepare_threshold=None if pooled else 2)

    return create_engine("postgresql+psycopg://", creator=connect, pool_size=1, max_overflow=0)


def _sqlite(path: str) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}", pool_size=1, max_overflow=0, connect_args={"timeout": BUSY_AFTER / 1000}
    )

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late: after what was read
        for pragma in (
            f"busy_timeout = {BUSY_AFTER}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
