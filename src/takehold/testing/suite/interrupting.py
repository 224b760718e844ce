"""Ctrl-C: a thread that is interrupted leaves nothing behind, whenever it comes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import takehold.locks
from takehold.core.backend import Capabilities
from takehold.testing.faces import Face, eventually
from takehold.testing.suite.waiting import open_descriptors

__all__ = ["TestInterrupted"]


class TestInterrupted:
    """Ctrl-C in the middle of a wait; only the main thread gets it."""

    @pytest.mark.covers("L-9")
    def test_a_wait_ended_by_ctrl_c_leaves_nothing_behind(self, thread_face: Face) -> None:
        main = threading.main_thread()
        if threading.current_thread() is not main:
            pytest.skip("this test does not run in the main thread")
        a, b = thread_face.workers(2)
        locks = thread_face.locks()
        descriptors = 0
        hold = a.acquire("k")

        handler = signal.getsignal(signal.SIGINT)
        try:
            for _ in range(2):
                with ctrl_c_when(lambda: thread_face.until_waiting("k")), pytest.raises(KeyboardInterrupt):
                    locks.lock("k", timeout=60).acquire()
                descriptors = descriptors or open_descriptors()
        finally:
            signal.signal(signal.SIGINT, handler)
        assert open_descriptors() <= descriptors
        assert not thread_face.waiters("k")
        hold.release()
        assert b.can_take("k")

    @pytest.mark.covers("L-9", "L-10")
    @pytest.mark.filterwarnings("ignore::ResourceWarning")  # a hold that was dropped is warned about
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_at_any_moment_of_taking_and_releasing_leaves_the_key_free(
        self, thread_face: Face, capabilities: Capabilities
    ) -> None:
        """Interrupted at each point where Python looks for signals: entering a function, returning from C.

        With no further call of ours. Over a wire it may be on its way still; a session that had to end because of the
        interrupt keeps it until its lease has run out.
        """
        wire = capabilities.many == "one trip"
        locks, checker = thread_face.locks(), thread_face.worker()

        def cycle() -> None:
            with locks.lock("k"):
                pass

        cycle()
        point = 1
        while where := interrupted_at(point, cycle):
            about = f"interrupted at point {point}, {where}, the key is free"
            assert eventually(lambda: checker.can_take("k"), about) if wire else checker.can_take("k"), about
            point += 1
        assert point > 10


@contextmanager
def ctrl_c_when(ready: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C for the main thread, once, when something is so.

    The signal is sent again until it is noticed: Python looks for signals before it blocks, and one that comes
    between that look and the blocking waits for the end of the wait. The exception is raised only once.
    """
    pressed, over = threading.Event(), threading.Event()

    def raise_once(*_: object) -> None:
        if not pressed.is_set():
            pressed.set()
            raise KeyboardInterrupt

    def press() -> None:
        ready()
        while not pressed.is_set() and not over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            over.wait(0.02)

    signal.signal(signal.SIGINT, raise_once)
    presser = threading.Thread(target=press)
    presser.start()
    try:
        yield
    finally:
        over.set()
        presser.join()


class _CtrlC(BaseException):
    """What a signal handler raises."""


def interrupted_at(point: int, function: Callable[[], None]) -> str | None:
    """Raise in the middle of a call, at its so-manyth point inside takehold; where that was, or None at the end."""
    home = str(Path(takehold.locks.__file__).parent.parent)
    tests = str(Path(__file__).parent.parent)
    passed, where = 0, None

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed, where
        code = frame.f_code
        inside = code.co_filename.startswith(home) and not code.co_filename.startswith(tests)
        # What is raised in a finalizer goes nowhere: Python itself prints and forgets it.
        if inside and event in ("call", "c_return") and code.co_name != "__del__":
            passed += 1
            if passed == point:
                where = f"{code.co_filename}:{frame.f_lineno}"
                sys.setprofile(None)
                raise _CtrlC

    sys.setprofile(look)
    try:
        function()
    except _CtrlC:
        pass
    finally:
        sys.setprofile(None)
    return where
