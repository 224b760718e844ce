"""The registry for threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection

from takehold.clickhouse import snowflake
from takehold.clickhouse.registry import entries, migrations, ranges
from takehold.clickhouse.registry.base import AHEAD_MS, BaseRegistry, explained
from takehold.clickhouse.registry.engines import Database, blocking_engine, forked
from takehold.clickhouse.registry.entries import Mint
from takehold.clickhouse.registry.naming import checked_context, checked_table
from takehold.clickhouse.snowflake import Range, Reserve
from takehold.runtime import run

__all__ = ["Registry"]

P = ParamSpec("P")
T = TypeVar("T")


class Registry(BaseRegistry):
    """Which tables there are, who uses them, and the number that each is locked by.

    `database` is `postgresql://...` or `sqlite:///path`, or an engine, of which the URL is used: the registry opens
    connections of its own, when they are first needed. `mint(n)` gives the ids of tables, if they are to come from
    elsewhere than the registry's own ranges.
    """

    def __init__(self, database: Database, *, mint: Mint | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database, mint, clock)
        self._engine = blocking_engine(self._url)
        forked.add(self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def upgrade(self) -> None:
        """Make or migrate the tables; any number of processes may do it at once."""
        self._migrate(migrations.upgrade, self._own_mint)
        self._forget_ids()

    def downgrade(self, revision: str) -> None:
        """Take migrations back, down to this revision of Alembic's: an id, `-1` or `base`."""
        self._migrate(migrations.downgrade, revision)
        self._forget_ids()

    def advisory_id(self, table: str) -> int:
        """The number that a table is locked by: always the same; a table without one gets it now."""
        return run(self._advisory_id(table))

    def incref(self, table: str, context_id: int) -> int:
        """Note that a context uses a table, once or again; the table's advisory id."""
        return run(self._incref(table, context_id))

    def decref(self, table: str, context_id: int) -> int:
        """Note that a context no longer uses a table; how many still do. Of the last two users one is told 0."""
        return run(self._decref(table, context_id))

    def leave(self, context_id: int) -> None:
        """Note that a context uses nothing any more, as of a process that was killed."""
        self._transact(entries.leave, checked_context(context_id))

    def references(self, table: str) -> list[int]:
        """The contexts that use a table, ascending."""
        return self._transact(entries.references, checked_table(table))

    def unreferenced(self) -> list[str]:
        """The results of operators (`t_<id>`) that no context uses any more and that are not forgotten yet."""
        return self._transact(entries.unreferenced)

    def claim(self, table: str) -> bool:
        """Whether this result of an operator may be dropped: nobody uses it, and from now on nobody can."""
        return self._transact(entries.claim, checked_table(table))

    def forget(self, table: str) -> None:
        """Drop all references, because the table was dropped. Its name keeps its advisory id for ever."""
        self._transact(entries.forget, checked_table(table))

    def new(self, n: int = 1) -> list[int]:
        """So many snowflake ids, ascending, that nobody in the fleet mints again."""
        return run(self._new(n))

    def reserve(self) -> None:
        """See to it that ids can be minted without the database for half a minute from now."""
        self._refill(AHEAD_MS)

    def close(self) -> None:
        """Close the connections; `snowflake.new` no longer mints from here."""
        snowflake.unbind(self._minter)
        self._engine.dispose()

    def _own_reserve(self) -> Reserve:
        return self._reserve_range

    def _reserve_range(self, from_ms: int) -> Range:
        return self._transact(ranges.reserve, from_ms)

    def _refill(self, ahead_ms: int) -> None:
        self._minter.refill(self._reserve_range, ahead_ms)

    def _transact(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._engine.begin() as connection:
            return explained(connection, function, *args, **kwargs)

    def _migrate(self, function: Callable[Concatenate[Connection, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        engine = blocking_engine(self._url, migrating=True)
        with migrations.alone, engine.begin() as connection:
            function(connection, *args, **kwargs)
