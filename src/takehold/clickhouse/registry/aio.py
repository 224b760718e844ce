"""The registry for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from takehold.clickhouse import snowflake
from takehold.clickhouse.registry import entries, migrations, ranges
from takehold.clickhouse.registry.base import AHEAD_MS, BaseRegistry, explained
from takehold.clickhouse.registry.engines import Database, async_engine, forked
from takehold.clickhouse.registry.entries import Mint
from takehold.clickhouse.registry.naming import checked_context, checked_table

__all__ = ["AsyncRegistry"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Home:
    """What belongs to one event loop."""

    engine: AsyncEngine
    refilling: asyncio.Lock = field(default_factory=asyncio.Lock)


class AsyncRegistry(BaseRegistry):
    """Which tables there are, who uses them, and the number that each is locked by.

    `database` is `postgresql://...` or `sqlite:///path`, or an engine, of which the URL is used: the registry opens
    connections of its own, when they are first needed. `mint(n)` gives the ids of tables, if they are to come from
    elsewhere than the registry's own ranges.
    """

    def __init__(self, database: Database, *, mint: Mint | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database, mint, clock)
        self._homes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Home] = WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.close()

    async def upgrade(self) -> None:
        """Make or migrate the tables; any number of processes may do it at once."""
        await self._migrate(migrations.upgrade, self._own_mint)
        self._forget_ids()

    async def downgrade(self, revision: str) -> None:
        """Take migrations back, down to this revision of Alembic's: an id, `-1` or `base`."""
        await self._migrate(migrations.downgrade, revision)
        self._forget_ids()

    async def advisory_id(self, table: str) -> int:
        """The number that a table is locked by: always the same; a table without one gets it now."""
        return await self._advisory_id(table)

    async def incref(self, table: str, context_id: int) -> int:
        """Note that a context uses a table, once or again; the table's advisory id."""
        return await self._incref(table, context_id)

    async def decref(self, table: str, context_id: int) -> int:
        """Note that a context no longer uses a table; how many still do. Of the last two users one is told 0."""
        return await self._decref(table, context_id)

    async def leave(self, context_id: int) -> None:
        """Note that a context uses nothing any more, as of a process that was killed."""
        await self._transact(entries.leave, checked_context(context_id))

    async def references(self, table: str) -> list[int]:
        """The contexts that use a table, ascending."""
        return await self._transact(entries.references, checked_table(table))

    async def unreferenced(self) -> list[str]:
        """The results of operators (`t_<id>`) that no context uses any more and that are not forgotten yet."""
        return await self._transact(entries.unreferenced)

    async def claim(self, table: str) -> bool:
        """Whether this result of an operator may be dropped: nobody uses it, and from now on nobody can."""
        return await self._transact(entries.claim, checked_table(table))

    async def forget(self, table: str) -> None:
        """Drop all references, because the table was dropped. Its name keeps its advisory id for ever."""
        await self._transact(entries.forget, checked_table(table))

    async def new(self, n: int = 1) -> list[int]:
        """So many snowflake ids, ascending, that nobody in the fleet mints again."""
        return await self._new(n)

    async def reserve(self) -> None:
        """See to it that ids can be minted without the database for half a minute from now.

        `snowflake.new` cannot wait for a loop: bound to this registry it raises `Exhausted` where a range is over.
        Call this before, twice a minute, or use `new` of the registry.
        """
        await self._refill(AHEAD_MS)

    async def close(self) -> None:
        """Close the connections; `snowflake.new` no longer mints from here."""
        snowflake.unbind(self._minter)
        home = self._homes.pop(asyncio.get_running_loop(), None)
        if home is not None:
            await home.engine.dispose()

    def _own_reserve(self) -> None:
        return None

    def _home(self) -> _Home:
        """That of the running loop: a connection is of no use on another one."""
        loop = asyncio.get_running_loop()
        if loop not in self._homes:
            self._homes[loop] = _Home(async_engine(self._url))
            forked.add(self._homes[loop].engine.sync_engine)
        return self._homes[loop]

    async def _refill(self, ahead_ms: int) -> None:
        async with self._home().refilling:
            if (wanted := self._minter.wanted(ahead_ms)) is not None:
                self._minter.add(await self._transact(ranges.reserve, wanted))

    async def _transact(
        self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self._home().engine.begin() as connection:
            return await connection.run_sync(explained, function, *args, **kwargs)

    async def _migrate(
        self, function: Callable[Concatenate[Connection, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        engine = async_engine(self._url, migrating=True)
        while not migrations.alone.acquire(blocking=False):  # a task that waited for it would stop its own holder
            await asyncio.sleep(0.01)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(function, *args, **kwargs)
        finally:
            migrations.alone.release()
