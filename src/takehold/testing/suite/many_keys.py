"""Several keys: one order for everybody, all or nothing, trees, and orders that would deadlock one day."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from takehold.core.key import AnyKey, Key, advisory
from takehold.core.want import shared
from takehold.errors import LockOrderWarning, LockTimeout, UsageError, WouldDeadlock
from takehold.testing.faces import Face, Steps, Work
from takehold.testing.suite.exclusion import AT_ONCE, line_of
from takehold.testing.suite.fixtures import requires

__all__ = ["TestDeadlocks", "TestOrder", "TestSeveralKeys", "TestTrees"]


class TestSeveralKeys:
    """Sorted by the library, merged, granted together or not at all."""

    @pytest.mark.covers("L-19")
    def test_keys_are_taken_in_the_byte_order_of_their_text_and_numbers_last(self, face: Face) -> None:
        low, high = sorted((face.number(), face.number()))
        asked: list[AnyKey] = ["z", advisory(high), "é", "Z", Key("y", "a"), "\U00010000", advisory(low), "\uffff", "a"]
        with face.worker().acquire(*asked) as hold:
            assert hold.keys == (
                "Z", "a", Key("y", "a"), "z", "é", "\uffff", "\U00010000", advisory(low), advisory(high),
            )  # fmt: skip

    @pytest.mark.covers("L-19")
    def test_duplicates_are_merged(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("x", "y", "x", "x") as hold:
            assert hold.keys == ("x", "y")
        assert b.can_take("x", "y")

    @requires("shared")
    @pytest.mark.covers("L-19")
    @pytest.mark.parametrize("keys", [("x", shared("x")), (shared("x"), "x")])
    def test_exclusive_wins_over_shared(self, face: Face, keys: tuple[Any, ...]) -> None:
        a, b = face.workers(2)
        with a.acquire(*keys) as hold:
            assert hold.mode.value == "exclusive"
            assert b.try_acquire("x", mode="shared") is None

    @requires("shared")
    @pytest.mark.covers("L-19")
    def test_each_key_can_have_its_own_mode(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("acct/7", shared("rates")) as hold:
            assert b.can_take("rates", mode="shared")
            assert not b.can_take("rates")
            assert not b.can_take("acct/7", mode="shared")
            assert [(key, mode.value) for key, mode, _ in hold.grants] == [
                ("acct/7", "exclusive"),
                ("rates", "shared"),
            ]
            with pytest.raises(UsageError, match="both modes"):
                _ = hold.mode

    @pytest.mark.covers("L-19")
    @pytest.mark.parametrize("busy", ["a", "b", "c"])
    def test_all_or_nothing(self, face: Face, busy: str) -> None:
        a, b, c = face.workers(3)
        rest = [key for key in "abc" if key != busy]
        with a.acquire(busy):
            assert b.try_acquire("a", "b", "c") is None
            assert c.can_take(*rest)
            with pytest.raises(LockTimeout) as caught:
                b.acquire("a", "b", "c", timeout=0)
            assert caught.value.key == busy
            assert c.can_take(*rest)
        assert c.can_take("a", "b", "c")

    @pytest.mark.covers("L-19")
    def test_one_release_gives_back_all_of_them(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("a", "b", "c")
        assert not b.can_take("b")
        hold.release()
        assert b.can_take("a", "b", "c")

    @pytest.mark.covers("L-19", "L-21")
    def test_opposite_orders_never_deadlock(self, face: Face, scaled: Callable[[int], int]) -> None:
        rounds, inside = scaled(500), list[int]()

        def work(*keys: str) -> Callable[[Any], Steps]:
            def steps(locks: Any) -> Steps:
                for _ in range(rounds):
                    hold = yield locks.lock(*keys, timeout=60).acquire()
                    inside.append(1)
                    yield
                    yield hold.release()

            return steps

        orders = [("x", "y", "z"), ("z", "y", "x"), ("y", "z"), ("z", "x")]
        calls = [worker.start(work(*keys)) for keys, worker in zip(orders, face.workers(4), strict=True)]
        for call in calls:
            call.result()
        assert len(inside) == 4 * rounds

    @pytest.mark.covers("L-19")
    def test_a_hundred_keys_at_once(self, face: Face) -> None:
        a, b = face.workers(2)
        keys = [f"k{number:03}" for number in range(100)]
        with a.acquire(*reversed(keys)) as hold:
            assert hold.keys == tuple(keys)
            assert not b.can_take("k050")
        assert b.can_take(*keys)


WAREHOUSE, EUROPE, ORDERS = Key("wh"), Key("wh", "eu"), Key("wh", "eu", "orders")
ASIA, OTHER = Key("wh", "as"), Key("other")


@requires("shared")
class TestTrees:
    """`subtree=True` on a `Key` excludes every `Key` below, and only that."""

    @pytest.mark.covers("L-20")
    def test_a_subtree_excludes_its_node_and_everything_below(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire(EUROPE, subtree=True):
            for below in (EUROPE, ORDERS, Key("wh", "eu", "orders", 7)):
                assert not b.can_take(below), below
                assert not b.can_take(below, mode="shared"), below
                assert not b.can_take(below, subtree=True), below
        assert b.can_take(ORDERS)

    @pytest.mark.covers("L-20")
    def test_siblings_ancestors_and_strangers_go_on(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire(EUROPE, subtree=True):
            for beside in (ASIA, WAREHOUSE, OTHER, Key("wh", "eur"), Key("wh/eu", "orders")):
                assert b.can_take(beside), beside
            assert b.can_take(ASIA, subtree=True)
            assert not b.can_take(WAREHOUSE, subtree=True)

    @pytest.mark.covers("L-20")
    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    def test_a_subtree_waits_for_whoever_is_below(self, face: Face, mode: str) -> None:
        a, b = face.workers(2)
        hold = a.acquire(ORDERS, mode=mode)
        for above in (WAREHOUSE, EUROPE, ORDERS):
            assert b.try_acquire(above, subtree=True) is None, above
        waiting = b.start_acquire(WAREHOUSE, subtree=True, timeout=60)
        face.until_waiting("wh")
        hold.release()
        waiting.result().release()

    @pytest.mark.covers("L-20")
    def test_keys_below_one_another_are_independent_without_subtree(self, face: Face) -> None:
        a, b, c = face.workers(3)
        with a.acquire(WAREHOUSE), b.acquire(EUROPE), c.acquire(ORDERS):
            assert not a.can_take(ORDERS)

    @pytest.mark.covers("L-20")
    def test_a_plain_string_is_flat(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire(EUROPE, subtree=True):
            assert b.can_take("wh/eu")
            assert b.can_take("wh/eu/orders")
        with a.acquire("wh/eu/orders"):
            assert [record.key for record in face.who()] == ["wh/eu/orders"]
            assert b.can_take(WAREHOUSE, subtree=True)

    @pytest.mark.covers("L-20", "L-32")
    def test_what_a_subtree_cannot_be(self, face: Face) -> None:
        a = face.worker()
        with pytest.raises(UsageError, match="Key"):
            a.acquire("wh/eu", subtree=True)
        with pytest.raises(UsageError, match="exclusive"):
            a.acquire(EUROPE, mode="shared", subtree=True)
        with pytest.raises(UsageError, match="exclusive"):
            a.acquire(shared(EUROPE), subtree=True)

    @pytest.mark.covers("L-20", "L-28")
    def test_only_what_was_asked_for_is_shown(self, face: Face) -> None:
        with face.worker().acquire(ORDERS) as hold:
            assert [(record.key, record.mode) for record in face.who()] == [("wh/eu/orders", "exclusive")]
            assert hold.keys == (ORDERS,)
            assert hold.mode.value == "exclusive"

    @pytest.mark.covers("L-4", "L-20")
    def test_taking_a_key_below_ones_own_subtree_would_deadlock(self, face: Face) -> None:
        a = face.worker()
        with a.acquire(EUROPE, subtree=True):
            with pytest.raises(WouldDeadlock):
                a.acquire(ORDERS, timeout=60)
            assert a.try_acquire(ORDERS) is None

    @pytest.mark.covers("L-7", "L-20")
    def test_a_timeout_below_a_subtree_names_what_was_asked_for_and_who_has_the_tree(self, face: Face) -> None:
        a, b = face.worker(label="tree"), face.worker()
        with a.acquire(EUROPE, subtree=True), pytest.raises(LockTimeout) as caught:
            b.acquire(ORDERS, timeout=0)
        assert "'wh/eu/orders'" in str(caught.value)
        assert caught.value.owner.label == "tree"

    @pytest.mark.covers("L-20", "L-28")
    def test_who_waits_because_of_a_subtree_is_seen_to_wait_for_what_was_asked_for(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire(WAREHOUSE, subtree=True)
        waiting = b.start_acquire(ORDERS, timeout=60)
        face.until_waiting("wh/eu/orders")
        assert {record.key for record in face.who()} == {"wh", "wh/eu/orders"}
        hold.release()
        waiting.result().release()

    @pytest.mark.covers("L-20")
    def test_one_worker_may_hold_two_siblings(self, face: Face) -> None:
        """They share their ancestors, in shared mode; that is not re-entry."""
        a, b = face.workers(2)
        with a.acquire(ASIA), a.acquire(EUROPE):
            assert not b.can_take(WAREHOUSE, subtree=True)
        assert b.can_take(WAREHOUSE, subtree=True)


class Nested:
    """Take one key inside another; `outer` and `inner` are the lines that do it."""

    def __init__(self, first: AnyKey, second: AnyKey) -> None:
        self._outer: Work = lambda locks: locks.lock(first).acquire()
        self._inner: Work = lambda locks: locks.lock(second).acquire()
        self.outer, self.inner = line_of(self._outer), line_of(self._inner)

    def __call__(self, locks: Any) -> Steps:
        one = yield self._outer(locks)
        try:
            two = yield self._inner(locks)
            yield two.release()
        finally:
            yield one.release()


class TestOrder:
    """The order checker speaks up before anything has deadlocked."""

    @pytest.mark.covers("L-21")
    def test_an_inverted_order_is_reported_with_the_lines_of_both(self, face: Face) -> None:
        a = face.worker(check_order="raise")
        forth = Nested("orders/1", "stock/5")
        a.do(forth)
        with pytest.raises(WouldDeadlock, match="inverted") as caught:
            a.do(Nested("stock/9", "orders/3"))
        for part in ("orders/*", "stock/*", forth.outer, forth.inner):
            assert part in str(caught.value)
        assert a.can_take("orders/1", "stock/9")

    @pytest.mark.covers("L-21")
    def test_an_order_inverted_over_a_third_template_is_reported(self, face: Face) -> None:
        a, b = face.workers(2, face.locks(check_order="raise"))
        a.do(Nested("a", "b"))
        a.do(Nested("b", "c"))
        with pytest.raises(WouldDeadlock, match="inverted"):
            b.do(Nested("c", "a"))

    @pytest.mark.covers("L-21")
    def test_two_keys_of_one_template_nested_downwards_are_reported(self, face: Face) -> None:
        a = face.worker(check_order="raise")
        downwards = Nested(Key("acct", 7), Key("acct", 3))
        with pytest.raises(WouldDeadlock, match="descending") as caught:
            a.do(downwards)
        assert downwards.outer in str(caught.value)
        assert downwards.inner in str(caught.value)

    @pytest.mark.covers("L-21")
    def test_one_order_kept_by_everybody_is_fine(self, face: Face) -> None:
        a = face.worker(check_order="raise")
        for first, second in (("acct/3", "acct/7"), ("a", "b"), ("a", "b"), ("a", "c"), ("b", "c")):
            a.do(Nested(first, second))

    @pytest.mark.covers("L-21")
    def test_the_default_warns_and_takes_the_key(self, face: Face) -> None:
        a = face.worker()
        with pytest.warns(LockOrderWarning, match="descending"):
            a.do(Nested("acct/7", "acct/3"))

    @pytest.mark.covers("L-21")
    def test_switched_off_it_says_nothing(self, face: Face) -> None:
        a = face.worker(check_order="off")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            a.do(Nested("acct/7", "acct/3"))

    @pytest.mark.covers("L-21")
    def test_keys_of_one_call_are_sorted_and_need_no_order(self, face: Face) -> None:
        a = face.worker(check_order="raise")
        a.acquire("a", "b").release()
        a.acquire("b", "a").release()

    @pytest.mark.covers("L-21", "L-37")
    def test_orders_of_different_namespaces_are_different_orders(self, face: Face) -> None:
        a = face.worker(check_order="raise", namespace=f"{face.namespace}-one")
        b = face.worker(check_order="raise", namespace=f"{face.namespace}-two")
        a.do(Nested("a", "b"))
        b.do(Nested("b", "a"))


class TestDeadlocks:
    """A cycle inside a process is refused at once."""

    @pytest.mark.covers("L-21")
    @pytest.mark.parametrize("length", [2, 3])
    def test_the_wait_that_would_close_a_cycle_is_refused_at_once(self, face: Face, length: int) -> None:
        workers = face.workers(length, face.locks(check_order="off", timeout=60))
        keys = [f"k{number}" for number in range(length)]
        holds = [worker.acquire(key) for worker, key in zip(workers, keys, strict=True)]
        waits = []
        for worker, key in zip(workers, keys[1:], strict=False):
            waits.append(worker.start_acquire(key))
            face.until_waiting(key)
        began = time.monotonic()
        with pytest.raises(WouldDeadlock, match="would deadlock") as caught:
            workers[-1].acquire(keys[0])
        assert time.monotonic() - began < AT_ONCE
        for key in keys:
            assert repr(key) in str(caught.value)
        # It was the last one that gave up; the others get what they wait for, from the end.
        for hold, waiting in zip(reversed(holds[1:]), reversed(waits), strict=True):
            hold.release()
            waiting.result().release()
        holds[0].release()

    @requires("shared")
    @pytest.mark.covers("L-21")
    def test_two_readers_that_both_want_to_write_are_told(self, face: Face) -> None:
        """Each has a shared hold that the other one's exclusive wait is for, on two keys."""
        a, b = face.workers(2, face.locks(check_order="off", timeout=60))
        one, two = a.acquire("x", mode="shared"), b.acquire("y", mode="shared")
        waiting = a.start_acquire("y")
        face.until_waiting("y")
        with pytest.raises(WouldDeadlock):
            b.acquire("x")
        two.release()
        waiting.result().release()
        one.release()

    @pytest.mark.covers("L-21")
    def test_a_wait_that_is_no_cycle_is_not_refused(self, face: Face) -> None:
        a, b, c = face.workers(3, face.locks(check_order="off", timeout=60))
        one, two = a.acquire("x"), b.acquire("y")
        first = c.start_acquire("x")
        face.until_waiting("x")
        second = a.start_acquire("y")
        face.until_waiting("y")
        two.release()
        second.result().release()
        one.release()
        first.result().release()
