"""Waiting: deadlines, who is in the way, whose turn it is, and leaving the line without a trace."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from takehold.core.deadline import AdaptiveTimeout
from takehold.errors import LockTimeout, UsageError
from takehold.testing.faces import Face, Steps, eventually
from takehold.testing.suite.exclusion import AT_ONCE, line_of
from takehold.testing.suite.fixtures import requires

__all__ = ["TestBusy", "TestInsideALoop", "TestLeaving", "TestTimeouts", "TestTurns"]

SOON = 0.02
"""A timeout that is meant to run out."""


class TestTimeouts:
    """Zero is one attempt, None is for ever, and what lies between is kept."""

    @pytest.mark.covers("L-6")
    def test_one_attempt_succeeds_when_the_key_is_free(self, face: Face) -> None:
        face.worker().acquire("k", timeout=0).release()

    @pytest.mark.covers("L-6")
    def test_one_attempt_fails_at_once_when_it_is_not(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k"):
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                b.acquire("k", timeout=0)
            assert time.monotonic() - began < AT_ONCE
            assert not face.waiters("k")

    @pytest.mark.covers("L-6")
    @pytest.mark.parametrize("timeout", [SOON, timedelta(seconds=SOON), AdaptiveTimeout(SOON, SOON)])
    def test_a_wait_lasts_as_long_as_was_said(self, face: Face, timeout: Any) -> None:
        a, b = face.workers(2)
        with a.acquire("k"):
            began = time.monotonic()
            with pytest.raises(LockTimeout) as caught:
                b.acquire("k", timeout=timeout)
            assert SOON <= time.monotonic() - began < SOON + AT_ONCE
            assert SOON <= caught.value.waited < SOON + AT_ONCE

    @pytest.mark.covers("L-6")
    def test_the_timeout_of_the_locks_object_is_the_default(self, face: Face) -> None:
        a, b = face.worker(), face.worker(timeout=SOON)
        with a.acquire("k"):
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                b.acquire("k")
            assert SOON <= time.monotonic() - began < SOON + AT_ONCE

    @pytest.mark.covers("L-6")
    def test_the_default_of_all_defaults_is_30_seconds(self, face: Face) -> None:
        made = face.locks()
        assert inspect.signature(type(made)).parameters["timeout"].default == 30

    @pytest.mark.covers("L-6")
    def test_none_waits_until_the_key_is_free(self, face: Face) -> None:
        a, b = face.worker(), face.worker(timeout=0)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=None)
        face.until_waiting("k")
        hold.release()
        waiting.result().release()

    @pytest.mark.slow
    @pytest.mark.covers("L-6", "L-19")
    def test_one_deadline_covers_all_keys_of_a_call(self, face: Face) -> None:
        """The first key comes free shortly before the deadline; the second does not get a new one."""
        a, b, c = face.workers(3)
        first, second = a.acquire("k1"), b.acquire("k2")
        began = time.monotonic()
        waiting = c.start_acquire("k1", "k2", timeout=0.4)
        eventually(lambda: time.monotonic() - began > 0.3)
        first.release()
        assert isinstance(waiting.error(), LockTimeout)
        assert 0.4 <= time.monotonic() - began < 0.65
        second.release()
        assert c.can_take("k1", "k2")

    @pytest.mark.covers("L-6")
    def test_an_adaptive_timeout_learns_from_waits(self, face: Face) -> None:
        a, b = face.workers(2)
        timeout = AdaptiveTimeout(SOON / 50, SOON / 50)
        with a.acquire("k"):
            for _ in range(AdaptiveTimeout.WINDOW):
                with pytest.raises(LockTimeout):
                    b.acquire("k", timeout=timeout)
        assert timeout.seconds == pytest.approx(SOON / 50 * 1.25)


class TestBusy:
    """Who is in the way is part of the answer."""

    @pytest.mark.covers("L-7")
    @pytest.mark.parametrize("timeout", [0, SOON])
    def test_a_timeout_names_the_key_the_wait_and_the_holder(self, face: Face, timeout: float) -> None:
        a, b = face.worker(label="the other one"), face.worker()
        take = lambda locks: locks.lock("orders/42").acquire()  # noqa: E731 - its line is the point
        with a.do(take), pytest.raises(LockTimeout) as caught:
            b.acquire("orders/42", timeout=timeout)
        error = caught.value
        assert isinstance(error, TimeoutError)
        assert error.key == "orders/42"
        assert error.waited >= timeout
        assert (error.owner.pid, error.owner.label) == (os.getpid(), "the other one")
        assert error.owner.site == line_of(take)
        assert error.held_for is not None
        assert 0 <= error.held_for < AT_ONCE
        for part in ("'orders/42'", "the other one", str(os.getpid()), line_of(take)):
            assert part in str(error)

    @pytest.mark.covers("L-7")
    def test_trying_answers_with_a_hold_or_none(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.try_acquire("k")
        assert hold is not None
        assert hold.keys == ("k",)
        assert b.try_acquire("k") is None
        hold.release()
        assert b.can_take("k")

    @pytest.mark.covers("L-7", "L-28")
    def test_a_hold_says_what_it_is(self, face: Face) -> None:
        a = face.worker(label="api")
        take = lambda locks: locks.lock("k").acquire()  # noqa: E731
        with a.do(take) as hold:
            assert (hold.owner.pid, hold.owner.label, hold.owner.site) == (os.getpid(), "api", line_of(take))
            assert abs(hold.since.timestamp() - time.time()) < AT_ONCE
            assert hold.mode.value == "exclusive"
            assert "'k'" in repr(hold.hold)
            assert not hold.released
        assert hold.released
        assert not hold.lost
        with pytest.raises(UsageError, match="release"):
            hold.check()


class TestTurns:
    """First come, first served; nobody waits for ever."""

    @pytest.mark.covers("L-8")
    def test_waiters_of_one_process_get_the_key_in_the_order_they_asked(self, face: Face) -> None:
        first, *others = face.workers(8)
        order: list[int] = []
        hold = first.acquire("k")

        def work(number: int) -> Callable[[Any], Steps]:
            def steps(locks: Any) -> Steps:
                mine = yield locks.lock("k", timeout=60).acquire()
                order.append(number)
                yield mine.release()

            return steps

        calls = []
        for number, worker in enumerate(others):
            calls.append(worker.start(work(number)))
            face.until_waiting("k", number + 1)
        hold.release()
        for call in calls:
            call.result()
        assert order == list(range(7))

    @pytest.mark.covers("L-8")
    def test_a_newcomer_does_not_overtake_a_waiter(self, face: Face) -> None:
        a, b, c = face.workers(3)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        hold.release()
        assert c.try_acquire("k") is None
        waiting.result().release()
        assert c.can_take("k")

    @requires("shared")
    @pytest.mark.covers("L-8")
    def test_a_waiting_writer_stops_new_readers(self, face: Face) -> None:
        a, b, c = face.workers(3)
        reader = a.acquire("k", mode="shared")
        writer = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        assert c.try_acquire("k", mode="shared") is None
        late = c.start_acquire("k", mode="shared", timeout=60)
        face.until_waiting("k", 2)
        reader.release()
        hold = writer.result()
        assert not late.done
        hold.release()
        late.result().release()

    @requires("shared")
    @pytest.mark.covers("L-8")
    def test_readers_behind_a_writer_get_in_together(self, face: Face) -> None:
        a, b, c = face.workers(3)
        writer = a.acquire("k")
        waiting = []
        for number, worker in enumerate((b, c), 1):
            waiting.append(worker.start_acquire("k", mode="shared", timeout=60))
            face.until_waiting("k", number)
        writer.release()
        for hold in [call.result() for call in waiting]:
            hold.release()

    @requires("shared")
    @pytest.mark.covers("L-8")
    @pytest.mark.parametrize("coalesce", [True, False])
    def test_a_writer_gets_in_while_20_readers_loop(self, face: Face, coalesce: bool) -> None:
        stop, read = threading.Event(), [0]

        def reading(locks: Any) -> Steps:
            while not stop.is_set():
                hold = yield locks.lock("k", mode="shared", timeout=None).acquire()
                read[0] += 1
                yield
                yield hold.release()

        locks = face.locks(coalesce=coalesce)
        calls = [worker.start(reading) for worker in face.workers(20, locks)]
        try:
            eventually(lambda: read[0] > 200, "readers at work")
            writer, before = face.worker(locks), read[0]
            began = time.monotonic()
            writer.acquire("k", timeout=60).release()
            assert time.monotonic() - began < AT_ONCE
            eventually(lambda: read[0] > before + 20, "readers go on")
        finally:
            stop.set()
        for call in calls:
            call.result()


def open_descriptors() -> int:
    """How many this process has open."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        pytest.skip("open descriptors are counted in /proc")


class TestLeaving:
    """Who gives up waiting leaves nothing behind."""

    @pytest.mark.covers("L-9")
    def test_a_waiter_that_timed_out_is_not_in_line_any_more(self, face: Face) -> None:
        a, b, c = face.workers(3)
        hold = a.acquire("k")
        with pytest.raises(LockTimeout):
            b.acquire("k", timeout=SOON)
        assert not face.waiters("k")
        hold.release()
        assert c.can_take("k")

    @pytest.mark.covers("L-9")
    def test_those_behind_one_that_gave_up_move_on(self, face: Face) -> None:
        a, b, c = face.workers(3)
        hold = a.acquire("k")
        leaving = b.start_acquire("k", timeout=SOON)
        face.until_waiting("k", unless=leaving)
        staying = c.start_acquire("k", timeout=60)
        assert isinstance(leaving.error(), LockTimeout)
        hold.release()
        staying.result().release()

    @requires("shared")
    @pytest.mark.covers("L-9")
    def test_a_writer_that_gave_up_lets_readers_in_again(self, face: Face) -> None:
        a, b, c = face.workers(3)
        with a.acquire("k", mode="shared"):
            leaving = b.start_acquire("k", timeout=SOON)
            face.until_waiting("k", unless=leaving)
            behind = c.start_acquire("k", mode="shared", timeout=60)
            assert isinstance(leaving.error(), LockTimeout)
            behind.result().release()

    @pytest.mark.covers("L-9", "L-19")
    def test_giving_up_the_second_key_gives_back_the_first(self, face: Face) -> None:
        a, b, c = face.workers(3)
        with a.acquire("k2"):
            with pytest.raises(LockTimeout):
                b.acquire("k1", "k2", "k3", timeout=SOON)
            assert c.can_take("k1")
            assert c.can_take("k3")

    @pytest.mark.covers("L-9", "L-32")
    def test_closing_the_locks_object_ends_its_waits(self, face: Face) -> None:
        a, b = face.worker(), face.worker(label="to be closed")
        other = face.worker(b.locks)
        with a.acquire("k"):
            waiting = b.start_acquire("k", timeout=60)
            face.until_waiting("k")
            other.close()
            assert isinstance(waiting.error(), UsageError)
            assert not face.waiters("k")

    @pytest.mark.covers("L-10")
    def test_a_timeout_that_meets_the_grant_leaves_no_phantom(self, face: Face, scaled: Callable[[int], int]) -> None:
        """Each waits for about as long as the other one holds, so that timeout and grant keep meeting."""
        pairs, tick = 8, 0.001
        rounds = max(1, scaled(10_000) // (2 * pairs))
        outcomes = {"granted": 0, "timed out": 0}

        def work(key: str) -> Callable[[Any], Steps]:
            def steps(locks: Any) -> Steps:
                for _ in range(rounds):
                    try:
                        hold = yield locks.lock(key, timeout=tick).acquire()
                    except LockTimeout:
                        outcomes["timed out"] += 1
                        continue
                    outcomes["granted"] += 1
                    yield face.sleep(tick * random.uniform(0.6, 1.2))
                    yield hold.release()

            return steps

        keys = [f"k{number}" for number in range(pairs)]
        for call in [worker.start(work(key)) for key in keys for worker in face.workers(2)]:
            call.result()
        assert not face.who()
        checker = face.worker()
        assert [key for key in keys if not checker.can_take(key)] == []
        assert min(outcomes.values()) > rounds // 10, outcomes

    @pytest.mark.slow
    @pytest.mark.covers("L-11")
    def test_a_thousand_waiters_need_no_more_descriptors_than_ten(
        self, face: Face, scaled: Callable[[int], int]
    ) -> None:
        """One of them talks to the backend for all; tasks cost nothing else, threads only themselves."""
        locks = face.locks(timeout=None)
        hold = face.worker().acquire("k")
        calls: list[Any] = []

        def take(locks: Any) -> Steps:
            mine = yield locks.lock("k").acquire()
            yield mine.release()

        def crowd(count: int) -> int:
            calls.extend(worker.start(take) for worker in face.workers(count, locks))
            eventually(lambda: locks.statistics().waiting == len(calls), f"{len(calls)} waiters")
            return open_descriptors()

        few = crowd(10)
        many = crowd(scaled(10_000 if face.name == "asyncio" else 1_000) - 10)
        assert many <= few + 2
        hold.release()
        for call in calls:
            call.result()


class TestInsideALoop:
    """The blocking face must not freeze an event loop."""

    @pytest.mark.covers("L-12")
    def test_a_blocking_wait_inside_a_running_loop_is_refused(self, thread_face: Face) -> None:
        a = thread_face.worker()
        locks = thread_face.locks()

        async def inside() -> None:
            with pytest.raises(UsageError, match="AsyncLocks"):
                locks.lock("k", timeout=60).acquire()
            with pytest.raises(UsageError, match="AsyncLocks"), locks.lock("k", timeout=None):
                raise AssertionError("inside")

        with a.acquire("k"):
            asyncio.run(inside())
            assert not thread_face.waiters("k")

    @pytest.mark.covers("L-12")
    def test_what_does_not_wait_is_allowed_there(self, thread_face: Face) -> None:
        a = thread_face.worker()
        locks = thread_face.locks()

        async def inside() -> None:
            assert locks.lock("k").try_acquire() is None
            with pytest.raises(LockTimeout):
                locks.lock("k", timeout=0).acquire()
            with locks.lock("free", timeout=60) as hold:
                hold.check()
            assert [record.key for record in locks.who("k")] == ["k"]

        with a.acquire("k"):
            asyncio.run(inside())
