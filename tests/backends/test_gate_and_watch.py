"""What once went wrong at the gate of a file key, and with the watch over its holds; each by its symptom."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from takehold import AsyncLocks, Hold, Locks
from takehold.backends.file import FileBackend, cycle
from takehold.backends.file import session as sessions
from takehold.backends.file.directory import lock_record
from takehold.core import standing
from takehold.runtime import Threads
from takehold.testing import Taker
from tests.backends.elsewhere import evicted_elsewhere

KEY = "orders/42"


@pytest.fixture
def quick_patrol(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch looks every 10 ms, and goes to sleep after 100 ms without work."""
    monkeypatch.setattr(sessions, "PATROL", 0.01)


def spot_of(locks: Locks, key: str = KEY) -> Any:
    return locks._wants((key,), "exclusive", subtree=False)[0].place


def gate_is_locked(path: Path, spot: Any) -> bool:
    """As the kernel says, asked on a descriptor of its own."""
    try:
        fd = os.open(path / f"gate-{spot.stripe:02x}", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, lock_record(fcntl.F_WRLCK, spot.offset))
        return int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK
    finally:
        os.close(fd)


def granted_after_a_long_wait(locks: Locks, url: str) -> Hold:
    """A hold for which somebody waited longer than an idle watch stays awake."""
    with Taker(url, KEY) as taker, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(locks.lock(KEY).acquire)
        time.sleep(0.3)  # the wait is the point: three times what an idle watch lasts
        taker.release()
        return waiting.result(20)


WRITER = """
import mmap, os, time
inside = mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 4096)
locks = takehold.Locks(sys.argv[1], check_order="off", timeout=8)
print("ready", flush=True)
end, turn, beside = time.monotonic() + 1.2, 0, 0
while time.monotonic() < end:
    turn = (turn + 1) % 6
    with locks.lock(f"k{turn}"):
        beside += inside[turn] > 0
        time.sleep(0.0005)
        beside += inside[turn] > 0
print(beside)
"""


class TestTheGate:
    """Where those wait who want a key of another process."""

    @pytest.mark.slow
    @pytest.mark.crash
    @pytest.mark.covers("L-1")
    def test_a_writer_never_meets_readers_whose_descriptor_another_thread_closed(
        self, url: str, tmp_path: Path
    ) -> None:
        """Readers of one process each need a descriptor; one noted in a place for all was closed under its owner."""
        shown = tmp_path / "inside"
        shown.write_bytes(bytes(4096))
        locks = Locks(url, check_order="off", coalesce=False, timeout=8).open()
        command = [sys.executable, "-c", "import sys, takehold\n" + WRITER, url, str(shown)]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        mutex = threading.Lock()
        with open(shown, "r+b") as file, mmap.mmap(file.fileno(), 4096) as inside, ThreadPoolExecutor(12) as pool:

            def read(turn: int) -> None:
                while any(writer.poll() is None for writer in writers):
                    turn = (turn + 1) % 6
                    with locks.lock(f"k{turn}", mode="shared"):
                        with mutex:
                            inside[turn] += 1
                        time.sleep(0.0003)
                        with mutex:
                            inside[turn] -= 1

            readers = [pool.submit(read, turn) for turn in range(12)]
            said = [writer.communicate(timeout=30)[0].split() for writer in writers]
            for reader in readers:
                reader.result(20)
        assert said == [["ready", "0"]] * 2
        locks.close()

    @pytest.mark.covers("L-1", "L-9")
    @pytest.mark.parametrize("kind", ["gate", "_stripe"])
    def test_two_threads_that_open_the_same_file_lock_one_description(self, path: Path, kind: str) -> None:
        """A byte that was locked on a description that nobody remembers stayed locked for ever."""
        session: Any = FileBackend(path).open_now(Threads(), Any)  # type: ignore[arg-type]
        spot, opened, real = sessions.Spot(7), [], session._open
        both = threading.Barrier(2)

        def slow(name: str) -> int:
            opened.append(name)
            fd: int = real(name)
            with suppress(threading.BrokenBarrierError):
                both.wait(0.1)
            return fd

        session._open = slow
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(getattr(session, kind), [spot, spot])
        assert one == other
        assert len(opened) == 1
        session.close()

    @pytest.mark.crash
    @pytest.mark.covers("L-9")
    def test_an_interrupt_while_the_gate_is_entered_does_not_leave_it_locked(
        self, path: Path, url: str, locks: Locks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C between the kernel's yes and our note of it: the gate stayed ours, and nobody could wait."""
        real = sessions._fcntl
        struck: list[bool] = []

        def struck_at_the_gate(fd: int, command: int, record: bytes) -> Any:
            answer = real(fd, command, record)
            if not struck and sys._getframe(1).f_code.co_name == "enter_gate":
                struck.append(True)
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(sessions, "_fcntl", struck_at_the_gate)
        with Taker(url, KEY) as taker:
            with pytest.raises(KeyboardInterrupt):
                locks.lock(KEY, timeout=5).acquire()
            assert struck
            assert not gate_is_locked(path, spot_of(locks))
            with Taker(url, KEY, wait=True) as next_one:
                taker.release()
                next_one.until_held()

    @pytest.mark.crash
    @pytest.mark.covers("L-9")
    def test_a_waiter_that_is_cancelled_twice_leaves_the_gate(self, path: Path, url: str, locks: Locks) -> None:
        """`asyncio.run` cancels all tasks, those too that tidy up after a first cancel."""
        spot = spot_of(locks)

        async def main() -> None:
            there = AsyncLocks(url)
            waiting = asyncio.create_task(there.lock(KEY, timeout=None).acquire())
            async with asyncio.timeout(20):
                while not gate_is_locked(path, spot):
                    await asyncio.sleep(0.001)
            waiting.cancel()
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not gate_is_locked(path, spot)
            taker.release()
            with Taker(url, KEY):
                await there.close()

        with Taker(url, KEY) as taker:
            asyncio.run(main())

    @pytest.mark.crash
    @pytest.mark.covers("L-9", "L-17")
    def test_a_loop_that_was_closed_under_a_waiter_blocks_nobody(self, path: Path, url: str, locks: Locks) -> None:
        """Its task can never run again, and so can never leave the gate by itself."""
        spot, there, loop = spot_of(locks), AsyncLocks(url), asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)

        async def until_at_the_gate() -> None:
            async with asyncio.timeout(20):
                while not gate_is_locked(path, spot):
                    await asyncio.sleep(0.001)

        async def again() -> None:
            async with there.lock(KEY, timeout=5):
                pass
            await there.close()

        with locks.lock(KEY):
            waiting = loop.create_task(there.lock(KEY, timeout=30).acquire())
            loop.run_until_complete(until_at_the_gate())
            loop.close()
        asyncio.run(again())
        assert not waiting.done()
        with Taker(url, KEY):
            pass

    @pytest.mark.covers("L-7")
    def test_two_that_look_past_a_stale_flag_at_once_do_not_see_each_other(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each took the gate to see whether it was free, and told the other that the key was busy."""
        one, other = (FileBackend(path).open_now(Threads(), Any) for _ in range(2))  # type: ignore[arg-type]
        spot, real = sessions.Spot(7), sessions._fcntl
        seen: list[bool] = []

        def meanwhile(fd: int, command: int, record: bytes) -> Any:
            answer = real(fd, command, record)
            if not seen:
                seen.append(False)
                seen[0] = other._gate_is_free(spot)
            return answer

        one.gate(spot)
        one.flags[spot.flag] = 1
        monkeypatch.setattr(sessions, "_fcntl", meanwhile)
        assert one._gate_is_free(spot)
        assert seen == [True]
        for session in (one, other):
            session.close()

    @pytest.mark.crash
    @pytest.mark.covers("L-21")
    def test_many_waiters_share_one_reading_of_the_boards(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each of 100 tasks read every board four times a second to look for a deadlock, and the loop stood still."""
        looks: list[bool] = []
        readings: list[bool] = []
        real_look = sessions.FileSession.deadlock
        module = sessions if hasattr(sessions, "boards") else cycle
        real_read = module.boards

        def look(session: Any, seat: Any) -> str | None:
            looks.append(True)
            return real_look(session, seat)

        def read(where: Path) -> Any:
            readings.append(True)
            return real_read(where)

        monkeypatch.setattr(standing, "DEADLOCK_FIRST", 0.05)
        monkeypatch.setattr(standing, "DEADLOCK_AGAIN", 0.05)
        monkeypatch.setattr(sessions.FileSession, "deadlock", look)
        monkeypatch.setattr(module, "boards", read)

        async def main() -> float:
            there = AsyncLocks(url, check_order="off")

            async def work(number: int) -> None:
                async with there.lock(f"user/{number}"), there.lock(KEY, timeout=60):
                    pass

            began = time.monotonic()
            tasks = [asyncio.create_task(work(number)) for number in range(100)]
            async with asyncio.timeout(20):
                while len(looks) < 300:
                    await asyncio.sleep(0.001)
            took = time.monotonic() - began
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await there.close()
            return took

        with Taker(url, KEY):
            took = asyncio.run(main())
        assert len(readings) <= 1 + took / 0.2


class TestTheWatch:
    """It tells a holder that its hold is gone."""

    @pytest.mark.crash
    @pytest.mark.covers("L-13", "L-29")
    def test_a_hold_granted_after_a_long_wait_is_told_of_its_eviction(
        self, url: str, locks: Locks, quick_patrol: None
    ) -> None:
        """The watch had fallen asleep during the wait, and nobody woke it."""
        told = threading.Event()
        hold = granted_after_a_long_wait(locks, url)
        hold.on_lost(told.set)
        assert evicted_elsewhere(url, hold)
        assert told.wait(5)

    @pytest.mark.crash
    @pytest.mark.covers("L-13")
    def test_a_hold_granted_after_a_long_wait_is_told_that_its_directory_was_replaced(
        self, path: Path, url: str, locks: Locks, quick_patrol: None
    ) -> None:
        """Another process took the same key in the new directory, and this one never knew."""
        told = threading.Event()
        hold = granted_after_a_long_wait(locks, url)
        hold.on_lost(told.set)
        path.rename(path.with_name("away"))
        with Taker(url, KEY):
            assert told.wait(5)

    @pytest.mark.crash
    @pytest.mark.covers("L-13")
    def test_a_callback_that_exits_does_not_end_the_watch(self, url: str, locks: Locks, quick_patrol: None) -> None:
        """It ran on the one timer thread, and took it along: no later loss was told to anybody."""
        told = threading.Event()
        first, second = locks.lock("a").acquire(), locks.lock("b").acquire()
        first.on_lost(sys.exit)
        second.on_lost(told.set)
        assert evicted_elsewhere(url, first)
        assert evicted_elsewhere(url, second)
        assert told.wait(5)

    @pytest.mark.crash
    @pytest.mark.covers("L-13", "L-14")
    def test_a_key_is_free_after_its_directory_was_away_though_the_lost_hold_lives_on(
        self, path: Path, url: str, locks: Locks, quick_patrol: None
    ) -> None:
        """The kernel's lock stayed with the dead session, for as long as somebody kept the hold object."""
        told = threading.Event()
        hold = locks.lock(KEY).acquire()
        hold.on_lost(told.set)
        path.rename(path.with_name("away"))
        assert told.wait(5)
        path.with_name("away").rename(path)
        with Taker(url, KEY):
            assert hold.lost
        hold.release()
