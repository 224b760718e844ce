"""`claim_rows`: rows that nobody else has, locked without waiting: the take of a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Iterator
from typing import Any, Final, TypeVar, overload

from sqlalchemy import ColumnElement, Select, not_, true
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from takehold import UsageError
from takehold.rows.desk import within
from takehold.rows.dialects import Dialect, dialect_of
from takehold.rows.fresh import start_afresh
from takehold.rows.identity import Identity, among, key_columns, mapper_of, reader, row_key, selected
from takehold.rows.locked import note
from takehold.rows.locking import refuse_to_overwrite
from takehold.rows.party import application_line
from takehold.rows.session import AnySession, on, settled

__all__ = ["claim_rows"]

M = TypeVar("M")
PAGE: Final = 100


@overload
def claim_rows(
    session: Session | scoped_session[Session], query: Select[M], limit: int = 1, *, deleting: bool = False
) -> list[M]: ...
@overload
def claim_rows(
    session: AsyncSession | async_scoped_session[AsyncSession],
    query: Select[M],
    limit: int = 1,
    *,
    deleting: bool = False,
) -> Awaitable[list[M]]: ...
def claim_rows(
    session: AnySession, query: Select[M], limit: int = 1, *, deleting: bool = False
) -> list[M] | Awaitable[list[M]]:
    """Lock the first rows of `select(Model).where(...).order_by(...)` that nobody has locked; at most `limit` of them.

    They are yours until the transaction ends: change them so that the query no longer finds them, and commit. Say
    `deleting=True` to delete them. Make it the first step of a transaction: without row locks (SQLite) it begins
    a new one, and refuses a session that has changed anything.
    """
    model = _model_of(query)
    if limit < 1:
        raise UsageError(f"limit= is 1 or more, not {limit}")
    return on(session, _claim_rows, model, query, limit, deleting, application_line())


def _model_of(query: Any) -> Any:
    if (entity := selected(query)) is None:
        raise UsageError(
            "claim_rows() takes select(Model).where(...).order_by(...) of one mapped class, and no columns"
        )
    return mapper_of(entity).class_


def _claim_rows(session: Session, model: Any, query: Select[Any], limit: int, deleting: bool, line: str) -> list[Any]:
    refuse_to_overwrite(session, model)
    dialect = dialect_of(session)
    if not dialect.row_locks:
        rows = _by_desk(session, model, query, limit)
    elif dialect.greedy:
        rows = _by_primary_key(session, dialect, model, query, limit, deleting=deleting)
    else:
        rows = _read(session, dialect.locking(query.limit(limit), [model], deleting=deleting, skip=True))
    note(session, rows, deleting=deleting, line=line)
    return rows


def _read(session: Session, query: Select[Any]) -> list[Any]:
    return list(session.scalars(query.execution_options(populate_existing=True)).unique())


def _by_primary_key(
    session: Session, dialect: Dialect, model: Any, query: Select[Any], limit: int, *, deleting: bool
) -> list[Any]:
    """Look without a lock, then lock what was seen: a scan locks what it sorts too, and leaves the others nothing."""
    rows: list[Any] = []
    for seen in _pages(session, model, query):
        while seen and len(rows) < limit:
            some = [seen.popleft() for _ in range(min(len(seen), limit - len(rows)))]
            narrow = dialect.by_key(query.where(among(model, some)).limit(None), mapper_of(model).local_table)
            rows += _read(session, dialect.locking(narrow, [model], deleting=deleting, skip=True))
        if len(rows) == limit:
            break
    return rows


def _by_desk(session: Session, model: Any, query: Select[Any], limit: int) -> list[Any]:
    """Look, take the desk's keys that are free, look again whether their rows are still wanted; then read them."""
    start_afresh(session, "claim_rows()")
    begun = session.in_transaction()
    desk = within(session)
    mine: list[Identity] = []
    for seen in _pages(session, model, query):
        while seen and len(mine) < limit:
            one = seen.popleft()
            free = settled(session, desk.try_acquire(row_key(model, one)))
            if free is not None and _look(session, model, query, among(model, [one])):
                mine.append(one)
        if len(mine) == limit:
            break
    rows = _read(session, query.where(among(model, mine))) if mine else []
    if not rows and not begun:
        session.rollback()  # Keys of rows that were done in the meantime.
    return rows


def _pages(session: Session, model: Any, query: Select[Any]) -> Iterator[deque[Identity]]:
    """The primary keys of all that match, in order; each only once, though others change the rows meanwhile."""
    seen: list[Identity] = []
    while page := _look(session, model, query.limit(PAGE), not_(among(model, seen)) if seen else true()):
        yield deque(page)
        seen += page


def _look(session: Session, model: Any, query: Select[Any], condition: ColumnElement[bool]) -> list[Identity]:
    """What matches now, seen from outside of a transaction, whose snapshot would be older than the lock to come.

    In one that has begun it is made already, and a second connection might be one too many for the pool.
    """
    query = query.where(condition).with_only_columns(*key_columns(model))
    if session.in_transaction() and dialect_of(session).row_locks:
        return [tuple(one) for one in session.execute(query)]
    with reader(session) as outside:
        return [tuple(one) for one in outside.execute(query)]
