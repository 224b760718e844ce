"""What differs between the databases: the only place of `takehold.rows` that names one.

A `Dialect` answers questions; it never executes anything.
"""

from __future__ import annotations

import enum
import os
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Enum,
    FromClause,
    Select,
    String,
    func,
    literal,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from takehold import UsageError
from takehold.rows.dialects.merging import Merging, MySQLMerging, PostgresMerging, SQLiteMerging

__all__ = ["DIALECTS", "MOMENT", "RETRYABLE", "Dialect", "Trouble", "dialect_named", "dialect_of", "trouble_of"]

S = TypeVar("S", bound=Select[Any])


class Trouble(enum.Enum):
    """What a failed statement means for whoever sent it."""

    DEADLOCK = "deadlock"
    """The database chose us as the victim, or a snapshot was too old to write on; the transaction is gone."""
    SERIALIZATION = "serialization failure"
    LOCKED = "lock timeout"
    """Somebody held a row for longer than the server or NOWAIT allows. The transaction may be alive."""
    DUPLICATE = "duplicate key"
    OTHER = "error"
    """Everything else, a lost connection too: never to be repeated by us."""


RETRYABLE: Final = frozenset([Trouble.DEADLOCK, Trouble.SERIALIZATION])
MOMENT: Final = DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql", "mariadb")
"""A point in time, with fractions of a second; what has no zones keeps it in UTC."""


class Dialect:
    """One database, as far as writing safely goes."""

    name = ""
    row_locks = True
    """Whether SELECT ... FOR UPDATE locks rows. Without it, keys of the process desk stand for them."""
    snapshots = False
    """Whether what a transaction reads may be older than a lock it was granted, at the default isolation level."""
    greedy = False
    """Whether FOR UPDATE locks every row it meets: joined ones, and those that LIMIT cuts off after a sort."""
    begin_writing: str | None = None
    """What becomes the only writer, where there is one at a time."""
    merging: Merging
    """How it inserts many rows at once."""
    codes: dict[Any, Trouble]
    zones = False
    """Whether a moment is stored with its time zone."""
    clock = ""
    """SQL for the moment at which the statement began, in UTC."""
    clock_after = ""
    """The same, so many `{seconds}` later."""

    def oldest_first(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The order in which no moment at all comes before every other."""
        return column.asc()

    def locking(
        self, query: S, of: Sequence[Any] = (), *, deleting: bool = False, skip: bool = False, nowait: bool = False
    ) -> S:
        """The query, with the clause that locks its rows as weakly as is safe: deleting takes the strongest."""
        return query.with_for_update(of=list(of) or None, skip_locked=skip, nowait=nowait)

    def newest(self, query: S) -> S:
        """The query, so that it sees what is committed even if the transaction's snapshot is older."""
        return query

    def ordering(self, column: Any) -> Any:
        """What to order by so that rows are locked in the order in which Python sorts the values."""
        return column

    def by_key(self, query: S, table: FromClause) -> S:
        """The query, made to find the rows of a table by their primary key, and so to meet no others."""
        return query

    def changes(self, connection: Connection) -> int | None:
        """How many rows this connection has ever changed, if it counts them."""
        return None

    def is_open(self, connection: Connection) -> bool:
        """Whether the driver has begun a transaction."""
        return True

    def lock_url(self, database: str | None) -> str:
        """Where the locks of a database without row locks are: beside its file, or in memory as it is."""
        raise NotImplementedError

    def locking_number(self, number: int) -> Select[Any]:
        """The query that locks a number until the transaction ends: whether it did, and the isolation level."""
        raise NotImplementedError

    def unlocking_number(self, number: int) -> str | None:
        """The statement that gives a number back where the end of the transaction does not."""
        return None

    def code_of(self, error: BaseException) -> Any:
        """The driver's own code for what went wrong: what `codes` is asked with."""
        raise NotImplementedError

    def trouble(self, error: BaseException) -> Trouble:
        """What an error of the driver means."""
        return self.codes.get(self.code_of(error), Trouble.OTHER)


class _SQLite(Dialect):
    name = "sqlite"
    row_locks = False
    snapshots = True
    begin_writing = "BEGIN IMMEDIATE"
    merging = SQLiteMerging()
    # As SQLAlchemy writes a DateTime there, so that the two compare as texts.
    clock = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
    clock_after = "strftime('%Y-%m-%d %H:%M:%f000', 'now', {seconds} || ' seconds')"
    codes: dict[Any, Trouble] = {  # noqa: RUF012 - a table
        sqlite3.SQLITE_BUSY: Trouble.DEADLOCK,
        sqlite3.SQLITE_BUSY_SNAPSHOT: Trouble.DEADLOCK,
        sqlite3.SQLITE_BUSY_RECOVERY: Trouble.DEADLOCK,
        sqlite3.SQLITE_LOCKED: Trouble.DEADLOCK,
        sqlite3.SQLITE_LOCKED_SHAREDCACHE: Trouble.DEADLOCK,
        sqlite3.SQLITE_CONSTRAINT_UNIQUE: Trouble.DUPLICATE,
        sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Trouble.DUPLICATE,
        sqlite3.SQLITE_CONSTRAINT_ROWID: Trouble.DUPLICATE,
    }

    def locking(
        self, query: S, of: Sequence[Any] = (), *, deleting: bool = False, skip: bool = False, nowait: bool = False
    ) -> S:
        """As it is: the whole file has one writer."""
        return query

    def lock_url(self, database: str | None) -> str:
        """Those of a file are shared by every process that uses it."""
        file = database if database != ":memory:" else None
        return f"sqlite:///{quote(os.path.abspath(file))}" if file else "memory:rows"

    def changes(self, connection: Connection) -> int | None:
        """As the driver counts them."""
        return int(_driver_of(connection).total_changes)

    def is_open(self, connection: Connection) -> bool:
        """By default the driver begins one with the first write, not with a SELECT."""
        return bool(_driver_of(connection).in_transaction)

    def code_of(self, error: BaseException) -> Any:
        """The extended result code."""
        return getattr(error, "sqlite_errorcode", None)


class _Postgres(Dialect):
    name = "postgresql"
    merging = PostgresMerging()
    zones = True
    clock = "statement_timestamp()"
    clock_after = "(statement_timestamp() + make_interval(secs => {seconds}))"
    codes: dict[Any, Trouble] = {  # noqa: RUF012 - a table
        "40P01": Trouble.DEADLOCK,
        "40001": Trouble.SERIALIZATION,
        "55P03": Trouble.LOCKED,
        "23505": Trouble.DUPLICATE,
    }

    def oldest_first(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """NULLS FIRST, which the others do by themselves."""
        return column.asc().nulls_first()

    def locking(
        self, query: S, of: Sequence[Any] = (), *, deleting: bool = False, skip: bool = False, nowait: bool = False
    ) -> S:
        """FOR NO KEY UPDATE, which a child row that refers to this one does not wait for."""
        return query.with_for_update(of=list(of) or None, key_share=not deleting, skip_locked=skip, nowait=nowait)

    def ordering(self, column: Any) -> Any:
        """Text by its code points, not as a language sorts it."""
        text = isinstance(column.type, String) and not isinstance(column.type, Enum)
        return column.collate("C") if text else column

    def locking_number(self, number: int) -> Select[Any]:
        """An advisory lock of the transaction, which the server releases with it."""
        locked = func.pg_advisory_xact_lock(literal(number, BigInteger)).is_not(None)
        return select(locked, func.current_setting("transaction_isolation"))

    def code_of(self, error: BaseException) -> Any:
        """The SQLSTATE, as psycopg, asyncpg and psycopg2 call it."""
        return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


class _MySQL(Dialect):
    name = "mysql"
    snapshots = True
    greedy = True
    merging = MySQLMerging()
    clock = "UTC_TIMESTAMP(6)"
    clock_after = "TIMESTAMPADD(MICROSECOND, {seconds} * 1000000, UTC_TIMESTAMP(6))"
    codes: dict[Any, Trouble] = {  # noqa: RUF012 - a table
        1213: Trouble.DEADLOCK,
        3058: Trouble.DEADLOCK,
        1020: Trouble.SERIALIZATION,  # MariaDB with innodb_snapshot_isolation: the record has changed since last read
        1205: Trouble.LOCKED,
        3572: Trouble.LOCKED,
        1062: Trouble.DUPLICATE,
        1586: Trouble.DUPLICATE,
    }

    def newest(self, query: S) -> S:
        """A shared lock, which a failed insertion has already: two that want it exclusive would wait for each other."""
        return query.with_for_update(read=True)

    def locking_number(self, number: int) -> Select[Any]:
        """A lock of the connection, waited for as long as for a row; it outlives the transaction."""
        locked = func.get_lock(f"takehold:{number}", literal_column("@@innodb_lock_wait_timeout"))
        columns: list[Any] = [locked == 1, null()]
        return select(*columns)

    def unlocking_number(self, number: int) -> str | None:
        """Its release."""
        return f"DO RELEASE_LOCK('takehold:{number}')"

    def by_key(self, query: S, table: FromClause) -> S:
        """Of a small table, or with another condition, it would rather read everything."""
        return query.with_hint(table, "FORCE INDEX (PRIMARY)")

    def code_of(self, error: BaseException) -> Any:
        """The number, which every driver puts first."""
        return getattr(error, "errno", None) or next(iter(error.args), None)


DIALECTS: Final[dict[str, Dialect]] = {
    "sqlite": _SQLite(),
    "postgresql": _Postgres(),
    "mysql": _MySQL(),
    "mariadb": _MySQL(),
}


def _driver_of(connection: Connection) -> Any:
    """The driver's own connection."""
    return connection.connection.driver_connection


def dialect_named(name: str) -> Dialect:
    """By the name SQLAlchemy has for it."""
    if (found := DIALECTS.get(name)) is None:
        raise UsageError(f"rows know SQLite, PostgreSQL, MariaDB and MySQL; not {name!r}")
    return found


def dialect_of(session: Session) -> Dialect:
    """That of the session's database; no I/O."""
    return dialect_named(session.get_bind().dialect.name)


def trouble_of(error: BaseException) -> Trouble:
    """What an error that SQLAlchemy raised means, told by the driver's own code and never by its text."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return Trouble.OTHER
    # MySQL's number before the SQLSTATE: its drivers have one too, and it says 40001 for a deadlock.
    for dialect in (DIALECTS["mysql"], DIALECTS["sqlite"], DIALECTS["postgresql"]):
        if (found := dialect.trouble(error.orig)) is not Trouble.OTHER:
            return found
    return Trouble.OTHER
