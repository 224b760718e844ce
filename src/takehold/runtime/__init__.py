"""The colours: what lock logic may await, and how it is run without an event loop.

Lock logic is written once, as coroutines that await only what a `Runtime` gives. asyncio awaits them; the
blocking face calls `run`, which works because every await of the `Threads` runtime finishes before it
returns; `takehold.testing.Simulation` runs them on virtual time in a seeded order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from takehold.runtime.threads import Threads

__all__ = ["Event", "Runtime", "Signal", "Task", "Threads", "Timer", "run"]

T = TypeVar("T")


class Event(Protocol):
    """A flag that one coroutine waits for."""

    def set(self) -> bool:
        """Wake the waiter, from any thread. False when it can never run again (its loop is closed)."""

    async def wait(self, seconds: float | None) -> bool:
        """True once set; False when `seconds` passed first; None waits forever."""


class Signal(Protocol):
    """An event that is set and awaited by tasks of one loop only, once, without a limit: half the price."""

    def set(self) -> bool:
        """Wake the waiter."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Suspend until set."""


class Task(Protocol):
    """Something spawned."""

    async def join(self) -> None:
        """Wait until it has ended; its exceptions are logged, not raised."""


class Timer(Protocol):
    """A callback to come."""

    def cancel(self) -> None:
        """Do not call it. A no-op when it was called already."""


class Runtime(Protocol):
    """Time, waiting and identity, for one colour."""

    face: str
    """Which desks can be shared: one per face, and per event loop."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def now_ns(self) -> int:
        """The same clock in nanoseconds."""

    def boot(self) -> float:
        """Like `now`, but it also runs while the machine sleeps: for leases."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    def random(self) -> float:
        """A number in [0, 1), seeded under simulation."""

    def current(self) -> object:
        """Who is running: the task or the thread, as something to compare by identity."""

    def mutex(self) -> AbstractContextManager[Any]:
        """Mutual exclusion for a few lines without an await."""

    def event(self) -> Event:
        """A new event for one waiter of this runtime."""

    def signal(self) -> Signal:
        """A new signal; not for threads."""

    def may_wait(self) -> None:
        """Raise `UsageError` where waiting would freeze an event loop."""

    async def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""

    async def readable(self, fd: int, seconds: float) -> bool:
        """Whether `fd` had something to read within `seconds`."""

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> Task:
        """Run beside the caller. It belongs to nobody's cancellation."""

    def start(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        """`spawn` that runs up to its first suspension at once; not for threads."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back when everything that is ready now has run; not for threads."""

    async def shield(self, coro: Coroutine[Any, Any, T]) -> T:
        """Finish `coro` even when the caller is cancelled, then let the cancellation through."""

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, some time after `seconds`. It must be short and must not raise."""


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, on the caller's own stack."""
    try:
        coro.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coro.close()
    raise RuntimeError("a blocking runtime suspended: some await reached an event loop")
