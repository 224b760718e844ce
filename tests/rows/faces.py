"""Session and AsyncSession under one vocabulary, so that one test serves both."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from takehold.testing.faces.tasks import end_tasks
from tests.rows.places import Place

PATIENCE = 60.0  # seconds; only a hang waits for it
Body: TypeAlias = Callable[["Handle", int], Any]
Steps: TypeAlias = Generator[Any, Any, Any]


class Handle:
    """A session in the hands of a test. ``run`` says everything; the others are its most frequent words."""

    def __init__(self, face: Face, session: Any) -> None:
        self.face = face
        self.session = session

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``function(session, ...)``, awaited if it is to be; its result or its error."""
        return self.face.call(function, self.session, *args, **kwargs)

    def add(self, *objects: object) -> None:
        self.session.add_all(objects)

    def get(self, model: type[Any], key: Any, **options: Any) -> Any:
        return self.run(lambda session: session.get(model, key, **options))

    def execute(self, statement: Any, *args: Any) -> Any:
        return self.run(lambda session: session.execute(statement, *args))

    def scalar(self, statement: Any) -> Any:
        return self.run(lambda session: session.scalar(statement))

    def scalars(self, statement: Any) -> list[Any]:
        return list(self.run(lambda session: session.scalars(statement)))

    def flush(self) -> None:
        self.run(lambda session: session.flush())

    def refresh(self, entity: object) -> None:
        """Load what a commit has expired; an AsyncSession does not do it by itself."""
        self.run(lambda session: session.refresh(entity))

    def delete(self, entity: object) -> None:
        self.run(lambda session: session.delete(entity))

    def commit(self) -> None:
        self.run(lambda session: session.commit())

    def rollback(self) -> None:
        self.run(lambda session: session.rollback())


class Face(ABC):
    """Makes sessions of one colour on one place, and drives them from any thread."""

    name: str
    maker: Any
    """A sessionmaker or an async_sessionmaker."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine under its sessions, for events; of asyncio the one inside."""

    @abstractmethod
    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``function(...)``, awaited on the face's loop if it is to be."""

    @abstractmethod
    def function(self, steps: Callable[..., Steps]) -> Callable[..., Any]:
        """A generator function, in which ``yield`` stands for ``await``, as a function or an ``async def``."""

    @abstractmethod
    def close(self) -> None:
        """End it and its connections."""

    @contextmanager
    def session(self, **options: Any) -> Iterator[Handle]:
        """A session that is rolled back and closed in the end. ``options`` are the maker's."""
        handle = Handle(self, self.call(self.maker, **options))
        try:
            yield handle
        finally:
            handle.run(lambda session: session.close())

    # -------------------------------------------------------------------------------------- at the same time

    def start(self, body: Callable[[Handle], Any]) -> Future[Any]:
        """Begin ``body(handle)`` in a thread with a session of its own; ``result(seconds)`` waits for it."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                with self.session() as handle:
                    value = body(handle)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            else:
                future.set_result(value)

        threading.Thread(target=work, daemon=True).start()
        return future

    def outcomes(self, count: int, body: Body) -> list[Any]:
        """``body(handle, number)`` in so many threads at once, each with a session; results or errors, in order."""
        together = threading.Barrier(count)

        def at_once(handle: Handle, number: int) -> Any:
            together.wait(PATIENCE)
            return body(handle, number)

        futures = [self.start(functools.partial(at_once, number=number)) for number in range(count)]
        _, hanging = wait_for_futures(futures, PATIENCE)
        assert not hanging, f"{len(hanging)} of {count} workers are still at it after {PATIENCE:g} s"
        return [future.exception() or future.result() for future in futures]

    def workers(self, count: int, body: Body) -> list[Any]:
        """The same, and the first error is raised, with a note on the others."""
        outcomes = self.outcomes(count, body)
        errors = [(number, one) for number, one in enumerate(outcomes) if isinstance(one, BaseException)]
        for number, error in errors[1:]:
            errors[0][1].add_note(f"worker {number} failed too: {error!r}")
        for _, error in errors:
            raise error
        return outcomes


class SyncFace(Face):
    """Session."""

    name = "sync"
    maker: sessionmaker[Session]

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.maker = place.maker

    @property
    def engine(self) -> Engine:
        return self.place.engine

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def function(self, steps: Callable[..., Steps]) -> Callable[..., Any]:
        @functools.wraps(steps)
        def driven(*args: Any, **kwargs: Any) -> Any:
            generator, answer = steps(*args, **kwargs), None
            while True:
                try:
                    answer = generator.send(answer)
                except StopIteration as stop:
                    return stop.value

        return driven

    def close(self) -> None:
        self.place.dispose()


class AsyncFace(Face):
    """AsyncSession, all of a face on one loop in a thread of its own: threads that ask it wait for one another not."""

    name = "async"
    maker: async_sessionmaker[AsyncSession]

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="rows-loop", daemon=True)
        self._thread.start()
        self.async_engine = place.new_async_engine()
        self.maker = async_sessionmaker(self.async_engine)

    @property
    def engine(self) -> Engine:
        return self.async_engine.sync_engine

    def start_call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call on the loop; to ``cancel()`` the future cancels its task."""

        async def awaited() -> Any:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        return self._submit(awaited())

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.start_call(function, *args, **kwargs).result(PATIENCE)

    def function(self, steps: Callable[..., Steps]) -> Callable[..., Any]:
        @functools.wraps(steps)
        async def driven(*args: Any, **kwargs: Any) -> Any:
            generator = steps(*args, **kwargs)
            answer, error = None, None
            while True:
                try:
                    value = generator.send(answer) if error is None else generator.throw(error)
                except StopIteration as stop:
                    return stop.value
                answer, error = None, None
                try:
                    answer = await value if inspect.isawaitable(value) else value
                except BaseException as raised:  # noqa: BLE001 - it is raised where the generator yielded
                    error = raised

        return driven

    def close(self) -> None:
        self.call(self._end)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()

    async def _end(self) -> None:
        await end_tasks()
        await self.async_engine.dispose()
        await self.loop.shutdown_default_executor()


FACES: dict[str, type[Face]] = {face.name: face for face in (SyncFace, AsyncFace)}
NAMES: Sequence[str] = tuple(FACES)
