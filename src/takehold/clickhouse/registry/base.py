"""What both faces of the registry are made of: coroutines that never suspend where the database does not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from takehold import UsageError
from takehold.clickhouse import snowflake
from takehold.clickhouse.colour import settled
from takehold.clickhouse.registry import entries
from takehold.clickhouse.registry.engines import Database, plain_url, url_of
from takehold.clickhouse.registry.entries import Mint
from takehold.clickhouse.registry.naming import checked_context, checked_table, is_result
from takehold.clickhouse.registry.ranges import SPAN_MS
from takehold.clickhouse.snowflake import Exhausted, Minter, Reserve

__all__ = ["AHEAD_MS", "BaseRegistry", "explained"]

P = ParamSpec("P")
T = TypeVar("T")

AHEAD_MS = SPAN_MS // 2

# By database and table. An id is never taken from a name again, so what is in here stays true.
_known: dict[tuple[str, str], int] = {}


class BaseRegistry(ABC):
    """A database, its cache and its minter."""

    def __init__(self, database: Database, mint: Mint | None, clock: Callable[[], float]) -> None:
        self._url: URL = url_of(database)
        self._plain_url = plain_url(self._url)
        self._minter = Minter(self._own_reserve(), clock)
        self._own_mint = mint

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url!r}>"

    @abstractmethod
    def _own_reserve(self) -> Reserve | None:
        """What asks for a range in a transaction of its own, if that can be done without waiting for a loop."""

    @abstractmethod
    def _transact(
        self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | Awaitable[T]:
        """The function's result, once what it did is committed."""

    @abstractmethod
    def _refill(self, ahead_ms: int) -> Awaitable[None] | None:
        """Have a range that goes on for so long."""

    def bind(self) -> None:
        """Let `snowflake.new` of this process mint from ranges of this registry. With asyncio see `reserve`."""
        snowflake.bind(self._minter)

    # ------------------------------------------------------------------------------------------- in both colours

    async def _advisory_id(self, table: str) -> int:
        checked_table(table, in_database=True)
        known = _known.get((self._plain_url, table))
        return await self._minting(table, entries.register) if known is None else known

    async def _incref(self, table: str, context_id: int) -> int:
        checked_table(table)
        return await self._minting(table, entries.incref, checked_context(context_id))

    async def _decref(self, table: str, context_id: int) -> int:
        return int(await settled(self._transact(entries.decref, checked_table(table), checked_context(context_id))))

    async def _minting(self, table: str, function: Callable[..., int], *args: Any) -> int:
        while True:
            try:
                found = int(await settled(self._transact(function, table, *args, self._mint)))
            except Exhausted:
                if self._own_mint:
                    raise
                # In a transaction of its own, after that one: SQLite has one writer, and a range that were reserved in
                # a transaction that fails in the end would be somebody else's as well.
                await settled(self._refill(0))
            else:
                if not is_result(table):  # these come and go
                    _known[self._plain_url, table] = found
                return found

    async def _new(self, n: int) -> list[int]:
        ids = self._minter.take(snowflake.checked(n))
        while len(ids) < n:
            await settled(self._refill(0))
            ids += self._minter.take(n - len(ids))
        return ids

    @property
    def _mint(self) -> Mint:
        return self._own_mint or self._minter.at_hand

    def _forget_ids(self) -> None:
        """After a migration: the database may have been made anew."""
        for key in [key for key in _known if key[0] == self._plain_url]:
            del _known[key]


def explained(
    connection: Connection, function: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """The function's result; if the tables are missing, an error that says what to do."""
    try:
        return function(connection, *args, **kwargs)
    except DBAPIError as error:
        undefined_table = getattr(error.orig, "sqlstate", getattr(error.orig, "pgcode", None)) == "42P01"
        if undefined_table or "no such table" in str(error.orig):
            raise UsageError("the tables of the registry are not there: call registry.upgrade() once") from error
        raise
