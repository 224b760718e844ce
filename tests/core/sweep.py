"""Cancel a task at every suspension point, so many loop ticks later, once or twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class Probe:
    """Runs a coroutine and calls back at its n-th suspension."""

    def __init__(self, at: int, then: Callable[[], None]) -> None:
        self.at = at
        self.then = then
        self.suspensions = 0

    def __call__(self, coro: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        return _Probed(self, coro)


class _Probed:
    def __init__(self, probe: Probe, coro: Coroutine[Any, Any, Any]) -> None:
        self._probe, self._coro = probe, coro

    def __await__(self) -> Generator[Any, Any, Any]:
        probe, inner = self._probe, self._coro.__await__()
        value, error = None, None
        while True:
            try:
                yielded = inner.throw(error) if error is not None else inner.send(value)
            except StopIteration as stop:
                return stop.value
            if probe.suspensions == probe.at:
                probe.then()
            probe.suspensions += 1
            value, error = None, None
            try:
                value = yield yielded
            except BaseException as thrown:  # noqa: BLE001 - passed on to the inner coroutine
                error = thrown


def after_ticks(ticks: int, call: Callable[[], object]) -> None:
    """Call back after so many turns of the loop."""
    loop = asyncio.get_running_loop()
    if ticks == 0:
        call()
    else:
        loop.call_soon(after_ticks, ticks - 1, call)


async def cancelled_at(
    make: Callable[[], Coroutine[Any, Any, Any]], at: int, ticks: int, times: int
) -> tuple[bool, asyncio.Task[Any], bool]:
    """Run `make()` and cancel it; whether there was such a point, the ended task, whether a cancel was taken."""
    task: asyncio.Task[Any]
    taken: list[bool] = []

    def strike() -> None:
        after_ticks(ticks, lambda: taken.append(task.cancel()))
        if times == 2:
            after_ticks(ticks + 1, lambda: taken.append(task.cancel()))

    probe = Probe(at, strike)

    async def body() -> Any:
        return await probe(make())

    task = asyncio.create_task(body())
    await asyncio.wait([task], timeout=20)
    assert task.done(), f"hangs when cancelled at suspension {at}, {ticks} ticks later, {times} times"
    for _ in range(ticks + 4):
        await asyncio.sleep(0)
    return probe.suspensions > at, task, any(taken)
