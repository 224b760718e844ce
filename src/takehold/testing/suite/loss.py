"""Loss: a hold that can no longer be vouched for says so, in every way there is, and stays lost."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from takehold.errors import HoldLost, UsageError
from takehold.testing.faces import Face, Steps, eventually
from takehold.testing.faults import lose
from takehold.testing.suite.exclusion import AT_ONCE

__all__ = ["TestBodyCancelled", "TestDropped", "TestLoss"]


class TestLoss:
    """Told once, for good, to everybody who asks."""

    def test_a_lost_hold_says_so_in_every_way(self, face: Face) -> None:
        a = face.worker()
        hold = a.acquire("k")
        told: list[str] = []
        hold.on_lost(lambda: told.append("before"))
        assert not hold.lost
        hold.check()
        lose(hold.hold, "the wire was cut")
        hold.on_lost(lambda: told.append("after"))
        assert told == ["before", "after"]
        assert hold.lost
        assert hold.wait_lost(60)
        with pytest.raises(HoldLost, match="the wire was cut") as caught:
            hold.check()
        assert (caught.value.key, caught.value.reason) == ("k", "the wire was cut")
        assert "'k'" in str(caught.value)

    def test_waiting_for_a_loss_ends_with_the_loss(self, face: Face) -> None:
        a = face.worker()
        hold = a.acquire("k")
        waiting = hold.start_wait_lost()
        assert not waiting.done
        lose(hold.hold)
        assert waiting.result() is True

    def test_waiting_for_a_loss_that_does_not_come_ends_with_the_timeout(self, face: Face) -> None:
        with face.worker().acquire("k") as hold:
            assert hold.wait_lost(0) is False
            assert hold.wait_lost(0.01) is False

    def test_everybody_is_told_even_when_one_listener_fails(self, face: Face) -> None:
        hold = face.worker().acquire("k")
        told: list[int] = []

        def failing() -> None:
            raise ZeroDivisionError

        for callback in (lambda: told.append(1), failing, lambda: told.append(2)):
            hold.on_lost(callback)
        lose(hold.hold)
        assert told == [1, 2]

    def test_a_lost_key_is_free_for_others_and_the_loser_cannot_take_it_from_them(self, face: Face) -> None:
        a, b, c = face.workers(3)
        lost = a.acquire("k")
        lose(lost.hold)
        with b.acquire("k", timeout=0) as hold:
            assert hold.fence > lost.fence
            lost.release()
            assert c.try_acquire("k") is None
            hold.check()

    def test_a_waiter_gets_a_lost_key_at_once(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        lose(hold.hold)
        waiting.result(AT_ONCE).release()

    def test_a_lost_hold_stays_lost(self, face: Face) -> None:
        """No silent re-acquisition, whatever happens to the key afterwards."""
        a, b = face.workers(2)
        lost = a.acquire("k")
        fence = lost.fence
        lose(lost.hold)
        b.acquire("k").release()
        assert lost.lost
        assert lost.fence == fence
        assert a.held("k") is None
        with a.acquire("k", timeout=0):
            assert lost.lost
            with pytest.raises(HoldLost):
                lost.check()

    def test_a_block_whose_hold_was_lost_ends_with_hold_lost(self, face: Face) -> None:
        a = face.worker()
        with pytest.raises(HoldLost, match="on purpose"):
            a.inside(lose, "k", **face.telling)
        assert a.can_take("k")

    def test_an_error_of_the_body_is_not_hidden_by_the_loss(self, face: Face) -> None:
        a = face.worker()

        def body(hold: Any) -> None:
            lose(hold)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            a.inside(body, "k", **face.telling)
        assert a.can_take("k")

    def test_a_hold_of_several_keys_is_lost_as_a_whole(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("x", "y", "z")
        told: list[str] = []
        hold.on_lost(lambda: told.append("told"))
        lose(hold.hold)
        assert told == ["told"]
        assert hold.lost
        assert b.can_take("x", "y", "z")
        hold.release()

    def test_a_released_hold_cannot_be_lost(self, face: Face) -> None:
        hold = face.worker().acquire("k")
        hold.release()
        with pytest.raises(UsageError, match="not held"):
            lose(hold.hold)
        assert not hold.lost


class TestDropped:
    """A hold that nobody holds on to is released, late and with a warning."""

    @pytest.mark.covers("L-18")
    def test_a_hold_dropped_while_held_is_released_and_warned_about(self, face: Face) -> None:
        a, b = face.workers(2)
        with pytest.warns(ResourceWarning, match="'k'.*dropped while held"):
            a.do(_take_and_drop)
        assert b.can_take("k")

    @pytest.mark.covers("L-18")
    def test_a_waiter_gets_the_key_of_a_dropped_hold(self, face: Face) -> None:
        a, b = face.workers(2)
        kept = [a.acquire("k")]
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        with pytest.warns(ResourceWarning, match="'k'"):
            kept.clear()
        waiting.result(AT_ONCE).release()

    @pytest.mark.covers("L-18")
    def test_a_hold_that_was_released_is_dropped_in_silence(self, face: Face) -> None:
        def take_and_release(locks: Any) -> Steps:
            hold = yield locks.lock("k").acquire()
            yield hold.release()

        face.worker().do(take_and_release)
        gc.collect()

    @pytest.mark.covers("L-18")
    def test_looking_at_ones_own_hold_does_not_end_it(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k") as hold:
            own = a.held("k")
            assert own is not None
            assert own.hold == hold.hold
            del own
            gc.collect()
            assert b.try_acquire("k") is None


def _take_and_drop(locks: Any) -> Steps:
    yield locks.lock("k").acquire()
    gc.collect()


class TestBodyCancelled:
    """On loss an asyncio body is cancelled and `HoldLost` raised, as `asyncio.timeout` does."""

    def test_the_body_is_cancelled_and_hold_lost_raised(self, asyncio_face: Face) -> None:
        a, entered, ended = asyncio_face.worker(), list[Any](), list[str]()

        async def body(hold: Any) -> None:
            entered.append(hold)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        call = a.start_inside(body, "k")
        lose(eventually(lambda: entered)[0])
        assert isinstance(call.error(AT_ONCE), HoldLost)
        assert ended == ["cancelled"]
        assert a.can_take("k")

    def test_a_hold_entered_later_cancels_its_body_too(self, asyncio_face: Face) -> None:
        a, entered = asyncio_face.worker(), list[Any]()

        async def work(locks: Any) -> None:
            hold = await locks.lock("k").try_acquire()
            async with hold:
                entered.append(hold)
                await asyncio.sleep(60)

        call = a.start(work)
        lose(eventually(lambda: entered)[0])
        assert isinstance(call.error(AT_ONCE), HoldLost)

    def test_without_a_block_nothing_is_cancelled(self, asyncio_face: Face) -> None:
        a = asyncio_face.worker()

        async def work(locks: Any) -> str:
            hold = await locks.lock("k").acquire()
            lose(hold)
            await asyncio.sleep(0.01)
            await hold.release()
            return "went on"

        assert a.do(work) == "went on"

    def test_a_body_that_is_only_told_goes_on(self, asyncio_face: Face) -> None:
        a, went_on = asyncio_face.worker(), list[bool]()

        async def body(hold: Any) -> None:
            lose(hold)
            await asyncio.sleep(0.01)
            went_on.append(hold.lost)

        with pytest.raises(HoldLost):
            a.inside(body, "k", on_lost="tell")
        assert went_on == [True]

    def test_a_cancel_from_outside_stays_a_cancel(self, asyncio_face: Face) -> None:
        """Who cancelled the task for a reason of their own must not get `HoldLost` instead."""
        a = asyncio_face.worker()

        async def body(hold: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            lose(hold)
            task.cancel()
            await asyncio.sleep(60)

        call = a.start_inside(body, "k")
        assert isinstance(call.error(AT_ONCE), asyncio.CancelledError)
        assert a.can_take("k")

    def test_a_body_that_ends_at_that_moment_leaves_no_cancel_behind(self, asyncio_face: Face) -> None:
        """The stray cancel would hit whatever the task does next; the worker would report it."""
        a = asyncio_face.worker()

        async def work(locks: Any) -> int:
            lock = locks.lock("k")
            with pytest.raises(HoldLost):
                async with lock as hold:
                    lose(hold)
            task = asyncio.current_task()
            assert task is not None
            await asyncio.sleep(0.01)
            return task.cancelling()

        assert a.do(work) == 0

    def test_a_body_that_swallows_the_cancel_still_ends_with_hold_lost(self, asyncio_face: Face) -> None:
        a = asyncio_face.worker()

        async def body(hold: Any) -> None:
            lose(hold)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return

        with pytest.raises(HoldLost):
            a.inside(body, "k")

    def test_the_error_of_a_body_that_was_cancelled_is_kept(self, asyncio_face: Face) -> None:
        a = asyncio_face.worker()

        async def body(hold: Any) -> None:
            lose(hold)
            try:
                await asyncio.sleep(60)
            finally:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            a.inside(body, "k")

    def test_losing_the_outer_hold_ends_the_inner_block_too(self, asyncio_face: Face) -> None:
        a, b = asyncio_face.workers(2)

        async def work(locks: Any) -> None:
            async with locks.lock("a") as outer, locks.lock("b"):
                lose(outer)
                await asyncio.sleep(60)

        error = a.start(work).error(AT_ONCE)
        assert isinstance(error, HoldLost)
        assert error.key == "a"
        assert b.can_take("a", "b")

    def test_losing_the_inner_hold_leaves_the_outer_one_alone(self, asyncio_face: Face) -> None:
        a = asyncio_face.worker()

        async def work(locks: Any) -> str:
            async with locks.lock("a") as outer:
                try:
                    async with locks.lock("b") as inner:
                        lose(inner)
                        await asyncio.sleep(60)
                except HoldLost:
                    outer.check()
                    await asyncio.sleep(0)
                    return "went on"
            return "was not told"

        assert a.do(work) == "went on"

    def test_a_loss_inside_a_timeout_is_a_loss_and_a_timeout_is_a_timeout(self, asyncio_face: Face) -> None:
        a = asyncio_face.worker()

        async def lost(locks: Any) -> None:
            async with asyncio.timeout(60), locks.lock("k") as hold:
                lose(hold)
                await asyncio.sleep(60)

        async def late(locks: Any) -> None:
            async with asyncio.timeout(0.01), locks.lock("k"):
                await asyncio.sleep(60)

        assert isinstance(a.start(lost).error(AT_ONCE), HoldLost)
        error = a.start(late).error(AT_ONCE)
        assert isinstance(error, TimeoutError)
        assert not isinstance(error, HoldLost)
        assert a.can_take("k")
