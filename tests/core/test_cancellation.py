"""Cancellation at every suspension point, 0 to 7 ticks later, once and twice: nothing left, nothing swallowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import takehold
from takehold.testing.server import FakeBackend, FakeServer
from tests.core.sweep import after_ticks, cancelled_at

TICKS = range(8)


class Stage:
    """One backend, its locks, and somebody else who holds a key for a few ticks."""

    def __init__(self, locks: takehold.AsyncLocks, server: FakeServer | None) -> None:
        self.locks = locks
        self.server = server
        self._others: set[asyncio.Task[None]] = set()

    def somebody_holds(self, key: str, ticks: int, *, shared: bool = False) -> None:
        """Another task takes the key now and gives it back in a few turns of the loop."""
        done = asyncio.Event()

        async def hold() -> None:
            async with self.locks.lock(key, mode="shared" if shared else "exclusive"):
                after_ticks(ticks, done.set)
                await done.wait()

        task = asyncio.create_task(hold())
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def nothing_is_left(self) -> None:
        """Once the others are done, the desk is empty, and so is the server."""
        if self._others:
            await asyncio.wait(self._others, timeout=20)
        desk = self.locks._desk
        for _ in range(200):
            if desk is None or not (desk.busy() or desk._register.entries or (self.server and self.server.holders)):
                break
            await asyncio.sleep(0.001)
        assert desk is None or not desk.busy()
        assert desk is None or not desk._register.entries
        if self.server is not None:
            assert not self.server.holders
            assert not self.server.waiters
        async with asyncio.timeout(5):
            async with self.locks.lock("a", "b", timeout=5):
                pass


@pytest.fixture(params=["memory", "file", "server"])
def make_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Stage]:
    def make() -> Stage:
        server = FakeServer() if request.param == "server" else None
        url: Any = {
            "memory": "memory:",
            "file": f"file:{tmp_path}/locks",
            "server": FakeBackend(server, latency=0.0001) if server else None,
        }[request.param]
        return Stage(takehold.AsyncLocks(url, check_order="off"), server)

    return make


async def uncontended(stage: Stage) -> None:
    """Take a free key, do something, leave."""
    async with stage.locks.lock("a"):
        await asyncio.sleep(0)


async def contended(stage: Stage) -> None:
    """Wait for somebody else."""
    stage.somebody_holds("a", 3)
    await asyncio.sleep(0)
    async with stage.locks.lock("a", timeout=5):
        await asyncio.sleep(0)


async def two_keys(stage: Stage) -> None:
    """Get the first at once and wait for the second."""
    stage.somebody_holds("b", 3)
    await asyncio.sleep(0)
    async with stage.locks.lock("a", "b", timeout=5):
        await asyncio.sleep(0)


async def reader_behind_readers(stage: Stage) -> None:
    """Join others in shared mode, and wait for a writer."""
    stage.somebody_holds("a", 2, shared=True)
    stage.somebody_holds("a", 3)
    await asyncio.sleep(0)
    async with stage.locks.lock(takehold.shared("a"), timeout=5):
        await asyncio.sleep(0)


async def explicit_release(stage: Stage) -> None:
    """Release and wait until the backend has it back."""
    stage.somebody_holds("a", 2)
    await asyncio.sleep(0)
    hold = await stage.locks.lock("a", timeout=5).acquire()
    try:
        await asyncio.sleep(0)
    finally:
        await hold.release()


async def attempt(stage: Stage) -> None:
    """Try, which never waits."""
    stage.somebody_holds("b", 2)
    await asyncio.sleep(0)
    hold = await stage.locks.lock("a", "b").try_acquire()
    if hold is not None:
        async with hold:
            await asyncio.sleep(0)


@pytest.mark.covers("L-9", "L-10")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "scenario", [uncontended, contended, two_keys, reader_behind_readers, explicit_release, attempt]
)
def test_a_cancelled_task_leaves_nothing_and_is_cancelled(
    make_stage: Callable[[], Stage], scenario: Callable[[Stage], Coroutine[Any, Any, None]], times: int
) -> None:
    """Whatever the moment: no lock, no queue entry, no server-side waiter, and the cancel is not swallowed."""

    async def sweep() -> int:
        struck = 0
        for ticks in TICKS:
            point, reached = 0, True
            while reached and point < 40:
                stage = make_stage()
                reached, task, cancelled = await cancelled_at(lambda s=stage: scenario(s), point, ticks, times)  # type: ignore[misc]
                if cancelled:
                    struck += 1
                    assert task.cancelled(), f"swallowed at suspension {point}, {ticks} ticks later: {task!r}"
                else:
                    task.result()
                await stage.nothing_is_left()
                await stage.locks.close()
                point += 1
        return struck

    assert asyncio.run(sweep()) > 0


@pytest.mark.covers("L-9")
def test_a_sweep_finds_an_acquire_that_leaks(tmp_path: Path) -> None:
    """The naive pattern, a bare shield, leaks under the same sweep: so the sweep can fail."""

    async def leaks() -> int:
        found = 0
        for ticks in TICKS:
            for point in range(3):
                lock = asyncio.Lock()
                await lock.acquire()

                async def naive(lock: asyncio.Lock = lock) -> None:
                    await asyncio.shield(lock.acquire())
                    lock.release()

                after_ticks(2, lock.release)
                _, task, cancelled = await cancelled_at(naive, point, ticks, 1)
                found += int(cancelled and task.cancelled() and lock.locked())
        return found

    assert asyncio.run(leaks()) > 0
