"""Snowflake ids: their layout, their order, and that nobody mints one again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from takehold import UsageError
from takehold.clickhouse import snowflake
from takehold.clickhouse.registry import Registry
from takehold.clickhouse.snowflake import Exhausted, Minter, Range
from tests.clickhouse.registries import Face, connected, in_processes

NOON = 1_795_000_000.0
NOON_MS = 1_795_000_000_000


def parts(made: int) -> tuple[int, int, int]:
    return made >> 22, made >> 12 & 1023, made & 4095


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Ranges:
    """Reserves a minute as one machine after the other."""

    def __init__(self, *machines: int, span: int = 60_000) -> None:
        self.machines = list(machines)
        self.span = span
        self.asked: list[int] = []

    def __call__(self, from_ms: int) -> Range:
        self.asked.append(from_ms)
        return Range(self.machines.pop(0), from_ms, from_ms + self.span)


@pytest.mark.covers("A-5")
def test_an_id_is_milliseconds_machine_and_sequence() -> None:
    minter = Minter(Ranges(777), Clock())
    assert [parts(one) for one in minter.new(2)] == [(NOON_MS, 777, 0), (NOON_MS, 777, 1)]


@pytest.mark.slow
@pytest.mark.covers("A-5")
def test_clickhouse_lays_its_own_ids_out_the_same_way() -> None:
    code = "import chdb; print(chdb.query('SELECT generateSnowflakeID() FROM numbers(2)'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    theirs = [parts(int(line)) for line in done.stdout.split()]
    ours = parts(snowflake.new()[0])
    assert abs(theirs[0][0] - ours[0]) < 60_000
    assert theirs[1][2] == theirs[0][2] + 1
    assert theirs[1][:2] == theirs[0][:2]


@pytest.mark.covers("A-5", "A-37")
def test_ids_are_positive_ascending_and_fit_into_63_bits() -> None:
    ids = snowflake.new(10_000) + snowflake.new() + snowflake.new(0)
    assert len(ids) == 10_001
    assert ids == sorted(set(ids))
    assert ids[0] > 0
    assert ids[-1] < 1 << 63


@pytest.mark.covers("A-5", "A-37")
@pytest.mark.parametrize("wrong", [-1, 1.0, "1", None, True])
def test_only_a_number_of_ids_can_be_asked_for(wrong: Any) -> None:
    with pytest.raises(UsageError, match="number of ids"):
        snowflake.new(wrong)


def test_a_clock_that_goes_back_goes_on_from_the_last_millisecond() -> None:
    clock = Clock()
    minter = Minter(Ranges(1), clock)
    before = minter.new(5000)
    clock.now -= 3600
    after = minter.new(5000)
    assert before + after == sorted({*before, *after})
    assert parts(after[-1])[0] == NOON_MS + 2


def test_a_clock_that_moves_on_takes_the_id_with_it() -> None:
    clock = Clock()
    minter = Minter(Ranges(1), clock)
    minter.new(3)
    clock.now += 2
    assert parts(minter.new()[0]) == (NOON_MS + 2000, 1, 0)


def test_a_range_that_is_used_up_or_over_is_followed_by_another_and_ids_still_ascend() -> None:
    clock, ranges = Clock(), Ranges(900, 5, 3, 4, span=2)
    minter = Minter(ranges, clock)
    ids = minter.new(3 * 4096)  # of 2 milliseconds, then of the next
    assert {parts(one)[1] for one in ids} == {900, 5}
    clock.now += 100
    ids += minter.new()
    assert parts(ids[-1])[1] == 3
    assert ids == sorted(set(ids))
    assert all(late > early for early, late in zip(ranges.asked, ranges.asked[1:], strict=False))


def test_nothing_is_minted_outside_the_range() -> None:
    minter = Minter(clock=Clock(NOON + 3600))
    minter.add(Range(1, NOON_MS, NOON_MS + 60_000))
    assert minter.take(1) == []
    early = Minter(clock=Clock(NOON - 3600))
    early.add(Range(1, NOON_MS, NOON_MS + 1))
    assert [parts(one)[0] for one in early.take(5000)] == [NOON_MS] * 4096
    assert early.take(1) == []


def test_a_minter_that_cannot_reserve_says_what_to_do() -> None:
    with pytest.raises(Exhausted, match=r"await registry\.reserve"):
        Minter().new()


@pytest.mark.parametrize("wrong", [(1024, 0, 1), (-1, 0, 1), (0, 5, 5), (0, 0, (1 << 41) + 1), (0, -1, 1)])
def test_a_range_that_does_not_fit_into_an_id_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="clock"):
        Range(*wrong)


def test_threads_never_get_the_same_id() -> None:
    minter = Minter(Ranges(*range(1024), span=3), Clock())
    barrier = threading.Barrier(8)

    def mint(_: int) -> list[int]:
        barrier.wait(20)
        return [one for _ in range(200) for one in minter.new(50)]

    with ThreadPoolExecutor(8) as threads:
        minted = list(threads.map(mint, range(8)))
    assert all(one == sorted(one) for one in minted)
    assert len({one for ids in minted for one in ids}) == 8 * 200 * 50


@pytest.mark.covers("A-5")
def test_a_forked_child_does_not_go_on_in_its_parents_range() -> None:
    minter = Minter(Ranges(1, 2), Clock())
    minter.new()
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        with os.fdopen(reading, encoding="ascii") as pipe:
            childs = [int(word) for word in pipe.read().split()]
        os.waitpid(child, 0)
    else:
        try:
            os.write(writing, " ".join(map(str, minter.new(3))).encode())
        finally:
            os._exit(0)
    parents = minter.new(3)
    assert {parts(one)[1] for one in childs} == {2}
    assert {parts(one)[1] for one in parents} == {1}


def test_what_is_minted_after_binding_is_greater_than_what_was_minted_before() -> None:
    first = snowflake.new(10)
    minter = Minter(Ranges(7, 8), Clock(NOON - 1e6))
    snowflake.bind(minter)
    try:
        bound = snowflake.new(10)
        assert {parts(one)[1] for one in bound} == {7}
    finally:
        snowflake.unbind(minter)
    last = snowflake.new(10)
    assert first + bound + last == sorted({*first, *bound, *last})
    snowflake.unbind(minter)  # not bound any more: nothing happens


def mint_as_a_host(_: int, url: str, count: int) -> list[int]:
    with Registry(url, clock=Clock()) as registry:
        registry.bind()
        return [one for _ in range(10) for one in snowflake.new(count // 10)]


@pytest.mark.slow
@pytest.mark.covers("A-5")
def test_eight_hosts_with_one_clock_mint_distinct_ids(sql_url: str) -> None:
    with Registry(sql_url) as registry:
        registry.upgrade()
    minted = in_processes(8, mint_as_a_host, sql_url, 100_000)
    assert len({one for ids in minted for one in ids}) == 8 * 100_000


@pytest.mark.slow
@pytest.mark.covers("A-5", "A-37")
def test_more_processes_than_there_are_numbers_still_mint_distinct_ids(sql_url: str, face: Face) -> None:
    face.registry(sql_url).upgrade()
    with connected(sql_url) as connection:
        connection.exec_driver_sql("DELETE FROM takehold_machine_ranges WHERE number > 2")
    # One after the other, at the same moment, each with a range in hand that it has hardly begun.
    minted = [one for _ in range(10) for one in face.registry(sql_url, clock=Clock()).new(4097)]
    assert len(set(minted)) == 10 * 4097
    assert {parts(one)[1] for one in minted} == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.covers("A-37")
def test_a_host_whose_clock_is_years_ahead_uses_up_one_number(sql_url: str, face: Face) -> None:
    clock = Clock(NOON + 1e8)
    registry = face.registry(sql_url, clock=clock)
    registry.upgrade()
    for _ in range(5):
        clock.now += 61
        registry.new()
    with connected(sql_url) as connection:
        ahead = connection.exec_driver_sql(
            f"SELECT count(*) FROM takehold_machine_ranges WHERE until_ms > {NOON_MS + 10**10}"
        )
        assert ahead.scalar() == 1


@pytest.mark.slow
@pytest.mark.covers("A-37")
def test_after_reserve_ids_are_minted_without_the_database(sql_url: str, face: Face) -> None:
    # Not before the last id of this process: what is bound goes on from there, ahead of the clock.
    clock = Clock(max(time.time(), (parts(snowflake.new()[0])[0] + 1) / 1000))
    registry = face.registry(sql_url, clock=clock)
    registry.upgrade()
    registry.bind()
    registry.reserve()
    clock.now += 20
    with face.statements(registry) as statements:
        registry.reserve()  # half a minute is left, nearly twice
        ids = snowflake.new(5000)
        assert not statements
        clock.now += 20
        registry.reserve()
        assert statements
    clock.now += 29
    ids += snowflake.new(5000)
    assert ids == sorted(set(ids))


@pytest.mark.slow
def test_a_registry_that_is_closed_is_no_longer_bound(sql_url: str, face: Face) -> None:
    registry = face.registry(sql_url)
    registry.upgrade()
    registry.bind()
    registry.close()
    with face.statements(registry) as statements:
        assert snowflake.new(3)
        assert not statements
