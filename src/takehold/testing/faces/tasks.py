"""The asyncio face: each worker is one long-lived task, all on one loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from takehold.locks._async import AsyncLocks
from takehold.testing.faces.vocabulary import PATIENCE, Call, Face, Steps, Work, Worker, wrapped

__all__ = ["AsyncioFace", "end_tasks"]


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
        self.loop.run_until_complete(end_tasks())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


async def end_tasks() -> None:
    """What `asyncio.run` does at its end: tasks that are still there are cancelled, and not left in the middle."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
