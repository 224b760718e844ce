"""Which rows the transaction of a session has locked, how strongly, and by which line: what `guard` asks too.

It is forgotten when that transaction ends, and what was locked behind a savepoint when that is rolled back to: Postgres
lets go of it then. MariaDB does not; to forget a lock that is still there errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, event
from sqlalchemy.orm import Mapper, Session, SessionTransaction, object_session

from takehold import UsageError
from takehold.rows.identity import state_of

__all__ = ["Locked", "has_locks", "locked_by", "note"]

_INFO: Final = "takehold.rows.locked"
_Levels: TypeAlias = "dict[SessionTransaction | None, dict[Any, Locked]]"
"""By the savepoint they were taken behind, None for no savepoint; and by the identity of the row."""


@dataclass(frozen=True, slots=True)
class Locked:
    """How a row is locked: `deleting` is the strength that lets it be deleted or get another primary key."""

    deleting: bool
    line: str
    """`file:line` of the call that locked it."""


def note(session: Session, rows: Iterable[object], *, deleting: bool, line: str) -> None:
    """These objects' rows are locked from now on; a weaker lock does not replace a stronger one."""
    levels: _Levels = session.info.setdefault(_INFO, {})
    level = levels.setdefault(session.get_nested_transaction(), {})
    lock = Locked(deleting, line)
    for row in rows:
        known = locked_by(session, row)
        if known is None or (deleting and not known.deleting):
            level[state_of(row).key] = lock


def has_locks(session: Session) -> bool:
    """Whether the session's transaction has locked any row."""
    return bool(session.info.get(_INFO))


def locked_by(session: Session, row: object) -> Locked | None:
    """The strongest lock that the session's transaction has on this object's row, if `note` has heard of one."""
    levels: _Levels | None = session.info.get(_INFO)
    if not levels:
        return None
    key = state_of(row).key
    found = [level[key] for level in levels.values() if key in level]
    return max(found, key=lambda lock: lock.deleting, default=None)


# -- until when ----------------------------------------------------------------------------------------------


@event.listens_for(Session, "after_rollback")
def _rolled_back(session: Session) -> None:
    levels: _Levels | None = session.info.get(_INFO)
    savepoint = session.get_nested_transaction()
    if levels and savepoint is not None and not savepoint.is_active:
        levels.pop(savepoint, None)


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    levels: _Levels | None = session.info.get(_INFO)
    if levels is None:
        return
    if transaction.parent is None:
        del session.info[_INFO]
    elif transaction in levels:
        # Released: its locks are those of what is around it.
        around: SessionTransaction | None = transaction.parent
        while around is not None and not around.nested:
            around = around.parent
        levels.setdefault(around, {}).update(levels.pop(transaction))


# -- what a weak lock does not allow --------------------------------------------------------------------------


@event.listens_for(Session, "before_flush")
def _flushing(session: Session, _context: object, _instances: object) -> None:
    if not session.info.get(_INFO):
        return
    for row in session.deleted:
        _refuse(session, row, "delete")
    for row in session.dirty:
        if _changes_its_key(row):
            _refuse(session, row, "change the primary key of")


@event.listens_for(Mapper, "before_delete")
def _deleting(_mapper: Mapper[Any], _connection: Connection, row: object) -> None:
    # Orphans, which are found only inside of the flush.
    session = object_session(row)
    if session is not None and session.info.get(_INFO):
        _refuse(session, row, "delete")


def _changes_its_key(row: object) -> bool:
    state = state_of(row)
    keys = (state.mapper.get_property_by_column(column).key for column in state.mapper.primary_key)
    return any(state.attrs[key].history.has_changes() for key in keys)


def _refuse(session: Session, row: object, what: str) -> None:
    """Its lock lets others refer to the row meanwhile: to go on to the full lock now can deadlock with them."""
    lock = locked_by(session, row)
    if lock is not None and not lock.deleting:
        name = f"{type(row).__name__} {state_of(row).identity}"
        raise UsageError(
            f"this would {what} {name}, which was locked at {lock.line} without deleting=True: that lock lets others "
            "insert rows that refer to it. Lock it with deleting=True"
        )
