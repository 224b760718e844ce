"""Other processes: kept out, let in, killed, frozen, forked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from takehold.core.backend import Capabilities
from takehold.errors import HoldLost, LockTimeout, WouldDeadlock
from takehold.testing.faces import Face, Steps, Worker, eventually
from takehold.testing.forked import in_a_fork
from takehold.testing.suite.exclusion import AT_ONCE
from takehold.testing.suite.fixtures import requires
from takehold.testing.taker import Taker

__all__ = ["TestFork", "TestProcesses"]


@contextmanager
def looping(face: Face, workers: int, mode: str = "exclusive") -> Iterator[list[int]]:
    """So many workers take a key and give it back all the time; how often they had it."""
    stop, turns = threading.Event(), [0]

    def loop(locks: Any) -> Steps:
        while not stop.is_set():
            hold = yield locks.lock("k", mode=mode, timeout=60).acquire()
            turns[0] += 1
            yield face.sleep(0.002) if mode == "shared" else None
            yield hold.release()

    calls = [worker.start(loop) for worker in face.workers(workers)]
    try:
        eventually(lambda: turns[0] > 20)
        yield turns
    finally:
        stop.set()
    for call in calls:
        call.result()


def named(worker: Worker) -> LockTimeout:
    """The timeout that names who holds `k`; an owner too busy to answer in time is asked again."""

    def timed_out() -> LockTimeout | None:
        with pytest.raises(LockTimeout) as caught:
            worker.acquire("k", timeout=0.05)
        return caught.value if "elsewhere" in str(caught.value) else None

    told = eventually(timed_out, "the timeout names the owner")
    assert told is not None
    return told


@requires(across="host")
@pytest.mark.crash
class TestProcesses:
    """What must hold between processes, with real ones."""

    @pytest.mark.covers("L-1", "L-5", "L-7", "L-28")
    def test_a_key_held_by_another_process_is_busy_and_its_owner_is_named(self, face: Face) -> None:
        a = face.worker()
        with a.acquire("k") as hold:
            before = hold.fence
        with Taker(face.url, "k", namespace=face.namespace, label="elsewhere") as taker:
            assert taker.fence > before
            assert a.try_acquire("k") is None
            assert named(a).owner.pid == taker.pid
            (record,) = eventually(lambda: [one for one in face.who() if one.owner.label], "its owner answers")
            assert (record.key, record.state, record.fence) == ("k", "held", taker.fence)
            assert (record.owner.pid, record.owner.label) == (taker.pid, "elsewhere")
            assert record.owner.site
            assert record.namespace == face.namespace
            waiting = a.start_acquire("k", timeout=60)
            face.until_waiting("k")
            taker.release()
            with waiting.result() as hold:
                assert hold.fence > taker.fence

    @pytest.mark.covers("L-1")
    def test_counting_in_a_file_from_several_processes_loses_nothing(
        self, face: Face, tmp_path: Path, scaled: Callable[[int], int]
    ) -> None:
        """Each reads a number, lets the others run and writes it plus one: without exclusion counts get lost."""
        number, rounds = tmp_path / "number", scaled(2_000)
        number.write_text("0")
        command = [sys.executable, "-m", "takehold.testing.taker", face.url, "k", "--namespace", face.namespace]
        command += ["--count", str(number), "--rounds", str(rounds)]
        others = [subprocess.Popen(command) for _ in range(2)]  # noqa: S603 - our own module

        def count(locks: Any) -> Steps:
            for _ in range(rounds):
                hold = yield locks.lock("k", timeout=60).acquire()
                seen = int(number.read_text())
                yield
                number.write_text(str(seen + 1))
                yield hold.release()

        for call in [worker.start(count) for worker in face.workers(2)]:
            call.result(60)
        assert [other.wait(60) for other in others] == [0, 0]
        assert int(number.read_text()) == 4 * rounds

    @requires("shared")
    @pytest.mark.covers("L-1")
    def test_readers_of_two_processes_share_and_keep_writers_out(self, face: Face) -> None:
        a, b = face.workers(2)
        with Taker(face.url, "k", namespace=face.namespace, shared=True) as taker:
            with a.acquire("k", mode="shared"), b.acquire("k", mode="shared"):
                assert len(face.holders("k")) == 3
            assert not a.can_take("k")
            taker.release()
            assert a.can_take("k")

    @pytest.mark.covers("L-8")
    def test_another_process_gets_its_turn_while_this_one_hands_over_locally(self, face: Face) -> None:
        with looping(face, 4) as turns, Taker(face.url, "k", namespace=face.namespace, wait=True) as taker:
            taker.until_held(within=AT_ONCE)
            taker.release()
            before = turns[0]
            eventually(lambda: turns[0] > before + 20, "and this process goes on afterwards")

    @requires("shared")
    @pytest.mark.covers("L-8")
    def test_a_writer_of_another_process_gets_in_while_readers_here_loop(self, face: Face) -> None:
        with looping(face, 6, "shared"), Taker(face.url, "k", namespace=face.namespace, wait=True) as taker:
            taker.until_held(within=AT_ONCE)
            taker.release()

    @pytest.mark.covers("L-5", "L-14")
    def test_a_killed_owner_frees_its_key(self, face: Face) -> None:
        a = face.worker()
        with Taker(face.url, "k", namespace=face.namespace) as taker:
            waiting = a.start_acquire("k", timeout=60)
            face.until_waiting("k")
            taker.kill()
            with waiting.result(AT_ONCE) as hold:
                assert hold.fence > taker.fence
                assert [record.owner.pid for record in face.who()] == [os.getpid()]

    @pytest.mark.covers("L-14")
    def test_a_killed_waiter_is_out_of_the_line(self, face: Face) -> None:
        a, b = face.workers(2)
        hold = a.acquire("k")
        with Taker(face.url, "k", namespace=face.namespace, wait=True) as taker:
            face.until_waiting("k")
            assert [record.owner.pid for record in face.waiters("k")] == [taker.pid]
            taker.kill()
            eventually(lambda: not face.waiters("k"))
            waiting = b.start_acquire("k", timeout=60)
            hold.release()
            waiting.result(AT_ONCE).release()

    @pytest.mark.covers("L-9")
    def test_a_waiter_interrupted_by_ctrl_c_is_out_of_the_line(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k"), Taker(face.url, "k", namespace=face.namespace, wait=True, quiet=True) as taker:
            face.until_waiting("k")
            taker.interrupt()
            assert taker.wait() != 0
            assert not face.waiters("k")
        assert b.can_take("k")

    @pytest.mark.covers("L-28")
    def test_a_frozen_owner_is_still_listed(self, face: Face) -> None:
        a = face.worker()
        with Taker(face.url, "k", namespace=face.namespace) as taker:
            taker.stop()
            # By its exact key: a server may know only a number of it.
            (record,) = a.who("k")
            assert (record.key, record.owner.pid) == ("k", taker.pid)
            assert not a.can_take("k")
            taker.cont()
            taker.release()
            assert a.can_take("k")

    @requires(evict="ask")
    @pytest.mark.covers("L-29")
    def test_evicting_a_hold_of_another_process_asks_its_owner(self, face: Face) -> None:
        a = face.worker()
        with Taker(face.url, "k", namespace=face.namespace) as taker:
            taker.tell("then other")
            taker.says("asking")
            taker.says("holding")
            (record,) = face.holders("k")
            assert a.do(lambda locks: locks.evict(record.id)) is True
            assert taker.says("lost") == "k"
            assert a.can_take("k")
            assert not a.can_take("other")

    @requires(evict="ask")
    @pytest.mark.covers("L-29")
    def test_a_frozen_owner_does_not_answer_an_eviction(self, face: Face) -> None:
        a = face.worker()
        with Taker(face.url, "k", namespace=face.namespace) as taker:
            taker.stop()
            (record,) = a.who("k")
            assert a.do(lambda locks: locks.evict(record.id, timeout=0.05)) is False
            assert not a.can_take("k")
            taker.cont()
            assert taker.says("lost") == "k"

    @requires(evict="terminate")
    @pytest.mark.covers("L-29")
    def test_a_frozen_owner_can_be_terminated(self, face: Face) -> None:
        a = face.worker()
        with Taker(face.url, "k", namespace=face.namespace) as taker:
            taker.stop()
            (record,) = a.who("k")
            assert a.do(lambda locks: locks.evict(record.id, terminate=True, timeout=0.05)) is True
            eventually(lambda: a.can_take("k"), "the key is free")
            # Its process was ended, or only its session: then it finds out when it goes on.
            taker.cont()
            assert taker.lost_or_dead("k")

    @pytest.mark.slow
    @pytest.mark.covers("L-21")
    def test_a_cycle_of_two_processes_is_found_within_two_seconds(self, face: Face) -> None:
        """Twice at the same time: in one the younger waiter is here, in the other it is there."""
        a, b = face.workers(2, face.locks(check_order="off", timeout=60))
        with (
            Taker(face.url, "x1", namespace=face.namespace) as first,
            Taker(face.url, "x2", namespace=face.namespace) as second,
        ):
            here, there = a.acquire("y1"), b.acquire("y2")
            first.tell("then y1")
            face.until_waiting("y1")
            elder = b.start_acquire("x2")
            face.until_waiting("x2")
            second.tell("then y2")
            began = time.monotonic()
            assert isinstance(a.start_acquire("x1").error(), WouldDeadlock)
            assert time.monotonic() - began < 2 + AT_ONCE
            second.says("asking")
            assert second.says("refused").startswith("WouldDeadlock")
            here.release()
            first.says("asking")
            first.says("holding")
            second.release()
            elder.result().release()
            there.release()


@pytest.mark.crash
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestFork:
    """A child neither holds nor releases what its parent holds, and opens anew."""

    @pytest.mark.covers("L-17")
    def test_an_inherited_hold_is_lost_in_the_child_and_intact_in_the_parent(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k") as hold:

            def child() -> Any:
                with pytest.raises(HoldLost, match="fork"):
                    hold.check()
                told: list[str] = []
                hold.on_lost(lambda: told.append("told"))
                return hold.lost, told

            assert in_a_fork(child) == (True, ["told"])
            assert not hold.lost
            hold.check()
            assert not b.can_take("k")

    @requires(across="host")
    @pytest.mark.covers("L-17")
    def test_a_child_opens_by_itself_and_is_kept_out_by_its_parent(self, face: Face) -> None:
        a, b = face.workers(2)
        locks = a.locks

        def in_child(locks: Any) -> Steps:
            busy = yield locks.lock("k").try_acquire()
            free = yield locks.lock("free").acquire()
            records = yield locks.who()
            mine = [r.owner.pid for r in records if r.key == "free" and r.namespace == face.namespace]
            yield free.release()
            return busy, mine == [os.getpid()]

        with a.acquire("k"):
            assert in_a_fork(lambda: face.alone(in_child, locks)) == (None, True)
            assert not b.can_take("k")
            assert [record.owner.pid for record in face.who()] == [os.getpid()]

    @pytest.mark.covers("L-17")
    def test_a_release_in_the_child_does_not_free_the_key_of_the_parent(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k") as hold:

            def release(_: Any) -> Steps:
                yield hold.hold.release()

            in_a_fork(lambda: face.alone(release, None))
            hold.check()
            assert not b.can_take("k")
            assert len(face.holders("k")) == 1
        assert b.can_take("k")

    @requires(across="host")
    @pytest.mark.covers("L-14", "L-17")
    def test_a_child_that_ends_with_a_hold_frees_it(self, face: Face, capabilities: Capabilities) -> None:
        """At once, or when a server sees the end of its connection; where a lease keeps it, when that has run out."""
        a = face.worker()
        a.acquire("warm up").release()
        locks, kept = a.locks, []

        def take(locks: Any) -> Steps:
            hold = yield locks.lock("k").acquire()
            kept.append(hold)
            return hold.fence

        fence = in_a_fork(lambda: face.alone(take, locks))
        patience = 60 if capabilities.loss == "trust deadline" else 5 if capabilities.across == "server" else 0
        with a.acquire("k", timeout=patience) as hold:
            assert hold.fence > fence
            assert len(face.who()) == 1

    @pytest.mark.covers("L-17")
    def test_forking_in_the_middle_of_everything_leaves_the_child_able_to_lock(self, face: Face) -> None:
        """Other workers take and wait all the time; whatever they had locked inside stays behind in the parent."""

        def in_child(locks: Any) -> Steps:
            hold = yield locks.lock("mine", timeout=10).acquire()
            yield hold.release()
            return "took it"

        locks = face.locks()
        with looping(face, 3):
            for _ in range(5):
                assert in_a_fork(lambda: face.alone(in_child, locks)) == "took it"

    @pytest.mark.covers("L-17")
    def test_another_event_loop_opens_by_itself(self, asyncio_face: Face) -> None:
        locks, b = asyncio_face.locks(), asyncio_face.worker()

        def work(locks: Any) -> Steps:
            hold = yield locks.lock("k", timeout=0).acquire()
            records = yield locks.who("k")
            yield hold.release()
            return len(records)

        for _ in range(3):
            assert asyncio_face.alone(work, locks) == 1
            assert b.can_take("k")

    @pytest.mark.covers("L-17")
    def test_two_event_loops_at_once_exclude_each_other(self, asyncio_face: Face) -> None:
        locks = asyncio_face.locks()

        def work(locks: Any) -> Steps:
            return (yield locks.lock("k").try_acquire())

        with asyncio_face.worker().acquire("k"):
            assert asyncio_face.alone(work, locks) is None
