"""Keys that stand for rows where the database has no row locks: SQLite.

They live in the process desk, and through `app.db.locks/` beside the database file in every process that uses it. A
database in memory has only this process.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from sqlalchemy import Engine, inspect
from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.orm import Mapper, Session

from takehold import AsyncLocks, Key, Locks
from takehold.rows.dialects import dialect_of
from takehold.rows.session import is_async

__all__ = ["key_of", "locks_of", "within"]

LABEL: Final = "rows"
_locks: weakref.WeakKeyDictionary[Engine, Locks | AsyncLocks] = weakref.WeakKeyDictionary()


def key_of(model: type[Any], value: object, field: str = "id") -> Key:
    """The key that stands for the rows whose `field` has this value."""
    mapper: Mapper[Any] = inspect(model)
    # A row of a subclass is one of the base class too.
    return Key("rows", str(mapper.base_mapper.local_table), field, str(value))


def locks_of(session: Session) -> Locks | AsyncLocks:
    """The locks of the session's database file; they go with its engine."""
    engine = session.get_bind().engine
    found = _locks.get(engine)
    if found is None:
        url = dialect_of(session).lock_url(engine.url.database)
        made = AsyncLocks(url, label=LABEL) if is_async(session) else Locks(url, label=LABEL)
        found = _locks.setdefault(engine, made)
    return found


def within(session: Session) -> Any:
    """Where the session's transaction takes keys: they are let go after its commit or rollback.

    On the asyncio face its methods are coroutines: `settled` waits for them.
    """
    locks: Any = locks_of(session)
    return locks.within(async_session(session) if is_async(session) else session)
