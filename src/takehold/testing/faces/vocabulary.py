"""The vocabulary: calls, holds, workers and faces, before they have a colour."""

from __future__ import annotations

import inspect
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from takehold.core.record import HoldRecord
from takehold.locks._base import BaseHold, BaseLock

__all__ = ["PATIENCE", "Call", "Face", "Held", "Steps", "Work", "Worker", "eventually", "wrapped"]

T = TypeVar("T")
Work: TypeAlias = Callable[[Any], Any]
"""What a worker is given to do: called with its `Locks` or `AsyncLocks`."""
Steps: TypeAlias = Generator[Any, Any, Any]
"""What a generator function is annotated with, when `yield` in it stands for `await`."""

PATIENCE = 20.0
"""Seconds after which something that should have happened has failed to. Generous: only failures wait for it."""


def eventually(condition: Callable[[], T], what: str = "", within: float = PATIENCE) -> T:
    """Look again until the condition holds; its value. The one way to wait for another worker or process."""
    until = time.monotonic() + within
    while not (seen := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"not so within {within:g} s: {what or inspect.getsource(condition).strip()}")
        time.sleep(0.001)
    return seen


class Call(Generic[T]):
    """Something a worker was asked to do."""

    def __init__(self, worker: Worker, work: Callable[[], Any]) -> None:
        self.worker = worker
        self.work = work
        self.future: Future[T] = Future()

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.future.done()

    def result(self, within: float = PATIENCE) -> T:
        """What came of it: the value, or the error raised here."""
        wait_for_futures([self.future], timeout=within)
        if not self.future.done():
            raise AssertionError(f"{self.worker} is still at it after {within:g} s:\n{self.worker.stack()}")
        return self.future.result()

    def error(self, within: float = PATIENCE) -> BaseException:
        """The error it ended with."""
        try:
            value = self.result(within)
        except BaseException as error:
            if not self.future.done():
                raise
            return error
        raise AssertionError(f"{self.worker} was expected to fail, and returned {value!r}")

    def cancel(self) -> None:
        """Cancel the worker's task while it does this. asyncio only: nothing cancels a thread."""
        self.worker.cancel(self)


class Held:
    """A hold in the hands of a worker. Facts are read directly; what may wait is done by the worker."""

    def __init__(self, worker: Worker, hold: BaseHold) -> None:
        self.worker = worker
        self.hold: Any = hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hold, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self, by: Worker | None = None) -> None:
        """Give it back; by another worker than its taker if so wanted."""
        (by or self.worker).do(lambda _: self.hold.release())

    def wait_lost(self, timeout: float | None = None, by: Worker | None = None) -> bool:
        """Wait for its loss."""
        lost: bool = (by or self.worker).do(lambda _: self.hold.wait_lost(timeout))
        return lost

    def start_wait_lost(self, timeout: float | None = None) -> Call[bool]:
        """Begin to wait for its loss."""
        return self.worker.start(lambda _: self.hold.wait_lost(timeout))


class Worker(ABC):
    """One thread or one task, with a `Locks` or `AsyncLocks` object to use."""

    def __init__(self, face: Face, locks: Any, name: str) -> None:
        self.face = face
        self.locks = locks
        self.name = name

    def __repr__(self) -> str:
        return self.name

    # -- anything ------------------------------------------------------------------------------------

    def do(self, work: Work) -> Any:
        """Run `work(locks)` on this worker and wait for its result."""
        return self.start(work).result()

    def start(self, work: Work) -> Call[Any]:
        """Begin to run `work(locks)` on this worker, after whatever it is doing."""
        call: Call[Any] = Call(self, lambda: work(self.locks))
        self._post(call)
        return call

    def inside(self, body: Work, *keys: Any, **options: Any) -> Any:
        """Run `body(hold)` in a `with` block on these keys."""
        return self.start_inside(body, *keys, **options).result()

    def start_inside(self, body: Work, *keys: Any, **options: Any) -> Call[Any]:
        """Begin to do that."""
        return self.start(lambda locks: self.face.block(locks.lock(*keys, **options), body))

    # -- the words of locks --------------------------------------------------------------------------

    def acquire(self, *keys: Any, **options: Any) -> Held:
        """`locks.lock(...).acquire()`."""
        return self.start_acquire(*keys, **options).result()

    def start_acquire(self, *keys: Any, **options: Any) -> Call[Held]:
        """Begin to acquire."""
        return self.start(lambda locks: locks.lock(*keys, **options).acquire())

    def try_acquire(self, *keys: Any, **options: Any) -> Held | None:
        """`locks.lock(...).try_acquire()`."""
        held: Held | None = self.do(lambda locks: locks.lock(*keys, **options).try_acquire())
        return held

    def can_take(self, *keys: Any, **options: Any) -> bool:
        """Whether the keys are free for this worker right now; they are given back at once."""
        hold = self.try_acquire(*keys, **options)
        if hold is not None:
            hold.release()
        return hold is not None

    def who(self, pattern: str = "*", **options: Any) -> list[HoldRecord]:
        """`locks.who(...)`."""
        records: list[HoldRecord] = self.do(lambda locks: locks.who(pattern, **options))
        return records

    def held(self, key: Any) -> Held | None:
        """`locks.held(key)`, as this worker sees it."""
        hold: Held | None = self.do(lambda locks: locks.held(key))
        return hold

    def close(self) -> None:
        """`locks.close()`."""
        self.do(lambda locks: locks.close())

    # -- the actor -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def party(self) -> object:
        """Whom the desk takes this worker for: what `hold.give` wants."""

    @abstractmethod
    def _post(self, call: Call[Any]) -> None: ...

    @abstractmethod
    def cancel(self, call: Call[Any]) -> None:
        """Cancel it if it is under way."""

    @abstractmethod
    def stack(self) -> str:
        """Where this worker stands, for a failure message."""

    @abstractmethod
    def end(self) -> None:
        """Let the actor go."""


class Face(ABC):
    """One face on one backend, for the length of one test; its keys are in a namespace of their own."""

    name: ClassVar[str]
    telling: ClassVar[dict[str, str]] = {}
    """Options of a block that is only told of a loss, and goes on."""

    def __init__(self, url: Any, namespace: str | None = None) -> None:
        self.url = url
        """Or a backend object, where a third party has no scheme of its own."""
        self.namespace = namespace or f"suite-{secrets.token_hex(4)}"
        self.troubles: list[str] = []
        """What went wrong where no test could see it; a test fails at its end when there is any."""
        self._numbers: set[str] = set()
        self._made: list[Any] = []
        self._workers: list[Worker] = []
        self._common = self.locks()
        self._observer = self.worker()

    def __repr__(self) -> str:
        return f"<{self.name} on {self.url}>"

    def locks(self, **options: Any) -> Any:
        """A new `Locks` or `AsyncLocks` object on the backend, in the test's namespace."""
        made = self._make(self.url, **{"namespace": self.namespace, **options})
        self._made.append(made)
        return made

    def worker(self, locks: Any = None, **options: Any) -> Worker:
        """A new actor. All share one `Locks` object, unless one is given, or options for one of its own."""
        if locks is None:
            locks = self.locks(**options) if options else self._common
        worker = self._hire(locks, f"worker-{len(self._workers)}")
        self._workers.append(worker)
        return worker

    def workers(self, count: int, locks: Any = None) -> list[Worker]:
        """Several of them."""
        return [self.worker(locks) for _ in range(count)]

    def number(self) -> int:
        """A number for `advisory`: those are outside every namespace, so each test needs its own."""
        number = secrets.randbits(62)
        self._numbers.add(f"#{number}")
        return number

    # -- seeing --------------------------------------------------------------------------------------

    def who(self, pattern: str = "*") -> list[HoldRecord]:
        """Holders and waiters of this test."""
        return [
            record
            for record in self._observer.who(pattern)
            if record.namespace.startswith(self.namespace) or record.key.partition(" ")[0] in self._numbers
        ]

    def holders(self, key: str) -> list[HoldRecord]:
        """Who holds exactly this key."""
        return [record for record in self.who() if record.key == key and record.state == "held"]

    def waiters(self, key: str) -> list[HoldRecord]:
        """Who waits for exactly this key."""
        return [record for record in self.who() if record.key == key and record.state == "waiting"]

    def until_waiting(self, key: str, count: int = 1, unless: Call[Any] | None = None) -> None:
        """Come back when so many are seen to wait for the key, or when the call `unless` ended before it was seen."""

        def seen() -> bool:
            return len(self.waiters(key)) >= count or (unless is not None and unless.done)

        eventually(seen, f"{count} waiting for {key!r}")

    # -- colours -------------------------------------------------------------------------------------

    @abstractmethod
    def _make(self, url: Any, **options: Any) -> Any: ...

    @abstractmethod
    def _hire(self, locks: Any, name: str) -> Worker: ...

    @abstractmethod
    def block(self, lock: BaseLock, body: Work) -> Any:
        """`with lock as hold: return body(hold)`, in this face's colour."""

    @abstractmethod
    def alone(self, work: Work, locks: Any) -> Any:
        """Run `work(locks)` right here, without a worker; asyncio in a new loop."""

    @abstractmethod
    def function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A plain function or generator function as this face wants its callbacks: `async def` for asyncio."""

    @abstractmethod
    def sleep(self, seconds: float) -> Any:
        """Work that takes a while, to be yielded by a body. Never a way to wait for somebody else."""

    @abstractmethod
    def event(self) -> Any:
        """Something with `set()`, from anywhere, and `wait(seconds)` for a body, to be yielded."""

    def close(self) -> None:
        """End every `Locks` object and every worker, also those that a failed test left waiting."""
        for made in self._made:
            self._observer.do(lambda _, made=made: made.close())  # type: ignore[misc]
        for worker in self._workers:
            worker.end()


def wrapped(worker: Worker, value: Any) -> Any:
    """A hold as the worker's own; anything else as it is."""
    return Held(worker, value) if isinstance(value, BaseHold) else value
