"""Who is told no holds nothing: releases tuned to the timeout, to a cancel, to a reply that is cut."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import asyncpg
import psycopg
import pytest

import takehold
from takehold.backends.postgres.waiters import Waiters
from tests import lanes
from tests.crash import races
from tests.crash.races import PATIENCE, Lane, Tally
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.crash, pytest.mark.slow]

RACES = 10_000 if lanes.PROVE else 2_000
CUTS = 10_000 if lanes.PROVE else 1_000
"""Each costs a new session or a new connection."""
BASELINE = 200
LANES = 4
"""As many as connections of one process stand in the server's queue: with more, some would only try."""
GONE_WITHIN = 2.0
NO = (takehold.LockTimeout, takehold.BackendUnavailable, takehold.HoldLost)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """The numbers to quote: `pytest -rP` or `-s`."""
    rows = [Tally.HEADER]
    yield rows
    print("\n".join(["", *rows]))  # noqa: T201


@pytest.fixture
def report(table: list[str], record_property: Callable[[str, object], None]) -> Callable[[str, Tally], None]:
    def note(name: str, tally: Tally) -> None:
        table.append(tally.row(name))
        print(Tally.HEADER, tally.row(name), sep="\n")  # noqa: T201
        record_property(name, f"{tally.phantoms} phantoms, {tally.gave_up} gave up, {tally.races} races")

    return note


def each_on_a_thread(url: str, races: int, race: Callable[[Lane], None], count: int = LANES) -> Tally:
    """So many races of one kind, on some lanes, each in a thread of its own."""
    tally = Tally()
    with ExitStack() as stack:
        lanes = [stack.enter_context(Lane(url, 7_000 + number, number)) for number in range(count)]

        def drive(lane: Lane) -> None:
            for _ in range(races // count):
                race(lane)

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(drive, lanes))
        for lane in lanes:
            tally.add(lane.tally)
    return tally


async def each_on_a_task(url: str, races: int, race: Callable[[Lane], Awaitable[None]], count: int = LANES) -> Tally:
    """The same, each in a task of its own."""
    tally = Tally()
    with ExitStack() as stack:
        lanes = [stack.enter_context(Lane(url, 7_000 + number, number)) for number in range(count)]

        async def drive(lane: Lane) -> None:
            for _ in range(races // count):
                await race(lane)

        await asyncio.gather(*map(drive, lanes))
        for lane in lanes:
            tally.add(lane.tally)
    return tally


def assert_honest(tally: Tally, races: int) -> None:
    assert tally.phantoms == 0, tally.notes[:5]
    assert tally.hollow == 0, tally.notes[:5]
    assert tally.races >= races - LANES
    assert 0.25 < tally.gave_up / tally.races < 0.75, "the races were not at the boundary"


# -- at the timeout --------------------------------------------------------------------------------------


def timeouts_of_threads(url: str, races: int) -> Tally:
    """Releases tuned to the timeout of the blocking face."""
    with takehold.Locks(url) as locks:

        def race(lane: Lane) -> None:
            lane.take()
            request = locks.lock(takehold.advisory(lane.number), timeout=PATIENCE)
            going = lane.let_go_in(lane.aim.next())
            try:
                hold = request.acquire()
            except takehold.LockTimeout:
                going.result()
                lane.judge(gave_up=True)
            else:
                going.result()
                lane.judge(gave_up=False)
                hold.release()

        return each_on_a_thread(url, races, race)


async def timeouts_of_tasks(url: str, races: int) -> Tally:
    """The same for tasks."""
    async with takehold.AsyncLocks(url) as locks:

        async def race(lane: Lane) -> None:
            await asyncio.to_thread(lane.take)
            request = locks.lock(takehold.advisory(lane.number), timeout=PATIENCE)
            going = asyncio.wrap_future(lane.let_go_in(lane.aim.next()))
            try:
                hold = await request.acquire()
            except takehold.LockTimeout:
                await going
                await asyncio.to_thread(lane.judge, gave_up=True)
            else:
                await going
                lane.judge(gave_up=False)
                await hold.release()

        return await each_on_a_task(url, races, race)


@pytest.mark.covers("L-9", "L-10")
def test_a_thread_that_times_out_as_the_key_is_released_holds_nothing(
    postgres_url: str, report: Callable[[str, Tally], None]
) -> None:
    tally = timeouts_of_threads(postgres_url, RACES // 2)
    report("takehold, threads, timeout", tally)
    assert_honest(tally, RACES // 2)


@pytest.mark.covers("L-9", "L-10")
def test_a_task_that_times_out_as_the_key_is_released_holds_nothing(
    postgres_url: str, report: Callable[[str, Tally], None]
) -> None:
    tally = asyncio.run(timeouts_of_tasks(postgres_url, RACES // 2))
    report("takehold, asyncio, timeout", tally)
    assert_honest(tally, RACES // 2)


# -- at a cancel -----------------------------------------------------------------------------------------


async def cancels_of_tasks(url: str, races: int) -> Tally:
    """Releases tuned to the moment when the waiting task is cancelled."""
    async with takehold.AsyncLocks(url) as locks:

        async def race(lane: Lane) -> None:
            await asyncio.to_thread(lane.take)
            task = asyncio.create_task(locks.lock(takehold.advisory(lane.number), timeout=30).acquire())
            going = asyncio.wrap_future(lane.let_go_in(lane.aim.next()))
            asyncio.get_running_loop().call_later(PATIENCE, task.cancel)
            await asyncio.wait([task])
            await going
            if task.cancelled():
                await asyncio.to_thread(lane.judge, gave_up=True)
            else:
                lane.judge(gave_up=False)
                await task.result().release()

        return await each_on_a_task(url, races, race)


@pytest.mark.covers("L-9", "L-10")
def test_a_task_that_is_cancelled_as_the_key_is_released_holds_nothing(
    postgres_url: str, report: Callable[[str, Tally], None]
) -> None:
    tally = asyncio.run(cancels_of_tasks(postgres_url, RACES))
    report("takehold, asyncio, cancel", tally)
    assert_honest(tally, RACES)


# -- with the reply cut ----------------------------------------------------------------------------------


def believed(locks: Any) -> set[int]:
    """The server processes of connections that this `Locks` object believes to be alive."""
    desk = locks._desk
    session = None if desk is None else desk._register.session
    if session is None or session.lost is not None:
        return set()
    return {wire.pid for wire in (session.keeper, *session.waiters.wires) if wire.lost is None}


class Cutting:
    """One race in which a reply is cut: that of the first question, or that of the wait."""

    def __init__(self, lane: Lane, proxy: Proxy) -> None:
        self._proxy = proxy
        rng = lane.rng
        early = rng.random() < 0.3
        many = rng.choice((0, 0, rng.randrange(1, 90)))
        self._timer = threading.Timer(0.0 if early else PATIENCE * rng.uniform(0.4, 0.8), proxy.cut_after, [many])
        self._going = lane.let_go_in(rng.uniform(0, 0.001) if early else lane.aim.next())
        self._timer.start()

    def end(self) -> None:
        """When all of it has happened."""
        self._timer.join()
        self._going.result()
        self._proxy.cut_after(1 << 40)  # a cut that met no reply must not meet the next race


def waits(locks: Any) -> bool:
    """Whether this session has a connection to wait on already."""
    session = locks._desk._register.session
    return session is not None and any(wire.lost is None for wire in session.waiters.wires)


def count(lane: Lane, error: Exception) -> None:
    name = type(error).__name__
    lane.tally.errors[name] = lane.tally.errors.get(name, 0) + 1


def judge_cut(lane: Lane, locks: Any, got: bool, lost: Callable[[], bool]) -> None:
    """Nothing is held by a connection that lives; what a cut one held goes soon; a hold is held, or known lost."""
    tally = lane.tally
    tally.races += 1
    tally.gave_up += not got
    alive = believed(locks)
    there = lane.others()
    if not got and any(pid in alive for pid, _ in there):
        tally.phantoms += 1
        tally.notes.append(f"number {lane.number}: {there} although {alive} live")
    until = time.monotonic() + GONE_WITHIN
    while time.monotonic() < until:
        there = lane.others()
        fine = lost() or [pid for pid, granted in there if granted and pid in believed(locks)] if got else not there
        if fine:
            break
        time.sleep(0.005)
    else:
        tally.hollow += got
        tally.phantoms += not got
        tally.notes.append(f"number {lane.number}: got={got}, after {GONE_WITHIN} s {there}")
    lane.aim.seen(not got)


def cuts_of_threads(server: Postgres, url: str, cuts: int) -> Tally:
    """Each lane behind a proxy of its own, so with a session of its own."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server.port)) for _ in range(LANES)]
        known = [stack.enter_context(takehold.Locks(proxy.url(url))) for proxy in proxies]

        def race(lane: Lane) -> None:
            proxy, locks = proxies[lane.number % LANES], known[lane.number % LANES]
            lane.take()
            key = takehold.advisory(lane.number)
            locks.open()
            if not waits(locks):
                with suppress(takehold.LockTimeout):
                    locks.lock(key, timeout=0.001).acquire()
            cutting = Cutting(lane, proxy)
            hold: Any = None
            try:
                hold = locks.lock(key, timeout=PATIENCE).acquire()
            except NO as error:
                count(lane, error)
            cutting.end()
            judge_cut(lane, locks, hold is not None, lambda: hold.lost)
            if hold is not None:
                hold.release()

        tally = each_on_a_thread(url, cuts, race)
        tally.errors["cuts"] = sum(proxy.resets for proxy in proxies)
    return tally


async def cuts_of_tasks(server: Postgres, url: str, cuts: int) -> Tally:
    """The same for tasks."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server.port)) for _ in range(LANES)]
        known = [takehold.AsyncLocks(proxy.url(url)) for proxy in proxies]

        async def race(lane: Lane) -> None:
            proxy, locks = proxies[lane.number % LANES], known[lane.number % LANES]
            await asyncio.to_thread(lane.take)
            key = takehold.advisory(lane.number)
            await locks.open()
            if not waits(locks):
                with suppress(takehold.LockTimeout):
                    await locks.lock(key, timeout=0.001).acquire()
            cutting = Cutting(lane, proxy)
            hold: Any = None
            try:
                hold = await locks.lock(key, timeout=PATIENCE).acquire()
            except NO as error:
                count(lane, error)
            await asyncio.to_thread(cutting.end)
            await asyncio.to_thread(judge_cut, lane, locks, hold is not None, lambda: hold.lost)
            if hold is not None:
                await hold.release()

        tally = await each_on_a_task(url, cuts, race)
        tally.errors["cuts"] = sum(proxy.resets for proxy in proxies)
        for locks in known:
            await locks.close()
    return tally


@pytest.mark.covers("L-10", "L-13")
@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_whoever_does_not_get_its_answer_holds_nothing(
    face: str, postgres_server: Postgres, postgres_url: str, report: Callable[[str, Tally], None]
) -> None:
    if face == "threads":
        tally = cuts_of_threads(postgres_server, postgres_url, CUTS // 2)
    else:
        tally = asyncio.run(cuts_of_tasks(postgres_server, postgres_url, CUTS // 2))
    report(f"takehold, {face}, reply cut", tally)
    assert tally.phantoms == 0, tally.notes[:5]
    assert tally.hollow == 0, tally.notes[:5]
    assert tally.races >= CUTS // 2 - LANES
    assert tally.errors["cuts"] > tally.races / 2


# -- what the same races find elsewhere ------------------------------------------------------------------


@pytest.fixture
def many_phantoms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many, each is waited for less."""
    monkeypatch.setattr(races, "GIVEN_BACK_WITHIN", 0.1)


def naive_threads(url: str, races: int) -> Tally:
    """What everybody writes first: `lock_timeout`, and an error means no."""
    naive = [psycopg.connect(url, autocommit=True) for _ in range(LANES)]
    for connection in naive:
        connection.execute(f"SET lock_timeout = '{int(PATIENCE * 1000)}ms'")

    def race(lane: Lane) -> None:
        connection, lane.ends_phantoms = naive[lane.number % LANES], False
        lane.take()
        going = lane.let_go_in(lane.aim.next())
        try:
            connection.execute("SELECT pg_advisory_lock(%s)", [lane.number])
        except psycopg.errors.LockNotAvailable:
            going.result()
            lane.judge(gave_up=True)
        else:
            going.result()
            lane.judge(gave_up=False)
        connection.execute("SELECT pg_advisory_unlock_all()")

    try:
        return each_on_a_thread(url, races, race)
    finally:
        for connection in naive:
            connection.close()


async def naive_tasks(url: str, races: int) -> Tally:
    """The driver asyncpg with `timeout=`."""
    naive = [await asyncpg.connect(url) for _ in range(LANES)]

    async def race(lane: Lane) -> None:
        connection, lane.ends_phantoms = naive[lane.number % LANES], False
        await asyncio.to_thread(lane.take)
        going = asyncio.wrap_future(lane.let_go_in(lane.aim.next()))
        try:
            await connection.fetchval("SELECT pg_advisory_lock($1)", lane.number, timeout=PATIENCE)
        except TimeoutError:
            await going
            await asyncio.to_thread(lane.judge, gave_up=True)
        else:
            await going
            lane.judge(gave_up=False)
        await connection.fetchval("SELECT pg_advisory_unlock_all()")

    try:
        return await each_on_a_task(url, races, race)
    finally:
        for connection in naive:
            await connection.close()


@pytest.mark.covers("L-10")
@pytest.mark.usefixtures("many_phantoms")
def test_the_races_find_the_phantoms_of_a_lock_timeout(postgres_url: str, report: Callable[[str, Tally], None]) -> None:
    tally = naive_threads(postgres_url, BASELINE)
    report("psycopg, SET lock_timeout", tally)
    assert tally.phantoms > 0


@pytest.mark.covers("L-10")
@pytest.mark.usefixtures("many_phantoms")
def test_the_races_find_the_phantoms_of_a_timeout_in_the_client(
    postgres_url: str, report: Callable[[str, Tally], None]
) -> None:
    tally = asyncio.run(naive_tasks(postgres_url, BASELINE))
    report("asyncpg, timeout=", tally)
    assert tally.phantoms > 0


@pytest.mark.covers("L-10")
@pytest.mark.usefixtures("many_phantoms")
def test_the_races_find_a_wait_that_is_not_cleaned_up(
    postgres_url: str, report: Callable[[str, Tally], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: after a timeout the connection goes back as it is."""
    real = Waiters.clean

    async def unclean(waiters: Waiters, wire: Any, want: object) -> bool:
        waiters.put(wire)
        return True

    async def unlock(waiters: Waiters, releases: Any) -> None:
        for grant in releases:
            waiters._session.kept.discard(grant.handle)
            await real(waiters, grant.handle, grant.want)

    monkeypatch.setattr(Waiters, "clean", unclean)
    monkeypatch.setattr(Waiters, "unlock", unlock)
    tally = timeouts_of_threads(postgres_url, 2 * BASELINE)
    report("takehold without the unlock, threads", tally)
    assert tally.phantoms > 0
