"""Durations as users write them, deadlines, adaptive timeouts and pauses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takehold import AdaptiveTimeout, UsageError
from takehold.core.deadline import Backoff, Deadline, seconds_of


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


@pytest.mark.covers("L-6", "L-32")
class TestSeconds:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            (0, 0.0),
            (2, 2.0),
            (0.5, 0.5),
            (timedelta(milliseconds=1500), 1.5),
            (AdaptiveTimeout(9, 3), 9.0),
            (None, None),
            (math.inf, None),
        ],
    )
    def test_what_a_timeout_can_be(self, given: object, meant: float | None) -> None:
        assert seconds_of(given) == meant

    @pytest.mark.parametrize("given", [-1, -1e-9, timedelta(microseconds=-1), math.nan, True, "1", [], -math.inf])
    def test_what_it_cannot_be(self, given: object) -> None:
        with pytest.raises(UsageError, match="a timeout is seconds, a timedelta, 0"):
            seconds_of(given)


@pytest.mark.covers("L-6")
class TestDeadline:
    def test_it_comes_nearer_and_never_goes_below_nothing(self) -> None:
        clock = Clock()
        deadline = Deadline(clock.now, 2.0)
        assert (deadline.left(), deadline.waited()) == (2.0, 0.0)
        clock.time += 1.5
        assert (deadline.left(), deadline.waited()) == (0.5, 1.5)
        clock.time += 10
        assert (deadline.left(), deadline.waited()) == (0.0, 11.5)

    def test_for_ever_is_for_ever(self) -> None:
        clock = Clock()
        deadline = Deadline(clock.now, None)
        clock.time += 1e9
        assert deadline.left() == math.inf

    def test_nothing_is_over_at_once(self) -> None:
        assert Deadline(Clock().now, 0).left() == 0.0


def feed(timeout: AdaptiveTimeout, waits: Sequence[float | None]) -> float:
    for wait in waits:
        if wait is None:
            timeout.timed_out()
        else:
            timeout.succeeded(wait)
    return timeout.seconds


@pytest.mark.covers("L-6")
class TestAdaptiveTimeout:
    def test_it_starts_where_it_is_told(self) -> None:
        timeout = AdaptiveTimeout(start=30, minimum=5)
        assert timeout.seconds == 30
        assert repr(timeout) == "AdaptiveTimeout(30, minimum=5)"

    def test_it_waits_for_a_full_window_before_it_learns(self) -> None:
        assert feed(AdaptiveTimeout(30, 5), [None] * 15) == 30

    def test_it_grows_by_a_quarter_while_many_waits_fail(self) -> None:
        assert feed(AdaptiveTimeout(30, 5), [None] * 6 + [1.0] * 10) == pytest.approx(37.5)

    def test_it_comes_down_half_of_the_way_to_what_waits_take(self) -> None:
        assert feed(AdaptiveTimeout(30, 5), [0.1] * 15 + [8.0]) == pytest.approx((30 + 1.25 * 8) / 2)

    def test_it_stays_when_some_fail(self) -> None:
        assert feed(AdaptiveTimeout(30, 5), [None] * 3 + [0.1] * 13) == 30

    def test_each_window_counts_once(self) -> None:
        """After a step it looks at the next sixteen, not at the last fifteen again."""
        timeout = AdaptiveTimeout(30, 5)
        feed(timeout, [None] * 16)
        assert feed(timeout, [None] * 15) == pytest.approx(37.5)
        assert feed(timeout, [None]) == pytest.approx(37.5 * 1.25)

    def test_it_never_leaves_its_bounds(self) -> None:
        assert feed(AdaptiveTimeout(30, 5), [0.0] * 16 * 50) == 5
        assert feed(AdaptiveTimeout(30, 5), [None] * 16 * 100) == 86_400

    @given(st.lists(st.one_of(st.none(), st.floats(0, 1000)), max_size=200))
    def test_whatever_happens_it_is_a_timeout(self, waits: list[float | None]) -> None:
        assert 5 <= feed(AdaptiveTimeout(30, 5), waits) <= 86_400

    @pytest.mark.parametrize(("start", "minimum"), [(5, 10), (0, 0), (-1, -2), (5, 0)])
    def test_bad_bounds_are_refused(self, start: float, minimum: float) -> None:
        with pytest.raises(UsageError, match="0 < minimum <= start"):
            AdaptiveTimeout(start, minimum)


class TestBackoff:
    def test_pauses_grow_up_to_the_most(self) -> None:
        backoff = Backoff(0.001, 0.010, lambda: 1.0, factor=2)
        assert [backoff.next() for _ in range(6)] == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.010, 0.010])

    def test_jitter_takes_at_most_half(self) -> None:
        backoff = Backoff(0.001, 0.010, lambda: 0.0, factor=2)
        assert [backoff.next() for _ in range(3)] == pytest.approx([0.0005, 0.001, 0.002])

    @given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30))
    def test_no_pause_is_longer_than_the_most_or_nothing_at_all(self, numbers: list[float]) -> None:
        rest = iter(numbers)
        backoff = Backoff(0.001, 0.010, lambda: next(rest))
        assert all(0.0005 <= backoff.next() <= 0.010 for _ in numbers)
