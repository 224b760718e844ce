"""`postgresql:` asks and waits on few connections, and leaves nothing behind when somebody gives up."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from takehold import AsyncLocks, BackendUnavailable, Locks, LockTimeout, WouldDeadlock, advisory
from takehold.core.backend import Ask, Grant
from takehold.runtime import run
from takehold.testing import Taker
from takehold.testing.faces import AsyncioFace, Face, Steps, eventually
from takehold.testing.forked import in_a_fork
from takehold.testing.suite.processes import looping
from tests.backends.conftest import initialise
from tests.backends.onlooker import Onlooker, place_of, session_of
from tests.lanes import scaled

pytestmark = pytest.mark.slow

MINE = "takehold%"


def taker(face: Face, key: str, **options: Any) -> Taker:
    """Another process."""
    return Taker(face.url, key, namespace=face.namespace, **options)


@pytest.mark.covers("L-25")
class TestFewConnections:
    """Thousands of locks on two connections, and thousands of waiters on three."""

    def test_a_thousand_tasks_on_a_thousand_keys_use_two_connections(self, fenced_url: str, onlooker: Onlooker) -> None:
        most = 0

        async def one(locks: AsyncLocks, number: int, inside: asyncio.Barrier) -> None:
            nonlocal most
            async with locks.lock(f"orders/{number}"):
                await inside.wait()
                if number == 0:
                    most = len(onlooker.sessions(MINE))
                    assert len(onlooker.locks()) == 1000

        async def main() -> None:
            inside = asyncio.Barrier(1000)
            async with AsyncLocks(fenced_url, namespace="many") as locks:
                await asyncio.gather(*(one(locks, number, inside) for number in range(1000)))

        async def lazily() -> None:
            locks = AsyncLocks(fenced_url, namespace="many")
            inside = asyncio.Barrier(1000)
            await asyncio.gather(*(one(locks, number, inside) for number in range(1000)))
            await locks.close()

        asyncio.run(main())
        assert most == 2
        asyncio.run(lazily())  # a thousand first calls open one session
        assert most == 2

    def test_64_threads_on_different_keys_use_two_connections(self, pg: Face, onlooker: Onlooker) -> None:
        calls = [worker.start_acquire(f"k/{number:02}") for number, worker in enumerate(pg.workers(64))]
        holds = [call.result() for call in calls]
        assert len(onlooker.sessions(MINE)) == 2
        for hold in holds:
            hold.release()

    def test_ten_thousand_waiters_for_one_key_use_three_connections(self, fenced_url: str, onlooker: Onlooker) -> None:
        count, entered = scaled(10_000), []

        async def one(locks: AsyncLocks, number: int) -> None:
            async with locks.lock("one", timeout=None):
                entered.append(number)

        async def main() -> None:
            async with AsyncLocks(fenced_url) as locks:
                before = set(onlooker.sessions(MINE))
                with Taker(fenced_url, "one") as other:
                    tasks = [asyncio.create_task(one(locks, number)) for number in range(count)]
                    while not onlooker.waiting():
                        await asyncio.sleep(0.01)
                    mine = [name for pid, name in onlooker.sessions(MINE).items() if f":{other.pid}" not in name]
                    assert len(onlooker.waiting()) == 1
                    assert len(mine) <= 3
                    assert len(before) == 2
                    other.tell("release")
                    await asyncio.gather(*tasks)

        asyncio.run(main())
        assert entered == list(range(count))


@pytest.mark.covers("L-19", "L-25")
def test_a_hundred_free_keys_cost_one_statement(pg: Face) -> None:
    a = pg.worker()
    with a.acquire("warm up") as hold:
        combiner = session_of(hold).combiner
        assert combiner is not None
    keys = [f"k/{number:03}" for number in range(100)]
    before = combiner.statements
    many = a.acquire(*keys)
    assert combiner.statements == before + 1
    many.release()
    assert combiner.statements == before + 2


@pytest.mark.covers("L-9", "L-11")
class TestWaiters:
    """At most one stands in the server's queue per key and process; who leaves leaves nothing."""

    def test_many_waiters_stand_in_the_servers_queue_once(self, pg: Face, onlooker: Onlooker) -> None:
        with taker(pg, "k") as other:
            calls = [worker.start_inside(lambda hold: hold.check(), "k", timeout=30) for worker in pg.workers(20)]
            pg.until_waiting("k", 20)
            eventually(onlooker.waiting)
            assert len(onlooker.waiting()) == 1
            other.release()
            for call in calls:
                call.result()

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    def test_a_wait_that_timed_out_has_left_the_server_when_it_raises(
        self, pg: Face, onlooker: Onlooker, mode: str
    ) -> None:
        with taker(pg, "k"):
            a, b = pg.workers(2)
            pids = {pid for _, _, _, pid in onlooker.locks()}

            def wait(locks: Any) -> Steps:
                try:
                    yield locks.lock("k", timeout=0.2, mode=mode).acquire()
                except LockTimeout:
                    return onlooker.locks()  # at this very moment
                return None

            assert {pid for _, _, _, pid in a.do(wait)} == pids
            assert not b.can_take("k")

    def test_a_cancelled_wait_has_left_the_server_when_it_raises(self, fenced_url: str, onlooker: Onlooker) -> None:
        face = AsyncioFace(fenced_url)
        left: list[Any] = []

        async def wait(locks: Any) -> None:
            try:
                await locks.lock("k", timeout=30).acquire()
            except asyncio.CancelledError:
                left.append(onlooker.locks())
                raise

        with taker(face, "k"):
            pids = {pid for _, _, _, pid in onlooker.locks()}
            for _ in range(3):
                call = face.worker().start(wait)
                eventually(onlooker.waiting)
                call.cancel()
                assert isinstance(call.error(), asyncio.CancelledError)
                assert {pid for _, _, _, pid in left.pop()} == pids
        face.close()

    @pytest.mark.parametrize("count", [6, 12])
    def test_more_keys_than_waiting_connections_are_all_granted(self, pg: Face, onlooker: Onlooker, count: int) -> None:
        keys = [f"k/{number:02}" for number in range(count)]
        with ExitStack() as others:
            takers = [others.enter_context(taker(pg, key)) for key in keys[:3]]
            raw = others.enter_context(psycopg.connect(pg.url, autocommit=True))
            workers = pg.workers(count)
            places = [place_of_key(pg, key) for key in keys]
            for place in places[3:]:
                raw.execute("SELECT pg_advisory_lock(%s)", [place])
            calls = [worker.start_acquire(key, timeout=30) for worker, key in zip(workers, keys, strict=True)]
            eventually(lambda: len([record for record in pg.who() if record.state == "waiting"]) == count)
            eventually(lambda: len(onlooker.waiting()) == 4)
            time.sleep(1.2)  # they take turns
            assert len(onlooker.waiting()) <= 4
            own = [name for name in onlooker.sessions(MINE).values() if not any(f":{t.pid}" in name for t in takers)]
            assert len(own) <= 6
            # The last ones first: they have no place in the queue of the server.
            for place in reversed(places[3:]):
                raw.execute("SELECT pg_advisory_unlock(%s)", [place])
            for call in calls[3:]:
                call.result(5).release()
            for one, call in zip(takers, calls, strict=False):
                one.release()
                call.result(5).release()

    def test_holds_that_wait_connections_keep_do_not_starve_others(self, pg: Face, onlooker: Onlooker) -> None:
        """All four connections keep something for long: the fifth contended key is polled for."""
        workers = pg.workers(5)
        with psycopg.connect(pg.url, autocommit=True) as raw:
            holds = []
            for number in range(4):
                place = place_of_key(pg, f"kept/{number}")
                raw.execute("SELECT pg_advisory_lock(%s)", [place])
                call = workers[number].start_acquire(f"kept/{number}", timeout=30)
                eventually(lambda place=place: onlooker.waiting(place))  # type: ignore[misc]
                raw.execute("SELECT pg_advisory_unlock(%s)", [place])
                holds.append(call.result())
            place = place_of_key(pg, "fifth")
            raw.execute("SELECT pg_advisory_lock(%s)", [place])
            call = workers[4].start_acquire("fifth", timeout=30)
            pg.until_waiting("fifth")
            raw.execute("SELECT pg_advisory_unlock(%s)", [place])
            call.result(2).release()
            for hold in holds:
                hold.release()

    def test_an_idle_connection_that_was_cut_is_not_waited_on(self, pg: Face, onlooker: Onlooker) -> None:
        a = pg.worker()
        for _ in range(3):
            with taker(pg, "k") as other:
                call = a.start_acquire("k", timeout=30)
                (pid,) = eventually(onlooker.waiting)
                other.release()
                call.result().release()
                onlooker.terminate(pid)  # and at once the next wait


def place_of_key(face: Face, key: str) -> int:
    """The number of a text key in the namespace of this face."""
    place: int = face._common._wants((key,), "exclusive", subtree=False)[-1].place
    return place


@pytest.mark.covers("L-26")
class TestUndone:
    """A statement that fails half-way leaves nothing."""

    def test_who_was_told_no_before_the_statement_left_is_not_in_it(self, fenced_url: str, onlooker: Onlooker) -> None:
        """A waiting connection may take long to give back what it keeps; the answers still belong to their askers."""
        with Locks(fenced_url) as locks, locks.lock("kept") as kept:
            session = session_of(kept)
            gone, there = (
                Ask(locks._wants((key,), "exclusive", subtree=False), time.monotonic() + 5) for key in ("gone", "there")
            )
            gone.error = BackendUnavailable("not answered in time")
            (no, yes) = run(session.apply((), (gone, there), 5.0))
            assert not no
            assert len(yes) == 1
            assert [key for key, *_ in onlooker.locks()] == sorted([place_of(kept), there.wants[0].place])
            assert run(session.apply([Grant(session, there.wants[0], None, 0)], (), 5.0)) == []

    @pytest.mark.parametrize("keys", [1, 300])
    def test_cancelling_our_statements_from_outside_costs_nothing(
        self, pg: Face, onlooker: Onlooker, keys: int
    ) -> None:
        a = pg.worker()
        kept = a.acquire("kept")
        keeper = session_of(kept).keeper.pid
        stop = threading.Event()

        def spoil() -> None:
            with psycopg.connect(pg.url, autocommit=True) as raw:
                while not stop.is_set():
                    raw.execute("SELECT pg_cancel_backend(%s)", [keeper])

        spoiler = threading.Thread(target=spoil)
        spoiler.start()
        try:
            refused = 0
            for _ in range(scaled(400)):
                try:
                    hold = a.acquire(*(f"x/{number:03}" for number in range(keys)), timeout=10)
                except BackendUnavailable:
                    refused += 1
                else:
                    hold.release()
        finally:
            stop.set()
            spoiler.join()
        print(f"{refused} refused")  # noqa: T201
        a.acquire("calm").release()
        if not kept.lost:
            assert [key for key, *_ in onlooker.locks()] == [place_of(kept)]
        kept.release()

    def test_without_its_sequence_a_fenced_session_takes_nothing(
        self, colour: type[Face], own_database: Onlooker
    ) -> None:
        url = own_database.server.url(own_database.database)
        initialise(url)
        face = colour(url)
        a = face.worker()
        with a.acquire("kept") as kept:
            own_database.query("DROP SEQUENCE takehold.fence")
            for keys in (["one"], ["x", "y", "z"]):
                with pytest.raises(BackendUnavailable, match=r"takehold\.fence"):
                    face.worker().acquire(*keys, timeout=5)
            assert [key for key, *_ in own_database.locks()] == [place_of(kept)]
        face.close()


@pytest.mark.crash
@pytest.mark.covers("L-8")
def test_a_writer_of_another_process_gets_in_within_a_second_behind_looping_readers(pg: Face) -> None:
    with looping(pg, 10, "shared") as turns, taker(pg, "k", wait=True) as writer:
        writer.until_held(within=1.0)
        writer.release()
        before = turns[0]
        eventually(lambda: turns[0] > before + 50)


@pytest.mark.crash
@pytest.mark.covers("L-21")
class TestDeadlocks:
    """A cycle over several processes ends within two seconds: its youngest waiter gives up."""

    def ring(self, takers: list[Taker], keys: list[str]) -> None:
        count = len(takers)
        at = time.monotonic()
        for number, one in enumerate(takers):
            one.tell(f"then {keys[(number + 1) % count]}")
            one.says("asking")
            time.sleep(0.05)
        # The youngest waits for the first one's key.
        assert takers[-1].says("refused", within=4).startswith("WouldDeadlock")
        after = time.monotonic() - at
        print(f"told after {after:.2f} s")  # noqa: T201
        assert after < 3
        takers[-1].release()
        for one in reversed(takers[:-1]):
            one.says("holding", within=2)
            one.release()

    @pytest.mark.parametrize("count", [2, 3])
    def test_processes_in_a_ring(self, pg: Face, count: int) -> None:
        keys = ["a", "b", "c"][:count]
        with ExitStack() as stack:
            self.ring([stack.enter_context(taker(pg, key, quiet=True)) for key in keys], keys)

    def test_this_process_and_another(self, pg: Face) -> None:
        with taker(pg, "b", quiet=True) as other:

            def nest(locks: Any) -> Steps:
                hold = yield locks.lock("a").acquire()
                try:
                    inner = yield locks.lock("b", timeout=20).acquire()
                    yield inner.release()
                finally:
                    yield hold.release()

            call = pg.worker().start(nest)
            pg.until_waiting("b")
            at = time.monotonic()
            other.tell("then a")
            other.says("asking")
            assert other.says("refused", within=4).startswith("WouldDeadlock")
            assert time.monotonic() - at < 3
            other.release()
            call.result()

    def test_one_of_several_keys_in_one_call_counts_too(self, pg: Face) -> None:
        with taker(pg, "a", quiet=True) as other:
            a = pg.worker(check_order="off")

            def nest(locks: Any) -> Steps:
                hold = yield locks.lock("z").acquire()
                try:
                    inner = yield locks.lock("a", "b", timeout=20).acquire()
                    yield inner.release()
                finally:
                    yield hold.release()

            call = a.start(nest)
            pg.until_waiting("a")
            other.tell("then z")
            other.says("asking")
            assert other.says("refused", within=4).startswith("WouldDeadlock")
            other.release()
            call.result()

    def test_a_silent_owner_is_waited_for_until_the_timeout(self, pg: Face) -> None:
        with taker(pg, "b") as other:

            def nest(locks: Any) -> Steps:
                hold = yield locks.lock("a").acquire()
                try:
                    yield locks.lock("b", timeout=2.5).acquire()
                finally:
                    yield hold.release()

            call = pg.worker().start(nest)
            pg.until_waiting("b")
            other.tell("then a")
            other.says("asking")
            other.stop()
            at = time.monotonic()
            assert isinstance(call.error(), LockTimeout | WouldDeadlock)
            assert time.monotonic() - at < 4
            other.cont()


@pytest.mark.crash
@pytest.mark.covers("L-17")
class TestFork:
    """A child has nothing of its parent's, and can do nothing to it."""

    def test_the_parents_session_outlives_whatever_its_child_does(self, pg: Face, onlooker: Onlooker) -> None:
        a = pg.worker()
        hold = a.acquire("k")
        with taker(pg, "waited for") as other:  # so that there is a waiting connection, too
            call = pg.worker().start_acquire("waited for", timeout=30)
            eventually(onlooker.waiting)
            other.release()
            second = call.result()
        session, locks = session_of(hold), a.locks

        def child() -> tuple[bool, bool]:
            def work(locks: Any) -> Steps:
                taken = yield locks.lock("k").try_acquire()
                own = yield locks.lock("own").acquire()
                yield own.release()
                yield locks.close()
                return taken is None

            lost = hold.hold.lost
            return lost, pg.alone(work, locks)

        assert in_a_fork(child) == (True, True)
        assert in_a_fork(lambda: hold.hold.lost)
        assert not hold.wait_lost(0.2)
        hold.check()
        second.check()
        assert session.lost is None
        assert session_of(hold) is session
        with a.acquire("more"):
            assert len(pg.who()) == 3
        second.release()
        hold.release()

    def test_workers_of_a_preloaded_application_have_a_session_each(self, pg: Face, onlooker: Onlooker) -> None:
        a = pg.worker()
        a.acquire("at import time").release()
        number = pg.number()

        def child() -> tuple[int, ...]:
            def work(locks: Any) -> Steps:
                hold = yield locks.lock(advisory(number), timeout=10).acquire()
                pids = tuple(pid for key, _, granted, pid in onlooker.locks() if key == number and granted)
                yield hold.release()
                yield locks.close()
                return pids

            pids: tuple[int, ...] = pg.alone(work, a.locks)
            return pids

        found = [in_a_fork(child) for _ in range(3)]
        assert all(len(pids) == 1 for pids in found)
        assert len(set(found)) == 3
        assert a.can_take("k")
