"""Where sessions of these tests live: a table with one number, in SQLite and in Postgres."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from tests.servers.postgres import Postgres

ROOT = Path(__file__).parent.parent.parent
SQL = {
    "make": text("CREATE TABLE IF NOT EXISTS counter (id integer PRIMARY KEY, number integer NOT NULL)"),
    "empty": text("DELETE FROM counter"),
    "first": text("INSERT INTO counter VALUES (1, 0)"),
    "read": text("SELECT number FROM counter WHERE id = 1"),
    "write": text("UPDATE counter SET number = :number WHERE id = 1"),
}


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql:", f"postgresql+{driver}:")


def read(session: Session) -> int:
    return int(session.execute(SQL["read"]).scalar_one())


def write(session: Session, number: int) -> None:
    session.execute(SQL["write"], {"number": number})


def begin_anew(engine: Engine) -> None:
    """The table, with a 0 in it."""
    with engine.begin() as connection:
        for step in ("make", "empty", "first"):
            connection.execute(SQL[step])


def sqlite_engine(path: Path, begin: str = "", **options: Any) -> Engine:
    """A database file; with `begin`, transactions start with that statement instead of when Python's driver thinks."""
    engine = create_engine(f"sqlite:///{path}", **options)
    if begin:

        @event.listens_for(engine, "connect")
        def _(connection: sqlite3.Connection, _: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def _(connection: Any) -> None:
            connection.exec_driver_sql(begin)

    return engine


@contextmanager
def disposed(engine: Engine) -> Iterator[Engine]:
    """Close its connections in the end."""
    try:
        yield engine
    finally:
        engine.dispose()


def waiters(server: Postgres) -> int:
    """Sessions that stand in the server's queue for an advisory lock."""
    return sum(not row[5] for row in server.advisory_locks())


def finished(command: Sequence[str]) -> None:
    """Run a process to its end; what it said is in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr
