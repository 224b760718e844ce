"""Real threads, switched as often as the interpreter can, and interrupted as often as a keyboard could."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import takehold
from takehold.core.seat import QUEUED
from takehold.testing.server import FakeBackend, FakeServer
from tests.lanes import scaled


@pytest.fixture(params=["memory", "file", "host", "server"])
def locks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[takehold.Locks]:
    server = FakeServer()
    url: Any = {
        "memory": "memory:",
        "file": f"file:{tmp_path}/locks",
        "host": FakeBackend(server, instant=True),
        "server": FakeBackend(server),
    }[request.param]
    with takehold.Locks(url, check_order="off") as locks:
        yield locks
        desk = locks._desk
        assert desk is not None
        desk.sweep()
        assert not desk.busy()
        assert not desk._register.entries
        if desk._combiner is not None:
            assert not desk._combiner._pending
            assert not desk._combiner._releases
        assert not server.holders
        assert not server.waiters


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    """Let threads change places every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Room:
    """Counts who is inside, with a gap between reading and writing for others to fall into."""

    def __init__(self) -> None:
        self.writers = self.readers = self.wrong = self.entered = 0

    def visit(self, shared: bool) -> None:
        """Come in, look around, go."""
        if shared:
            self.readers += 1
            self.wrong += self.writers != 0
            self.readers -= 1
        else:
            inside = self.writers
            self.writers = inside + 1
            self.wrong += self.writers != 1
            self.writers = inside
        self.entered += 1


def in_threads(number: int, work: Callable[[int], None]) -> None:
    """Run the work in so many threads and raise what any of them raised."""
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


@pytest.mark.covers("L-1", "L-19")
def test_threads_never_meet_inside(locks: takehold.Locks) -> None:
    """Exclusive, shared, several keys, tries and short timeouts, from eight threads on three keys."""
    rooms = {name: Room() for name in ("a", "b", "c")}
    rounds = scaled(2_000)

    def work(index: int) -> None:
        rng = random.Random(index)
        for _ in range(rounds):
            names = rng.sample(list(rooms), rng.choice((1, 1, 2)))
            # Readers of one key can be inside together: only writers count on their own.
            shared = len(names) == 1 and rng.random() < 0.3
            keys = [takehold.shared(name) if shared else name for name in names]
            request = locks.lock(*keys, timeout=rng.choice((0.0, 0.001, 30.0)))
            with contextlib.suppress(takehold.LockTimeout), request:
                for name in names:
                    if not shared:
                        rooms[name].visit(shared)

    with switching_often():
        in_threads(8, work)
    assert sum(room.wrong for room in rooms.values()) == 0
    assert all(room.entered for room in rooms.values())


@pytest.mark.covers("L-8")
def test_threads_are_served_in_the_order_they_came(locks: takehold.Locks) -> None:
    """First come, first served, within a process."""
    order: list[int] = []
    hold = locks.lock("a").acquire()
    threads: list[threading.Thread] = []

    def wait(index: int) -> None:
        with locks.lock("a", timeout=30):
            order.append(index)

    desk = locks._desk
    assert desk is not None
    for index in range(6):
        thread = threading.Thread(target=wait, args=(index,))
        thread.start()
        threads.append(thread)
        while sum(seat.state == QUEUED for seat in desk.busy()) < index + 1:
            time.sleep(0.001)
    hold.release()
    for thread in threads:
        thread.join(30)
    assert order == list(range(6))


class Interrupted(Exception):
    """What the signal handler raises, like Ctrl-C would."""


@pytest.mark.filterwarnings("ignore")  # a hold that was interrupted on its way to its owner is released late
@pytest.mark.covers("L-9", "L-18")
def test_interrupts_at_any_instruction_leave_nothing(locks: takehold.Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer raises in the main thread every few dozen microseconds; every key can be had afterwards."""
    if isinstance(locks._backend, FakeBackend):
        pytest.skip("the fake server keeps its tables in this process, where the interrupt hits them too")
    # What strikes inside a finalizer is swallowed by the interpreter, as Ctrl-C would be.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    armed = False

    def strike(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    rng = random.Random(1)
    struck = 0
    try:
        for round_number in range(scaled(20_000)):
            keys: list[Any] = [takehold.shared("a")] if round_number % 3 == 0 else ["a", "b"][: 1 + round_number % 2]
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 6e-5))
                with locks.lock(*keys, timeout=1):
                    pass
                armed = False
            except Interrupted:
                struck += 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck > 10
    desk = locks._desk
    assert desk is not None
    desk.sweep()
    assert not desk.busy()
    answers: list[bool] = []

    def another_thread() -> None:
        hold = locks.lock("a", "b", timeout=5).acquire()
        answers.append(True)
        hold.release()

    in_threads(1, lambda _: another_thread())
    assert answers == [True]


@pytest.mark.covers("L-9")
def test_ctrl_c_while_waiting_leaves_no_queue_entry(locks: takehold.Locks) -> None:
    """The wait ends at once with KeyboardInterrupt, and the next in line is not affected."""
    released = threading.Event()
    held = threading.Event()

    def other() -> None:
        with locks.lock("a"):
            held.set()
            released.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(30)
    desk = locks._desk
    assert desk is not None

    def interrupt() -> None:
        while not any(seat.state == QUEUED for seat in desk.busy()):
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        locks.lock("a", timeout=30).acquire()
    assert time.monotonic() - started < 10
    interrupter.join()
    released.set()
    thread.join(30)
    locks.lock("a", timeout=5).acquire().release()


@pytest.mark.slow
@pytest.mark.covers("L-10")
def test_a_timeout_that_meets_the_release_leaves_no_phantom(locks: takehold.Locks) -> None:
    """The holder lets go just when the waiter gives up; whoever was told no really has nothing."""
    timeouts = 0
    wait = delay = 0.0006
    for _ in range(scaled(10_000)):
        go = threading.Event()
        hold = locks.lock("a").acquire()
        result: list[bool] = []

        def waiter(go: threading.Event = go, result: list[bool] = result) -> None:
            go.set()
            try:
                locks.lock("a", timeout=wait).acquire().release()
                result.append(True)
            except takehold.LockTimeout:
                result.append(False)

        thread = threading.Thread(target=waiter)
        thread.start()
        go.wait(10)
        time.sleep(delay)
        hold.release()
        thread.join(10)
        timeouts += result == [False]
        # Aim at the boundary: half of the waits should fail.
        delay *= 0.95 if result == [False] else 1.05
        # Nobody holds it now, and if somebody did without knowing, this would be refused.
        after = locks.lock("a").try_acquire()
        assert after is not None, "a phantom hold"
        after.release()
    assert timeouts > 10
