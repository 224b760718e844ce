"""Counting by template, and telling listeners."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

import pytest

from takehold import HoldRecord, LockEvent, Owner
from takehold.core.events import MAX_TEMPLATES, OTHER, Tally, deliver
from takehold.core.record import STUCK_AFTER


def event(kind: str, template: str = "orders/*", seconds: float = 0.0) -> LockEvent:
    return LockEvent(kind, "orders/1", template, "exclusive", 7, "app.py:1", seconds)


@pytest.mark.covers("L-30")
class TestTally:
    def test_each_kind_is_counted(self) -> None:
        tally = Tally()
        for kind, seconds in [
            ("acquired", 0.5), ("waited", 0.5), ("handed over", 0.0), ("released", 2.0), ("timeout", 1.0),
            ("deadlock", 0.0), ("lost", 3.0), ("acquired", 0.0), ("waited", 0.25), ("something new", 1.0),
        ]:  # fmt: skip
            tally(event(kind, seconds=seconds))
        counts = tally.templates([])["orders/*"]
        assert (counts.acquired, counts.waited, counts.handed_over, counts.released) == (2, 2, 1, 1)
        assert (counts.timeouts, counts.deadlocks, counts.lost) == (1, 1, 1)
        assert (counts.wait_seconds, counts.hold_seconds) == (0.75, 2.0)

    def test_templates_are_bounded(self) -> None:
        tally = Tally()
        for number in range(MAX_TEMPLATES + 500):
            tally(event("acquired", f"template-{number}"))
        counts = tally.templates([f"waiting-{number}" for number in range(10)])
        assert len(counts) == MAX_TEMPLATES + 1
        assert counts[OTHER].acquired == 500
        assert counts[OTHER].queue == 10

    def test_the_queue_is_that_of_now(self) -> None:
        tally = Tally()
        assert tally.templates(["a", "a", "b"])["a"].queue == 2
        assert tally.templates(["b"])["a"].queue == 0

    def test_what_is_returned_does_not_change(self) -> None:
        tally = Tally()
        tally(event("acquired"))
        before = tally.templates([])["orders/*"]
        tally(event("acquired"))
        assert before.acquired == 1

    def test_threads_lose_no_count(self) -> None:
        tally = Tally()

        def count() -> None:
            for _ in range(2_000):
                tally(event("acquired"))

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tally.templates([])["orders/*"].acquired == 8_000


class TestDeliver:
    @pytest.mark.covers("L-30")
    def test_a_listener_that_fails_is_logged_and_the_others_hear(self, caplog: pytest.LogCaptureFixture) -> None:
        heard: list[LockEvent] = []

        def failing(_: LockEvent) -> None:
            raise ZeroDivisionError

        with caplog.at_level(logging.ERROR):
            deliver((failing, heard.append), event("acquired"))
        assert [one.kind for one in heard] == ["acquired"]
        assert "a listener failed" in caplog.text


@pytest.mark.covers("L-28", "L-30")
class TestRecord:
    def record(self, state: str = "held", age: float = 10.0) -> HoldRecord:
        owner = Owner("web-3", 4121, "ship", "ship.py:14")
        since = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
        return HoldRecord("id-1", "orders/42", "shop", "exclusive", state, owner, since, age, 7)

    def test_only_an_old_hold_is_stuck(self) -> None:
        assert not self.record(age=STUCK_AFTER).stuck()
        assert self.record(age=STUCK_AFTER + 1).stuck()
        assert self.record(age=2).stuck(1)
        assert not self.record("waiting", age=STUCK_AFTER + 1).stuck()

    @pytest.mark.covers("L-36")
    def test_its_json_is_frozen(self) -> None:
        """Scripts read this; a new format gets a new number."""
        assert self.record().as_dict() == {
            "format": 1,
            "id": "id-1",
            "key": "orders/42",
            "namespace": "shop",
            "mode": "exclusive",
            "state": "held",
            "owner": {"host": "web-3", "pid": 4121, "label": "ship", "site": "ship.py:14"},
            "since": "2026-11-18T12:00:00+00:00",
            "age": 10.0,
            "fence": 7,
            "silent": False,
            "blocked_by": (),
            "stuck": False,
        }

    def test_an_owner_reads_as_a_sentence(self) -> None:
        assert str(self.record().owner) == "web-3:4121 (ship) at ship.py:14"
        assert str(Owner("web-3", 4121, None, "ship.py:14")) == "web-3:4121 at ship.py:14"
