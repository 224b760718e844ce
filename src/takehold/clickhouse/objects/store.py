"""Stores: objects in ClickHouse, the registry that knows their tables, and the locks of the shared ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, cast

from takehold import AsyncHold, AsyncLocks, Hold, Locks, UsageError
from takehold.clickhouse.block import Block
from takehold.clickhouse.objects.core import Core, Manner
from takehold.clickhouse.objects.object import AsyncObject, BaseObject, Object
from takehold.clickhouse.objects.relation import Relation
from takehold.clickhouse.objects.scopes import table_name
from takehold.clickhouse.objects.sources import Source, Stored, Values
from takehold.clickhouse.registry import AsyncRegistry, Registry
from takehold.clickhouse.table import AsyncTable, Table
from takehold.runtime import run

__all__ = ["AsyncStore", "Store"]


class BaseStore:
    """What both faces share."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core.database} of {self._core.channel.client.uri}>"

    @property
    def context(self) -> int:
        """The number under which the registry counts what this store uses."""
        return self._core.references.context

    def _sources(self, sources: Sequence[Any]) -> list[Source]:
        """Objects of this store, and values."""
        if not sources:
            raise UsageError("give at least one source: an object of this store, or a value")
        return [self._source(source) for source in sources]

    def _source(self, source: Any) -> Source:
        if isinstance(source, BaseObject):
            return Stored(self._own(source))
        return Values(source)

    def _own(self, source: Any) -> Relation:
        if not isinstance(source, BaseObject):
            raise UsageError(f"this takes an object of this store, not {source!r}")
        if source._core is not self._core:
            raise UsageError(f"{source!r} is of another store")
        return source._relation

    def _destination(self, dest: Any) -> Any:
        return self._own(dest) if isinstance(dest, BaseObject) else dest


class Store(BaseStore):
    """Tables as objects, with appends that are contiguous whoever else appends. Made by `clickhouse.open`.

    A table is `p_<name>`, which all share, `j_<job>_<name>`, which a job shares, or `t_<id>`, the result of one call.
    Everything that adds rows to a shared table holds its lock for that one call.
    """

    @property
    def registry(self) -> Registry:
        """What knows the tables, who uses them and the number that each is locked by."""
        return cast("Registry", self._core.registry)

    @property
    def locks(self) -> Locks:
        """The locks of this store."""
        return cast("Locks", self._core.locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def create(
        self,
        value: Any,
        name: str | None = None,
        *,
        job: int | None = None,
        token: str | None = None,
        contiguous: bool = True,
        timeout: float | None = None,
    ) -> Object:
        """A value as an object: a scalar, a list, columns, records, a DataFrame, an Arrow table.

        With a name its rows come at the end of the table of that name, which is made if it is not there.
        """
        manner = Manner(token, contiguous, timeout)
        return Object(self._core, run(self._core.create([Values(value)], name, job, manner)))

    def insert(
        self,
        dest: Object | str,
        *sources: Any,
        token: str | None = None,
        contiguous: bool = True,
        timeout: float | None = None,
    ) -> Block:
        """Append all sources, objects or values, to a shared table that is there, as one block."""
        manner = Manner(token, contiguous, timeout)
        return run(self._core.insert(self._destination(dest), self._sources(sources), manner))

    def concat(
        self,
        *sources: Any,
        name: str | None = None,
        job: int | None = None,
        token: str | None = None,
        contiguous: bool = True,
        timeout: float | None = None,
    ) -> Object:
        """All sources one after the other: a new object, or with a name at the end of that shared table."""
        manner = Manner(token, contiguous, timeout)
        return Object(self._core, run(self._core.create(self._sources(sources), name, job, manner)))

    def copy(self, source: Object, name: str, *, job: int | None = None) -> Object:
        """A new shared table with the rows of another.

        It has its name once it is whole. Warning: copies are not serialized: of two that make one name at once the
        second fails.
        """
        return Object(self._core, run(self._core.copy(self._own(source), name, job)))

    def object(self, name: str, *, job: int | None = None) -> Object:
        """The object of a table that is there: `prices`, or by its whole name `p_prices`, `j_7_prices`, `t_...`."""
        return Object(self._core, run(self._core.opened(name if job is None else table_name(name, job))))

    def drop(self, name: str | Object) -> None:
        """Drop a table. Its name keeps the number that it is locked by, for the next table of that name."""
        run(self._core.drop(self._destination(name)))

    def tables(self) -> list[str]:
        """The names of all tables of this database that are of a store, sorted."""
        return run(self._core.tables())

    def table(self, name: str | Object) -> Table:
        """A shared table for `append`, `blocks` and `read`, under the same lock."""
        place, key = run(self._core.place(self._destination(name)))
        return Table(self._core.channel.client, place, locks=self.locks, key=key)

    def blocks(self, name: str | Object) -> list[Block]:
        """The blocks of a shared table, oldest first, unfinished ones too."""
        return self.table(name).blocks()

    def read_block(self, block: Block | int, *, unfinished: bool = False) -> Any:
        """The rows of exactly one call, as an Arrow table."""
        name = run(self._core.table_of(block))
        return self.table(name).read(block, unfinished=unfinished)

    @contextmanager
    def table_lock(self, table: str | Object, *, timeout: float | None = None) -> Iterator[Hold]:
        """The lock of a shared table, for an INSERT of your own: `with store.table_lock("prices") as hold`.

        An INSERT with `query_id=clickhouse.query_id(hold)` is ended before the next writer begins, should its own die.
        """
        appender = run(self._core.appender_of(self._destination(table)))
        with appender.lock(timeout) as hold:
            run(appender.clear(hold))
            yield hold

    def close(self) -> None:
        """Drop the results that nobody else uses, and close the connections."""
        run(self._core.close())


class AsyncStore(BaseStore):
    """`Store` for asyncio. Made by `clickhouse.open_async`."""

    @property
    def registry(self) -> AsyncRegistry:
        """As `Store.registry`."""
        return cast("AsyncRegistry", self._core.registry)

    @property
    def locks(self) -> AsyncLocks:
        """As `Store.locks`."""
        return cast("AsyncLocks", self._core.locks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.close()

    async def create(
        self,
        value: Any,
        name: str | None = None,
        *,
        job: int | None = None,
        token: str | None = None,
        contiguous: bool = True,
        timeout: float | None = None,
    ) -> AsyncObject:
        """As `Store.create`."""
        manner = Manner(token, contiguous, timeout)
        return AsyncObject(self._core, await self._core.create([Values(value)], name, job, manner))

    async def insert(
        self,
        dest: AsyncObject | str,
        *sources: Any,
        token: str | None = None,
        contiguous: bool = True,
        timeout: float | None = None,
    ) -> Block:
        """As `Store.insert`."""
        manner = Manner(token, contiguous, timeout)
        return await self._core.insert(self._destination(dest), self._sources(sources), manner)

    async def concat(
        self,
        *sources: Any,
        name: str | None = None,
        job: int | None = None,
        token: str | None = None,
        contiguous: bool = True,
        timeout: float | None = None,
    ) -> AsyncObject:
        """As `Store.concat`."""
        manner = Manner(token, contiguous, timeout)
        return AsyncObject(self._core, await self._core.create(self._sources(sources), name, job, manner))

    async def copy(self, source: AsyncObject, name: str, *, job: int | None = None) -> AsyncObject:
        """As `Store.copy`. Warning: copies are not serialized."""
        return AsyncObject(self._core, await self._core.copy(self._own(source), name, job))

    async def object(self, name: str, *, job: int | None = None) -> AsyncObject:
        """As `Store.object`."""
        return AsyncObject(self._core, await self._core.opened(name if job is None else table_name(name, job)))

    async def drop(self, name: str | AsyncObject) -> None:
        """As `Store.drop`."""
        await self._core.drop(self._destination(name))

    async def tables(self) -> list[str]:
        """As `Store.tables`."""
        return await self._core.tables()

    async def table(self, name: str | AsyncObject) -> AsyncTable:
        """As `Store.table`."""
        place, key = await self._core.place(self._destination(name))
        return AsyncTable(self._core.channel.client, place, locks=self.locks, key=key)

    async def blocks(self, name: str | AsyncObject) -> list[Block]:
        """As `Store.blocks`."""
        return await (await self.table(name)).blocks()

    async def read_block(self, block: Block | int, *, unfinished: bool = False) -> Any:
        """As `Store.read_block`."""
        name = await self._core.table_of(block)
        return await (await self.table(name)).read(block, unfinished=unfinished)

    @asynccontextmanager
    async def table_lock(self, table: str | AsyncObject, *, timeout: float | None = None) -> AsyncIterator[AsyncHold]:
        """As `Store.table_lock`."""
        appender = await self._core.appender_of(self._destination(table))
        async with appender.lock(timeout) as hold:
            await appender.clear(hold)
            yield hold

    async def close(self) -> None:
        """As `Store.close`."""
        await self._core.close()
