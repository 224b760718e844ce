"""Fenced writes: a row remembers the newest hold that wrote it, and refuses an older one's late write."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar, overload

from sqlalchemy import BigInteger, Column, Delete, Update, select
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Mapped, Session, mapped_column, scoped_session

from takehold import StaleFence, UsageError
from takehold.rows.dialects import dialect_of
from takehold.rows.session import AnySession, on

__all__ = ["Fenced", "fenced", "write_fenced"]

W = TypeVar("W", bound=Update | Delete)


class Fenced:
    """A mixin: the column in which each row of a model keeps the fence of its newest writer."""

    fence: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0", nullable=False)


class HasFence(Protocol):
    """A hold, of either face or of a transaction."""

    @property
    def fence(self) -> int:
        """The number that only grows per key."""


def fenced(stmt: W, hold: HasFence) -> W:
    """The UPDATE or DELETE, for rows that no newer hold has written; an UPDATE leaves the hold's fence there.

    Zero rows may mean that they are not there, or that a newer hold wrote them: `write_fenced` tells. Objects that
    are loaded already keep what they had.
    """
    column, fence = _column_of(stmt), _fence_of(hold)
    guarded: Any = stmt.where(column <= fence).execution_options(synchronize_session=False)
    return guarded.values({column: fence}) if isinstance(stmt, Update) else guarded  # type: ignore[no-any-return]


@overload
def write_fenced(session: Session | scoped_session[Session], stmt: Update | Delete, hold: HasFence) -> int: ...
@overload
def write_fenced(
    session: AsyncSession | async_scoped_session[AsyncSession], stmt: Update | Delete, hold: HasFence
) -> Awaitable[int]: ...
def write_fenced(session: AnySession, stmt: Update | Delete, hold: HasFence) -> int | Awaitable[int]:
    """Run the statement `fenced`; how many rows it wrote. `StaleFence` when a newer hold has written one of them.

    Roll back then: of several rows, the others are written. It takes one query more than `fenced` does.
    """
    return on(session, _write_fenced, stmt, fenced(stmt, hold), hold.fence)


def _write_fenced(session: Session, stmt: Update | Delete, guarded: Update | Delete, fence: int) -> int:
    written: Any = session.execute(guarded)
    column = _column_of(stmt)
    newer = select(column).where(column > fence).limit(1)
    if stmt.whereclause is not None:
        newer = newer.where(stmt.whereclause)
    # A locking read, so that it sees what the statement saw and not an older snapshot.
    if (found := session.scalars(dialect_of(session).locking(newer)).first()) is not None:
        raise StaleFence(
            f"a hold with fence {found} has written {column.table} already, this one has {fence}: it was lost meanwhile"
        )
    return int(written.rowcount)


def _column_of(stmt: Any) -> Column[Any]:
    if not isinstance(stmt, Update | Delete):
        raise UsageError(f"fenced() takes an update(...) or delete(...) statement, not {type(stmt).__name__}")
    column: Column[Any] | None = getattr(stmt.table, "c", {}).get("fence")
    if column is None:
        raise UsageError(f"{stmt.table} has no column named fence; give its model the mixin takehold.rows.Fenced")
    return column


def _fence_of(hold: Any) -> int:
    fence = getattr(hold, "fence", None)
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise UsageError(f"fenced() takes a hold that has a fence, not {hold!r}")
    return fence
