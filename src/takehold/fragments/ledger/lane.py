"""A lane: one thread with one connection, which takes everything that waits and does it together.

While it works, more arrives: the busier it is, the larger its batches and the cheaper each of their parts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from takehold import UsageError

__all__ = ["Job", "Lane"]

LARGEST: Final = 64
"""Jobs of one batch: what a failed one has to repeat stays small."""


class Job:
    """Something to do for somebody who waits."""

    __slots__ = ("done", "kind", "what")

    def __init__(self, kind: str, what: Any) -> None:
        self.kind = kind
        self.what = what
        self.done: Future[Any] = Future()

    def answer(self, value: Any) -> None:
        """It is done. Who has gone away meanwhile hears nothing."""
        if not self.done.done():
            self.done.set_result(value)

    def fail(self, error: BaseException) -> None:
        """It cannot be done."""
        if not self.done.done():
            self.done.set_exception(error)


class Lane:
    """Does jobs, those of one kind together, in the order in which they came."""

    def __init__(self, name: str, do: Callable[[str, Sequence[Job]], None]) -> None:
        self._name = name
        self._do = do
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.gather = 0.0
        """Seconds to wait for more when something has come."""

    def post(self, kind: str, what: Any) -> Future[Any]:
        """Have it done; the answer is to come."""
        job = Job(kind, what)
        with self._changed:
            if self._closed:
                raise UsageError("this ledger is closed")
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            else:
                self._changed.notify()
        return job.done

    def close(self, seconds: float | None = None) -> bool:
        """Do what waits, and no more; True when that ended in time. From the lane itself it ends afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._do(batch[0].kind, batch)
            except BaseException as error:  # noqa: BLE001 - who waits must hear of anything
                for job in batch:
                    job.fail(error)
            del batch

    def _next(self) -> list[Job]:
        """As many as wait and are of one kind; none when it is closed and everything is done."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
        if self.gather and not self._closed:
            time.sleep(self.gather)
        with self._changed:
            batch: list[Job] = []
            while self._waiting and len(batch) < LARGEST and (not batch or self._waiting[0].kind == batch[0].kind):
                batch.append(self._waiting.popleft())
            return batch
