"""A stage on which the order of steps is written down: every store call of every operation is one step.

`Stage` is a simulation whose schedule the test chooses. `Trusting` lockers grant everything to everybody, like a lock
service whose holds have all been lost; `Turnstiles` keep their word; `Recorder` writes down what is asked of either.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from takehold import AdaptiveTimeout, LockTimeout, NotHeld
from takehold.iceberg.locking import RWLocker, level_of
from takehold.runtime import run
from takehold.testing.simulation import SimTask, Simulation, _Suspend

Timeout = float | AdaptiveTimeout


class _Step(_Suspend):
    """Others may run now."""


class Stage(Simulation):
    """Virtual time, and steps in a given order. Impatient: time flies, so nobody is waited for to the end."""

    def __init__(self, seed: int = 0, *, impatient: bool = False) -> None:
        super().__init__(seed)
        self._impatient = impatient
        self._mains: dict[str, SimTask] = {}
        self._before: set[object] = set()
        self._act: dict[object, str] = {}
        self.steps: dict[str, int] = {}
        """How many steps each act had."""

    async def step(self) -> None:
        """Let others come between: once per store call, though memory stops before and after each."""
        me = self.current()
        if me in self._before:
            self._before.discard(me)
            return
        self._before.add(me)
        await _Step(None, None)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        if self._impatient:
            self._clock += seconds
            await _Step(None, None)
        else:
            await super().sleep(seconds)

    def play(self, acts: Mapping[str, Coroutine[Any, Any, Any]], schedule: Iterable[str] = ()) -> dict[str, Any]:
        """Run to the end; what each returned, or the error it raised."""
        self._mains = {name: self.spawn(coro, name) for name, coro in acts.items()}
        self.steps = dict.fromkeys(acts, 0)
        order = iter(schedule)
        for _ in range(20_000):
            if all(task.done for task in self._mains.values()):
                return {name: task.error or task.result for name, task in self._mains.items()}
            if self._ready:
                self._step(self._chosen(order))
            else:
                self._wait_for_time(86_400.0)
        raise AssertionError(f"somebody runs in circles: {self._mains}")

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str = "task") -> SimTask:
        """What an act starts is part of it: its steps are steps of that act."""
        task = super().spawn(coro, name)
        self._act[task] = self._act.get(self._current, name) if self._current is not None else name
        return task

    def _chosen(self, order: Iterator[str]) -> SimTask:
        ready: dict[str, SimTask] = {}
        for task in self._ready:
            ready.setdefault(self._act[task], task)
        name = next((name for name in order if name in ready), None) or next(
            name for name in (*self._mains, *ready) if name in ready
        )
        self.steps[name] = self.steps.get(name, 0) + 1
        self._ready.remove(ready[name])
        return ready[name]

    def _step(self, task: SimTask) -> None:
        task.ready = False
        self._current = task
        suspended = task.step()
        self._current = None
        if type(suspended) is _Step:
            self.make_ready(task, True)
        elif suspended is not None:
            if suspended.event is not None:
                if suspended.event.is_set:
                    return self.make_ready(task, True)
                suspended.event.waiter, task.event = task, suspended.event
            if suspended.seconds is not None:
                due = self._clock + suspended.seconds
                heapq.heappush(self._timers, (due, next(self._number), task, task.wake_number))
        return None


class Still(Simulation):
    """Nobody else is there: time passes when somebody sleeps, and nothing is done in the background."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._clock += seconds

    def spawn(self, coro: Coroutine[Any, Any, Any], name: str = "task") -> SimTask:
        """Reads are done at once; recovery is what the test calls."""
        task = SimTask(self, coro, name)
        if name == "read":
            run(coro)
        else:
            coro.close()
        task.done = True
        return task


class Voice:
    """A stage as one of several sees it: with random numbers of its own."""

    def __init__(self, stage: Stage, seed: str) -> None:
        self._stage = stage
        self.random = random.Random(seed).random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


@dataclass
class Grant:
    """A hold of the lockers below."""

    paths: tuple[str, ...]
    mode: str
    lost: bool = False
    given_back: bool = False

    def check(self) -> None:
        """It never says that it is lost."""


class Trusting:
    """Everybody has every lock, always."""

    def at(self, *paths: str, by: str) -> RWLocker:
        return _Trusting(paths)


class _Trusting:
    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths

    async def get_lock(self, timeout: Timeout) -> Grant:
        return Grant(self._paths, "W")

    async def get_rlock(self, timeout: Timeout) -> Grant:
        return Grant(self._paths, "R")

    async def unlock(self, hold: Grant) -> None:
        hold.given_back = True

    async def runlock(self, hold: Grant) -> None:
        hold.given_back = True


@dataclass
class Turnstiles:
    """Readers share, a writer excludes, all or nothing, on the time of a stage."""

    stage: Simulation
    held: list[Grant] = field(default_factory=list)

    def at(self, *paths: str, by: str) -> RWLocker:
        return _Turnstile(self, paths)


class _Turnstile:
    def __init__(self, all_of: Turnstiles, paths: tuple[str, ...]) -> None:
        self._all, self._paths = all_of, paths

    async def _get(self, timeout: Timeout, mode: str) -> Grant:
        stage = self._all.stage
        until = stage.now() + (timeout.seconds if isinstance(timeout, AdaptiveTimeout) else timeout)
        while True:
            busy = [each for each in self._all.held if set(each.paths) & set(self._paths) and "W" in each.mode + mode]
            if not busy:
                self._all.held.append(grant := Grant(self._paths, mode))
                return grant
            if stage.now() >= until:
                raise LockTimeout(f"{self._paths[0]} is held", key=self._paths[0])
            await stage.sleep(0.05)

    async def get_lock(self, timeout: Timeout) -> Grant:
        return await self._get(timeout, "W")

    async def get_rlock(self, timeout: Timeout) -> Grant:
        return await self._get(timeout, "R")

    async def unlock(self, hold: Grant) -> None:
        if hold not in self._all.held:
            raise NotHeld(f"{hold} is not held")
        self._all.held.remove(hold)

    async def runlock(self, hold: Grant) -> None:
        await self.unlock(hold)


@dataclass
class Recorder:
    """Writes down which locks were granted, in order: `W pointer`, `R namespace registry`, and the paths."""

    lockers: Any
    granted: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    """Operation, mode and level, paths."""
    released: list[tuple[str, ...]] = field(default_factory=list)

    def at(self, *paths: str, by: str) -> RWLocker:
        return _Recorded(self, self.lockers.at(*paths, by=by), paths, by)

    def levels(self) -> list[str]:
        return [level for _, level, _ in self.granted]


class _Recorded:
    def __init__(self, recorder: Recorder, locker: RWLocker, paths: tuple[str, ...], by: str) -> None:
        self._recorder, self._locker, self._paths, self._by = recorder, locker, paths, by

    async def get_lock(self, timeout: Timeout) -> Any:
        hold = await self._locker.get_lock(timeout)
        self._recorder.granted.append((self._by, f"{level_of(self._paths)} W", self._paths))
        return hold

    async def get_rlock(self, timeout: Timeout) -> Any:
        hold = await self._locker.get_rlock(timeout)
        self._recorder.granted.append((self._by, f"{level_of(self._paths)} R", self._paths))
        return hold

    async def unlock(self, hold: Any) -> None:
        self._recorder.released.append(self._paths)
        await self._locker.unlock(hold)

    async def runlock(self, hold: Any) -> None:
        self._recorder.released.append(self._paths)
        await self._locker.runlock(hold)
