"""The driver of the conformance suite: one vocabulary for threads and tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from takehold.core.backend import Capabilities
from takehold.testing.faces import AsyncioFace, Face, Steps, ThreadFace, eventually
from takehold.testing.suite.fixtures import missing, requires


@pytest.fixture(params=[ThreadFace, AsyncioFace], ids=["threads", "asyncio"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face: Face = request.param(f"memory:{request.node.name}")
    yield face
    face.close()
    assert face.troubles == []


class TestWorkers:
    def test_a_worker_is_always_the_same_thread_or_task(self, face: Face) -> None:
        a, b = face.workers(2)
        assert a.party is a.party
        assert a.party is not b.party
        seen = [worker.do(lambda _: threading.current_thread().name) for worker in (a, b)]
        assert len(set(seen)) == (2 if face.name == "threads" else 1)

    def test_work_can_be_a_function_or_a_generator(self, face: Face) -> None:
        def steps(locks: Any) -> Steps:
            hold = yield locks.lock("k").acquire()
            yield
            plain = yield 7
            yield hold.release()
            return plain, hold.keys

        a = face.worker()
        assert a.do(lambda locks: locks.closed) is False
        assert a.do(steps) == (7, ("k",))

    def test_an_error_is_raised_where_the_generator_yielded(self, face: Face) -> None:
        def steps(locks: Any) -> Steps:
            try:
                yield locks.lock("k", timeout=0).acquire()
            except TimeoutError:
                return "handled"
            return "not raised"

        a, b = face.workers(2)
        with a.acquire("k"):
            assert b.do(steps) == "handled"

    def test_an_error_reaches_whoever_asked(self, face: Face) -> None:
        def fail(_: Any) -> None:
            raise ZeroDivisionError

        a = face.worker()
        with pytest.raises(ZeroDivisionError):
            a.do(fail)
        assert isinstance(a.start(fail).error(), ZeroDivisionError)
        with pytest.raises(AssertionError, match="expected to fail"):
            a.start(lambda _: 1).error()

    def test_who_does_not_finish_is_shown_where_it_stands(self, face: Face) -> None:
        a, event = face.worker(), face.event()
        call = a.start(lambda _: event.wait())
        with pytest.raises(AssertionError, match="still at it") as caught:
            call.result(within=0.01)
        assert "wait" in str(caught.value) or ".py:" in str(caught.value)
        event.set()
        call.result()

    def test_a_body_runs_in_a_block(self, face: Face) -> None:
        a, b = face.workers(2)

        def body(hold: Any) -> Steps:
            yield
            return hold.keys, hold.released

        assert a.inside(body, "x", "y") == (("x", "y"), False)
        assert b.can_take("x", "y")

    def test_functions_have_the_colour_of_the_face_and_their_own_signature(self, face: Face) -> None:
        def add(one: int, two: int = 2) -> Steps:
            yield
            return one + two

        coloured = face.function(add)
        assert asyncio.iscoroutinefunction(coloured) == (face.name == "asyncio")
        assert coloured.__name__ == "add"
        assert face.worker().do(lambda _: coloured(1)) == 3


class TestCancelling:
    def test_a_cancelled_worker_reports_it_and_lives_on(self) -> None:
        face = AsyncioFace("memory:cancelling")
        a = face.worker()
        call = a.start(lambda _: asyncio.sleep(60))
        while not call.done:
            call.cancel()
        assert isinstance(call.error(), asyncio.CancelledError)
        assert a.do(lambda _: 1) == 1
        assert a.do(lambda _: asyncio.current_task().cancelling()) == 0  # type: ignore[union-attr]
        face.close()
        assert face.troubles == []

    def test_a_stray_cancel_is_trouble(self) -> None:
        face = AsyncioFace("memory:stray")
        a = face.worker()
        a.do(lambda _: asyncio.current_task().get_loop().call_soon(asyncio.current_task().cancel) and None)  # type: ignore[union-attr]
        eventually(lambda: face.troubles)
        assert a.do(lambda _: 1) == 1
        face.close()
        assert "was cancelled by something that had ended before" in face.troubles[0]

    def test_nothing_cancels_a_thread(self) -> None:
        face = ThreadFace("memory:threads")
        with pytest.raises(AssertionError, match="asyncio"):
            face.worker().start(lambda _: None).cancel()
        face.close()


class TestSeeing:
    def test_a_face_sees_only_its_own_test(self, face: Face) -> None:
        stranger = face.worker(namespace="somebody else's")
        with stranger.acquire("k"):
            assert face.who() == []
            assert len(face.worker().who()) == 1

    def test_waiting_can_be_waited_for(self, face: Face) -> None:
        a, b = face.workers(2)
        with a.acquire("k"):
            assert len(face.holders("k")) == 1
            call = b.start_acquire("k", timeout=60)
            face.until_waiting("k")
        call.result().release()

    def test_what_never_happens_fails_with_its_name(self) -> None:
        with pytest.raises(AssertionError, match=r"within 0\.01 s: pigs fly"):
            eventually(lambda: False, "pigs fly", within=0.01)


@pytest.mark.parametrize(
    ("mark", "lacks"),
    [
        (requires("shared"), None),
        (requires("evict"), None),
        (requires("fence"), None),
        (requires("raw_ids"), "raw_ids"),
        (requires("max_held"), "max_held"),
        (requires("loss"), "loss"),
        (requires(across="process"), None),
        (requires(across="host"), None),
        (requires(across="server"), "across='server'"),
        (requires(evict="ask"), None),
        (requires(evict="terminate"), "evict='terminate'"),
        (requires(waiting="poll"), "waiting='poll'"),
        (requires("shared", across="server"), "across='server'"),
    ],
)
def test_a_case_is_skipped_by_what_is_declared(mark: pytest.MarkDecorator, lacks: str | None) -> None:
    assert missing(Capabilities(across="host", evict="ask"), mark.mark) == lacks
