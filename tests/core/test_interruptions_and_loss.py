"""What once went wrong when holds were lost, waits interrupted, or objects shared; each by its symptom."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from takehold import AsyncHold, AsyncLocks, BackendUnavailable, HoldLost, Key, Locks, UsageError, WouldDeadlock
from takehold.core.backend import Ask, Granted, Releasable
from takehold.core.desk import Desk
from takehold.core.seat import Seat
from takehold.runtime import Threads
from takehold.testing.faces import eventually
from takehold.testing.server import FakeBackend, FakeServer, FakeSession
from tests import lanes


@pytest.fixture
def url() -> str:
    return f"memory:{secrets.token_hex(8)}"


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class TestOneRequestForMany:
    """A request object at module level, used by everybody."""

    @pytest.mark.covers("L-1", "L-35")
    @pytest.mark.parametrize("kind", ["slots", "shared"])
    def test_a_thread_that_leaves_releases_its_own_hold(self, url: str, kind: str) -> None:
        """It released whichever was entered last: two threads were then in one slot."""
        locks = Locks(url)
        request = locks.slots("gpu", 2) if kind == "slots" else locks.lock("gpu", mode="shared")
        with ThreadPoolExecutor(1) as pool:
            theirs = pool.submit(request.__enter__).result(5)
            with request as ours:
                pool.submit(request.__exit__, None, None, None).result(5)
                assert (theirs.released, ours.released) == (True, False)
        assert locks.who() == []

    @pytest.mark.covers("L-1", "L-35")
    @pytest.mark.parametrize("kind", ["slots", "shared"])
    def test_a_task_that_leaves_releases_its_own_hold(self, url: str, kind: str) -> None:
        """The same on the asyncio face."""

        async def main() -> None:
            locks = AsyncLocks(url)
            request = locks.slots("gpu", 2) if kind == "slots" else locks.lock("gpu", mode="shared")
            entered: asyncio.Future[AsyncHold] = asyncio.get_running_loop().create_future()
            leave = asyncio.Event()

            async def first() -> None:
                async with request as hold:
                    entered.set_result(hold)
                    await leave.wait()

            task = asyncio.create_task(first())
            theirs = await entered
            async with request as ours:
                leave.set()
                await task
                assert (theirs.released, ours.released) == (True, False)
            assert await locks.who() == []

        asyncio.run(main())

    @pytest.mark.slow
    @pytest.mark.covers("L-1", "L-35")
    def test_ten_threads_never_meet_in_a_slot(self, url: str, restless: None) -> None:
        """Two that entered at once: one hold was forgotten, and its thread released somebody else's."""
        locks = Locks(url, check_order="off", timeout=20)
        gpu, inside = locks.slots("gpu", 10), list[int | None]()

        def work(_: int) -> None:
            for _ in range(lanes.scaled(5000)):
                with gpu as hold:
                    assert hold.slot not in inside
                    inside.append(hold.slot)
                    time.sleep(0)
                    assert not hold.released
                    inside.remove(hold.slot)

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(work, range(10)))
        assert locks.who() == []

    @pytest.mark.covers("L-17")
    def test_two_loops_in_two_threads_use_one_object(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A task went on with the events of the other thread's loop: it was never woken."""
        locks, real, met = AsyncLocks(url), Desk.grab, []

        async def elsewhere() -> None:
            async with locks.lock("other"):
                met.append("other")

        def grab(desk: Desk, seats: list[Seat]) -> int:
            taken = real(desk, seats)
            if not taken and not met:  # about to wait: now somebody else uses the same object on another loop
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(asyncio.run, elsewhere()).result(5)
            return taken

        async def main() -> None:
            hold = await locks.lock("k").acquire()
            waiting = asyncio.create_task(locks.lock("k").acquire())
            while not met or len(await locks.who()) < 2:
                await asyncio.sleep(0)
            await hold.release()
            await (await asyncio.wait_for(waiting, 5)).release()

        monkeypatch.setattr(Desk, "grab", grab)
        asyncio.run(asyncio.wait_for(main(), 10))


class TestLoss:
    """Everybody who is concerned is told, and nobody else."""

    @pytest.mark.covers("L-13")
    def test_a_block_of_another_thread_is_told_when_its_locks_are_closed(self, url: str) -> None:
        """close() gave its key to somebody else, and the block ended as if it had held it all the time."""
        closing, other = Locks(url), Locks(url)
        entered, closed = threading.Event(), threading.Event()

        def block() -> None:
            with closing.lock("k") as hold:
                entered.set()
                assert closed.wait(5)
                assert hold.lost

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(block)
            assert entered.wait(5)
            closing.close()
            theirs = other.lock("k").try_acquire()
            closed.set()
            with pytest.raises(HoldLost, match="closed"):
                running.result(5)
        assert theirs is not None
        theirs.release()

    @pytest.mark.covers("L-6", "L-29")
    def test_a_waiter_whose_fresh_hold_is_evicted_before_it_runs_ends_at_once(self, url: str) -> None:
        """It went back to wait, for a hold that it had already had and lost: for ever."""

        async def main() -> None:
            locks = AsyncLocks(url)
            hold = await locks.lock("k").acquire()
            waiting = asyncio.create_task(locks.lock("k", timeout=None).acquire())
            while len(await locks.who()) < 2:
                await asyncio.sleep(0)
            await hold.release()  # handed over to a task that has not run yet
            (record,) = await locks.who()
            assert record.state == "held"
            assert await locks.evict(record.id)
            done, _ = await asyncio.wait([waiting], timeout=5)
            assert [type(task.exception()) for task in done] == [BackendUnavailable]
            async with locks.lock("k", timeout=0):
                pass

        asyncio.run(main())

    @pytest.mark.covers("L-6", "L-13")
    def test_a_waiter_whose_session_dies_before_it_runs_ends_at_once(self, tmp_path: Path) -> None:
        """The same, when the directory is replaced between the hand-over and the waiter's turn."""

        async def main() -> None:
            locks = AsyncLocks(f"file:{tmp_path}/locks")
            hold = await locks.lock("k").acquire()
            waiting = asyncio.create_task(locks.lock("k", timeout=None).acquire())
            desk: Any = locks._desk
            while not desk._register.waits:
                await asyncio.sleep(0)
            await hold.release()
            session = desk._register.session
            session.lost, session.usable = "the lock directory was replaced", False
            desk.session_lost(session, session.lost)  # what the watch does when it notices
            done, _ = await asyncio.wait([waiting], timeout=5)
            assert [type(task.exception()) for task in done] == [BackendUnavailable]
            async with locks.lock("k", timeout=5):
                pass
            await locks.close()

        asyncio.run(main())

    @pytest.mark.covers("L-13")
    def test_a_loss_cancels_the_task_inside_the_block_and_not_the_taker(self, url: str) -> None:
        """A hold taken by one task and entered by another: the taker was cancelled, the block went on."""

        async def main() -> None:
            locks = AsyncLocks(url)
            taken: asyncio.Queue[AsyncHold] = asyncio.Queue()
            inside, done = asyncio.Event(), asyncio.Event()

            async def taker() -> str:
                await taken.put(await locks.lock("k").acquire())
                await done.wait()
                return "lived"

            async def user() -> None:
                async with await taken.get():
                    inside.set()
                    await asyncio.sleep(10)

            one, other = asyncio.create_task(taker()), asyncio.create_task(user())
            await asyncio.wait_for(inside.wait(), 5)
            (record,) = await locks.who()
            assert await locks.evict(record.id)
            await asyncio.wait([other], timeout=5)
            done.set()
            assert await one == "lived"
            assert isinstance(other.exception(), HoldLost)

        asyncio.run(main())

    @pytest.mark.covers("L-13")
    def test_wait_lost_leaves_no_callback_behind(self, url: str) -> None:
        """A loop that looks with wait_lost(0) kept one more callback each time."""
        with Locks(url).lock("k") as hold:
            assert not any(hold.wait_lost(0) for _ in range(50))
            assert not hold._seats[-1].watch

    @pytest.mark.covers("L-13")
    def test_a_timer_callback_that_exits_does_not_silence_the_others(self) -> None:
        """`on_lost(sys.exit)` ended the timer thread, which nobody started again."""
        rung = threading.Event()
        Threads.later(0, sys.exit)
        Threads.later(0, rung.set)
        assert rung.wait(5)


class TestInterruptions:
    """Who goes away leaves nothing behind."""

    @pytest.mark.covers("L-9", "L-17")
    def test_600_waiters_of_a_closed_loop_do_not_break_a_release(self, url: str) -> None:
        """Each dead waiter was passed over by one more call inside the last: RecursionError in release()."""
        locks, there, loop = Locks(url), AsyncLocks(url), asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)
        hold = locks.lock("k").acquire()

        async def wait() -> list[asyncio.Task[AsyncHold]]:
            tasks = [asyncio.create_task(there.lock("k", timeout=None).acquire()) for _ in range(600)]
            while len(await there.who()) < 601:
                await asyncio.sleep(0)
            return tasks

        tasks = loop.run_until_complete(wait())
        loop.close()
        hold.release()
        with locks.lock("k", timeout=1):
            assert not any(task.done() for task in tasks)

    @pytest.mark.covers("L-9", "L-10")
    def test_the_late_grant_of_an_interrupted_follower_is_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its ask rode in another thread's statement; the grant came for nobody and stayed at the server."""
        server = FakeServer()
        locks = Locks(FakeBackend(server), check_order="off").open()
        desk: Any = locks._desk
        real, here, gone = FakeSession.apply, threading.get_ident(), threading.Event()

        def pending(count: int) -> None:
            eventually(lambda: len(desk._combiner._pending) == count, "so many wait for the wire")

        async def apply(
            session: FakeSession, releases: Sequence[Releasable], asks: Sequence[Ask], seconds: float
        ) -> list[Granted]:
            answers = await real(session, releases, asks, seconds)
            asked = {want.text for ask in asks for want in ask.wants}
            if asked == {"a"}:
                pending(2)
            elif asked == {"b", "c"}:
                signal.pthread_kill(here, signal.SIGALRM)
                assert gone.wait(5)
            return answers

        def interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(FakeSession, "apply", apply)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with ThreadPoolExecutor(2) as pool:
                a = pool.submit(locks.lock("a").acquire)
                eventually(lambda: desk._combiner.statements == 1)
                b = pool.submit(locks.lock("b").acquire)
                pending(1)
                with pytest.raises(KeyboardInterrupt):
                    locks.lock("c").acquire()
                gone.set()
                holds = [a.result(5), b.result(5)]
        finally:
            signal.signal(signal.SIGALRM, before)
        assert len(server.holders) == 2
        with Locks(FakeBackend(server, "p2")) as other, other.lock("c", timeout=1):
            pass
        for hold in holds:
            hold.release()
        assert not server.holders
        locks.close()


class TestUsage:
    """What is refused, and what the order checker says."""

    @pytest.mark.covers("L-12")
    def test_slots_and_wait_lost_do_not_freeze_a_running_loop(self, url: str) -> None:
        """Both waited on the blocking face inside a loop, which lock() has always refused."""

        async def main() -> None:
            locks = Locks(url, check_order="off")
            with locks.slots("gpu", 1) as hold:
                with pytest.raises(UsageError, match="event loop"):
                    locks.slots("gpu", 1, timeout=1).acquire()
                with pytest.raises(UsageError, match="event loop"):
                    hold.wait_lost(1)
                assert not hold.wait_lost(0)

        asyncio.run(main())

    @pytest.mark.covers("L-35")
    def test_guard_refuses_a_generator(self, url: str) -> None:
        """Its body runs when it is iterated: after the key was given back."""

        def rows() -> Any:
            yield 1

        async def arows() -> Any:
            yield 1

        for guard, function in ((Locks(url).guard, rows), (AsyncLocks(url).guard, arows)):
            with pytest.raises(UsageError, match="generator"):
                guard("k")(function)

    @pytest.mark.covers("L-29", "L-32")
    @pytest.mark.parametrize("backend", ["memory", "file"])
    def test_evict_refuses_what_is_no_id_of_a_hold(self, url: str, tmp_path: Path, backend: str) -> None:
        """A typing error looked like a hold that had just ended."""
        where = url if backend == "memory" else f"file:{tmp_path}/locks"
        with Locks(where) as locks, pytest.raises(UsageError, match="id of a hold"):
            locks.evict("typo")

    @pytest.mark.covers("L-6", "L-32")
    def test_a_timeout_too_large_for_a_float_is_refused(self, url: str) -> None:
        """It was an OverflowError, from deep inside."""
        for use in (lambda: Locks(url, timeout=10**400), lambda: Locks(url).lock("k", timeout=10**400)):
            with pytest.raises(UsageError):
                use()

    @pytest.mark.covers("L-21", "L-37")
    def test_the_order_of_one_namespace_says_nothing_about_another(self, url: str) -> None:
        """Two applications in one process were told that they would deadlock with each other."""
        shop, crm = Locks(url, namespace="shop"), Locks(url, namespace="crm")
        with shop.lock("orders"), shop.lock("stock"):
            pass
        with crm.lock("stock"), crm.lock("orders"):  # a LockOrderWarning here would be an error
            pass

    @pytest.mark.covers("L-7", "L-21")
    def test_a_try_against_the_order_is_no_inversion(self, url: str) -> None:
        """It never waits, so it cannot deadlock; try_acquire even raised."""
        locks = Locks(url, check_order="raise")
        with locks.lock("a"), locks.lock("b"):
            pass
        with locks.lock("b"):
            hold = locks.lock("a").try_acquire()
            assert hold is not None
            hold.release()

    @pytest.mark.covers("L-20", "L-21")
    def test_a_key_inside_a_text_of_the_same_template_is_no_inversion(self, url: str) -> None:
        """A text and a Key are two orders: neither can stand before the other."""
        locks = Locks(url, check_order="raise")
        with locks.lock("orders/9"), locks.lock(Key("orders", 1)):
            pass

    @pytest.mark.covers("L-19", "L-21")
    def test_nesting_against_the_order_of_one_request_is_an_inversion(self, url: str) -> None:
        """lock("a", "b") takes a, then b: whoever nests a in b deadlocks with it one day."""
        locks = Locks(url, check_order="raise")
        with locks.lock("a", "b"):
            pass
        with locks.lock("b"), pytest.raises(WouldDeadlock, match="inverted"):
            locks.lock("a").acquire()
