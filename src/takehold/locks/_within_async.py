"""`locks.within(session)` on asyncio: the same words with `await`, for an `AsyncSession`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from takehold.core.deadline import DEFAULT, Deadline, Default, Timeout, seconds_of
from takehold.core.desk import Desk
from takehold.core.key import AnyKey
from takehold.core.owner import Site, calling_site
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.waits import timeout_error
from takehold.core.want import EXCLUSIVE, Mode, Shared, Want
from takehold.errors import LockTimeout, UsageError
from takehold.locks._base import adapt
from takehold.locks._transaction import TransactionHold
from takehold.locks._within import Asked, BaseWithin
from takehold.locks._within_session import engine_of, prepare_sqlite
from takehold.runtime.aio import Aio

if TYPE_CHECKING:
    from takehold.locks._async import AsyncLocks

__all__ = ["AsyncAnySession", "AsyncWithin", "async_session_of"]

AsyncAnySession: TypeAlias = AsyncSession | async_scoped_session[AsyncSession]


def async_session_of(session: object) -> AsyncSession:
    """The session itself, or `UsageError` when it is none."""
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, Session | scoped_session):
        raise UsageError("this is a blocking Session: use Locks(...).within(session)")
    if not isinstance(session, AsyncSession):
        raise UsageError(f"within() takes a SQLAlchemy AsyncSession, not {type(session).__name__}: {session!r}")
    return session


class AsyncWithin(BaseWithin):
    """Takes keys for as long as the session's transaction lasts."""

    def __init__(self, locks: AsyncLocks, session: AsyncSession) -> None:
        super().__init__(locks, session.sync_session)
        self._run_sync: Any = session.run_sync

    # No coroutines themselves: the line that asks is known only here, whoever awaits.

    def acquire(
        self,
        *keys: AnyKey | Shared,
        timeout: Timeout | Default = DEFAULT,
        mode: Mode | str = EXCLUSIVE,
        subtree: bool = False,
    ) -> Coroutine[Any, Any, TransactionHold]:
        """Wait for the keys; they are held until the transaction is committed or rolled back, by whomever."""
        patience = self._locks._timeout_of(timeout)
        seconds_of(patience)
        return self._acquire(self._locks._wants(keys, mode, subtree), patience, calling_site(1))

    def try_acquire(
        self, *keys: AnyKey | Shared, mode: Mode | str = EXCLUSIVE, subtree: bool = False
    ) -> Coroutine[Any, Any, TransactionHold | None]:
        """Take the keys if nobody has them; never wait."""
        return self._try_acquire(self._locks._wants(keys, mode, subtree), calling_site(1))

    async def _acquire(self, wants: tuple[Want, ...], patience: Timeout, site: Site) -> TransactionHold:
        rt, desk = self._locks._here()
        deadline = Deadline(rt.now, seconds_of(patience))
        me = asyncio.current_task()
        asked = self._ask(wants, site, me)
        if not asked.seats:
            return asked.hold()
        if deadline.left() > 0:
            self._refuse_endless(desk, me, asked, 3)
        try:
            await self._take(rt, desk, asked, deadline)
        except LockTimeout:
            adapt(patience, None)
            raise
        adapt(patience, deadline.waited())
        self._locks._tell_acquired(asked.seats, deadline.waited())
        return self._taken(asked)

    async def _try_acquire(self, wants: tuple[Want, ...], site: Site) -> TransactionHold | None:
        rt, desk = self._locks._here()
        asked = self._ask(wants, site, asyncio.current_task())
        if asked.seats:
            if await self._try(rt, desk, asked, Deadline(rt.now, 0)) is not None:
                return None
            self._locks._tell_acquired(asked.seats)
        return self._taken(asked)

    async def _take(self, rt: Aio, desk: Desk, asked: Asked, deadline: Deadline) -> None:
        if self._kind == "sqlite":
            await self._attach(rt, desk, asked, deadline)
        elif (blocked := await self._take_at_server(rt, asked, deadline)) is not None:
            self._locks._caller.tell("timeout", blocked, deadline.waited())
            raise timeout_error(blocked, deadline.waited(), await self._in_the_way(rt, desk, blocked))

    async def _try(self, rt: Aio, desk: Desk, asked: Asked, deadline: Deadline) -> Seat | None:
        if self._kind == "sqlite":
            return await self._attach(rt, desk, asked, None)
        return await self._take_at_server(rt, asked, deadline)

    # -- on the session's own connection -------------------------------------------------------------

    async def _take_at_server(self, rt: Aio, asked: Asked, deadline: Deadline) -> Seat | None:
        from takehold.locks import _within_postgres as server

        backend = self._locks._backend
        if not server.is_proven(engine_of(self._session), backend):
            wire, number = await server.invite(backend, rt)
            try:
                await self._run_sync(server.prove, backend, number)
            finally:
                wire.close()
        blocked: Seat | None
        asked.transaction.connection, blocked = await self._run_sync(server.take, asked.seats, deadline, rt)
        return blocked

    async def _in_the_way(self, rt: Aio, desk: Desk, seat: Seat) -> list[HoldRecord]:
        from takehold.locks import _within_postgres as server

        found: list[HoldRecord] = self._near(desk, seat) or await desk.in_the_way(seat)
        return found or await self._run_sync(server.holders, seat.want, rt)

    # -- by a hold of the desk -----------------------------------------------------------------------

    async def _attach(self, rt: Aio, desk: Desk, asked: Asked, deadline: Deadline | None) -> Seat | None:
        from takehold.locks._async import AsyncHold

        await self._run_sync(prepare_sqlite)
        # The hold first, so that a lost caller has a finalizer.
        hold = AsyncHold(desk, asked.seats)
        taken = desk.grab(asked.seats)
        if taken < len(asked.seats):
            if deadline is not None:
                await desk.acquire(asked.seats, taken, deadline, rt)
            elif (blocked := await desk.take_now(asked.seats, taken, rt)) is not None:
                return blocked
        self._bind(asked, hold)
        return None
