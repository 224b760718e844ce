"""Both faces in one vocabulary, so that every case of the suite is written once.

A `Worker` is one actor: a thread on the blocking face, one long-lived task on the asyncio face, where "the
same thread or task" means something. Whatever it is asked to do is done there, one thing after another, and
the caller blocks until it is done, or holds a `Call` to look at later:

    a, b = face.worker(), face.worker()
    hold = a.acquire("k")
    assert b.try_acquire("k") is None
    waiting = b.start_acquire("k", timeout=5)
    face.until_waiting("k")
    hold.release()
    assert waiting.result().fence > hold.fence

For more than one step, `worker.do(work)` runs `work(locks)` there. It may be a plain function, or a generator
in which `yield` stands for `await` where there is something to await, and lets the others run where not:

    def work(locks):
        hold = yield locks.lock("k").acquire()
        yield                       # here anybody else may run
        yield hold.release()
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from queue import SimpleQueue
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from takehold.core.record import HoldRecord
from takehold.locks._async import AsyncLocks
from takehold.locks._base import BaseHold, BaseLock
from takehold.locks._sync import Locks
from takehold.runtime import Threads

__all__ = ["PATIENCE", "AsyncioFace", "Call", "Face", "Held", "Steps", "ThreadFace", "Work", "Worker", "eventually"]

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

    def until_waiting(self, key: str, count: int = 1) -> None:
        """Come back when so many are seen to wait for the key."""
        eventually(lambda: len(self.waiters(key)) >= count, f"{count} waiting for {key!r}")

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


# -- threads -----------------------------------------------------------------------------------------------


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


# -- asyncio -----------------------------------------------------------------------------------------------


async def _awaited(value: Any) -> Any:
    """What an awaitable or a generator comes to, or the value itself."""
    if inspect.isawaitable(value):
        return await value
    if not inspect.isgenerator(value):
        return value
    steps: Steps = value
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            answer = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value
        error = None
        try:
            if answer is None:
                await asyncio.sleep(0)
            elif inspect.isawaitable(answer):
                answer = await answer
        except BaseException as raised:  # noqa: BLE001 - it is raised where the generator yielded
            error = raised


class _AsyncioWorker(Worker):
    """A task that lives as long as the face. Cancelled in the middle of a call, it reports that and lives on."""

    def __init__(self, face: AsyncioFace, locks: Any, name: str) -> None:
        super().__init__(face, locks, name)
        self._loop = face.loop
        self._now: Call[Any] | None = None
        self._inbox: asyncio.Queue[Call[Any] | None] = asyncio.Queue()
        self.task = asyncio.run_coroutine_threadsafe(self._hired(), self._loop).result(PATIENCE)

    async def _hired(self) -> asyncio.Task[None]:
        return self._loop.create_task(self._live(), name=self.name)

    async def _live(self) -> None:
        while (call := await self._next()) is not None:
            self._now = call
            try:
                value = wrapped(self, await _awaited(call.work()))
                self._now = None
                call.future.set_result(value)
                del value
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                self._now = None
                while self.task.cancelling():
                    self.task.uncancel()
                call.future.set_exception(error)
            del call

    async def _next(self) -> Call[Any] | None:
        while True:
            try:
                return await self._inbox.get()
            except asyncio.CancelledError:
                # Outside of every call nobody has a reason to cancel it: some earlier call left this behind.
                self.face.troubles.append(f"{self} was cancelled by something that had ended before")
                self.task.uncancel()

    @property
    def party(self) -> object:
        return self.task

    def _post(self, call: Call[Any]) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, call)

    def cancel(self, call: Call[Any]) -> None:
        self._loop.call_soon_threadsafe(lambda: self._now is call and self.task.cancel())

    def stack(self) -> str:
        return "".join(f"  {frame.f_code.co_filename}:{frame.f_lineno}\n" for frame in self.task.get_stack())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, None)

        async def ended() -> bool:
            done, _ = await asyncio.wait([self.task], timeout=PATIENCE)
            return bool(done)

        if not asyncio.run_coroutine_threadsafe(ended(), self._loop).result():
            self.face.troubles.append(f"{self} did not end:\n{self.stack()}")


class _LoopEvent:
    """An event of one loop that anybody may set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def set(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout: float = PATIENCE) -> bool:
        async with asyncio.timeout(timeout):
            return await self._event.wait()


class AsyncioFace(Face):
    """The asyncio face: each worker is one task, all on one loop in a thread of its own."""

    name = "asyncio"
    telling: ClassVar = {"on_lost": "tell"}

    def __init__(self, url: Any, namespace: str | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.troubles.append(str(context)))
        self._thread = threading.Thread(target=self.loop.run_forever, name="suite-loop", daemon=True)
        self._thread.start()
        super().__init__(url, namespace)

    def _make(self, url: Any, **options: Any) -> AsyncLocks:
        return AsyncLocks(url, **options)

    def _hire(self, locks: Any, name: str) -> _AsyncioWorker:
        return _AsyncioWorker(self, locks, name)

    async def block(self, lock: Any, body: Work) -> Any:
        async with lock as hold:
            return await _awaited(body(hold))

    def alone(self, work: Work, locks: Any) -> Any:
        async def run() -> Any:
            return await _awaited(work(locks))

        return asyncio.run(run())

    def function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await _awaited(plain(*args, **kwargs))

        return call

    def sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    def event(self) -> Any:
        return _LoopEvent(self.loop)

    def close(self) -> None:
        super().close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
