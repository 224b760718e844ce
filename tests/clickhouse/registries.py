"""Registry and AsyncRegistry under one vocabulary, and real processes that start together."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import Engine, create_engine, event, make_url

from takehold import UsageError
from takehold.clickhouse.registry import AsyncRegistry, Registry

PATIENCE = 100.0  # seconds; only a hang waits for it


class Counter:
    """Mints 1, 2, 3 ... or what it is given, and says how many it has minted."""

    def __init__(self, *ids: int) -> None:
        self._ids = list(ids)
        self._mutex = threading.Lock()
        self.minted = 0

    def __call__(self, n: int) -> list[int]:
        with self._mutex:
            taken = [self._ids.pop(0) if self._ids else self.minted + 1 + one for one in range(n)]
            self.minted += n
            return taken


class Face:
    """Calls methods of registries of one colour, each to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._runner = asyncio.Runner()
        self._made: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for registry in self._made:
            self.call(registry.close)
        self._runner.close()

    def registry(self, url: str, **options: Any) -> Any:
        made = (Registry if self.name == "blocking" else AsyncRegistry)(url, **options)
        self._made.append(made)
        return Driven(self, made)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def awaited() -> Any:
            return await function(*args)

        return function(*args) if self.name == "blocking" else self._runner.run(awaited())

    def at_once(self, calls: list[tuple[Any, str, tuple[Any, ...]]], *, refused: bool = False) -> list[Any]:
        """Of each registry the method, all at the same time: in threads, or as tasks; with ``refused`` also errors."""
        if self.name == "asyncio":

            async def together() -> list[Any]:
                started = (getattr(one.made, method)(*args) for one, method, args in calls)
                return await asyncio.gather(*started, return_exceptions=refused)

            return self._runner.run(together())
        barrier = threading.Barrier(len(calls))

        def work(call: tuple[Any, str, tuple[Any, ...]]) -> Any:
            registry, method, args = call
            barrier.wait(PATIENCE)
            try:
                return getattr(registry.made, method)(*args)
            except UsageError as error:
                if refused:
                    return error
                raise

        with ThreadPoolExecutor(len(calls)) as threads:
            return list(threads.map(work, calls))

    def statements(self, registry: Any) -> Any:
        """The list of SQL statements that a registry sends from now on, for as long as the context lasts."""
        return _watched(self._engine(registry.made))

    def _engine(self, made: Any) -> Engine:
        if self.name == "blocking":
            engine: Engine = made._engine
            return engine

        async def home() -> Engine:
            engine: Engine = made._home().engine.sync_engine
            return engine

        return self._runner.run(home())


class Driven:
    """A registry, whose methods return when they are done."""

    def __init__(self, face: Face, made: Any) -> None:
        self.made = made
        self._face = face

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.made, name)
        return method if name == "bind" else lambda *args: self._face.call(method, *args)


@contextmanager
def _watched(engine: Engine) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def engine_of(url: str) -> Engine:
    """An engine of the test's own, which the caller disposes of. On SQLite it minds foreign keys, as the registry's."""
    if url.startswith("postgresql"):
        return create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def _(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A connection in a transaction of the test's own."""
    engine = engine_of(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def in_processes(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """``function(number, *args)`` in so many processes at once; what they returned, in order of number."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, by a process that has nothing open
    barrier, results = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=_child, args=(function, number, args, barrier, results), daemon=True)
        for number in range(count)
    ]
    for process in processes:
        process.start()
    try:
        answers = [results.get(timeout=PATIENCE) for _ in processes]
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()
            process.close()
        results.close()
    failures = [text for _, good, text in answers if not good]
    assert not failures, failures[0]
    return [value for _, _, value in sorted(answers)]


def _child(function: Callable[..., Any], number: int, args: tuple[Any, ...], barrier: Any, results: Any) -> None:
    try:
        barrier.wait(PATIENCE)
        results.put((number, True, function(number, *args)))
    except BaseException:  # noqa: BLE001 - it is the test's
        results.put((number, False, traceback.format_exc()))
