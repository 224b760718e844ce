"""The lock of one shared table by itself, for code that keeps its own INSERT."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

from takehold import Advisory, AsyncHold, AsyncLocks, Hold, Locks, UsageError, advisory
from takehold.clickhouse.registry import AsyncRegistry, Registry

__all__ = ["TableLock", "table_lock"]


def table_lock(
    table: str,
    sql_url: str | None = None,
    *,
    registry: Registry | AsyncRegistry | None = None,
    locks: Locks | AsyncLocks | None = None,
    timeout: float | None = None,
) -> TableLock:
    """The lock that every append to this table holds: `with table_lock("p_prices", url) as hold`, or `async with`.

    Registry and locks that are not given are opened at `sql_url`, else at `TAKEHOLD_URL`, for this one block.
    """
    return TableLock(table, sql_url, registry, locks, timeout)


class TableLock:
    """A lock to be entered once; both faces have it."""

    def __init__(self, table: str, sql_url: str | None, registry: Any, locks: Any, timeout: float | None) -> None:
        self._table = table
        self._url = sql_url if sql_url is not None else os.environ.get("TAKEHOLD_URL", "")
        if not self._url and (registry is None or locks is None):
            raise UsageError("table_lock needs sql_url=, or both registry= and locks=, or TAKEHOLD_URL")
        self._registry = registry
        self._locks = locks
        self._timeout: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        self._opened: Any = None

    def __enter__(self) -> Hold:
        self._check("with", Registry, Locks)
        with ExitStack() as opened:
            registry: Registry = self._registry or opened.enter_context(Registry(self._url))
            locks: Locks = self._locks or opened.enter_context(Locks(self._url))
            key = self._key(registry.advisory_id(self._table))
            hold = opened.enter_context(locks.lock(key, **self._timeout))
            self._opened = opened.pop_all()
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncHold:
        self._check("async with", AsyncRegistry, AsyncLocks)
        async with AsyncExitStack() as opened:
            registry: AsyncRegistry = self._registry or await opened.enter_async_context(AsyncRegistry(self._url))
            locks: AsyncLocks = self._locks or await opened.enter_async_context(AsyncLocks(self._url))
            key = self._key(await registry.advisory_id(self._table))
            hold = await opened.enter_async_context(locks.lock(key, **self._timeout))
            self._opened = opened.pop_all()
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    def _key(self, number: int) -> Advisory:
        return advisory(number, label=self._table)

    def _check(self, how: str, *faces: type) -> None:
        if self._opened is not None:
            raise UsageError("a table_lock is entered once; make another one")
        for given, face in zip((self._registry, self._locks), faces, strict=True):
            if given is not None and not isinstance(given, face):
                raise UsageError(f"`{how} table_lock` takes {face.__name__}, not {given!r}")
