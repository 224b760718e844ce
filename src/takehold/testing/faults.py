"""Locks that misbehave on request, for the tests of code that uses them.

with busy(locks, "nightly"), no_waiting():        # somebody else has it, and nobody waits for real
    assert report.run() == "skipped"

with locks.lock("orders/42") as hold:
    lose(hold)                                    # what an operator or a dead connection would do
    with pytest.raises(takehold.HoldLost):
        ship(hold)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from takehold.core.deadline import Backoff, Deadline
from takehold.core.key import AnyKey
from takehold.core.owner import calling_site
from takehold.core.seat import HELD
from takehold.core.want import EXCLUSIVE, Mode, Shared
from takehold.errors import UsageError
from takehold.locks._async import AsyncHold, AsyncLocks
from takehold.locks._base import BaseHold
from takehold.locks._sync import Hold, Locks

__all__ = ["busy", "lose", "no_waiting"]

ON_PURPOSE = "lost on purpose, by takehold.testing.lose"


class busy:  # noqa: N801 - it reads as a word in a with statement
    """Somebody else holds these keys: `with busy(locks, "k"):`, `async with busy(async_locks, "k"):`.

    The code under test gets `LockTimeout` or None as from a stranger, also on this very thread or task.
    """

    def __init__(self, locks: Locks | AsyncLocks, *keys: AnyKey | Shared, mode: Mode | str = EXCLUSIVE) -> None:
        self._lock: Any = locks.lock(*keys, timeout=0, mode=mode)
        self._lock._site = calling_site(1)
        # From here on it is ours to warn about, and a `with` of the wrong colour says so by itself.
        self._lock._used = True
        self._blocking = isinstance(locks, Locks)
        self._hold: Any = None

    def __enter__(self) -> Hold:
        if not self._blocking:
            raise UsageError("these are AsyncLocks: async with busy(...)")
        site = self._lock._site
        self._hold = self._lock.acquire()
        return self._by_a_stranger(site)  # type: ignore[no-any-return]

    async def __aenter__(self) -> AsyncHold:
        if self._blocking:
            raise UsageError("these are Locks, not AsyncLocks: with busy(...)")
        site = self._lock._site
        self._hold = await self._lock.acquire()
        return self._by_a_stranger(site)  # type: ignore[no-any-return]

    def _by_a_stranger(self, site: Any) -> Any:
        for seat in self._hold._seats:
            seat.site = site
        self._hold.give(_Stranger())
        return self._hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hold.release()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hold.release()


class _Stranger:
    """A party that is no thread and no task of this process."""

    def __repr__(self) -> str:
        return "<somebody else>"


def lose(hold: BaseHold, reason: str = ON_PURPOSE) -> None:
    """The hold is lost, now: its callbacks run, an asyncio body is cancelled, and others can have its keys."""
    held = [seat for seat in hold._seats if seat.state == HELD]
    if not held:
        raise UsageError(f"{hold!r} is not held any more, so it cannot be lost")
    for seat in held:
        hold._desk.lose(seat, reason)


_mutex = threading.Lock()
_depth = 0


@contextmanager
def no_waiting() -> Iterator[None]:
    """Nobody waits in here, in any thread: what would, fails at once with `LockTimeout`; backoffs do not sleep.

    Also a pytest fixture of that name in `takehold.testing.plugin`.
    """
    _change(+1)
    try:
        yield
    finally:
        _change(-1)


def _change(by: int) -> None:
    global _depth  # noqa: PLW0603 - time is global, and so is switching it off
    with _mutex:
        _depth += by
        Deadline.longest = 0.0 if _depth else float("inf")
        Backoff.scale = 0.0 if _depth else 1.0
