"""`busy`, `lose` and `no_waiting`: what the tests of an application see."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from takehold import AsyncLocks, HoldLost, Locks, LockTimeout, UsageError, shared
from takehold.core.deadline import Backoff
from takehold.testing import busy, lose, no_waiting

PLACES = ["memory:", "file:{}"]


@pytest.fixture(params=PLACES, ids=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path / "locks")


class TestBusy:
    def test_the_code_under_test_sees_a_stranger(self, url: str) -> None:
        """`LockTimeout` and None, not `WouldDeadlock`, although it is the same thread."""
        with Locks(url, label="app") as locks:
            with busy(locks, "k"):
                assert locks.lock("k").try_acquire() is None
                with pytest.raises(LockTimeout) as caught:
                    locks.lock("k", timeout=0.01).acquire()
                assert __file__ in str(caught.value)
                assert locks.held("k") is None
            with locks.lock("k", timeout=0):
                pass
            assert locks.who() == []

    def test_the_same_with_tasks(self, url: str) -> None:
        async def main() -> None:
            async with AsyncLocks(url) as locks:
                async with busy(locks, "k"):
                    assert await locks.lock("k").try_acquire() is None
                    with pytest.raises(LockTimeout) as caught:
                        await locks.lock("k", timeout=0.01).acquire()
                    assert __file__ in str(caught.value)
                async with locks.lock("k", timeout=0):
                    pass

        asyncio.run(main())

    def test_several_keys_and_shared_ones(self, url: str) -> None:
        with Locks(url) as locks, busy(locks, "a", shared("b")):
            assert locks.lock("a").try_acquire() is None
            assert locks.lock("b").try_acquire() is None
            with locks.lock("b", mode="shared", timeout=0):
                pass

    def test_what_is_busy_already_cannot_be_made_busy(self, url: str) -> None:
        with Locks(url) as locks, busy(locks, "k"), pytest.raises(LockTimeout):
            busy(locks, "k").__enter__()

    def test_the_wrong_with_is_refused(self) -> None:
        with pytest.raises(UsageError, match="async with"), busy(AsyncLocks("memory:"), "k"):
            pass

        async def main() -> None:
            with pytest.raises(UsageError, match="with busy"):
                await busy(Locks("memory:"), "k").__aenter__()

        asyncio.run(main())

    def test_it_is_released_when_the_test_fails(self, url: str) -> None:
        with Locks(url) as locks:
            with pytest.raises(ZeroDivisionError), busy(locks, "k"):
                raise ZeroDivisionError
            with locks.lock("k", timeout=0):
                pass


class TestLose:
    def test_all_that_a_real_loss_does_happens(self, url: str) -> None:
        told: list[str] = []
        with Locks(url) as locks:
            hold = locks.lock("a", "b").acquire()
            hold.on_lost(lambda: told.append("told"))
            lose(hold)
            assert hold.lost
            assert told == ["told"]
            with pytest.raises(HoldLost, match="on purpose"):
                hold.check()
            with locks.lock("a", "b", timeout=0):
                pass
            with pytest.raises(HoldLost, match="on purpose"), locks.lock("k") as entered:
                lose(entered)

    def test_an_asyncio_body_is_cancelled(self, url: str) -> None:
        async def main() -> None:
            async with AsyncLocks(url) as locks, locks.lock("k") as hold:
                lose(hold, "the cable was cut")
                await asyncio.sleep(60)

        with pytest.raises(HoldLost, match="the cable was cut"):
            asyncio.run(main())

    def test_what_is_not_held_cannot_be_lost(self) -> None:
        with Locks("memory:") as locks:
            hold = locks.lock("k").acquire()
            hold.release()
            with pytest.raises(UsageError, match="not held"):
                lose(hold)


class TestNoWaiting:
    def test_what_would_wait_fails_at_once(self, url: str) -> None:
        with Locks(url) as locks, busy(locks, "k"), no_waiting():
            began = time.monotonic()
            for timeout in (60, None):
                with pytest.raises(LockTimeout):
                    locks.lock("k", timeout=timeout).acquire()
            with pytest.raises(LockTimeout):
                locks.once("k", lambda: None, done=lambda: False)
            with busy(locks, "s[0]"), pytest.raises(LockTimeout):
                locks.slots("s", 1, timeout=60).acquire()
            assert time.monotonic() - began < 5
            with locks.lock("free", timeout=60):
                pass

    def test_the_same_with_tasks(self, url: str) -> None:
        async def main() -> None:
            async with AsyncLocks(url) as locks, busy(locks, "k"):
                with no_waiting(), pytest.raises(LockTimeout):
                    await locks.lock("k", timeout=60).acquire()

        began = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began < 5

    def test_it_holds_in_every_thread_and_ends_with_the_outermost(self) -> None:
        errors: list[BaseException] = []
        with Locks("memory:") as locks, busy(locks, "k"):

            def wait() -> None:
                try:
                    locks.lock("k", timeout=60).acquire()
                except LockTimeout as error:
                    errors.append(error)

            with no_waiting():
                with no_waiting():
                    pass
                thread = threading.Thread(target=wait)
                thread.start()
                thread.join(5)
                assert len(errors) == 1
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                locks.lock("k", timeout=0.05).acquire()
            assert time.monotonic() - began >= 0.05

    def test_backoffs_do_not_sleep(self) -> None:
        with no_waiting():
            assert Backoff(1.0, 10.0, lambda: 0.5).next() == 0
        assert Backoff(1.0, 10.0, lambda: 0.5).next() == 0.75
