"""Leases for threads."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from sqlalchemy import Select
from sqlalchemy.orm import Session

from takehold import UsageError
from takehold.rows.leases.columns import entity_of
from takehold.rows.leases.holding import BaseLease, BaseLeases
from takehold.rows.leases.steps import Plan, claim, extend, give_back, guard, take, take_keys
from takehold.rows.unit import transaction

__all__ = ["Lease", "Leases"]

log = logging.getLogger(__name__)
M = TypeVar("M")
R = TypeVar("R")
T = TypeVar("T")


class Lease(BaseLease[M]):
    """One row that is ours for a while. Use it in a `with` statement: its end gives the row back."""

    @overload
    def apply(self, *, values: Mapping[str, Any] | None = None, keep: bool = False) -> None: ...
    @overload
    def apply(
        self, work: Callable[[Session, M], T], *, values: Mapping[str, Any] | None = None, keep: bool = False
    ) -> T: ...
    def apply(
        self,
        work: Callable[[Session, M], T] | None = None,
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

        def unit(session: Session) -> tuple[float, T | None]:
            take_keys(session, self._grips)
            seconds = self._leases.plan.seconds if keep else None
            sent = guard(session, self._grips, self.token, values, seconds=seconds)
            if work is None:
                return sent, None
            model, (identity, *_) = self._grips[0]
            result = work(session, session.get_one(model, identity))
            if inspect.isawaitable(result):
                raise UsageError("this work is async: give lease() an async_sessionmaker")
            return sent, result

        with self._writing():
            sent, result = transaction(self._leases.maker, unit)
        self._written(sent, keep=keep)
        return result

    def take(self, query: Select[R]) -> list[R]:
        """Lease all rows of the query too, until this lease ends; detached copies of them.

        When one of them is leased or locked by somebody else, none is taken and this lease ends with a `Conflict`:
        the row goes to the back of the queue, but keeps its owner.
        """
        model = entity_of(query)
        with self._writing():
            taken = transaction(
                self._leases.maker, lambda session: take(session, self._leases.plan, self._grips, self.token, query)
            )
        return self._add(taken, model)

    def release(self) -> bool:
        """Give the row back unchanged, to the back of the queue; False when it was no longer ours."""
        if self._state == "ended":
            return False
        self._end()
        return transaction(self._leases.maker, lambda session: give_back(session, self._grips, self.token))

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Exception:
            # The body's own error matters more; and what is not given back expires.
            log.warning("%r could not be given back; it expires", self, exc_info=True, extra={"event": "rows.lease"})


class Leases(BaseLeases[Lease[M]]):
    """Claims rows of a query and keeps them leased: made by `rows.lease()`."""

    def __init__(self, maker: Any, plan: Plan, heartbeat: float | None) -> None:
        super().__init__(maker, plan, heartbeat)
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None

    def claim(self, limit: int = 1) -> list[Lease[M]]:
        """Lease up to so many rows that are free, the oldest first; an empty list when there are none right now.

        It is committed when this returns, and no connection is held. Rows that wait in the list are extended too.
        """
        self._refuse(limit)
        taken = transaction(self.maker, lambda session: claim(session, self.plan, limit))
        held = self._hold(Lease(self, row, taken.token, taken.sent) for row in taken.rows)
        if held and self.term.beat is not None:
            self._start()
        return held

    def heartbeat(self) -> None:
        """Extend those that are close to their expiry, now. It is done in the background unless `heartbeat=None`."""
        if due := self._due():
            pairs = self._pairs(due)
            self._heard(due, transaction(self.maker, lambda session: extend(session, pairs, self.plan.seconds)))

    def close(self) -> None:
        """Give everything back."""
        self._closed = True
        self._bell.set()
        for lease in self._all():
            lease.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- in the background ---------------------------------------------------------------------------

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name=f"{self!r}", daemon=True)
                self._thread.start()

    def _beat(self) -> None:
        while True:
            self._bell.wait(self.term.beat)
            with self._mutex:
                # Under the mutex, so that a claim that comes now starts another one.
                if self._closed or not self._held:
                    self._thread = None
                    return
            try:
                self.heartbeat()
            except Exception as error:  # noqa: BLE001 - whatever it was, the leases need the next one
                self._missed(error)
