"""A new transaction for functions that own their unit, where a snapshot can be older than a key of the desk."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from takehold import UsageError
from takehold.rows.dialects import DIALECTS, dialect_of
from takehold.rows.locked import has_locks

__all__ = ["start_afresh"]

_BEFORE: Final = "takehold.rows.changes"
"""How many rows the connection had changed when the session's transaction got it."""
_KEYS: Final = "takehold.transaction"
"""Where `locks.within(session)` notes the keys that it holds until its transaction ends."""
FIRST: Final = "Commit first"


def start_afresh(session: Session, what: str) -> None:
    """End a transaction that has only read. `UsageError` when it wrote or locked: that is not ours to end."""
    if not session.in_transaction():
        return
    if session.new or session.deleted or any(map(session.is_modified, session.dirty)):
        raise UsageError(f"this session has uncommitted changes, and {what} begins a new transaction. {FIRST}")
    if session.in_nested_transaction():
        raise UsageError(f"this session is inside begin_nested(), and {what} begins a new transaction. {FIRST}")
    before = session.info.get(_BEFORE)
    if before is None or not dialect_of(session).is_open(connection := session.connection()):
        return
    if dialect_of(session).changes(connection) != before:
        raise UsageError(f"this session has written already, and {what} begins a new transaction. {FIRST}")
    if has_locks(session) or session.info.get(_KEYS):
        raise UsageError(f"this session's transaction has locks, and {what} begins a new one. {FIRST}")
    session.commit()


@event.listens_for(Session, "after_begin")
def _connected(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    dialect = DIALECTS.get(connection.dialect.name)
    if dialect is not None and (changes := dialect.changes(connection)) is not None:
        session.info.setdefault(_BEFORE, changes)  # a savepoint gets it too, after writes


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info.pop(_BEFORE, None)
