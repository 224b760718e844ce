"""Seeing: who holds, who waits, since when, from which line; ending another's hold; counting; namespaces."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

from takehold.core.events import LockEvent
from takehold.core.key import Key, advisory
from takehold.errors import HoldLost, LockTimeout
from takehold.testing.faces import Face, eventually
from takehold.testing.faults import lose
from takehold.testing.suite.exclusion import AT_ONCE, line_of
from takehold.testing.suite.fixtures import requires

__all__ = ["TestCounting", "TestEvict", "TestNamespaces", "TestWho"]


class TestWho:
    """`who` lists holders and waiters by key text."""

    @pytest.mark.covers("L-28")
    def test_a_holder_is_listed_with_everything_that_is_known_of_it(self, face: Face) -> None:
        a = face.worker(label="api")
        take = lambda locks: locks.lock("orders/42").acquire()  # noqa: E731 - its line is the point
        with a.do(take) as hold:
            (record,) = face.who()
            assert (record.key, record.mode, record.state) == ("orders/42", "exclusive", "held")
            assert record.id == hold.id
            assert record.fence == hold.fence
            assert record.namespace == face.namespace
            assert record.owner == hold.owner
            assert (record.owner.host, record.owner.pid) == (socket.gethostname(), os.getpid())
            assert (record.owner.label, record.owner.site) == ("api", line_of(take))
            assert abs(record.since.timestamp() - time.time()) < AT_ONCE
            assert 0 <= record.age < AT_ONCE
            assert not record.silent
        assert face.who() == []

    @pytest.mark.covers("L-28")
    def test_a_waiter_is_listed_with_what_is_in_its_way(self, face: Face) -> None:
        a, b = face.worker(), face.worker(label="patient")
        ask = lambda locks: locks.lock("k", timeout=60).acquire()  # noqa: E731
        with a.acquire("k") as hold:
            waiting = b.start(ask)
            face.until_waiting("k")
            (record,) = face.waiters("k")
            assert (record.key, record.mode, record.state) == ("k", "exclusive", "waiting")
            assert (record.owner.label, record.owner.site) == ("patient", line_of(ask))
            assert record.fence is None
            assert record.blocked_by == (hold.id,)
            assert 0 <= record.age < AT_ONCE
        waiting.result().release()

    @requires("shared")
    @pytest.mark.covers("L-28")
    def test_every_reader_is_listed(self, face: Face) -> None:
        holds = [worker.acquire("k", mode="shared") for worker in face.workers(3)]
        records = face.holders("k")
        assert [record.mode for record in records] == ["shared"] * 3
        assert {record.id for record in records} == {hold.id for hold in holds}
        assert {record.fence for record in records} == {hold.fence for hold in holds}
        for hold in holds:
            hold.release()

    @pytest.mark.covers("L-28")
    def test_every_key_of_a_hold_is_listed(self, face: Face) -> None:
        with face.worker().acquire("x", "y", Key("z", 1)):
            assert [record.key for record in face.who()] == ["x", "y", "z/1"]

    @pytest.mark.covers("L-28")
    def test_a_pattern_chooses_by_key_text(self, face: Face) -> None:
        a = face.worker()
        with a.acquire("orders/1", "orders/2", "Orders/3", "stock/1"):
            assert [record.key for record in face.who("orders/*")] == ["orders/1", "orders/2"]
            assert [record.key for record in face.who("stock/1")] == ["stock/1"]
            assert face.who("orders") == []

    @pytest.mark.covers("L-28", "L-33")
    def test_a_number_is_shown_with_its_label(self, face: Face) -> None:
        number = face.number()
        with face.worker().acquire(advisory(number, label="migrations")):
            (record,) = face.who()
            assert record.key == f"#{number} migrations"
            assert record.namespace == ""

    @pytest.mark.covers("L-28")
    def test_slashes_inside_a_part_are_told_from_those_between(self, face: Face) -> None:
        with face.worker().acquire(Key("a/b", "100%")):
            assert [record.key for record in face.who()] == ["a%2Fb/100%25"]

    @pytest.mark.covers("L-28")
    def test_busy_keys_by_prefix(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("orders/1", "stock/1"):
            waiting = b.start_acquire("orders/1", timeout=60)
            face.until_waiting("orders/1")
            assert a.do(lambda locks: locks.busy("orders/")) == {"orders/1"}
            assert {"orders/1", "stock/1"} <= a.do(lambda locks: locks.busy())
            assert a.do(lambda locks: locks.busy("rates/")) == set()
        waiting.result().release()

    @pytest.mark.covers("L-28", "L-30")
    def test_a_record_can_be_written_as_json(self, face: Face) -> None:
        with face.worker(label="api").acquire("k") as hold:
            facts = json.loads(json.dumps(face.who()[0].as_dict(stuck_after=3600)))
        assert facts["format"] == 1
        assert (facts["key"], facts["state"], facts["fence"]) == ("k", "held", hold.fence)
        assert facts["owner"]["label"] == "api"
        assert facts["stuck"] is False

    @pytest.mark.covers("L-30")
    def test_a_hold_older_than_a_threshold_is_flagged_as_stuck(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("old"):
            waiting = b.start_acquire("old", timeout=60)
            face.until_waiting("old")
            eventually(lambda: all(record.age > 0.001 for record in face.who()))
            stuck = [r for r in a.who("old", stuck_after=0.001) if r.namespace == face.namespace]
            assert [record.state for record in stuck] == ["held"]
            assert stuck[0].stuck(0.001)
            assert not stuck[0].stuck()
            assert [r for r in a.who("old", stuck_after=3600) if r.namespace == face.namespace] == []
        waiting.result().release()


@requires("evict")
class TestEvict:
    """An operator ends exactly one hold; its owner is told, and keeps the others."""

    @pytest.mark.covers("L-29")
    def test_the_owner_of_an_evicted_hold_sees_hold_lost_and_keeps_its_other_holds(self, face: Face) -> None:
        a, b = face.workers(2)
        victim, other = a.acquire("k"), a.acquire("other")
        told: list[str] = []
        victim.on_lost(lambda: told.append("told"))
        assert b.do(lambda locks: locks.evict(victim.id)) is True
        eventually(lambda: told)
        assert victim.lost
        with pytest.raises(HoldLost, match="evicted"):
            victim.check()
        other.check()
        assert b.can_take("k")
        assert not b.can_take("other")
        other.release()

    @pytest.mark.covers("L-29")
    def test_an_id_names_one_hold_and_never_the_next_one_on_the_key(self, face: Face) -> None:
        a, b = face.workers(2)
        first = a.acquire("k")
        old = first.id
        first.release()
        with a.acquire("k") as second:
            assert second.id != old
            b.do(lambda locks: locks.evict(old))
            second.check()

    @pytest.mark.covers("L-29")
    def test_evicting_what_is_gone_already_succeeds(self, face: Face) -> None:
        """True says: it is gone. That is what was asked for."""
        a, b = face.workers(2)
        hold = a.acquire("k")
        gone = hold.id
        hold.release()
        assert b.do(lambda locks: locks.evict(gone)) is True

    @pytest.mark.covers("L-29")
    def test_a_waiter_gets_the_key_of_an_evicted_hold(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        a.do(lambda locks: locks.evict(hold.id))
        waiting.result(AT_ONCE).release()
        assert hold.lost

    @requires("shared")
    @pytest.mark.covers("L-29")
    def test_one_reader_is_evicted_and_the_others_stay(self, face: Face) -> None:
        a, b, c = face.workers(3)
        one, two = a.acquire("k", mode="shared"), b.acquire("k", mode="shared")
        c.do(lambda locks: locks.evict(one.id))
        eventually(lambda: one.lost)
        two.check()
        assert not c.can_take("k")
        two.release()
        assert c.can_take("k")


class TestCounting:
    """Events and counts per key template."""

    @pytest.mark.covers("L-30")
    def test_everything_is_counted_per_template(self, face: Face) -> None:
        a, b = face.worker(label="counted"), face.worker()
        a.locks.statistics()
        for number in range(3):
            a.acquire(f"orders/{number}").release()
        a.acquire(Key("users", 7)).release()
        with b.acquire("orders/1"), pytest.raises(LockTimeout):
            a.acquire("orders/1", timeout=0.01)
        lost = a.acquire("orders/9")
        lose(lost.hold)
        counts = a.locks.statistics().templates
        assert set(counts) == {"orders/*", "users/*"}
        orders = counts["orders/*"]
        assert (orders.acquired, orders.released, orders.lost) == (4, 3, 1)
        assert (orders.timeouts, orders.waited) == (1, 1)
        assert 0.01 <= orders.wait_seconds < AT_ONCE
        assert 0 < orders.hold_seconds < AT_ONCE

    @pytest.mark.covers("L-30")
    def test_held_and_waiting_are_counted_as_they_are_now(self, face: Face) -> None:
        a, b = face.workers(2)
        locks = a.locks
        with a.acquire("orders/1", "orders/2"):
            waiting = b.start_acquire("orders/1", timeout=60)
            face.until_waiting("orders/1")
            now = locks.statistics()
            assert (now.held, now.waiting) == (2, 1)
            assert now.templates["orders/*"].queue == 1
        waiting.result().release()
        now = locks.statistics()
        assert (now.held, now.waiting) == (0, 0)
        assert now.templates["orders/*"].queue == 0

    @pytest.mark.covers("L-30")
    def test_the_number_of_templates_is_bounded(self, face: Face) -> None:
        a = face.worker(label="counted")
        a.locks.statistics()
        a.acquire(*(f"name-{_letters(number)}" for number in range(1_050))).release()
        counts = a.locks.statistics().templates
        assert len(counts) <= 1_001
        assert counts["(other)"].acquired >= 50
        assert sum(one.acquired for one in counts.values()) == 1_050

    @pytest.mark.covers("L-30")
    def test_a_listener_hears_what_happens(self, face: Face) -> None:
        a, b = face.worker(label="heard"), face.worker()
        events: list[LockEvent] = []
        stop = a.locks.listen(events.append)
        take = lambda locks: locks.lock("orders/1").acquire()  # noqa: E731
        hold = a.do(take)
        hold.release()
        with b.acquire("orders/1"), pytest.raises(LockTimeout):
            a.acquire("orders/1", timeout=0.01)
        stop()
        a.acquire("orders/1").release()
        assert [event.kind for event in events] == ["acquired", "released", "timeout", "waited"]
        acquired, released, timeout, _ = events
        assert (acquired.key, acquired.template, acquired.mode) == ("orders/1", "orders/*", "exclusive")
        assert acquired.site == line_of(take)
        assert acquired.fence == released.fence
        assert released.seconds > 0
        assert timeout.seconds >= 0.01

    @pytest.mark.covers("L-30")
    def test_a_wait_that_was_granted_is_heard_with_its_length(self, face: Face) -> None:
        a, b = face.worker(), face.worker(label="heard")
        events: list[LockEvent] = []
        b.locks.listen(events.append)
        hold = a.acquire("k")
        waiting = b.start_acquire("k", timeout=60)
        face.until_waiting("k")
        hold.release()
        waiting.result().release()
        kinds = {event.kind: event for event in events}
        assert {"waited", "acquired", "released"} <= set(kinds)
        assert kinds["waited"].seconds > 0
        assert kinds["acquired"].seconds == pytest.approx(kinds["waited"].seconds, abs=AT_ONCE)
        assert kinds["acquired"].seconds > 0

    @pytest.mark.covers("L-30")
    def test_a_listener_that_fails_is_not_felt(self, face: Face, caplog: pytest.LogCaptureFixture) -> None:
        a = face.worker(label="heard")

        def failing(_: LockEvent) -> None:
            raise ZeroDivisionError

        a.locks.listen(failing)
        a.acquire("k").release()
        assert "a listener failed" in caplog.text


def _letters(number: int) -> str:
    """A name that no template takes for a number."""
    return "".join("ghijklmnop"[int(digit)] for digit in str(number))


class TestNamespaces:
    """`namespace=` keeps two applications on one backend apart."""

    @pytest.mark.covers("L-37")
    def test_the_same_key_in_another_namespace_is_another_key(self, face: Face) -> None:
        a = face.worker(namespace=f"{face.namespace}-shop")
        b = face.worker(namespace=f"{face.namespace}-blog")
        c = face.worker(namespace=f"{face.namespace}-shop")
        with a.acquire("k"), b.acquire("k", timeout=0):
            assert not c.can_take("k")
            assert {(record.key, record.namespace) for record in face.who()} == {
                ("k", f"{face.namespace}-shop"),
                ("k", f"{face.namespace}-blog"),
            }

    @pytest.mark.covers("L-37")
    def test_a_namespace_is_no_prefix_of_the_key(self, face: Face) -> None:
        a = face.worker(namespace=f"{face.namespace}a")
        b = face.worker(namespace=face.namespace)
        with a.acquire("k"):
            assert b.can_take("ak")
            assert b.can_take("k")

    @pytest.mark.covers("L-37")
    def test_trees_of_two_namespaces_are_two_trees(self, face: Face) -> None:
        a = face.worker(namespace=f"{face.namespace}-shop")
        b = face.worker(namespace=f"{face.namespace}-blog")
        with a.acquire(Key("wh"), subtree=True):
            assert b.can_take(Key("wh", "eu"))

    @pytest.mark.covers("L-33", "L-37")
    def test_numbers_stand_outside_of_every_namespace(self, face: Face) -> None:
        a = face.worker(namespace=f"{face.namespace}-shop")
        b = face.worker(namespace=f"{face.namespace}-blog")
        number = face.number()
        with a.acquire(advisory(number)):
            assert not b.can_take(advisory(number))
