"""Store and AsyncStore under one vocabulary, where they can be, and processes that each open one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from takehold import clickhouse

BOTH_WAYS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or")
OPERATORS = (
    *BOTH_WAYS,
    *(f"r{one}" for one in BOTH_WAYS),
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "neg",
    "invert",
    "getitem",
)


@dataclass(frozen=True)
class Place:
    """Where a store is: two URLs."""

    ch_url: str
    sql_url: str

    @property
    def embedded(self) -> bool:
        return self.ch_url.startswith("chdb:")


class Stores:
    """Opens stores of one colour, and closes them in the end."""

    def __init__(self, face: str, place: Place) -> None:
        self.face = face
        self.place = place
        self._runner = asyncio.Runner()
        self._opened: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for store in reversed(self._opened):
                self.done(store.close)
        finally:
            self._runner.close()

    def open(self, **options: Any) -> Any:
        if self.face == "blocking":
            opened: Any = clickhouse.open(self.place.ch_url, self.place.sql_url, **options)
        else:
            opened = self.done(clickhouse.open_async, self.place.ch_url, self.place.sql_url, **options)
        self._opened.append(opened)
        return Driven(self, opened)

    def done(self, function: Any, *args: Any, **options: Any) -> Any:
        """What it returns, once that is there."""
        if self.face == "blocking":
            return function(*args, **options)

        async def awaited() -> Any:
            found = function(*args, **options)
            return await found if hasattr(found, "__await__") else found

        return self._runner.run(awaited())

    def wait(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)


class Driven:
    """A store or an object, whose methods and operators return when they are done."""

    def __init__(self, stores: Stores, made: Any) -> None:
        self.made = made
        self._stores = stores

    def __repr__(self) -> str:
        return repr(self.made)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.made, name)
        if not callable(found):
            return Driven(self._stores, found) if name in {"registry", "locks"} else found
        return lambda *args, **options: self._done(found, *args, **options)

    def _done(self, function: Any, *args: Any, **options: Any) -> Any:
        found = self._stores.done(function, *_plain(args), **options)
        kinds = clickhouse.Object | clickhouse.AsyncObject | clickhouse.Table | clickhouse.AsyncTable
        return Driven(self._stores, found) if isinstance(found, kinds) else found


def _plain(args: Any) -> list[Any]:
    return [one.made if isinstance(one, Driven) else one for one in args]


def _operator(name: str) -> Any:
    def called(self: Driven, *args: Any) -> Any:
        return self._done(getattr(self.made, name), *args)

    return called


for _name in OPERATORS:
    setattr(Driven, f"__{_name}__", _operator(f"__{_name}__"))
Driven.__hash__ = object.__hash__  # type: ignore[method-assign]


class Forbidden:
    """Instead of the locks of a store: whoever asks for one hears of it."""

    class Asked(Exception):
        """A lock was asked for."""

    def lock(self, *_: Any, **__: Any) -> Any:
        raise self.Asked

    def close(self) -> None: ...


@contextmanager
def forbidden(store: Driven) -> Iterator[None]:
    """While it lasts, nobody gets a lock of this store."""
    core = store.made._core
    locks, core.locks = core.locks, Forbidden()
    appenders, core._appenders = core._appenders, {}
    try:
        yield
    finally:
        core.locks, core._appenders = locks, appenders


# ------------------------------------------------------------------------------- what processes do, with `in_processes`


def append_in_a_process(number: int, place: Place, name: str, calls: int, rows: int) -> list[int]:
    """So many calls of ``create(value, name=)``, of two sources each; what comes back are the ids of its blocks."""

    async def append() -> list[int]:
        async with clickhouse.open_async(place.ch_url, place.sql_url, migrate=False) as store:
            for call in range(calls):
                await store.concat(*_halves(number, call, rows), name=name)
            return _own(await store.blocks(name))

    if number % 2:
        return asyncio.run(append())
    with clickhouse.open(place.ch_url, place.sql_url, migrate=False) as store:
        for call in range(calls):
            store.concat(*_halves(number, call, rows), name=name)
        return _own(store.blocks(name))


def _halves(writer: int, call: int, rows: int) -> list[dict[str, Any]]:
    def part(begin: int, end: int) -> dict[str, Any]:
        return {"w": [writer] * (end - begin), "c": [call] * (end - begin), "n": list(range(begin, end))}

    return [part(0, rows // 2), part(rows // 2, rows)]


def _own(blocks: Any) -> list[int]:
    return [block.id for block in blocks if block.writer.endswith(f":{os.getpid()}")]


def create_in_a_process(number: int, place: Place, name: str) -> str:
    """Be one of many who make a table of one name, and all else that is needed for it."""
    with clickhouse.open(place.ch_url, place.sql_url) as store:
        return store.create({"w": [number] * 50, "n": list(range(50))}, name=name).table
