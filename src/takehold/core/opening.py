"""Opening a session once, for everybody who comes while it is being opened.

A thousand tasks that start together must not open a thousand sessions. The first one opens; the others wait and
share what came of it, the error too. When the first one is cancelled, the next opens.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from takehold.core.backend import Session
from takehold.errors import BackendUnavailable, TakeholdError
from takehold.runtime import Event, Runtime

__all__ = ["Opening"]


class _Waiter:
    """Somebody who came while a session was being opened."""

    error: TakeholdError | None = None

    def __init__(self, event: Event) -> None:
        self.event = event


class Opening:
    """The one place of a desk where its session is opened."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._mutex = rt.mutex()
        self._waiters: list[_Waiter] | None = None
        """None while nobody opens."""

    async def once(
        self, live: Callable[[], Session | None], open_one: Callable[[], Coroutine[Any, Any, Session]], seconds: float
    ) -> Session:
        """The live session; opened by us when there is none and nobody else is at it."""
        until = self._rt.now() + seconds
        while True:
            with self._mutex:
                if (session := live()) is not None:
                    return session
                waiter = None if self._waiters is None else _Waiter(self._rt.event())
                if self._waiters is None:
                    self._waiters = []
                elif waiter is not None:
                    self._waiters.append(waiter)
            if waiter is None:
                return await self._opened(open_one)
            if not await waiter.event.wait(max(0.0, until - self._rt.now())):
                raise BackendUnavailable(f"no lock session within {seconds:.1f} s")
            if waiter.error is not None:
                raise type(waiter.error)(*waiter.error.args) from waiter.error

    async def _opened(self, open_one: Callable[[], Coroutine[Any, Any, Session]]) -> Session:
        error: TakeholdError | None = None
        try:
            return await open_one()
        except TakeholdError as failure:
            error = failure
            raise
        finally:
            with self._mutex:
                waiters, self._waiters = self._waiters or [], None
            for waiter in waiters:
                waiter.error = error
                waiter.event.set()
