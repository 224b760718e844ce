"""The third colour: virtual time and a seeded order, so that races are found by seed and replayed.

The very code that threads and asyncio run is run here by a scheduler that picks the next task at random. An
hour of waiting takes no time; a task that can never go on is found at once instead of hanging.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Cancelled", "Hang", "SimTask", "Simulation"]

T = TypeVar("T")


class Cancelled(BaseException):
    """What a cancelled task sees, like `asyncio.CancelledError`."""


class Hang(AssertionError):
    """Some task waits for something that can no longer happen."""


class SimMutex:
    """No other task can run inside it; that somebody waited inside it is what it is here to find."""

    def __init__(self) -> None:
        self._locked = False

    def __enter__(self) -> None:
        assert not self._locked, "an await, or a second lock, under a mutex"
        self._locked = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locked = False


class _Suspend:
    """What a task yields: wake me when the event is set, or after so many seconds."""

    __slots__ = ("event", "seconds")

    def __init__(self, event: SimEvent | None, seconds: float | None) -> None:
        self.event = event
        self.seconds = seconds

    def __await__(self) -> Generator[_Suspend, bool, bool]:
        return (yield self)


class SimEvent:
    """An event on virtual time."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.is_set = False
        self.waiter: SimTask | None = None

    def set(self) -> bool:
        """Make the waiter ready; when it runs is the scheduler's choice."""
        if not self.is_set:
            self.is_set = True
            if self.waiter is not None:
                self._sim.make_ready(self.waiter, True)
        return True

    def __await__(self) -> Generator[Any, Any, bool]:
        """As a signal: suspend until set."""
        return self.wait(None).__await__()

    async def wait(self, seconds: float | None) -> bool:
        """Suspend until set, or until the time is over."""
        if self.is_set:
            return True
        return await _Suspend(self, seconds) or self.is_set


class SimTimer:
    """A callback to come."""

    cancelled = False

    def cancel(self) -> None:
        """Do not call it."""
        self.cancelled = True


class SimTask:
    """One coroutine in the simulation."""

    def __init__(self, sim: Simulation, coro: Coroutine[Any, Any, Any], name: str) -> None:
        self._sim = sim
        self.coro = coro
        self.name = name
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.answer = False
        self.ready = False
        self.wake_number = 0
        self.event: SimEvent | None = None
        self._cancels = 0
        self._started = False
        self._over = SimEvent(sim)

    def __repr__(self) -> str:
        return f"<SimTask {self.name}>"

    def cancel(self) -> None:
        """Throw `Cancelled` where the task is suspended."""
        if not self.done:
            self._cancels += 1
            self._sim.make_ready(self, False)

    def step(self) -> _Suspend | None:
        """Run to the next suspension; None at the end."""
        try:
            if self._cancels:
                self._cancels -= 1
                suspended = self.coro.throw(Cancelled())
            else:
                suspended = self.coro.send(self.answer if self._started else None)
        except StopIteration as stop:
            self._end(stop.value, None)
            return None
        except BaseException as error:  # noqa: BLE001 - kept for join and for the run's end
            self._end(None, error)
            return None
        self._started = True
        return suspended  # type: ignore[no-any-return]

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error
        self._over.set()

    async def join(self) -> None:
        """Wait for its end."""
        while not self.done:
            await self._over.wait(None)


class Simulation:
    """A runtime whose clock and order belong to the test."""

    face = "simulation"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self.random = self._rng.random
        self._clock = 0.0
        self._number = itertools.count(1)
        self._ready: list[SimTask] = []
        self._timers: list[tuple[float, int, SimTask | Callable[[], None], Any]] = []
        self._current: SimTask | None = None
        self.tasks: list[SimTask] = []

    def now(self) -> float:
        """Virtual seconds."""
        return self._clock

    boot = now

    def now_ns(self) -> int:
        """Virtual nanoseconds, never twice the same."""
        return int(self._clock * 1e9) + next(self._number)

    def wall(self) -> float:
        """A fixed epoch plus virtual time."""
        return 1_800_000_000.0 + self._clock

    def current(self) -> object:
        """The running task."""
        return self._current

    def mutex(self) -> SimMutex:
        """A mutex that finds an await inside it."""
        return SimMutex()

    def signal(self) -> SimEvent:
        """Events are signals, too."""
        return SimEvent(self)

    def event(self) -> SimEvent:
        """An event on virtual time."""
        return SimEvent(self)

    def may_wait(self) -> None:
        """Waiting is free here."""

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await _Suspend(None, max(0.0, seconds))

    async def readable(self, fd: int, seconds: float) -> bool:
        """Nothing is ever readable in a simulation."""
        await self.sleep(seconds)
        return False

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str = "task") -> SimTask:
        """A new task."""
        task = SimTask(self, coro, name)
        self.tasks.append(task)
        self.make_ready(task, False)
        return task

    def start(self, coro: Coroutine[Any, Any, Any], name: str) -> None:
        """When its first step runs is the scheduler's choice."""
        self.spawn(coro, name)

    def soon(self, callback: Callable[[], None]) -> None:
        """Now, as far as virtual time goes."""
        self.later(0.0, callback)

    async def shield(self, coro: Coroutine[Any, Any, T]) -> T:
        """Finish `coro` in its own task, however often the caller is cancelled, then let that through."""
        inner = self.spawn(coro, "shielded")
        cancelled: Cancelled | None = None
        while not inner.done:
            try:
                await inner.join()
            except Cancelled as cancel:
                cancelled = cancel
        error, inner.error = inner.error, None
        if cancelled is not None:
            raise cancelled
        if error is not None:
            raise error
        return inner.result  # type: ignore[no-any-return]

    def later(self, seconds: float, callback: Callable[[], None]) -> SimTimer:
        """A callback on virtual time."""
        timer = SimTimer()

        def call() -> None:
            if not timer.cancelled:
                callback()

        heapq.heappush(self._timers, (self._clock + seconds, next(self._number), call, None))
        return timer

    def make_ready(self, task: SimTask, answer: bool) -> None:
        """Let the scheduler pick this task from now on."""
        if task.ready or task.done:
            return
        task.ready = True
        task.answer = answer
        task.wake_number += 1
        if task.event is not None:
            task.event.waiter = None
            task.event = None
        self._ready.append(task)

    def run(self, *coros: Coroutine[Any, Any, Any], limit: float = 86_400.0, steps: int = 200_000) -> None:
        """Run these and all they spawn to the end; raises the first error, or `Hang`."""
        mains = [self.spawn(coro, f"main-{index}") for index, coro in enumerate(coros)]
        while not all(task.done for task in mains) or self._ready:
            if not self._ready:
                self._wait_for_time(limit)
                continue
            steps -= 1
            if steps < 0:
                raise Hang(f"seed {self.seed}: too many steps; somebody runs in circles")
            # Any order of those that could run now is an order that could happen.
            index = self._rng.randrange(len(self._ready))
            self._ready[index], self._ready[-1] = self._ready[-1], self._ready[index]
            self._step(self._ready.pop())
        for task in self.tasks:
            if task.error is not None and not isinstance(task.error, Cancelled):
                raise task.error

    def _step(self, task: SimTask) -> None:
        task.ready = False
        self._current = task
        suspended = task.step()
        self._current = None
        if suspended is None:
            return
        if suspended.event is not None:
            if suspended.event.is_set:
                self.make_ready(task, True)
                return
            suspended.event.waiter, task.event = task, suspended.event
        if suspended.seconds is not None:
            due = self._clock + suspended.seconds
            heapq.heappush(self._timers, (due, next(self._number), task, task.wake_number))

    def _wait_for_time(self, limit: float) -> None:
        if not self._timers:
            stuck = [task for task in self.tasks if not task.done]
            raise Hang(f"seed {self.seed}: nothing can happen any more; waiting: {stuck}")
        self._clock = max(self._clock, self._timers[0][0])
        if self._clock > limit:
            raise Hang(f"seed {self.seed}: still running after {limit} virtual seconds")
        _, _, what, number = heapq.heappop(self._timers)
        if isinstance(what, SimTask):
            # A task that was woken by something else meanwhile has a newer number.
            if what.wake_number == number:
                self.make_ready(what, False)
        else:
            what()
