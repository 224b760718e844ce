"""Writes that are not committed yet: a hold that is let go before them protects nothing, and is reported.

Whoever gets the key next reads the rows as they were. Loaded with `takehold.rows`; without it, a release costs what
it costs.
"""

from __future__ import annotations

import os
import weakref
from time import monotonic_ns
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction

from takehold import UsageError, locks
from takehold.rows.party import application_line, party
from takehold.rows.unprotected import warn

__all__ = ["released"]

_LINE: Final = "takehold.rows.begun"
_WRITES: Final = "takehold.rows.writes"


class Writes:
    """What one transaction of a session has written, and the line at which it began."""

    def __init__(self, session: Session, begun: str) -> None:
        self.session = weakref.ref(session)
        self.begun = begun
        self.count = 0
        self.party: object = None
        self.last = 0
        """By whom and when, on the monotonic clock, it last wrote."""


_by_party: weakref.WeakKeyDictionary[object, dict[Writes, None]] = weakref.WeakKeyDictionary()
"""What each task or thread has written and not committed."""


def released(hold: Any, taken_at: int) -> None:
    """Called by the faces after every release; the first lines are all that most of them pay for."""
    if not _by_party or not (mine := _by_party.get(party())):
        return
    written = [writes for writes in tuple(mine) if writes.last >= taken_at and writes.session() is not None]
    if not written:
        return
    keys = ", ".join(map(str, hold.keys))
    sessions = ", ".join(f"Session from {one.begun} has {one.count} uncommitted updates" for one in written)
    sentence = (
        f"{keys}: released at {application_line()}, {sessions}. Whoever gets it next does not see them: commit first, "
        "or take it with locks.within(session), which lets it go after the commit"
    )
    if "PYTEST_CURRENT_TEST" in os.environ:
        raise UsageError(sentence)
    warn(sentence)


locks.on_release = released


# -- what a session has written ------------------------------------------------------------------------------


@event.listens_for(Session, "after_transaction_create")
def _created(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info[_LINE] = application_line()


@event.listens_for(Session, "after_flush")
def _flushed(session: Session, _context: object) -> None:
    changed = sum(1 for row in session.dirty if session.is_modified(row, include_collections=False))
    _note(session, len(session.new) + len(session.deleted) + changed)


@event.listens_for(Session, "do_orm_execute")
def _executed(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        _note(state.session, 1)


def _note(session: Session, count: int) -> None:
    if not count:
        return
    writes: Writes | None = session.info.get(_WRITES)
    if writes is None:
        writes = session.info[_WRITES] = Writes(session, session.info.get(_LINE) or application_line())
    writes.count += count
    writes.last = monotonic_ns()
    if writes.party is not (me := party()):
        _forget(writes)
        writes.party = me
        mine = _by_party.setdefault(me, {})
        for dropped in [other for other in tuple(mine) if other.session() is None]:
            del mine[dropped]
        mine[writes] = None


def _forget(writes: Writes) -> None:
    mine = _by_party.get(writes.party) if writes.party is not None else None
    if mine is not None and mine.pop(writes, writes) is None and not mine:
        _by_party.pop(writes.party, None)


# -- until it is settled -------------------------------------------------------------------------------------


@event.listens_for(Session, "after_commit")
def _committed(session: Session) -> None:
    # Also called when a savepoint is released.
    if not session.in_nested_transaction():
        _settled(session)


@event.listens_for(Session, "after_rollback")
def _rolled_back(session: Session) -> None:
    # Also called when a savepoint is rolled back to.
    root = session.get_transaction()
    if root is None or not root.is_active:
        _settled(session)


@event.listens_for(Session, "after_transaction_end")
def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _settled(session)
        session.info.pop(_LINE, None)


def _settled(session: Session) -> None:
    if (writes := session.info.pop(_WRITES, None)) is not None:
        _forget(writes)
