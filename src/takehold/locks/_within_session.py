"""What is known of a SQLAlchemy session: its database, whether it has read already, and when its transaction ends."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final
from urllib.parse import unquote

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from takehold.core.backend import Backend
from takehold.errors import UsageError
from takehold.locks._transaction import Transaction

__all__ = ["AUTOCOMMIT", "bind_of", "engine_of", "kind_of", "prepare_sqlite", "refuse_nested", "transaction_of"]

_INFO: Final = "takehold.transaction"
_SUPPORTED: Final = (
    "within() knows PostgreSQL sessions with Locks('postgresql://...') of the same database, and SQLite sessions with "
    "Locks('sqlite:///...') of the same file, Locks('file:...') or Locks('memory:')"
)
NESTED: Final = (
    "this session is inside begin_nested(): rolling back to the savepoint would let go of the lock, and the "
    "transaction would go on without it. Call acquire() before begin_nested()"
)
OPEN: Final = (
    "this session has an open SQLite transaction: it may read a snapshot older than the lock, and keep the lock's "
    "holder from writing. Commit or roll back first; then lock, then read"
)
AUTOCOMMIT: Final = (
    "this session is in autocommit mode: it has no transaction that could end, and with it the lock. Use "
    "locks.lock(...), or another isolation level"
)
JOINED: Final = (
    "this session takes part in a transaction of the Connection it is bound to, whose end is not seen here. Use "
    "locks.lock(...) around that, or a session of the Engine"
)


# -- which database ------------------------------------------------------------------------------------------


def bind_of(session: Session) -> Engine | Connection:
    """The one engine or connection of a session; no I/O."""
    try:
        return session.get_bind()
    except UnboundExecutionError as error:
        raise UsageError(f"within() needs a session with one database for all of its classes: {error}") from error


def engine_of(session: Session) -> Engine:
    """The engine behind it."""
    return bind_of(session).engine


def kind_of(session: Session, backend: Backend) -> str:
    """`postgresql` or `sqlite`; `UsageError` for everything else, and for locks of something else."""
    url = engine_of(session).url
    dialect = bind_of(session).dialect.name
    names = backend.identity if isinstance(backend.identity, tuple) else (backend.identity,)
    if dialect == "postgresql":
        from takehold.locks._within_postgres import PostgresBackend

        if isinstance(backend, PostgresBackend):
            return dialect
    elif dialect == "sqlite":
        path = getattr(backend, "path", None)
        if names[0] == "file" and path is not None:
            _refuse_another_file(path, url.database)
            return dialect
        if backend.solo:
            return dialect
    raise UsageError(f"{_SUPPORTED}; not a {dialect} session with Locks of {names[0]}:")


def _refuse_another_file(directory: Path, database: str | None) -> None:
    """`sqlite:///app.db` keeps its locks in `app.db.locks`: then the session must be on `app.db`."""
    if directory.suffix != ".locks":
        return
    locked = directory.with_suffix("")
    file = unquote((database or "").removeprefix("file:").partition("?")[0]) if database else ""
    if file and (Path(os.path.abspath(file)) == locked or _same_file(file, locked)):
        return
    if locked.exists():
        raise UsageError(
            f"this session is on {database or 'a database in memory'!r}, these Locks on {str(locked)!r}: that is "
            "another database. Use Locks('sqlite:///...') of the same file, or Locks('file:...') for any directory"
        )


def _same_file(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


# -- its transaction -----------------------------------------------------------------------------------------


def transaction_of(session: Session) -> Transaction:
    """What its transaction holds, now or when it has begun."""
    found: Transaction | None = session.info.get(_INFO)
    if found is None or found.ended:
        found = session.info[_INFO] = Transaction()
    return found


def refuse_nested(session: Session) -> None:
    """`UsageError` behind a savepoint, which would drop locks when it is rolled back to.

    A session that was given a Connection may live on a savepoint altogether, as in tests: then both end together.
    """
    bind = bind_of(session)
    if session.in_nested_transaction():
        raise UsageError(NESTED)
    if isinstance(bind, Engine) and _begun.get(session) and session.connection().in_nested_transaction():
        raise UsageError(NESTED)


def prepare_sqlite(session: Session) -> None:
    """Raise `UsageError` when it may have read already: what it reads must be younger than the lock.

    Nothing is begun by this: a BEGIN IMMEDIATE of the application must not keep the key's holder from writing.
    """
    bind = bind_of(session)
    if isinstance(bind, Connection) and bind.in_transaction():
        raise UsageError(JOINED)
    if bind.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise UsageError(AUTOCOMMIT)
    if not session.in_transaction() or _begun.get(session) is False:
        if not (session.in_transaction() or session.autobegin):
            raise UsageError("this session does not begin by itself (autobegin=False): call session.begin() first")
        return
    driver = _driver_of(session.connection())
    _refuse_autocommit(driver)
    if driver.in_transaction:
        raise UsageError(OPEN)


def _driver_of(connection: Connection) -> Any:
    """The `sqlite3` connection, or what looks like it."""
    return connection.connection.driver_connection


def _refuse_autocommit(driver: Any) -> None:
    # Applications that send BEGIN by themselves switch the driver's own off in the same way; they are in one now.
    manual = driver.isolation_level is None or getattr(driver, "autocommit", -1) is True
    if manual and not driver.in_transaction:
        raise UsageError(AUTOCOMMIT)


# -- its end -------------------------------------------------------------------------------------------------

_begun: weakref.WeakKeyDictionary[Session, bool] = weakref.WeakKeyDictionary()
"""Whether the transaction of a session has a connection. SQLAlchemy can only be asked for it by getting one."""


@event.listens_for(Session, "after_transaction_create")
def _created(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _begun[session] = False


@event.listens_for(Session, "after_begin")
def _connected(session: Session, _: SessionTransaction, connection: Connection) -> None:
    _begun[session] = True
    found = session.info.get(_INFO)
    if found is not None and found.attached and connection.dialect.name == "sqlite":
        _refuse_autocommit(_driver_of(connection))


@event.listens_for(Session, "before_commit")
def _committing(session: Session) -> None:
    """A hold that was lost protects nothing any more: do not write."""
    if (found := session.info.get(_INFO)) is not None:
        for hold in found.attached:
            hold.check()


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    # Also called when a savepoint is released.
    if _INFO in session.info and not session.in_nested_transaction():
        _end(session)


@event.listens_for(Session, "after_rollback")
def _rolled_back(session: Session) -> None:
    # Also called when a savepoint is rolled back to, and by a flush that failed: then nobody has closed it yet.
    if _INFO in session.info:
        root = session.get_transaction()
        if root is None or not root.is_active:
            _end(session)


@event.listens_for(Session, "after_transaction_end")
def _closed(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _begun.pop(session, None)
        if _INFO in session.info:
            _end(session)


def _end(session: Session) -> None:
    transaction: Transaction = session.info.pop(_INFO)
    transaction.end(monotonic_ns())
