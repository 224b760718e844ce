"""The blocking colour: an await is a call that returns when it is done."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import random
import select
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

from takehold.errors import UsageError

T = TypeVar("T")
LOOK_FOR_SIGNALS: Final = 0.5
log = logging.getLogger(__name__)


class ThreadParty:
    """Stands for one thread; thread idents are reused, these objects are not."""

    def __init__(self) -> None:
        self.name = threading.current_thread().name

    def __repr__(self) -> str:
        return f"<thread {self.name}>"


class Here(threading.local):
    """`here.party` stands for the running thread."""

    def __init__(self) -> None:
        self.party = ThreadParty()


here = Here()


class ThreadEvent:
    """One-shot event on a bare lock: Ctrl-C gets through, and it costs half a `threading.Event`."""

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._is_set = False

    def set(self) -> bool:
        """Wake the waiter."""
        if not self._is_set:
            self._is_set = True
            self._gate.release()
        return True

    async def wait(self, seconds: float | None) -> bool:
        """Block the thread until set."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        pause = LOOK_FOR_SIGNALS if threading.current_thread() is threading.main_thread() else threading.TIMEOUT_MAX
        while True:
            # A signal that comes just before the thread goes to sleep does not wake it: the main thread looks again.
            left = until - time.monotonic()
            if self._gate.acquire(timeout=max(0.0, min(left, pause))):
                self._gate.release()
                return True
            if left <= pause:
                return False


class ThreadTask:
    """A daemon thread that runs one coroutine."""

    def __init__(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        self._thread = threading.Thread(target=self._run, args=(coro,), name=name, daemon=True)
        self._thread.start()

    @staticmethod
    def _run(coro: Coroutine[Any, Any, None]) -> None:
        try:
            coro.send(None)
        except StopIteration:
            pass
        except Exception:
            log.exception("a background task failed", extra={"event": "task.failed"})

    async def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()


class _Alarm:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _AlarmClock:
    """One daemon thread that calls back; it ends when there is nothing left to call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._number = itertools.count()
        self._thread: threading.Thread | None = None

    def later(self, seconds: float, callback: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(callback)
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="takehold-alarms", daemon=True)
                thread.start()  # where no thread can be started, nothing is promised either
                self._thread = thread
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._number), alarm))
            if self._heap[0][2] is alarm:
                self._changed.notify()
        return alarm

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            if (callback := alarm.callback) is not None:
                try:
                    callback()
                except BaseException:  # an exit() in one callback must not silence all others
                    log.exception("a timer callback failed", extra={"event": "timer.failed"})

    def _next(self) -> _Alarm | None:
        with self._changed:
            while self._heap:
                if (left := self._heap[0][0] - time.monotonic()) <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(left)
            self._thread = None
            return None


_clock = _AlarmClock()


def _after_fork() -> None:
    # The parent's timer thread does not exist here and its condition may be locked for ever.
    global _clock  # noqa: PLW0603
    _clock = _AlarmClock()
    here.party = ThreadParty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Threads:
    """The runtime of the blocking face."""

    face = "threads"
    now = staticmethod(time.monotonic)
    now_ns = staticmethod(time.monotonic_ns)
    wall = staticmethod(time.time)
    random = staticmethod(random.random)
    mutex = staticmethod(threading.Lock)
    event = ThreadEvent
    spawn = ThreadTask

    @staticmethod
    def signal() -> NoReturn:
        """Threads wait on events."""
        raise AssertionError("a signal is for tasks")

    def start(self, coro: Coroutine[Any, Any, None], name: str) -> NoReturn:
        """Threads lead on their own stack."""
        raise AssertionError("tasks are started")

    def soon(self, callback: Callable[[], None]) -> NoReturn:
        """Threads have no turns."""
        raise AssertionError("tasks have turns")

    @staticmethod
    def boot() -> float:
        """Seconds since boot, sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    @staticmethod
    def current() -> object:
        """This thread."""
        return here.party

    @staticmethod
    def may_wait() -> None:
        """Refuse to block a thread that runs an event loop."""
        if (asyncio := sys.modules.get("asyncio")) is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise UsageError(
            "a blocking lock would wait inside a running event loop and freeze it; use AsyncLocks here, "
            "or timeout=0 / try_acquire(), which never wait"
        )

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Sleep the thread."""
        time.sleep(seconds)

    @staticmethod
    async def readable(fd: int, seconds: float) -> bool:
        """Poll the descriptor."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(max(0, seconds) * 1000))

    @staticmethod
    async def shield(coro: Coroutine[Any, Any, T]) -> T:
        """Nothing cancels a thread from outside."""
        return await coro

    @staticmethod
    def later(seconds: float, callback: Callable[[], None]) -> _Alarm:
        """Call back on the timer thread."""
        return _clock.later(seconds, callback)
