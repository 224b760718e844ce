"""The databases that every test of rows runs on: a SQLite file, PostgreSQL, MariaDB."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

Name = Literal["sqlite", "postgresql", "mariadb"]
NAMES: tuple[Name, ...] = ("sqlite", "postgresql", "mariadb")
DATABASE = "takehold_rows"
OPTIONS: dict[str, Any] = {"pool_size": 20, "max_overflow": 20, "pool_timeout": 20}
PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA foreign_keys = ON", "PRAGMA busy_timeout = 30000")

EMPTY = {
    "postgresql": ("SET lock_timeout = '20s'", "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"),
    "mariadb": (
        "SET lock_wait_timeout = 20",
        f"DROP DATABASE {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"USE {DATABASE}",
    ),
}
WAITERS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND datname = current_database()",
    # Not innodb_trx, which goes on showing what it showed to one who looked less than 0.1 s ago.
    "mariadb": "SELECT variable_value FROM information_schema.global_status"
    " WHERE variable_name = 'innodb_row_lock_current_waits'",
}


class Description(TypedDict):
    """A place as JSON, for another process."""

    name: Name
    url: str
    async_url: str
    engine_options: dict[str, Any]


@dataclass
class Place:
    """One database. ``url`` and ``async_url`` are SQLAlchemy's; what is made from them is made when first asked for."""

    name: Name
    url: str
    async_url: str
    engine_options: dict[str, Any] = field(default_factory=lambda: dict(OPTIONS))

    @classmethod
    def sqlite(cls, path: Path) -> Self:
        return cls("sqlite", f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}")

    @classmethod
    def server(cls, name: Name, url: str) -> Self:
        """At the URL of one of the servers, which names no driver."""
        drivers = {"postgresql": ("psycopg", "asyncpg"), "mariadb": ("pymysql", "asyncmy")}[name]
        query = "?charset=utf8mb4" if name == "mariadb" else ""
        sync, asynchronous = (url.replace("://", f"+{driver}://", 1) + query for driver in drivers)
        return cls(name, sync, asynchronous)

    def description(self) -> Description:
        """What another process makes its own from, as ``Place(**description)``."""
        return Description(name=self.name, url=self.url, async_url=self.async_url, engine_options=self.engine_options)

    @cached_property
    def engine(self) -> Engine:
        return self.new_engine()

    @cached_property
    def maker(self) -> sessionmaker[Session]:
        return sessionmaker(self.engine)

    def new_engine(self, **options: Any) -> Engine:
        """Another engine, which the caller disposes of: of a pool of its own, or another isolation level."""
        engine = create_engine(self.url, **self.engine_options | options)
        return self._prepared(engine)

    def new_async_engine(self, **options: Any) -> AsyncEngine:
        """The same for asyncio."""
        engine = create_async_engine(self.async_url, **self.engine_options | options)
        self._prepared(engine.sync_engine)
        return engine

    def _prepared(self, engine: Engine) -> Engine:
        if self.name == "sqlite":

            @event.listens_for(engine, "connect")
            def _(connection: Any, _: Any) -> None:
                cursor = connection.cursor()
                for pragma in PRAGMAS:
                    cursor.execute(pragma)
                cursor.close()

        return engine

    # ------------------------------------------------------------------------------------------ what is in it

    def fresh(self, base: type[DeclarativeBase]) -> None:
        """Nothing but the empty tables of ``base``, ids from 1. Call it first: older connections are of no use."""
        self.dispose()
        if self.name == "sqlite":
            path = make_url(self.url).database
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in EMPTY.get(self.name, ()):
                connection.execute(text(statement))
            base.metadata.create_all(connection, checkfirst=False)
        self.dispose()

    def empty(self, base: type[DeclarativeBase]) -> None:
        """Delete all rows, at any moment: cheaper than `fresh`, for one example after the other."""
        with self.engine.begin() as connection:
            for table in reversed(base.metadata.sorted_tables):
                connection.execute(table.delete())

    def waiters(self) -> int:
        """Sessions that stand still at a lock of the server. SQLite has none to count."""
        assert self.name in WAITERS, "SQLite's writers poll for the file; nobody can count them"
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            return int(connection.scalar(text(WAITERS[self.name])) or 0)

    def dispose(self) -> None:
        """Close the connections of ``engine`` that nobody has checked out; more are made when needed."""
        if "engine" in self.__dict__:
            self.engine.dispose()
