"""One object, inserted behind a SAVEPOINT: what else the transaction has done survives a duplicate key."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from sqlalchemy import Connection, Table, event, inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapper, Session, scoped_session

from takehold import Conflict, UsageError
from takehold.rows.dialects import Trouble, dialect_of, trouble_of
from takehold.rows.keys import check_unique, unique_keys
from takehold.rows.session import AnySession, on

__all__ = ["Got", "get_or_insert", "insert_once"]

log = logging.getLogger(__name__)
M = TypeVar("M")
ONE_SNAPSHOT: Final = {"REPEATABLE READ", "SERIALIZABLE"}


class Got(NamedTuple, Generic[M]):
    """The one object of a key, and whether this call has inserted it."""

    obj: M
    created: bool


# -- the one that is there, or a new one -----------------------------------------------------------------------


@overload
def get_or_insert(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type[M],
    /,
    *,
    defaults: Mapping[str, Any] | None = None,
    **key: Any,
) -> Awaitable[Got[M]]: ...
@overload
def get_or_insert(
    session: Session | scoped_session[Session],
    model: type[M],
    /,
    *,
    defaults: Mapping[str, Any] | None = None,
    **key: Any,
) -> Got[M]: ...
def get_or_insert(
    session: AnySession, model: type[M], /, *, defaults: Mapping[str, Any] | None = None, **key: Any
) -> Got[M] | Awaitable[Got[M]]:
    """The object with this key; if there is none, a new one with `defaults` too, inserted and flushed.

    Whoever comes second to an insertion gets the winner's object. A transaction whose snapshot is older than the winner
    cannot see it: on PostgreSQL's REPEATABLE READ that is a `Conflict`, in a SQLite transaction that has read before
    the driver's error, and `retry` and `transaction` run the unit again after both. The key must be unique in the
    model. Objects that were pending are flushed first.
    """
    return on(session, _get_or_insert, model, defaults or {}, key)


def _get_or_insert(session: Session, model: type[M], defaults: Mapping[str, Any], key: dict[str, Any]) -> Got[M]:
    check_unique(model, key)
    if None in key.values():
        raise UsageError(f"None in {key} equals no other None: two callers could both insert")
    dialect = dialect_of(session)
    alone = _untouched(session)
    query = select(model).filter_by(**key)
    if (found := session.scalars(query).one_or_none()) is not None:
        return Got(found, created=False)
    made = model(**{**defaults, **key})
    if (error := _insert(session, made, anew=alone)) is None:
        return Got(made, created=True)
    if alone and dialect.snapshots:
        _begin_anew(session)
    else:
        query = dialect.newest(query)
    if (found := session.scalars(query).one_or_none()) is None:
        _refuse_old_snapshot(session, error)
        raise error
    return Got(found, created=False)


def _refuse_old_snapshot(session: Session, error: IntegrityError) -> None:
    """The duplicate cannot be read: in one snapshot for all reads it may be newer. Else it is one of another key."""
    if session.connection().get_isolation_level() in ONE_SNAPSHOT and not dialect_of(session).snapshots:
        raise Conflict(
            "somebody has inserted it since this transaction began, which cannot see it: run the unit again",
            trouble=Trouble.SERIALIZATION,
        ) from error


# -- once ------------------------------------------------------------------------------------------------------


@overload
def insert_once(session: AsyncSession | async_scoped_session[AsyncSession], obj: object) -> Awaitable[bool]: ...
@overload
def insert_once(session: Session | scoped_session[Session], obj: object) -> bool: ...
def insert_once(session: AnySession, obj: object) -> bool | Awaitable[bool]:
    """Insert and flush the object; False, and a line in the log, when its key is there already.

    The transaction goes on in both cases. Every other violation is raised. Objects that were pending are flushed first.
    """
    return on(session, _insert_once, obj)


def _insert_once(session: Session, obj: object) -> bool:
    if obj in session.new:
        session.expunge(obj)  # else it is flushed with the others, outside of the savepoint
    if obj in session:
        raise UsageError(f"{obj!r} is in the database already: insert_once() takes a new object")
    values = _key_values(obj)
    if _insert(session, obj, anew=_untouched(session)) is None:
        return True
    table = inspect(type(obj)).local_table
    log.info("Skipping duplicate %s: %s", table, values, extra={"event": "rows.duplicate"})
    return False


def _key_values(obj: object) -> str:
    """What the object has of its table's unique keys, for people; read before a rollback takes it away."""
    mapper: Mapper[Any] = inspect(type(obj))
    assert isinstance(mapper.local_table, Table)
    columns = dict.fromkeys(column for key in unique_keys(mapper.local_table) for column in key)
    names = [mapper.get_property_by_column(column).key for column in columns]
    values = inspect(obj).dict
    return ", ".join(f"{name}={values[name]!r}" for name in names if values.get(name) is not None)


# -- behind a savepoint ----------------------------------------------------------------------------------------


def _insert(session: Session, obj: object, *, anew: bool) -> IntegrityError | None:
    """Add and flush it and nothing else; the error, when its key is there already.

    `anew` when the transaction may begin again for it.
    """
    _begin_writing(session, anew=anew)
    savepoint = session.begin_nested()  # flushes what was pending: an error there is not about this object
    try:
        with savepoint:
            session.add(obj)
            if others := [one for one in session.new if one is not obj]:
                raise UsageError(f"{obj!r} brings {others} along: add and flush those first, so that one can be told")
            session.flush()
    except IntegrityError as error:
        if trouble_of(error) is not Trouble.DUPLICATE:
            raise
        return error
    return None


def _untouched(session: Session) -> bool:
    """Whether the session's transaction has done nothing yet, and has nothing to do: it may begin again unnoticed."""
    if isinstance(session.get_bind(), Connection) or session.new or session.dirty or session.deleted:
        return False
    begun = []

    def note(*_: object) -> None:
        begun.append(True)

    event.listen(session, "after_begin", note)
    try:
        session.connection()
    finally:
        event.remove(session, "after_begin", note)
    return bool(begun)


def _begin_anew(session: Session) -> None:
    """End the driver's transaction, which nothing but our own read was in, and with it its snapshot."""
    session.connection().connection.rollback()


def _begin_writing(session: Session, *, anew: bool) -> None:
    """Where one writes at a time, become that one before the savepoint.

    A savepoint without BEGIN, as `sqlite3` leaves it, would commit with its release. And a transaction that has read
    cannot wait for its turn to write: SQLite refuses at once.
    """
    dialect = dialect_of(session)
    if dialect.begin_writing is None:
        return
    if anew:
        _begin_anew(session)
    connection = session.connection()
    if not dialect.is_open(connection):
        connection.exec_driver_sql(dialect.begin_writing)
