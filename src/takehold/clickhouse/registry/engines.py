"""Engines of the registry's own: small pools, and transactions that are what the registry takes them for."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from takehold import UsageError

__all__ = ["Database", "async_engine", "blocking_engine", "forked", "plain_url", "url_of"]

Database = str | URL | Engine | AsyncEngine

DRIVERS = {"postgresql": ("psycopg", "asyncpg"), "sqlite": ("pysqlite", "aiosqlite")}
BLOCKING_ONLY = {"psycopg2", "pg8000", "pysqlite"}
ASYNCIO_ONLY = {"asyncpg", "aiosqlite"}

POOL: dict[str, Any] = {"pool_size": 2, "max_overflow": 8, "pool_pre_ping": True}
PATIENCE = 30  # seconds until another writer of the SQLite file is done

forked: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Engines whose connections stay the parent's when this process forks."""


def url_of(database: Database) -> URL:
    """Where the registry is; of an engine only its URL is used."""
    try:
        url = make_url(database) if isinstance(database, str | URL) else database.url
    except (ArgumentError, AttributeError):
        url = None
    if url is None or url.get_backend_name() not in DRIVERS:
        raise UsageError("the registry takes postgresql://... or sqlite:///path, or an engine that has such a URL")
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise UsageError("the registry is shared between processes, so in SQLite it needs a file: sqlite:///path")
    if url.get_backend_name() == "sqlite" and url.database and not url.database.startswith("file:"):
        # Where it is now: ids are known by this name, and the process may go to another directory.
        url = url.set(database=os.path.abspath(url.database))
    return url


def plain_url(url: URL) -> str:
    """The same for every driver: what a database is known by in this process."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)


def blocking_engine(url: URL, *, migrating: bool = False) -> Engine:
    """For threads. To migrate, without a pool, and on SQLite without foreign keys: it makes tables anew."""
    driver, _ = DRIVERS[url.get_backend_name()]
    if "+" in url.drivername and url.get_driver_name() not in ASYNCIO_ONLY:
        driver = url.get_driver_name()
    url = url.set(drivername=f"{url.get_backend_name()}+{driver}")
    with _named(url):
        return _prepared(create_engine(url, **_options(url, migrating)), migrating)


def async_engine(url: URL, *, migrating: bool = False) -> AsyncEngine:
    """The same for asyncio."""
    options = _options(url, migrating)
    if "+" in url.drivername and url.get_driver_name() not in BLOCKING_ONLY:
        driver = url.get_driver_name()
    else:
        _, driver = DRIVERS[url.get_backend_name()]
        if driver == "asyncpg":
            options["async_creator"] = _connect_as_libpq_would(plain_url(url))
    url = url.set(drivername=f"{url.get_backend_name()}+{driver}")
    with _named(url):
        engine = create_async_engine(url, **options)
    _prepared(engine.sync_engine, migrating)
    return engine


@contextmanager
def _named(url: URL) -> Iterator[None]:
    """A driver that is missing, by the name of what brings it."""
    try:
        yield
    except ImportError as error:
        extra = "postgres" if url.get_backend_name() == "postgresql" else "clickhouse"
        raise UsageError(
            f"{url.get_driver_name()} is not installed; it comes with: pip install 'takehold[{extra}]'"
        ) from error


def _connect_as_libpq_would(url: str) -> Any:
    """With sslmode, options and what else a URL may say that SQLAlchemy would hand to asyncpg as an argument."""

    async def connect() -> Any:
        import asyncpg

        return await asyncpg.connect(url)

    return connect


def _options(url: URL, migrating: bool) -> dict[str, Any]:
    options = {"poolclass": NullPool} if migrating else POOL
    if url.get_backend_name() == "sqlite":
        return options | {"connect_args": {"timeout": PATIENCE}}
    # A loser that reads again has to see what the winner has committed.
    return options | {"isolation_level": "READ COMMITTED"}


def _prepared(engine: Engine, migrating: bool) -> Engine:
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _(connection: Any, _: Any) -> None:
            connection.isolation_level = None  # the driver begins no transaction; we do
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA foreign_keys = {'OFF' if migrating else 'ON'}")
            cursor.close()

        @event.listens_for(engine, "begin")
        def _(connection: Any) -> None:
            # A transaction that reads first and then writes fails at once if somebody else has written in between.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _after_fork() -> None:
    for engine in forked:
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
