"""Leases for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from takehold.rows.leases.columns import entity_of
from takehold.rows.leases.holding import BaseLease, BaseLeases
from takehold.rows.leases.steps import Plan, claim, extend, give_back, guard, take, take_keys
from takehold.rows.unit import transaction

__all__ = ["AsyncLease", "AsyncLeases"]

log = logging.getLogger(__name__)
M = TypeVar("M")
R = TypeVar("R")
T = TypeVar("T")


class AsyncLease(BaseLease[M]):
    """One row that is ours for a while. Use it in an `async with` statement: its end gives the row back."""

    @overload
    async def apply(self, *, values: Mapping[str, Any] | None = None, keep: bool = False) -> None: ...
    @overload
    async def apply(
        self,
        work: Callable[[AsyncSession, M], Awaitable[T]],
        *,
        values: Mapping[str, Any] | None = None,
        keep: bool = False,
    ) -> T: ...
    async def apply(
        self,
        work: Callable[[AsyncSession, M], Awaitable[T]] | None = None,
        *,
        values: Mapping[str, Any] | None = None,
        keep: bool = False,
    ) -> T | None:
        """Write the result, in one transaction that is only done if the lease is still ours; that ends the lease.

        `values` are set on the row; then `work(session, row)` changes what else is to change, and its result is
        returned. It may run again after a deadlock. If the row was taken over, or the lease has expired, nothing is
        changed, `work` is not called, and `HoldLost` ends the body, so that no effect after it happens either. With
        `keep=True` the lease goes on, renewed.
        """

        async def unit(session: AsyncSession) -> tuple[float, T | None]:
            await session.run_sync(take_keys, self._grips)
            seconds = self._leases.plan.seconds if keep else None
            sent = await session.run_sync(guard, self._grips, self.token, values, seconds=seconds)
            if work is None:
                return sent, None
            model, (identity, *_) = self._grips[0]
            return sent, await work(session, await session.get_one(model, identity))

        with self._writing():
            sent, result = await transaction(self._leases.maker, unit)
        self._written(sent, keep=keep)
        return result

    async def take(self, query: Select[R]) -> list[R]:
        """Lease all rows of the query too, until this lease ends; detached copies of them.

        When one of them is leased or locked by somebody else, none is taken and this lease ends with a `Conflict`:
        the row goes to the back of the queue, but keeps its owner.
        """
        model = entity_of(query)
        with self._writing():
            taken = await transaction(
                self._leases.maker,
                lambda session: session.run_sync(take, self._leases.plan, self._grips, self.token, query),
            )
        return self._add(taken, model)

    async def release(self) -> bool:
        """Give the row back unchanged, to the back of the queue; False when it was no longer ours."""
        if self._state == "ended":
            return False
        self._end()
        return await transaction(
            self._leases.maker, lambda session: session.run_sync(give_back, self._grips, self.token)
        )

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except Exception:
            # The body's own error matters more; and what is not given back expires.
            log.warning("%r could not be given back; it expires", self, exc_info=True, extra={"event": "rows.lease"})


class AsyncLeases(BaseLeases[AsyncLease[M]]):
    """Claims rows of a query and keeps them leased: made by `rows.lease()`."""

    def __init__(self, maker: Any, plan: Plan, heartbeat: float | None) -> None:
        super().__init__(maker, plan, heartbeat)
        self._task: asyncio.Task[None] | None = None

    async def claim(self, limit: int = 1) -> list[AsyncLease[M]]:
        """Lease up to so many rows that are free, the oldest first; an empty list when there are none right now.

        It is committed when this returns, and no connection is held. Rows that wait in the list are extended too.
        """
        self._refuse(limit)
        taken = await transaction(self.maker, lambda session: session.run_sync(claim, self.plan, limit))
        held = self._hold(AsyncLease(self, row, taken.token, taken.sent) for row in taken.rows)
        if held and self.term.beat is not None and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._beat(), name=f"{self!r}")
        return held

    async def heartbeat(self) -> None:
        """Extend those that are close to their expiry, now. It is done in the background unless `heartbeat=None`."""
        if due := self._due():
            pairs, seconds = self._pairs(due), self.plan.seconds
            self._heard(due, await transaction(self.maker, lambda session: session.run_sync(extend, pairs, seconds)))

    async def close(self) -> None:
        """Give everything back."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for lease in self._all():
            await lease.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- in the background ---------------------------------------------------------------------------

    async def _beat(self) -> None:
        assert self.term.beat is not None
        while self._held:
            await asyncio.sleep(self.term.beat)
            try:
                await self.heartbeat()
            except Exception as error:  # noqa: BLE001 - whatever it was, the leases need the next one
                self._missed(error)
