"""`postgresql:` loses a session: everybody who held something on it is told at once, and nobody else."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from takehold import BackendUnavailable, HoldLost
from takehold.backends._drivers.wire import Statement, Target, WireLost, connect
from takehold.runtime import Threads, run
from takehold.testing import Taker
from takehold.testing.faces import AsyncioFace, Face, Steps, eventually
from tests.backends.onlooker import Onlooker, Told, place_of, session_of
from tests.servers.network import Namespace
from tests.servers.postgres import How, Postgres
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.crash]

SOON = 1.0  # for a busy machine; what it was is printed, and is a few milliseconds


def cut(face: Face, how: Callable[[Any], None], onlooker: Onlooker) -> None:
    """Cut the session of two holds, and see that both are told, and that nothing had been asked meanwhile."""
    a, b, c = face.workers(3)
    holds = [a.acquire("one"), b.acquire("two", "three")]
    shared = c.acquire("four", mode="shared")
    session = session_of(holds[0])
    assert session_of(shared) is session
    told = [Told(hold) for hold in (*holds, shared)]
    waiting = holds[0].start_wait_lost(30)
    first = onlooker.activity(session.keeper.pid)
    assert first[0] == "idle"
    time.sleep(0.05)
    assert onlooker.activity(session.keeper.pid) == first  # nothing asks to find out
    at = time.monotonic()
    how(session)
    after = [one.after(at, SOON) for one in told]
    assert waiting.result() is True
    print(f"told after {max(after) * 1000:.1f} ms ({face.name})")  # noqa: T201 - a measurement
    for hold in (*holds, shared):
        with pytest.raises(HoldLost):
            hold.check()
        hold.release()
    if not onlooker.server.running:
        onlooker.server.up()
    with a.acquire("one", timeout=5) as again:
        assert session_of(again) is not session
        assert session_of(again).keeper.pid != session.keeper.pid
        assert holds[0].lost


@pytest.mark.covers("L-13")
class TestCut:
    """Every hold of a session that is cut is lost within moments, without a query."""

    def test_holds_of_a_terminated_session_are_lost_at_once(self, pg: Face, onlooker: Onlooker) -> None:
        with Taker(pg.url, "elsewhere", namespace=pg.namespace) as taker:
            cut(pg, lambda session: onlooker.terminate(session.keeper.pid), onlooker)
            assert not pg.worker().can_take("elsewhere")
            taker.release()

    def test_holds_of_a_session_that_was_reset_are_lost_at_once(
        self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker
    ) -> None:
        face = colour(proxy.url(fenced_url))
        cut(face, lambda _: proxy.reset(), onlooker)
        face.close()
        assert proxy.resets
        assert not face.troubles

    @pytest.mark.parametrize("how", ["immediate", "kill", "fast"])
    def test_holds_are_lost_at_once_when_the_server_ends(
        self, pg: Face, postgres_server: Postgres, onlooker: Onlooker, how: How
    ) -> None:
        cut(pg, lambda _: postgres_server.down(how), onlooker)

    def test_the_last_word_of_a_server_ends_the_wire_before_the_connection_ends(
        self, fenced_url: str, proxy: Proxy, onlooker: Onlooker
    ) -> None:
        wire = run(connect(Threads(), Target(proxy.url(fenced_url), "takehold to be ended"), 5))
        wire.send(Statement("", "SELECT pg_terminate_backend(pg_backend_pid()) FROM pg_sleep(1)"))
        eventually(lambda: onlooker.activity(wire.pid)[0] == "active")
        proxy.delay(2)  # the end of the connection comes so much later than the word
        with pytest.raises(WireLost, match="administrator command"):
            run(wire.receive(4))

    def test_the_body_of_a_task_is_cancelled_and_hold_lost_raised(self, fenced_url: str, onlooker: Onlooker) -> None:
        face = AsyncioFace(fenced_url)
        entered: list[Any] = []

        async def body(hold: Any) -> None:
            entered.append(hold)
            await asyncio.sleep(60)

        call = face.worker().start_inside(body, "k")
        onlooker.terminate(session_of(eventually(lambda: entered)[0]).keeper.pid)
        assert isinstance(call.error(SOON), HoldLost)
        face.close()

    def test_a_block_that_runs_on_ends_with_hold_lost(self, pg: Face, onlooker: Onlooker) -> None:
        def body(hold: Any) -> Steps:
            onlooker.terminate(session_of(hold).keeper.pid)
            while not hold.lost:
                yield pg.sleep(0.001)

        with pytest.raises(HoldLost):
            pg.worker().inside(body, "k", **pg.telling)

    def test_holds_that_a_waiting_connection_keeps_are_lost_with_it(self, pg: Face, onlooker: Onlooker) -> None:
        a, b = pg.workers(2)
        with Taker(pg.url, "k", namespace=pg.namespace) as taker:
            waiting = a.start_acquire("k", timeout=30)
            eventually(onlooker.waiting)
            taker.release()
            hold = waiting.result()
        other = b.acquire("other")
        session = session_of(hold)
        (keeping,) = [pid for key, _, _, pid in onlooker.locks() if key == place_of(hold)]
        assert keeping not in (session.keeper.pid, taker.pid)
        told = [Told(hold), Told(other)]
        at = time.monotonic()
        onlooker.terminate(keeping)
        # The others go too: nobody can tell what else the server has ended.
        assert all(one.after(at, SOON) < SOON for one in told)
        hold.release()
        other.release()
        assert a.can_take("k", "other")

    def test_a_waiter_whose_connection_is_cut_goes_on_waiting(self, pg: Face, onlooker: Onlooker) -> None:
        a, b = pg.workers(2)
        with Taker(pg.url, "k", namespace=pg.namespace) as taker, b.acquire("other") as other:
            waiting = a.start_acquire("k", timeout=30)
            (first,) = eventually(onlooker.waiting)
            onlooker.terminate(first)
            (second,) = eventually(lambda: [pid for pid in onlooker.waiting() if pid != first])
            assert second != first
            assert not waiting.done
            other.check()
            taker.release()
            waiting.result().release()

    def test_a_waiter_survives_the_end_of_its_session(self, pg: Face, onlooker: Onlooker) -> None:
        a, b = pg.workers(2)
        with Taker(pg.url, "k", namespace=pg.namespace) as taker:
            other = b.acquire("other")
            waiting = a.start_acquire("k", timeout=30)
            (first,) = eventually(onlooker.waiting)
            onlooker.terminate(session_of(other).keeper.pid)
            assert other.wait_lost(SOON)
            eventually(lambda: [pid for pid in onlooker.waiting() if pid != first])
            taker.release()
            waiting.result().release()
            other.release()

    def test_losing_the_ear_costs_no_hold(self, pg: Face, onlooker: Onlooker) -> None:
        a, b = pg.workers(2)
        with a.acquire("k") as hold:
            (ear,) = onlooker.sessions("takehold-ear%")
            onlooker.terminate(ear)
            onlooker.until_gone(ear)
            assert not b.can_take("k")
            b.acquire("other", timeout=1).release()
            eventually(lambda: pg.holders("k") and not pg.holders("k")[0].silent, within=5)
            hold.check()
            (again,) = onlooker.sessions("takehold-ear%")
            assert again != ear

    def test_a_multi_key_wait_that_loses_its_first_keys_does_not_end_with_a_hold(
        self, pg: Face, onlooker: Onlooker
    ) -> None:
        with Taker(pg.url, "b", namespace=pg.namespace) as taker:
            waiting = pg.worker().start_acquire("a", "b", timeout=30)
            eventually(onlooker.waiting)
            (keeper,) = [pid for _, _, granted, pid in onlooker.locks() if granted and pid in _keepers(onlooker)]
            onlooker.terminate(keeper)
            taker.release()
            try:
                hold = waiting.result()
            except BackendUnavailable:
                pass
            else:  # granted before the news of the loss came
                assert hold.wait_lost(SOON)
                hold.release()
        assert pg.worker().can_take("a", "b")


def _keepers(onlooker: Onlooker) -> set[int]:
    """Server processes that hold and are of this process: their names end with our pid."""
    return {pid for pid, name in onlooker.sessions().items() if name.endswith(f":{os.getpid()}")}


@pytest.mark.covers("L-14")
class TestKilled:
    """A killed process is gone for the server as well."""

    def test_a_killed_holder_frees_all_its_keys_at_once(self, pg: Face) -> None:
        with Taker(pg.url, "one", namespace=pg.namespace) as taker:
            taker.tell("then two")
            taker.says("asking")
            taker.says("holding")
            waiting = pg.worker().start_acquire("one", "two", timeout=30)
            pg.until_waiting("one")
            at = time.monotonic()
            taker.kill()
            waiting.result(SOON).release()
            print(f"free after {(time.monotonic() - at) * 1000:.1f} ms")  # noqa: T201

    def test_a_killed_waiter_leaves_the_servers_queue(self, pg: Face, onlooker: Onlooker) -> None:
        a = pg.worker()
        with a.acquire("k") as hold, Taker(pg.url, "k", namespace=pg.namespace, wait=True) as taker:
            eventually(lambda: onlooker.waiting(place_of(hold)))
            at = time.monotonic()
            taker.kill()
            eventually(lambda: not onlooker.waiting(place_of(hold)), within=2.0)
            print(f"out of the queue after {time.monotonic() - at:.2f} s")  # noqa: T201


@pytest.mark.covers("L-15")
def test_a_paused_holder_keeps_the_key_until_it_is_terminated_and_its_fence_is_refused(
    pg: Face, onlooker: Onlooker
) -> None:
    onlooker.query("CREATE TABLE IF NOT EXISTS fenced (name text PRIMARY KEY, fence bigint, value text)")
    onlooker.query("INSERT INTO fenced VALUES ('k', 0, '') ON CONFLICT (name) DO UPDATE SET fence = 0")

    def write(fence: int, value: str) -> bool:
        sql = "UPDATE fenced SET fence = %s, value = %s WHERE name = 'k' AND fence <= %s RETURNING true"
        return bool(onlooker.query(sql, fence, value, fence))

    a = pg.worker()
    with Taker(pg.url, "k", namespace=pg.namespace) as taker:
        assert write(taker.fence, "theirs")
        taker.stop()
        time.sleep(1.5)  # it stays theirs, however long that is
        assert not a.can_take("k")
        (pid,) = [pid for _, _, granted, pid in onlooker.locks() if granted]
        onlooker.terminate(pid)
        with a.acquire("k", timeout=5) as hold:
            assert hold.fence > taker.fence
            assert write(hold.fence, "ours")
            taker.cont()
            assert taker.says("lost", within=SOON) == "k"
            assert not write(taker.fence, "stale")
    assert onlooker.query("SELECT value FROM fenced WHERE name = 'k'") == [("ours",)]


@pytest.mark.covers("L-16")
def test_both_sides_of_a_partition_decide_within_the_bound(colour: type[Face], namespace: Namespace) -> None:
    bound = 3.0
    face = colour(namespace.server.url() + f"?silence={bound:g}&connect=1")
    onlooker = Onlooker(namespace.server, "postgres")
    a, b = face.workers(2)
    holds = [a.acquire("one"), b.acquire("two", mode="shared")]
    told = [Told(hold) for hold in holds]
    assert len(onlooker.locks()) == 2
    at = time.monotonic()
    namespace.partition()
    eventually(lambda: not onlooker.locks(), "the server lets go", within=bound + 2)
    server = time.monotonic() - at
    client = max(one.after(at, bound + 2) for one in told)
    print(f"server after {server:.1f} s, client after {client:.1f} s")  # noqa: T201
    at = time.monotonic()
    with pytest.raises(BackendUnavailable):
        a.acquire("one", timeout=1)
    assert time.monotonic() - at < 4
    namespace.heal()
    for hold in holds:
        hold.release()
    a.acquire("one", timeout=10).release()
    face.close()


class Stopwatch:
    """How long a call may take, at most."""

    def __init__(self, most: float) -> None:
        self._most = most

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        assert took < self._most, f"it took {took:.1f} s"


@pytest.mark.covers("L-32")
class TestBlackHole:
    """A server that does not answer: never a hang, never "acquired", and nothing stays locked afterwards."""

    def test_before_a_connection(self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker) -> None:
        face = colour(proxy.url(fenced_url) + "?connect=1")
        proxy.hold()
        for timeout in (0, 0.5, 1):
            with Stopwatch(2.5), pytest.raises(BackendUnavailable):
                face.worker().acquire("k", timeout=timeout)
        proxy.resume()
        face.worker().acquire("k", timeout=5).release()
        face.close()
        assert not onlooker.locks()

    @pytest.mark.parametrize("passed", [0, 200, 400, 700, 1000, 1300, 1600, 2000])
    def test_in_the_middle_of_opening(
        self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker, passed: int
    ) -> None:
        face = colour(proxy.url(fenced_url) + "?connect=1")
        hold_after(proxy, passed)
        a = face.worker()
        with Stopwatch(5):
            try:
                a.acquire("k", timeout=1.5).release()  # the hole came after the answer
            except BackendUnavailable:
                pass
        proxy.resume()
        face.worker().acquire("k", timeout=5).release()
        face.close()
        assert not face.troubles
        eventually(lambda: not onlooker.locks())

    def test_with_an_open_session(self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker) -> None:
        face = colour(proxy.url(fenced_url) + "?reply=2&connect=1")
        a, b, c = face.workers(3)
        kept = a.acquire("kept")
        proxy.hold()
        with Stopwatch(2.5), pytest.raises(BackendUnavailable):
            b.acquire("free", timeout=1)
        with Stopwatch(2.5), pytest.raises(BackendUnavailable):
            c.acquire("x", "y", "z", timeout=0)
        # A session that has not answered for so long is given up: nobody can vouch for its holds.
        assert kept.wait_lost(4)
        with Stopwatch(3):
            kept.release()
        proxy.resume()
        a.acquire("free", "kept", "x", timeout=5).release()
        face.close()
        assert not face.troubles
        eventually(lambda: not onlooker.locks())

    def test_an_answer_that_comes_late_is_given_back(
        self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker
    ) -> None:
        face = colour(proxy.url(fenced_url) + "?reply=20")
        a, b = face.workers(2)
        kept = a.acquire("kept")
        proxy.hold()
        with Stopwatch(2.5), pytest.raises(BackendUnavailable):
            b.acquire("free", timeout=0.5)
        proxy.resume()
        eventually(lambda: [key for key, *_ in onlooker.locks()] == [place_of(kept)])
        kept.check()
        b.acquire("free", timeout=5).release()
        kept.release()
        face.close()

    def test_while_waiting_for_somebody(
        self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker
    ) -> None:
        face = colour(proxy.url(fenced_url) + "?connect=1")
        a = face.worker()
        with Taker(fenced_url, "k", namespace=face.namespace) as taker:
            with Stopwatch(5):
                waiting = a.start_acquire("k", timeout=1.5)
                eventually(onlooker.waiting)
                proxy.hold()
                taker.release()  # and it is granted to us, but we do not hear of it
                assert isinstance(waiting.error(), TimeoutError | BackendUnavailable)
            proxy.resume()
            eventually(lambda: not onlooker.locks(), within=5)
            a.acquire("k", timeout=5).release()
        face.close()
        assert not face.troubles

    def test_leaving_a_block(self, colour: type[Face], proxy: Proxy, fenced_url: str, onlooker: Onlooker) -> None:
        face = colour(proxy.url(fenced_url) + "?reply=2")
        a = face.worker()
        with Stopwatch(4):
            a.inside(lambda _: proxy.hold(), "k")
        with Stopwatch(4):
            a.close()
        proxy.resume()
        face.close()
        eventually(lambda: not onlooker.locks())

    def test_a_server_stopped_in_its_tracks(self, colour: type[Face], fenced_url: str, onlooker: Onlooker) -> None:
        face = colour(fenced_url + "?reply=2&connect=1")
        a, b = face.workers(2)
        kept = a.acquire("kept")
        onlooker.server.pause()
        try:
            with Stopwatch(3), pytest.raises(BackendUnavailable):
                b.acquire("free", timeout=1)
            assert kept.wait_lost(4)
            with Stopwatch(4), pytest.raises(BackendUnavailable):
                b.acquire("free", timeout=1)
            with Stopwatch(4), pytest.raises(BackendUnavailable):
                b.who()
        finally:
            onlooker.server.resume()
        kept.release()
        b.acquire("free", "kept", timeout=5).release()
        face.close()


def hold_after(proxy: Proxy, n: int) -> None:
    """Become a black hole after so many bytes of the server."""
    left, pump = [n], proxy._passing

    def passing(side: str, size: int) -> int | None:
        if side == "server" and left[0] >= 0:
            left[0] -= size
            if left[0] < 0:
                proxy._open.clear()
        return pump(side, size)  # type: ignore[arg-type]

    proxy._passing = passing  # type: ignore[method-assign]
