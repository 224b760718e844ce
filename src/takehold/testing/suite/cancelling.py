"""Cancelling asyncio waiters: nothing left behind, nothing swallowed, whenever it comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from takehold.testing.faces import Face
from takehold.testing.suite.exclusion import AT_ONCE
from takehold.testing.suite.fixtures import requires

__all__ = ["TestCancelled"]


class TestCancelled:
    """A task that is cancelled while it waits."""

    @pytest.mark.covers("L-9")
    def test_a_cancelled_waiter_is_gone(self, asyncio_face: Face) -> None:
        face = asyncio_face
        a, b, c = face.workers(3)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        waiting.cancel()
        assert isinstance(waiting.error(AT_ONCE), asyncio.CancelledError)
        assert not face.waiters("k")
        hold.release()
        assert c.can_take("k")

    @pytest.mark.covers("L-9")
    def test_those_behind_a_cancelled_waiter_move_on(self, asyncio_face: Face) -> None:
        face = asyncio_face
        a, b, c = face.workers(3)
        hold = a.acquire("k")
        leaving = b.start_acquire("k", timeout=60)
        face.until_waiting("k", 1)
        staying = c.start_acquire("k", timeout=60)
        face.until_waiting("k", 2)
        leaving.cancel()
        assert isinstance(leaving.error(AT_ONCE), asyncio.CancelledError)
        hold.release()
        staying.result(AT_ONCE).release()

    @requires("shared")
    @pytest.mark.covers("L-9")
    def test_readers_behind_a_cancelled_writer_get_in(self, asyncio_face: Face) -> None:
        face = asyncio_face
        a, b, c = face.workers(3)
        with a.acquire("k", mode="shared"):
            writer = b.start_acquire("k", timeout=60)
            face.until_waiting("k", 1)
            reader = c.start_acquire("k", mode="shared", timeout=60)
            face.until_waiting("k", 2)
            writer.cancel()
            assert isinstance(writer.error(AT_ONCE), asyncio.CancelledError)
            reader.result(AT_ONCE).release()

    @pytest.mark.covers("L-9", "L-19")
    def test_a_cancel_while_waiting_for_the_second_key_gives_back_the_first(self, asyncio_face: Face) -> None:
        face = asyncio_face
        a, b, c = face.workers(3)
        with a.acquire("k2"):
            waiting = b.start_acquire("k1", "k2", "k3", timeout=60)
            face.until_waiting("k2")
            assert c.try_acquire("k1") is None
            waiting.cancel()
            assert isinstance(waiting.error(AT_ONCE), asyncio.CancelledError)
            assert c.can_take("k1", "k3")

    @pytest.mark.covers("L-9", "L-10")
    @pytest.mark.parametrize("times", [1, 2])
    @pytest.mark.parametrize("first", ["release", "cancel"])
    def test_a_cancel_that_meets_the_grant_gives_the_key_back(self, asyncio_face: Face, first: str, times: int) -> None:
        """The release comes 0 to 7 turns of the loop before or after the cancel, which comes once or twice."""

        async def race(locks: Any, ticks: int) -> None:
            hold = await locks.lock("k").acquire()
            task = asyncio.create_task(_pass_through(locks))
            while not locks.statistics().waiting:
                await asyncio.sleep(0)
            if first == "release":
                await hold.release()
            else:
                task.cancel()
            for _ in range(ticks):
                await asyncio.sleep(0)
            cancelled = first == "cancel"
            if first == "release":
                cancelled = task.cancel()
            for _ in range(times - 1):
                task.cancel()
            if first == "cancel":
                await hold.release()
            await asyncio.wait([task])
            assert task.cancelled() == cancelled, f"a cancel after {ticks} turns was swallowed"
            again = await locks.lock("k").try_acquire()
            assert again is not None, f"a cancel after {ticks} turns left the key taken"
            await again.release()

        a = asyncio_face.worker()
        for ticks in range(8):
            a.do(lambda locks, ticks=ticks: race(locks, ticks))  # type: ignore[misc]

    @pytest.mark.covers("L-9", "L-10")
    def test_random_cancels_leave_no_phantom(self, asyncio_face: Face, scaled: Callable[[int], int]) -> None:
        seed, rounds, keys = random.randrange(10**9), scaled(2_000), ["k0", "k1", "k2"]
        rng = random.Random(seed)

        async def user(locks: Any) -> None:
            while True:
                async with locks.lock(*rng.sample(keys, rng.choice((1, 1, 2))), timeout=None):
                    for _ in range(rng.randrange(3)):
                        await asyncio.sleep(0)

        async def storm(locks: Any) -> None:
            tasks = [asyncio.create_task(user(locks)) for _ in range(6)]
            for _ in range(rounds):
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                victim = rng.randrange(6)
                tasks[victim].cancel()
                await asyncio.wait([tasks[victim]])
                tasks[victim] = asyncio.create_task(user(locks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        a, b = asyncio_face.workers(2)
        a.do(storm)
        assert not asyncio_face.who(), f"seed {seed}"
        assert b.can_take(*keys), f"seed {seed}"


async def _pass_through(locks: Any) -> None:
    async with locks.lock("k", timeout=60):
        await asyncio.sleep(0)
