"""The blocking face: each worker is a thread."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from takehold.locks._sync import Locks
from takehold.runtime import Threads
from takehold.testing.faces.vocabulary import PATIENCE, Call, Face, Steps, Work, Worker, wrapped

__all__ = ["ThreadFace"]


def _through(value: Any) -> Any:
    """The end of a generator, or the value itself."""
    if not inspect.isgenerator(value):
        return value
    steps: Steps = value
    answer = None
    while True:
        try:
            answer = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if answer is None:
            time.sleep(0)


class _ThreadWorker(Worker):
    def __init__(self, face: Face, locks: Any, name: str) -> None:
        super().__init__(face, locks, name)
        self._inbox: SimpleQueue[Call[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while (call := self._inbox.get()) is not None:
            try:
                call.future.set_result(wrapped(self, _through(call.work())))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                call.future.set_exception(error)
            del call  # what it returned must be the caller's alone

    @property
    def party(self) -> object:
        return self.do(lambda _: Threads.current())

    def _post(self, call: Call[Any]) -> None:
        self._inbox.put(call)

    def cancel(self, call: Call[Any]) -> None:
        raise AssertionError("nothing cancels a thread; such a case is for the asyncio face")

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "it has ended"

    def end(self) -> None:
        self._inbox.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self.face.troubles.append(f"{self} did not end:\n{self.stack()}")


class _ThreadEvent(threading.Event):
    """`threading.Event` whose `wait` is bounded, so that a broken test ends."""

    def wait(self, timeout: float | None = PATIENCE) -> bool:
        return super().wait(timeout)


class ThreadFace(Face):
    """The blocking face: each worker is a thread."""

    name = "threads"

    def _make(self, url: Any, **options: Any) -> Locks:
        return Locks(url, **options)

    def _hire(self, locks: Any, name: str) -> Worker:
        return _ThreadWorker(self, locks, name)

    def block(self, lock: Any, body: Work) -> Any:
        with lock as hold:
            return _through(body(hold))

    def alone(self, work: Work, locks: Any) -> Any:
        return _through(work(locks))

    def function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _through(plain(*args, **kwargs))

        return call

    def sleep(self, seconds: float) -> Any:
        time.sleep(seconds)

    def event(self) -> Any:
        return _ThreadEvent()
