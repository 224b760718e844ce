"""Cancelled at every suspension point, interrupted at every moment, against the real server: `pg_locks` is empty."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest

import takehold
from takehold.core import asking
from takehold.core.register import Register
from takehold.core.seat import Entry, Seat
from takehold.locks import _async as face
from takehold.testing.suite.interrupting import interrupted_at
from tests.core.sweep import cancelled_at
from tests.crash.races import Lane
from tests.lanes import scaled

pytestmark = [pytest.mark.crash, pytest.mark.slow]

TICKS = range(3)
MOST_POINTS = 80
GONE_WITHIN = 2.0
NUMBER = 8_000
KEY = takehold.advisory(NUMBER)


class Monitor:
    """Looks at the server from outside."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def locks(self) -> list[Any]:
        """Everything advisory in this database, held or awaited."""
        sql = """SELECT l.objid::bigint, l.mode, l.granted, l.pid, a.application_name, a.query FROM pg_locks l
            LEFT JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory'
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
        return self._connection.execute(sql).fetchall()

    def assert_empty(self, when: str) -> None:
        """What was cut off ends a little later than its client."""
        until = time.monotonic() + GONE_WITHIN
        while (left := self.locks()) and time.monotonic() < until:
            time.sleep(0.002)
        assert not left, f"left behind {when}: {left}"


@pytest.fixture
def monitor(postgres_url: str) -> Iterator[Monitor]:
    made = Monitor(postgres_url)
    yield made
    made.close()


# -- cancelled -------------------------------------------------------------------------------------------


class Stage:
    """One `AsyncLocks` and somebody outside who holds a number for a few milliseconds."""

    def __init__(self, url: str, monitor: Monitor) -> None:
        self.url, self.monitor = url, monitor
        self.locks = takehold.AsyncLocks(url, check_order="off")
        self.others: set[asyncio.Task[None]] = set()
        self._raw: asyncpg.Connection | None = None

    async def somebody_holds(self, seconds: float) -> None:
        """Somebody outside takes the number, and lets go of it so much later."""
        raw = self._raw = self._raw or await asyncpg.connect(self.url)
        await raw.execute(f"SELECT pg_advisory_lock({NUMBER})")

        async def let_go() -> None:
            await asyncio.sleep(seconds)
            await raw.execute(f"SELECT pg_advisory_unlock({NUMBER})")

        task = asyncio.create_task(let_go())
        self.others.add(task)
        task.add_done_callback(self.others.discard)

    async def nothing_is_left(self, when: str) -> None:
        if self.others:
            await asyncio.wait(self.others, timeout=10)
        until = time.monotonic() + GONE_WITHIN
        while (left := self.monitor.locks()) and time.monotonic() < until:
            await asyncio.sleep(0.001)
        assert not left, f"left behind {when}: {left}"

    async def goes_on(self) -> None:
        """The next ones get what they want."""
        async with asyncio.timeout(10):
            async with self.locks.lock(KEY, "free", timeout=5):
                pass

    async def close(self) -> None:
        await self.locks.close()
        if self._raw is not None:
            await self._raw.close()


async def free(stage: Stage) -> None:
    async with stage.locks.lock("free"):
        await asyncio.sleep(0)


async def contended(stage: Stage) -> None:
    async with stage.locks.lock(KEY, timeout=5):
        await asyncio.sleep(0)


async def timing_out(stage: Stage) -> None:
    try:
        async with stage.locks.lock(KEY, timeout=0.004):
            await asyncio.sleep(0)
    except takehold.LockTimeout:
        pass


async def several(stage: Stage) -> None:
    async with stage.locks.lock("a", KEY, "c", takehold.shared("d"), timeout=5):
        await asyncio.sleep(0)


async def shared(stage: Stage) -> None:
    async with stage.locks.lock(takehold.shared(KEY), timeout=5):
        await asyncio.sleep(0)


async def attempt(stage: Stage) -> None:
    hold = await stage.locks.lock("a", KEY).try_acquire()
    if hold is not None:
        async with hold:
            await asyncio.sleep(0)


async def released(stage: Stage) -> None:
    hold = await stage.locks.lock("a", "b", timeout=5).acquire()
    try:
        await asyncio.sleep(0)
    finally:
        await hold.release()


async def opened_and_closed(stage: Stage) -> None:
    """From the first connection to the last."""
    locks = takehold.AsyncLocks(stage.url + "?connect=4", check_order="off")
    try:
        hold = await locks.lock("free", timeout=5).acquire()
        assert not hold.lost
    finally:
        await locks.close()


@pytest.mark.covers("L-9", "L-10")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("scenario", "held_for"),
    [
        (free, None),
        (contended, 0.004),
        (timing_out, 0.004),
        (several, 0.004),
        (shared, 0.004),
        (attempt, 0.001),
        (released, None),
        (opened_and_closed, None),
    ],
)
def test_a_task_cancelled_at_any_suspension_leaves_the_server_empty(
    postgres_url: str,
    monitor: Monitor,
    scenario: Callable[[Stage], Coroutine[Any, Any, None]],
    held_for: float | None,
    times: int,
) -> None:
    async def sweep() -> int:
        stage, struck = Stage(postgres_url, monitor), 0
        await stage.goes_on()
        desk = stage.locks._desk
        assert desk is not None
        session = desk._register.session
        for ticks in TICKS:
            point, reached = 0, True
            while reached and point < MOST_POINTS:
                when = f"by {scenario.__name__} cancelled at suspension {point}, {ticks} ticks later, {times} times"
                if held_for is not None:
                    await stage.somebody_holds(held_for)
                reached, task, cancelled = await cancelled_at(lambda: scenario(stage), point, ticks, times)
                if cancelled:
                    struck += 1
                    assert task.cancelled(), f"swallowed {when}: {task!r}"
                else:
                    task.result()
                await stage.nothing_is_left(when)
                await stage.goes_on()
                point += 1
        assert desk._register.session is session, "a cancelled caller cost everybody the session"
        await stage.close()
        return struck

    assert asyncio.run(sweep()) > 0
    gc.collect()


@pytest.mark.covers("L-9")
def test_the_sweep_finds_what_a_plain_driver_leaves_behind(postgres_url: str, monitor: Monitor) -> None:
    """Asyncpg alone: the lock of a cancelled call may be there although the caller was told no."""

    async def sweep() -> int:
        stage, found = Stage(postgres_url, monitor), 0
        raw = await asyncpg.connect(postgres_url)

        async def naive(_: Stage) -> None:
            await raw.execute(f"SELECT pg_advisory_lock({NUMBER})")
            await raw.execute(f"SELECT pg_advisory_unlock({NUMBER})")

        for ticks in TICKS:
            for point in range(4):
                await cancelled_at(lambda: naive(stage), point, ticks, 1)
                found += len(monitor.locks())
                await raw.execute("SELECT pg_advisory_unlock_all()")
        await raw.close()
        await stage.close()
        return found

    assert asyncio.run(sweep()) > 0


# -- interrupted -----------------------------------------------------------------------------------------


class _Interrupt(BaseException):
    """What the signal handler raises."""


def interrupted_in(seconds: float, function: Callable[[], None]) -> None:
    """Raise out of a signal handler so much later, once, if the function still runs then."""
    armed = False

    def strike(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise _Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        # Again and again until it is noticed: a signal just before the thread blocks does not wake it.
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.02)
        armed = True
        function()
        armed = False
    except _Interrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _use(locks: takehold.Locks, kind: str) -> None:
    if kind == "timeout":
        try:
            locks.lock(KEY, timeout=0.003).acquire().release()
        except takehold.LockTimeout:
            pass
        return
    keys: dict[str, list[Any]] = {
        "free": ["free"],
        "held": [KEY],
        "several": ["a", KEY, takehold.shared("c")],
        "shared": [takehold.shared(KEY)],
    }
    with locks.lock(*keys[kind], timeout=5):
        pass


def assert_nothing_left(locks: takehold.Locks, monitor: Monitor, when: str) -> None:
    """At the server and at the desk; and the next one gets what it wants."""
    with locks.lock("next", timeout=5):
        pass
    monitor.assert_empty(when)
    desk = locks._desk
    assert desk is not None
    assert not desk._register.entries, f"still at the desk {when}: {desk._register.entries}"


KINDS = ["free", "held", "several", "shared", "timeout"]
dropped = pytest.mark.filterwarnings("ignore::ResourceWarning")  # a hold that was dropped is warned about
unraised = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@dropped
@unraised
@pytest.mark.covers("L-9", "L-10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_interrupted_at_random_leaves_the_server_empty(postgres_url: str, monitor: Monitor, kind: str) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    rng = random.Random(seed)
    with takehold.Locks(postgres_url, check_order="off") as locks, Lane(postgres_url, NUMBER, seed) as lane:
        for shot in range(scaled(2_000)):
            going = None
            if kind != "free":
                lane.take()
                going = lane.let_go_in(0.003)
            interrupted_in(rng.choice((rng.uniform(0, 0.001), rng.uniform(0, 0.006))) + 1e-5, lambda: _use(locks, kind))
            if going is not None:
                going.result()
            assert_nothing_left(locks, monitor, f"by {kind}, shot {shot}, seed {seed}")


@dropped
@unraised
@pytest.mark.covers("L-9", "L-10")
@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_interrupted_at_any_call_leaves_the_server_empty(
    postgres_url: str, monitor: Monitor, kind: str
) -> None:
    """At each point where Python looks for signals: entering a function, returning from C."""
    with takehold.Locks(postgres_url, check_order="off") as locks, Lane(postgres_url, NUMBER, 1) as lane:
        _use(locks, kind)
        point = 1
        while True:
            going = None
            if kind != "free":
                lane.take()
                going = lane.let_go_in(0.003)
            where = interrupted_at(point, lambda: _use(locks, kind))
            if going is not None:
                going.result()
            assert_nothing_left(locks, monitor, f"by {kind}, interrupted at point {point}, {where}")
            if where is None:
                break
            point += 1
        assert point > 10


@dropped
@unraised
@pytest.mark.covers("L-9", "L-10")
def test_a_thread_interrupted_between_its_grant_and_its_place_in_line_leaves_nothing(
    postgres_url: str, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sat down and still stood in line, so what it gave back was handed on to itself."""
    real, struck = Register._out_of_line, list[Seat]()

    def strike(register: Register, entry: Entry, seat: Seat) -> None:
        if not struck:
            struck.append(seat)
            raise _Interrupt
        real(register, entry, seat)

    with takehold.Locks(postgres_url, check_order="off") as locks, ThreadPoolExecutor(1) as elsewhere:
        reader = elsewhere.submit(locks.lock(takehold.shared("c")).acquire).result()
        with monkeypatch.context() as patched:
            patched.setattr(Register, "_out_of_line", strike)
            with pytest.raises(_Interrupt):
                locks.lock("a", "b", takehold.shared("c"), timeout=5).acquire()
        assert struck
        reader.release()
        assert_nothing_left(locks, monitor, "at the line")


# -- cut at that moment ----------------------------------------------------------------------------------


@pytest.mark.covers("L-13")
def test_a_hold_whose_session_dies_as_it_is_granted_is_told(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there, its session dies, and only then does the waiter run: nobody would tell it."""
    real: Callable[..., bool] = asking.collect

    def cut(desk: Any, seat: Any, *rest: Any, **more: Any) -> bool:
        seat.session.die("cut between the answer and the seat")
        return real(desk, seat, *rest, **more)

    async def main() -> float:
        async with takehold.AsyncLocks(postgres_url) as locks:
            with monkeypatch.context() as patch:
                patch.setattr(asking, "collect", cut)
                patch.setattr(face, "collect", cut)
                began = time.monotonic()
                with pytest.raises((takehold.HoldLost, takehold.BackendUnavailable)):
                    async with locks.lock("k", timeout=5):
                        await asyncio.sleep(2)
                return time.monotonic() - began

    assert asyncio.run(main()) < 1
