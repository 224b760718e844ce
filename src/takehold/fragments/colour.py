"""The two colours of a worker: how it calls functions, hears from the ledger, waits. The run is written once."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from takehold import UsageError
from takehold.runtime import run

__all__ = ["Block", "Colour", "Looping", "Threaded", "settled"]

T = TypeVar("T")
PATIENCE: Final = 60.0


async def settled(value: Any) -> Any:
    """The value itself, or what it becomes when awaited: blocking locks give the first, asyncio's the second."""
    return await value if inspect.isawaitable(value) else value


class Colour(Protocol):
    """What a run awaits, beside locks."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function returns, without holding anybody else up."""

    def ends(self, error: BaseException) -> bool:
        """Whether this ends the one who serves, and is nothing that a pipeline has raised."""

    async def answer(self, future: Future[T]) -> T:
        """What the ledger says."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def enter(self) -> None:
        """Wait for a place among those who extract."""

    def leave(self) -> None:
        """Make room for the next."""

    async def together(self, serve: Serve, count: int, watch: Watch) -> None:
        """So many at once, until all have ended, or until `watch`, which is called all the time, says to leave."""

    def close(self) -> None:
        """Let go of threads."""


class Serve(Protocol):
    """One who serves."""

    def __call__(self, number: int) -> Coroutine[Any, Any, None]:
        """Serve to the end."""


class Watch(Protocol):
    """Looks after those who serve."""

    def __call__(self) -> bool:
        """True when they are to be left alone although they have not ended."""


class Block:
    """`with hold:` or `async with hold:`, whichever it is. On asyncio a loss cancels the body."""

    def __init__(self, hold: Any) -> None:
        self._hold = hold
        self._asynchronous = hasattr(hold, "__aenter__")

    async def __aenter__(self) -> Self:
        if self._asynchronous:
            await self._hold.__aenter__()
        else:
            self._hold.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asynchronous:
            await self._hold.__aexit__(kind, error, trace)
        else:
            self._hold.__exit__(kind, error, trace)


class Threaded:
    """Threads that block."""

    every = 0.05

    def __init__(self, concurrency: int) -> None:
        self._places = threading.Semaphore(concurrency)

    async def enter(self) -> None:
        """Block."""
        self._places.acquire()

    def leave(self) -> None:
        """Wake one."""
        self._places.release()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """On the caller's own stack."""
        value = function(*args)
        if inspect.iscoroutine(value):
            value.close()
            raise UsageError(f"{function!r} is a coroutine function: use an AsyncWorker")
        return value

    def ends(self, error: BaseException) -> bool:
        """No: Ctrl-C reaches the main thread only, and a thread that exits would take its fragment along."""
        return isinstance(error, GeneratorExit)

    async def answer(self, future: Future[T]) -> T:
        """Block."""
        return future.result()

    async def sleep(self, seconds: float) -> None:
        """Block."""
        time.sleep(seconds)

    async def together(self, serve: Serve, count: int, watch: Watch) -> None:
        """As daemon threads: nobody can stop a thread that is to be left."""
        threads = [
            threading.Thread(target=_serve, args=(serve, number), name=f"takehold-fragments-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(self.every)
                if watch():
                    return

    def close(self) -> None:
        """There is nothing."""


def _serve(serve: Serve, number: int) -> None:
    run(serve(number))


class Looping:
    """Tasks on an event loop; plain functions run in threads of their own."""

    every = 0.05

    def __init__(self, concurrency: int) -> None:
        # One more for reading the corpus, so that a reader never waits for the extractions it feeds.
        self._threads = ThreadPoolExecutor(concurrency + 1, "takehold-fragments")
        self._places = asyncio.Semaphore(concurrency)

    async def enter(self) -> None:
        """Await."""
        await self._places.acquire()

    def leave(self) -> None:
        """Wake one."""
        self._places.release()

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Await a coroutine function, run any other in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        value = await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args))
        return await value if inspect.isawaitable(value) else value

    def ends(self, error: BaseException) -> bool:
        """Ctrl-C, and a cancellation that is meant for this task: a pipeline may have been cancelled by its own."""
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            return task is None or task.cancelling() > 0
        return isinstance(error, GeneratorExit | KeyboardInterrupt)

    async def answer(self, future: Future[T]) -> T:
        """Await; who is cancelled waits for the end of what the ledger has begun, so as not to offer it twice."""
        answer = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await asyncio.wait({answer}, timeout=PATIENCE)
            if answer.done() and not answer.cancelled():
                answer.exception()  # heard, though nobody is left to be told
            raise

    async def sleep(self, seconds: float) -> None:
        """Await."""
        await asyncio.sleep(seconds)

    async def together(self, serve: Serve, count: int, watch: Watch) -> None:
        """As tasks, cancelled when they are to be left, and when we are."""
        tasks = {asyncio.create_task(serve(number)) for number in range(count)}
        pending = tasks
        try:
            while pending:
                _, pending = await asyncio.wait(pending, timeout=self.every)
                if watch():
                    return
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Their threads end when what they do has ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)
