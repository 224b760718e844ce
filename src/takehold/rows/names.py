"""`unique_name`: a name that nobody else has, and that nobody else can choose before this transaction ends."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from itertools import count
from typing import Any, Final, overload

from sqlalchemy import Select, event, or_, select
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import ColumnProperty, InstrumentedAttribute, Session, scoped_session
from sqlalchemy.pool import Pool, PoolResetState

from takehold import LockTimeout, UsageError
from takehold.rows.desk import within as transaction_of
from takehold.rows.dialects import Dialect, dialect_of
from takehold.rows.fresh import start_afresh
from takehold.rows.locker import string_to_lock_id
from takehold.rows.session import AnySession, on, settled

__all__ = ["unique_name"]

READ_COMMITTED: Final = (None, "read committed")
_INFO: Final = "takehold.rows.names"
"""Where a connection keeps the statements that give back what it locked."""


@overload
def unique_name(
    session: Session | scoped_session[Session],
    column: InstrumentedAttribute[Any],
    *,
    base: str,
    within: Mapping[str, Any] | None = None,
) -> str: ...
@overload
def unique_name(
    session: AsyncSession | async_scoped_session[AsyncSession],
    column: InstrumentedAttribute[Any],
    *,
    base: str,
    within: Mapping[str, Any] | None = None,
) -> Awaitable[str]: ...
def unique_name(
    session: AnySession, column: Any, *, base: str, within: Mapping[str, Any] | None = None
) -> str | Awaitable[str]:
    """`base`, or the first free of `base-2`, `base-3` and so on. Insert it and commit: until then the others wait.

    `within={"project_id": 7}` is for names that are unique per project: projects do not wait for each other. All who
    choose names in a column name the same columns there. Make it the first step of a transaction. On SQLite it begins
    one, and refuses a session that has changed anything. PostgreSQL needs READ COMMITTED. MariaDB and MySQL read with
    a lock in a transaction that has begun already, which may deadlock with other inserts: put it under `@retry`.
    """
    if not isinstance(column, InstrumentedAttribute) or not isinstance(column.property, ColumnProperty):
        raise UsageError(f"unique_name() takes a mapped column such as Model.name, not {column!r}")
    if not base:
        raise UsageError("unique_name() needs a base= to begin with")
    return on(session, _unique_name, column, base, dict(within or {}))


def _unique_name(session: Session, column: InstrumentedAttribute[Any], base: str, within: dict[str, Any]) -> str:
    dialect, begun = dialect_of(session), session.in_transaction()
    taken = select(column).where(*_scope(column, within))
    namespace = _namespace(column, within)
    if session.in_nested_transaction():
        raise UsageError("unique_name() inside begin_nested(): rolling back to the savepoint would let the name go")
    if dialect.row_locks:
        _lock(session, dialect, namespace)
        if begun and dialect.snapshots:
            # What it has read already decides what it reads next; only a locking read sees what others committed.
            taken = dialect.locking(taken)
    else:
        start_afresh(session, "unique_name()")
        settled(session, transaction_of(session).acquire(f"names/{namespace}"))
    session.flush()  # our own earlier choices are taken too
    return _free(session, taken, column, base)


def _free(session: Session, taken: Select[Any], column: InstrumentedAttribute[Any], base: str) -> str:
    like = or_(column == base, column.startswith(f"{base}-", autoescape=True))
    known = {name.casefold() for name in session.scalars(taken.where(like))}
    longest = getattr(column.type, "length", None)
    for number in count(1):
        name = base if number == 1 else f"{base}-{number}"
        if longest is not None and len(name) > longest:
            raise UsageError(
                f"{name!r} does not fit into {column}, which has {longest} characters; use a shorter base="
            )
        # Which names are the same is for the database to say: it may ignore case, accents and trailing blanks.
        if name.casefold() not in known and session.scalars(taken.where(column == name).limit(1)).first() is None:
            return name
    raise AssertionError("there is no last number")


def _scope(column: InstrumentedAttribute[Any], within: dict[str, Any]) -> list[Any]:
    columns = column.parent.mapper.column_attrs
    if unknown := [name for name in within if name not in columns]:
        raise UsageError(f"within= has {unknown}; the columns of {column.class_.__name__} are {sorted(columns.keys())}")
    return [getattr(column.class_, name) == value for name, value in within.items()]


def _namespace(column: InstrumentedAttribute[Any], within: dict[str, Any]) -> str:
    scope = "".join(f" {name}={value}" for name, value in sorted(within.items()))
    return f"{column.parent.mapper.local_table}.{column.key}{scope}"


# -- where the server locks a number -------------------------------------------------------------------------


def _lock(session: Session, dialect: Dialect, namespace: str) -> None:
    number = string_to_lock_id(namespace)
    connection = session.connection()
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise UsageError("this session is in autocommit mode: it has no transaction that could keep a name")
    if (unlocking := dialect.unlocking_number(number)) is not None:
        # Noted first: whatever happens to the next statement, the connection goes back without the lock.
        connection.info.setdefault(_INFO, []).append(unlocking)
    locked, isolation = connection.execute(dialect.locking_number(number)).one()
    if isolation not in READ_COMMITTED:
        raise UsageError(
            f"unique_name() cannot see what others have committed since this transaction began: its isolation level is "
            f"{isolation.upper()}. Use READ COMMITTED, or a unique constraint and rows.retry(duplicates=True)"
        )
    if not locked:
        raise LockTimeout(f"somebody else has been choosing a name in {namespace!r} for too long", key=namespace)


@event.listens_for(Pool, "reset")
def _given_back(connection: Any, record: Any, state: PoolResetState) -> None:
    """After the commit or the rollback, however it came about. An error here makes the pool close the connection."""
    unlocking = record.info.pop(_INFO, None) if record is not None else None
    if not unlocking or state.terminate_only or not state.asyncio_safe:
        return  # Nothing is locked, or the connection ends with its locks.
    if not state.transaction_was_reset:
        connection.rollback()
    cursor = connection.cursor()
    for statement in unlocking:
        cursor.execute(statement)
    cursor.close()
