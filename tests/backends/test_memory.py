"""What is peculiar to `memory:`: one queue for both faces, names, and what it cannot do."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from takehold import AsyncLocks, Locks, LockTimeout, UsageError, WouldDeadlock
from takehold.testing.faces import AsyncioFace, Face, ThreadFace, Worker, eventually
from takehold.testing.forked import in_a_fork


@pytest.fixture
def faces(request: pytest.FixtureRequest) -> Iterator[tuple[Face, Face]]:
    url = f"memory:{request.node.name}"
    threads = ThreadFace(url)
    tasks = AsyncioFace(url, threads.namespace)
    yield threads, tasks
    assert threads.who() == []
    tasks.close()
    threads.close()
    assert threads.troubles + tasks.troubles == []


class TestBothFaces:
    """Threads and tasks of one process, in one queue."""

    @pytest.mark.covers("L-1")
    def test_threads_and_tasks_exclude_each_other(self, faces: tuple[Face, Face]) -> None:
        thread, task = faces[0].worker(), faces[1].worker()
        with thread.acquire("k"):
            assert task.try_acquire("k") is None
        with task.acquire("k"):
            assert thread.try_acquire("k") is None

    @pytest.mark.covers("L-8")
    def test_they_wait_in_one_line(self, faces: tuple[Face, Face]) -> None:
        threads, tasks = faces
        order: list[int] = []
        hold = threads.worker().acquire("k")

        def take(worker: Worker, number: int) -> Any:
            def work(locks: Any) -> Any:
                mine = yield locks.lock("k", timeout=60).acquire()
                order.append(number)
                yield mine.release()

            return worker.start(work)

        calls = []
        for number in range(6):
            calls.append(take(faces[number % 2].worker(), number))
            threads.until_waiting("k", number + 1)
        hold.release()
        for call in calls:
            call.result()
        assert order == list(range(6))
        assert tasks.who() == []

    @pytest.mark.covers("L-28")
    def test_each_face_sees_the_other(self, faces: tuple[Face, Face]) -> None:
        threads, tasks = faces
        with threads.worker(label="thread").acquire("a"), tasks.worker(label="task").acquire("b"):
            for face in faces:
                assert [(r.key, r.owner.label) for r in face.who()] == [("a", "thread"), ("b", "task")]

    @pytest.mark.covers("L-29")
    def test_each_face_can_evict_the_other(self, faces: tuple[Face, Face]) -> None:
        threads, tasks = faces
        thread, task = threads.worker(), tasks.worker()
        one, two = thread.acquire("a"), task.acquire("b")
        assert task.do(lambda locks: locks.evict(one.id)) is True
        assert thread.do(lambda locks: locks.evict(two.id)) is True
        assert one.lost
        assert two.lost

    @pytest.mark.covers("L-21")
    def test_a_cycle_through_both_is_found(self, faces: tuple[Face, Face]) -> None:
        threads, tasks = faces
        thread, task = threads.worker(check_order="off"), tasks.worker(check_order="off")
        one, two = thread.acquire("a"), task.acquire("b")
        waiting = thread.start_acquire("b", timeout=60)
        threads.until_waiting("b")
        with pytest.raises(WouldDeadlock):
            task.acquire("a", timeout=60)
        two.release()
        waiting.result().release()
        one.release()

    @pytest.mark.covers("L-9")
    def test_a_waiter_whose_loop_was_closed_is_passed_over(
        self, faces: tuple[Face, Face], caplog: pytest.LogCaptureFixture
    ) -> None:
        """It can never run again; the key goes to the next in line."""
        threads, _ = faces
        a, b = threads.workers(2)
        hold = a.acquire("k")
        loop = asyncio.new_event_loop()
        runner = threading.Thread(target=loop.run_forever)
        runner.start()
        locks = AsyncLocks(threads.url, namespace=threads.namespace)
        asyncio.run_coroutine_threadsafe(_wait_in_a_task(locks), loop).result(5)
        threads.until_waiting("k", 1)
        behind = b.start_acquire("k", timeout=60)
        threads.until_waiting("k", 2)
        loop.call_soon_threadsafe(loop.stop)
        runner.join()
        with caplog.at_level(logging.CRITICAL):  # "Task was destroyed but it is pending": as it should
            loop.close()
            hold.release()
            behind.result(5).release()
            eventually(lambda: not threads.who())


_tasks: set[asyncio.Task[Any]] = set()


async def _wait_in_a_task(locks: AsyncLocks) -> None:
    async def wait() -> None:
        async with locks.lock("k", timeout=None):
            raise AssertionError("in a loop that is closed")

    _tasks.add(asyncio.get_running_loop().create_task(wait()))


class TestNames:
    """`memory:NAME` is one space for the process, a bare `memory:` belongs to its object."""

    def test_one_name_is_one_space(self) -> None:
        with Locks("memory:one") as a, Locks("memory:one") as b, Locks("memory:two") as c, a.lock("k"):
            assert _free(c, "k")
            assert not _free(b, "k")

    def test_without_a_name_it_is_private(self) -> None:
        with Locks("memory:") as a, Locks("memory:") as b, a.lock("k"):
            assert _free(b, "k")
            assert not _free(a, "k")

    def test_a_space_is_kept_while_somebody_holds_in_it(self) -> None:
        """Its objects may come and go."""
        hold = Locks("memory:kept").lock("k").acquire()
        with Locks("memory:kept") as other:
            with pytest.raises(WouldDeadlock):
                other.lock("k", timeout=5).acquire()
            hold.release()
            assert _free(other, "k")

    @pytest.mark.covers("L-17")
    def test_a_forked_child_is_another_memory(self) -> None:
        with Locks("memory:forked") as locks, locks.lock("k"):
            assert in_a_fork(lambda: _free(locks, "k")) is True
            assert not _free(locks, "k")


class TestCannot:
    @pytest.mark.covers("L-29")
    def test_there_is_nobody_to_terminate(self) -> None:
        """An owner of this process always answers, so this process is never ended for one of its holds."""
        with Locks("memory:") as locks:
            hold = locks.lock("k").acquire()
            assert locks.evict(hold.id, terminate=True) is True
            assert hold.lost
            assert locks.evict("1-2", terminate=True) is True

    def test_it_has_no_options(self) -> None:
        with pytest.raises(UsageError, match="no options"):
            Locks("memory:name?x=1")


class TestSeveralKeys:
    @pytest.mark.covers("L-19")
    def test_keys_are_given_back_in_reverse(self) -> None:
        """Fences count grants here: who waited for the last key is granted first."""
        face = ThreadFace("memory:reverse")
        first, *others = face.workers(4)
        keys = ["a", "b", "c"]
        hold = first.acquire(*keys)
        waiting = []
        for key, worker in zip(keys, others, strict=True):
            waiting.append(worker.start_acquire(key, timeout=60))
            face.until_waiting(key)
        hold.release()
        granted = [call.result() for call in waiting]
        assert [one.fence for one in granted] == sorted((one.fence for one in granted), reverse=True)
        for one in granted:
            one.release()
        face.close()


def _free(locks: Locks, key: str) -> bool:
    """Whether another thread could take it."""
    answers: list[bool] = []

    def look() -> None:
        try:
            locks.lock(key, timeout=0).acquire().release()
            answers.append(True)
        except LockTimeout:
            answers.append(False)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return answers[0]
