"""Exclusion: never two in, which keys are the same key, no re-entry, fences that grow."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from takehold.core.key import AnyKey, Key, advisory
from takehold.errors import LockTimeout, WouldDeadlock
from takehold.testing.faces import Face, Steps
from takehold.testing.suite.fixtures import requires
from takehold.testing.witness import Witness

__all__ = ["TestExclusion", "TestFences", "TestKeys", "TestReentry"]

AT_ONCE = 5.0
"""Seconds that stand for "at once" on a loaded machine, far below any timeout that is given."""


def line_of(work: Callable[..., Any]) -> str:
    """`file:line` of a lambda."""
    return f"{work.__code__.co_filename}:{work.__code__.co_firstlineno}"


class TestExclusion:
    """Never two exclusive holds on a key, never a shared one beside an exclusive one."""

    @pytest.mark.covers("L-1")
    def test_a_held_key_is_not_given_to_anybody_else(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        assert b.try_acquire("k") is None
        with pytest.raises(LockTimeout):
            b.acquire("k", timeout=0)
        hold.release()
        b.acquire("k", timeout=0).release()

    @pytest.mark.covers("L-1")
    def test_two_locks_objects_exclude_each_other(self, face: Face) -> None:
        a, b = face.worker(label="one"), face.worker(label="two")
        with a.acquire("k"):
            assert b.try_acquire("k") is None
        assert b.can_take("k")

    @pytest.mark.covers("L-1")
    def test_among_100_workers_the_number_inside_never_reads_2(self, face: Face, scaled: Callable[[int], int]) -> None:
        witness, rounds = Witness(), scaled(50)
        objects = [face.locks(timeout=None), face.locks(timeout=None)]

        def work(locks: Any) -> Steps:
            for _ in range(rounds):
                hold = yield locks.lock("k").acquire()
                witness.enter()
                yield
                witness.leave()
                yield hold.release()

        calls = [face.worker(objects[number % 2]).start(work) for number in range(100)]
        for call in calls:
            call.result()
        assert witness.most_writers == 1
        assert witness.entered == 100 * rounds

    @pytest.mark.covers("L-1")
    def test_with_both_faces_at_once_the_number_inside_never_reads_2(
        self, both_faces: tuple[Face, Face], scaled: Callable[[int], int]
    ) -> None:
        witness, rounds = Witness(), scaled(300)

        def work(locks: Any) -> Steps:
            for _ in range(rounds):
                hold = yield locks.lock("k", timeout=None).acquire()
                witness.enter()
                yield
                witness.leave()
                yield hold.release()

        calls = [worker.start(work) for face in both_faces for worker in face.workers(4)]
        for call in calls:
            call.result()
        assert witness.most_writers == 1
        assert witness.entered == 8 * rounds

    @requires("shared")
    @pytest.mark.covers("L-1")
    def test_readers_share_a_key_and_keep_a_writer_out(self, face: Face) -> None:
        a, b, c = face.workers(3)
        first, second = a.acquire("k", mode="shared"), b.acquire("k", mode="shared")
        assert c.try_acquire("k") is None
        first.release()
        assert c.try_acquire("k") is None
        second.release()
        assert c.can_take("k")

    @requires("shared")
    @pytest.mark.covers("L-1")
    @pytest.mark.parametrize("coalesce", [True, False])
    def test_a_writer_keeps_readers_out(self, face: Face, coalesce: bool) -> None:
        a, b = face.workers(2, face.locks(coalesce=coalesce))
        with a.acquire("k"):
            assert b.try_acquire("k", mode="shared") is None
        with b.acquire("k", mode="shared"):
            assert a.can_take("k", mode="shared")

    @requires("shared")
    @pytest.mark.covers("L-1")
    @pytest.mark.parametrize("coalesce", [True, False])
    def test_readers_and_writers_never_meet(self, face: Face, coalesce: bool, scaled: Callable[[int], int]) -> None:
        witness, rounds = Witness(), scaled(200)

        def work(number: int) -> Callable[[Any], Steps]:
            def steps(locks: Any) -> Steps:
                for turn in range(rounds):
                    shared = (turn + number) % 3 > 0
                    hold = yield locks.lock("k", mode="shared" if shared else "exclusive", timeout=None).acquire()
                    witness.enter(shared=shared)
                    yield
                    witness.leave(shared=shared)
                    yield hold.release()

            return steps

        workers = face.workers(12, face.locks(coalesce=coalesce))
        for call in [worker.start(work(number)) for number, worker in enumerate(workers)]:
            call.result()
        assert (witness.most_writers, witness.mixed) == (1, 0)
        assert witness.entered == 12 * rounds

    @pytest.mark.covers("L-1")
    def test_releasing_twice_does_not_free_the_key_of_the_next_holder(self, face: Face) -> None:
        a, b, c = face.workers(3)
        first = a.acquire("k")
        first.release()
        with b.acquire("k"):
            first.release()
            assert c.try_acquire("k") is None

    @pytest.mark.covers("L-1")
    def test_one_request_used_again_takes_the_key_again(self, face: Face) -> None:
        a, b = face.workers(2)
        request = a.locks.lock("k")
        for _ in range(3):
            hold = a.do(lambda _: request.acquire())
            assert b.try_acquire("k") is None
            hold.release()
        assert b.can_take("k")


COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")


class TestKeys:
    """Which keys are the same key."""

    @pytest.mark.covers("L-2")
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            pytest.param("orders", "Orders", id="case"),
            pytest.param("orders", "orders ", id="a trailing space"),
            pytest.param(" orders", "orders", id="a leading space"),
            pytest.param(COMPOSED, DECOMPOSED, id="Unicode normal form"),
            pytest.param("x" * 999 + "y", "x" * 999 + "z", id="the last of 1000 characters"),
            pytest.param("a/b", Key("a", "b"), id="text and Key"),
            pytest.param(Key("a/b"), Key("a", "b"), id="a slash in a part"),
            pytest.param(Key("a", "b"), Key("a", "b", "c"), id="parent and child"),
            pytest.param("1", "01", id="leading zero"),
            pytest.param("ss", "ß", id="case folding"),
        ],
    )
    def test_keys_that_look_alike_are_different_keys(self, face: Face, one: AnyKey, other: AnyKey) -> None:
        a, b = face.workers(2)
        with a.acquire(one):
            assert b.can_take(other)
            assert not b.can_take(one)
        with a.acquire(other):
            assert b.can_take(one)
            assert not b.can_take(other)

    @pytest.mark.covers("L-2", "L-33")
    def test_a_number_is_not_the_text_of_that_number(self, face: Face) -> None:
        number = face.number()
        a, b = face.workers(2)
        with a.acquire(advisory(number)):
            assert b.can_take(str(number))
            assert b.can_take(f"#{number}")
            assert not b.can_take(advisory(number, label="a label changes nothing"))

    @pytest.mark.covers("L-2")
    def test_parts_that_read_the_same_make_the_same_key(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire(Key("orders", 42)):
            assert not b.can_take(Key("orders", "42"))

    @pytest.mark.covers("L-2", "L-32")
    @pytest.mark.parametrize("key", ["x" * 1024, "é" * 512, "\U0001f512" * 256, " ", "\n", "*", "%", "..", "'; --"])
    def test_any_text_up_to_a_kibibyte_is_a_key(self, face: Face, key: str) -> None:
        a, b = face.workers(2)
        with a.acquire(key) as hold:
            assert hold.keys == (key,)
            assert not b.can_take(key)
            assert [record.key for record in face.who()] == [key]
        assert b.can_take(key)


class TestReentry:
    """The same thread or task asking again is told so; any other simply waits."""

    @pytest.mark.covers("L-4")
    def test_waiting_for_a_key_one_already_holds_raises_at_once_and_names_both_lines(self, face: Face) -> None:
        a = face.worker()
        first = lambda locks: locks.lock("k").acquire()  # noqa: E731 - its line is the point
        again = lambda locks: locks.lock("k", timeout=60).acquire()  # noqa: E731
        hold = a.do(first)
        began = time.monotonic()
        with pytest.raises(WouldDeadlock) as caught:
            a.do(again)
        assert time.monotonic() - began < AT_ONCE
        assert line_of(first) in str(caught.value)
        assert line_of(again) in str(caught.value)
        assert caught.value.key == "k"
        hold.check()
        hold.release()

    @pytest.mark.covers("L-4")
    def test_a_second_locks_object_does_not_hide_it(self, face: Face) -> None:
        a, other = face.worker(), face.locks(label="another object")
        with a.acquire("k"), pytest.raises(WouldDeadlock):
            a.do(lambda _: other.lock("k", timeout=60).acquire())

    @pytest.mark.covers("L-4", "L-7")
    def test_trying_answers_none_and_one_attempt_is_a_timeout(self, face: Face) -> None:
        a = face.worker()
        with a.acquire("k") as hold:
            assert a.try_acquire("k") is None
            with pytest.raises(LockTimeout):
                a.acquire("k", timeout=0)
            hold.check()
        assert a.can_take("k")

    @requires("shared")
    @pytest.mark.covers("L-4")
    @pytest.mark.parametrize(
        ("first", "second"), [("shared", "shared"), ("shared", "exclusive"), ("exclusive", "shared")]
    )
    def test_no_mode_re_enters_another(self, face: Face, first: str, second: str) -> None:
        a = face.worker()
        with a.acquire("k", mode=first):
            with pytest.raises(WouldDeadlock):
                a.acquire("k", mode=second, timeout=60)
            assert a.try_acquire("k", mode=second) is None

    @pytest.mark.covers("L-4")
    def test_another_worker_of_the_same_process_simply_waits(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        assert not waiting.done
        hold.release()
        waiting.result().release()

    @pytest.mark.covers("L-4")
    def test_after_a_release_by_another_worker_the_taker_may_wait_again(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        hold.release(by=b)
        with b.acquire("k"):
            again = a.start_acquire("k", timeout=60)
            face.until_waiting("k")
        again.result().release()

    @pytest.mark.covers("L-4")
    def test_a_hold_given_to_another_worker_is_that_workers_hold(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        hold.give(b.party)
        with pytest.raises(WouldDeadlock):
            b.acquire("k", timeout=60)
        waiting = a.start_acquire("k", timeout=60)
        face.until_waiting("k")
        hold.release(by=b)
        waiting.result().release()


def grows(numbers: list[int]) -> bool:
    """Whether each is greater than the one before."""
    return all(earlier < later for earlier, later in pairwise(numbers))


@requires("fence")
class TestFences:
    """A number that only grows per key."""

    @pytest.mark.covers("L-5")
    def test_what_init_makes_is_made_once_and_holds_have_fences(self, face: Face) -> None:
        a = face.worker()
        assert a.do(lambda locks: locks.init())
        assert a.do(lambda locks: locks.init())
        with a.acquire("k") as hold:
            assert hold.fence > 0

    @pytest.mark.covers("L-5")
    def test_each_hold_of_a_key_has_a_greater_fence(self, face: Face) -> None:
        workers = face.workers(3)
        fences = []
        for turn in range(30):
            with workers[turn % 3].acquire("k") as hold:
                fences.append(hold.fence)
        assert fences[0] > 0
        assert grows(fences)

    @pytest.mark.covers("L-5")
    def test_a_hand_over_to_a_waiter_is_a_new_fence(self, face: Face) -> None:
        first, *others = face.workers(6)
        hold = first.acquire("k")
        fences = [hold.fence]
        waiting = []
        for number, worker in enumerate(others, 1):
            waiting.append(worker.start_acquire("k", timeout=60))
            face.until_waiting("k", number)
        for call in waiting:
            hold.release()
            hold = call.result()
            fences.append(hold.fence)
        hold.release()
        assert grows(fences)

    @requires("shared")
    @pytest.mark.covers("L-5")
    def test_a_writer_after_readers_has_a_greater_fence_than_each_of_them(self, face: Face) -> None:
        workers = face.workers(4)
        readers = [worker.acquire("k", mode="shared") for worker in workers]
        fences = [reader.fence for reader in readers]
        for reader in readers:
            reader.release()
        with workers[0].acquire("k") as hold:
            assert hold.fence > max(fences)

    @pytest.mark.covers("L-5")
    def test_a_hold_of_several_keys_has_the_newest_of_their_fences(self, face: Face) -> None:
        a = face.worker()
        with a.acquire("x", "y", "z") as hold:
            fences = [fence for _, _, fence in hold.grants]
            assert hold.fence == max(fences)
            assert len(fences) == 3

    @pytest.mark.covers("L-5")
    def test_the_fence_stays_the_same_for_as_long_as_the_hold(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k") as hold:
            fence = hold.fence
            assert b.try_acquire("k") is None
            assert hold.fence == fence

    @pytest.mark.covers("L-5")
    def test_fences_grow_through_a_storm_of_waiters(self, face: Face, scaled: Callable[[int], int]) -> None:
        rounds, fences = scaled(200), list[int]()

        def work(locks: Any) -> Steps:
            for _ in range(rounds):
                hold = yield locks.lock("k", timeout=None).acquire()
                fences.append(hold.fence)  # under the lock: in the order of the holds
                yield
                yield hold.release()

        workers = face.workers(8)
        for call in [worker.start(work) for worker in workers]:
            call.result()
        assert len(fences) == 8 * rounds
        assert grows(fences)
