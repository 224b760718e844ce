"""The asyncio colour. One instance belongs to one event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


class AioEvent:
    """A future that any thread may complete.

    Not `asyncio.Event` under `wait_for`: on 3.11 that swallows a cancellation which meets the result.
    """

    __slots__ = ("_future", "_is_set", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._future: asyncio.Future[bool] | None = None

    def set(self) -> bool:
        """Wake the task; False when its loop is closed."""
        # Flag first, future second; wait() does it the other way round, so one of the two sees the other.
        self._is_set = True
        future = self._future
        try:
            if asyncio.get_running_loop() is self._loop:
                if future is not None:
                    _resolve(future, True)
                return True
        except RuntimeError:
            pass
        if self._loop.is_closed():
            return False
        if future is not None:
            try:
                self._loop.call_soon_threadsafe(_resolve, future, True)
            except RuntimeError:
                return False
        return True

    async def wait(self, seconds: float | None) -> bool:
        """Suspend the task until set."""
        future = self._future = self._loop.create_future()
        if self._is_set:
            self._future = None
            return True
        timer = None if seconds is None else self._loop.call_later(seconds, _resolve, future, False)
        try:
            return await future or self._is_set
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()


class AioSignal:
    """What one task awaits. It wakes it at once, inside `set`; a future would do so in the next turn of the loop.

    To asyncio it is a future: that is what the names are for that are not explained here.
    """

    __slots__ = ("_asyncio_future_blocking", "_call", "_cancelled", "_context", "_is_set", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = self._is_set = False
        self._cancelled: asyncio.CancelledError | None = None
        self._call: Callable[[AioSignal], object] | None = None

    def set(self) -> bool:
        """Wake the task. Twice is a no-op."""
        self._is_set = True
        if (call := self._call) is not None:
            self._call = None
            try:
                self._context.run(call, self)
            except RuntimeError:
                # A task is running, and another cannot run inside: then in the next turn, like with any future.
                self._loop.call_soon(call, self, context=self._context)
            except BaseException as error:  # noqa: BLE001 - raised again
                # An exit() is for the loop, and not for whoever answers: others are still to be woken.
                self._loop.call_soon(_raise, error)
        return True

    def __await__(self) -> Generator[AioSignal, None, None]:
        if not self._is_set:
            self._asyncio_future_blocking = True
            yield self

    def add_done_callback(
        self, call: Callable[[AioSignal], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Whom to wake: a task, or a coroutine that runs without one."""
        self._call = call
        self._context = context or contextvars.copy_context()

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled, and not what it waits for."""
        call, self._call = self._call, None
        if call is None:
            return False
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._loop.call_soon(call, self, context=self._context)
        return True

    def result(self) -> None:
        """What the task goes on with."""
        if self._cancelled is not None:
            raise self._cancelled

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The one of the task."""
        return self._loop


def _raise(error: BaseException) -> None:
    raise error


class _Rest:
    """What is left of a coroutine that was stepped once."""

    def __init__(self, coro: Coroutine[Any, Any, Any], suspended: Any) -> None:
        self._coro, self._suspended = coro, suspended

    def __await__(self) -> Generator[Any, Any, Any]:
        suspended = self._suspended
        while True:
            try:
                value = yield suspended
            except BaseException as thrown:  # noqa: BLE001 - passed on
                step: Callable[[], Any] = functools.partial(self._coro.throw, thrown)
            else:
                step = functools.partial(self._coro.send, value)
            try:
                suspended = step()
            except StopIteration as stop:
                return stop.value


async def _finish(rest: _Rest) -> Any:
    return await rest


class _Driven:
    """A coroutine that runs on the callbacks of what it awaits: no task, and no turn of the loop to start one.

    Nobody can cancel it. What it awaits must be futures, and must not ask for the current task.
    """

    __slots__ = ("_coro", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, None]) -> None:
        self._loop = loop
        self._coro = coro
        self._step()

    def _step(self, _future: object = None) -> None:
        try:
            awaited = self._coro.send(None)
        except StopIteration:
            return
        except Exception:
            log.exception("a background task failed", extra={"event": "task.failed"})
        else:
            if awaited is None:
                self._loop.call_soon(self._step)
            else:
                awaited.add_done_callback(self._step)


class AioTask:
    """A task of its own: cancelling whoever asked for it does not touch it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, None], name: str) -> None:
        self._task = loop.create_task(coro, name=name)
        self._task.add_done_callback(self._report)

    @staticmethod
    def _report(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error, extra={"event": "task.failed"})

    async def join(self) -> None:
        """Wait for its end."""
        await asyncio.wait([self._task])


class Aio:
    """The runtime of the asyncio face."""

    face = "asyncio"
    now = staticmethod(time.monotonic)
    now_ns = staticmethod(time.monotonic_ns)
    wall = staticmethod(time.time)
    random = staticmethod(random.random)
    # A real mutex: a memory desk is shared with threads.
    mutex = staticmethod(threading.Lock)
    current = staticmethod(asyncio.current_task)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aio) and other.loop is self.loop

    def __hash__(self) -> int:
        return hash(self.loop)

    @staticmethod
    def boot() -> float:
        """Seconds since boot, sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def event(self) -> AioEvent:
        """An event for a task of this loop."""
        return AioEvent(self.loop)

    def signal(self) -> AioSignal:
        """A signal for a task of this loop."""
        return AioSignal(self.loop)

    def may_wait(self) -> None:
        """Waiting is what tasks do."""

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Suspend the task."""
        await asyncio.sleep(seconds)

    async def readable(self, fd: int, seconds: float) -> bool:
        """Let the loop watch the descriptor."""
        event = self.event()
        self.loop.add_reader(fd, event.set)
        try:
            return await event.wait(seconds)
        finally:
            self.loop.remove_reader(fd)

    def spawn(self, coro: Coroutine[Any, Any, None], name: str) -> AioTask:
        """A task that belongs to the session, not to the caller."""
        return AioTask(self.loop, coro, name)

    def start(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        """It needs no task: nobody cancels it."""
        _Driven(self.loop, coro)

    def soon(self, callback: Callable[[], None]) -> None:
        """At the end of this turn of the loop."""
        self.loop.call_soon(callback)

    async def shield(self, coro: Coroutine[Any, Any, T]) -> T:
        """Finish `coro`; a bare `asyncio.shield` would let go of it at the first cancel.

        Its first step runs here: a task that is cancelled before it starts, or a loop that is closed, would do none.
        """
        try:
            suspended = coro.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        task = self.loop.create_task(_finish(_Rest(coro, suspended)))
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not task.cancelled():
                task.exception()
            raise cancelled
        return task.result()  # type: ignore[no-any-return]

    def later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Let the loop call back."""
        return self.loop.call_later(seconds, callback)
