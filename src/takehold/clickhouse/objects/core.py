"""The core of a store: what both faces do, as coroutines that never suspend where the client does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from takehold import Advisory, UsageError, advisory
from takehold.clickhouse.appending import Altered, Appender, Rows, check_token
from takehold.clickhouse.block import Block
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.colour import settled
from takehold.clickhouse.columns import Column
from takehold.clickhouse.description import describe
from takehold.clickhouse.ledger import TABLE, Ledger
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.objects.operating import Result
from takehold.clickhouse.objects.references import References
from takehold.clickhouse.objects.relation import Relation, definition, found, planned, snapshot
from takehold.clickhouse.objects.scopes import SCOPED, existing_name, is_unshared, table_name, unshared_name
from takehold.clickhouse.objects.shapes import Shape
from takehold.clickhouse.objects.sources import Source, Stored
from takehold.clickhouse.objects.unshared import fill
from takehold.clickhouse.quoting import identifier, text

__all__ = ["Core", "Manner"]

TABLE_EXISTS: Final = 57
# Type mismatches, texts that are no numbers, division by a constant zero: what is wrong with an expression.
WRONG_EXPRESSION: Final = frozenset({6, 27, 38, 41, 43, 53, 69, 70, 72, 153, 386, 407})


@dataclass(frozen=True, slots=True)
class Manner:
    """How an append is done."""

    token: str | None = None
    contiguous: bool = True
    timeout: Any = None


class Core:
    """Tables, the registry that knows them, and the locks that protect the shared ones."""

    def __init__(self, channel: Channel, registry: Any, locks: Any, database: str, context: int) -> None:
        self.channel = channel
        self.registry = registry
        self.locks = locks
        self.references = References(registry, context)
        self.database = database
        self._appenders: dict[str, Appender] = {}

    def name(self, table: str) -> TableName:
        """A table of this store's database."""
        return TableName(self.database, table)

    async def key(self, table: str) -> Advisory:
        """What a shared table is locked by."""
        return advisory(await settled(self.registry.advisory_id(table)), label=table)

    async def appender(self, table: str) -> Appender:
        """What appends to a shared table."""
        if table not in self._appenders:
            made = Appender(self.channel, self.name(table), self.locks, await self.key(table))
            self._appenders.setdefault(table, made)
        return self._appenders[table]

    async def found(self, table: str | Relation) -> Relation:
        """A table that is there; `UsageError` if none is."""
        name = table.table if isinstance(table, Relation) else self.name(existing_name(table))
        relation = await found(self.channel, name)
        if relation is None:
            await describe(self.channel, name)  # raises, with the name that was perhaps meant
            raise UsageError(f"there was no table {name} a moment ago; look again")
        return relation

    async def opened(self, table: str) -> Relation:
        """A table that is there, and is used from now on."""
        name = existing_name(table)
        await self.references.take(name)
        try:
            return await self.found(name)
        except BaseException:
            self.references.leave(name)
            raise

    # -- shared tables, locked -----------------------------------------------------------------------------

    async def append(self, table: str, sources: Sequence[Source], manner: Manner, *, create: bool = False) -> Block:
        """One block of all sources: validate, resolve the id, lock, insert, unlock."""
        check_token(manner.token)
        try:
            return await self._append(table, sources, manner, create=create)
        except Altered:
            return await self._append(table, sources, manner, create=create)

    async def _append(self, table: str, sources: Sequence[Source], manner: Manner, *, create: bool) -> Block:
        name = self.name(table)
        before = await found(self.channel, name) if create else await self.found(table)
        parts = await self._parts(before or self._planned(name, sources), sources, manner)
        appender = await self.appender(table)
        hold = await settled(appender.lock(manner.timeout).acquire())
        checked = None if before is None else before.description
        try:
            if create:
                # Only now: of two that create one name the second finds what the first has made.
                there = await found(self.channel, name)
                if there is None:
                    await self._make(self._planned(name, sources))
                    appender.forget()
                    checked = None
                elif before is None or there.description != before.description:
                    parts = await self._parts(there, sources, manner)
                    appender.forget()
                    checked = there.description
            return await appender.write_held(parts, hold, manner.token, checked)
        finally:
            await settled(hold.release())

    def _planned(self, name: TableName, sources: Sequence[Source]) -> Relation:
        return planned(name, sources[0].columns, sources[0].shape)

    async def _parts(self, target: Relation, sources: Sequence[Source], manner: Manner) -> list[Rows]:
        if manner.contiguous:
            target.description.check_contiguous()
        if manner.token is not None:
            target.description.check_token()
        own = target.description.row_id
        columns = [column for column in target.description.columns if column.name != own]
        wanted = [column.name for column in columns if column.required]
        for source in sources:
            given = [column.name for column in source.columns]
            if not set(wanted) <= set(given) <= {column.name for column in columns}:
                raise UsageError(f"{target.table} has the columns {wanted}, and what is given has {given}")
        return [await source.rows(self.channel, target.table, columns) for source in sources]

    async def _make(self, relation: Relation) -> None:
        # The ledger first: who reads the table asks it.
        await Ledger(self.channel, relation.table).create(relation.description)
        await self.channel.command(definition(relation))

    async def insert(self, dest: str | Relation, sources: Sequence[Source], manner: Manner) -> Block:
        """All sources at the end of a shared table that is there."""
        await self.settle()
        return await self.append(_shared(dest), sources, manner)

    async def create(self, sources: Sequence[Source], name: str | None, job: int | None, manner: Manner) -> Relation:
        """All sources in a table of their own, or with a name at the end of that shared table."""
        await self.settle()
        if name is not None:
            table = table_name(name, job)
            await self.append(table, sources, manner, create=True)
            return await self.opened(table)
        if job is not None or manner.token is not None:
            raise UsageError("job= and token= are for shared tables: give it a name too")
        return await self._result(sources[0].columns, sources[0].shape, sources)

    # -- unshared tables, without a lock ---------------------------------------------------------------------

    async def materialized(self, result: Result) -> Relation:
        """The result of an operator in a table of its own; a `UsageError` if the types do not allow it."""
        await self.settle()
        try:
            described = await self.channel.rows(f"DESCRIBE TABLE ({result.select})")
            columns = tuple(Column(name, kind) for name, kind, *_ in described)
            return await self._result(columns, result.shape, [Rows([column.name for column in columns], result.select)])
        except Exception as error:
            if getattr(error, "code", None) in WRONG_EXPRESSION:
                raise UsageError(f"these operands do not go together: {error}") from error
            raise

    async def _result(self, columns: Sequence[Column], shape: Shape, sources: Sequence[Source | Rows]) -> Relation:
        number = (await settled(self.registry.new(1)))[0]
        relation = planned(self.name(unshared_name(number)), columns, shape)
        parts = [
            source if isinstance(source, Rows) else await source.rows(self.channel, relation.table, columns)
            for source in sources
        ]
        await self.references.take(relation.table.table)  # before it is there, so that nobody takes it for unused
        try:
            await self.channel.command(definition(relation))
            await fill(self.channel, relation.table, parts)
        except BaseException:
            self.references.leave(relation.table.table)
            try:
                await self.settle()
            except Exception:  # noqa: BLE001, S110 - why it failed is the news; close() drops what is left
                pass
            raise
        return relation

    async def copy(self, source: Relation, name: str, job: int | None) -> Relation:
        """A new shared table with the rows of another, not locked. It has its name only once it is whole."""
        await self.settle()
        relation = planned(self.name(table_name(name, job)), source.columns, source.shape)
        exists = UsageError(f"{relation.table} is there already; copy() makes a new one, concat() appends")
        if await found(self.channel, relation.table) is not None:
            raise exists
        await Ledger(self.channel, relation.table).create(relation.description)
        # A result like any other: if we fail, or die, it goes as they do.
        filled = await self._result(source.columns, source.shape, [Stored(source)])
        await self.references.take(relation.table.table)
        try:
            await self.channel.command(f"RENAME TABLE {filled.table.sql} TO {relation.table.sql}")
        except BaseException as error:
            self.references.leave(relation.table.table)
            if getattr(error, "code", None) == TABLE_EXISTS:
                raise exists from error
            raise
        finally:
            self.references.leave(filled.table.table)
        await self.settle()
        return relation

    # -- reading, and the end of tables ----------------------------------------------------------------------

    async def arrow(self, relation: Relation) -> Any:
        """The rows, in the order in which they were appended."""
        return await self.channel.arrow(relation.select(await snapshot(self.channel, relation)))

    async def place(self, table: str | Relation) -> tuple[str, Advisory]:
        """Where a shared table is, and the key that it is locked by."""
        name = _shared(table)
        return str(self.name(name)), await self.key(name)

    async def appender_of(self, table: str | Relation) -> Appender:
        """What has the lock of a shared table."""
        return await self.appender(_shared(table))

    async def table_of(self, block: object) -> str:
        """Where a block is."""
        if isinstance(block, Block):
            return block.table.rpartition(".")[2]
        if isinstance(block, bool) or not isinstance(block, int):
            raise UsageError(f"a block is told by its id, not by {block!r}")
        ledger = f"{identifier(self.database)}.{TABLE}"
        known = await self.channel.rows(f"SELECT any(table) FROM {ledger} WHERE id = {block} HAVING count() > 0")
        if not known:
            raise UsageError(f"no table of {self.database} has a recorded block {block}; name the table too")
        return str(known[0][0])

    async def tables(self) -> list[str]:
        """The tables of this database that are of a store."""
        await self.settle()
        there = await self.channel.rows(f"SELECT name FROM system.tables WHERE database = {text(self.database)}")
        return sorted(name for (name,) in there if SCOPED.fullmatch(name))

    async def drop(self, table: str | Relation) -> None:
        """The table goes; its name keeps the number that it is locked by."""
        await self.settle()
        await self._drop((await self.found(table)).table.table)

    async def _drop(self, table: str) -> None:
        await self.channel.command(f"DROP TABLE IF EXISTS {self.name(table).sql}{self.channel.on_cluster}")
        await settled(self.registry.forget(table))
        if table in self._appenders:
            self._appenders[table].forget()

    async def settle(self) -> None:
        """Drop the results that nobody uses any more; shared tables stay."""
        for table in await self.references.settle():
            if is_unshared(table):
                await self._drop_unused(table)

    async def _drop_unused(self, table: str) -> None:
        # Of those who see that nobody uses it and somebody who begins to, only one gets what he wants.
        if await settled(self.registry.claim(table)):
            await self._drop(table)

    async def leave(self) -> None:
        """Give up all tables, and drop results that others gave up without being able to drop them."""
        self.references.leave_all()
        await self.settle()
        there = set(await self.tables())
        for table in await settled(self.registry.unreferenced()):
            if table in there:
                await self._drop_unused(table)

    async def close(self) -> None:
        """Give up all tables, and close what was opened."""
        try:
            await self.leave()
        finally:
            await settled(self.locks.close())
            await settled(self.registry.close())
            await settled(self.channel.client.close())


def _shared(table: str | Relation) -> str:
    name = table.table.table if isinstance(table, Relation) else existing_name(table)
    if is_unshared(name):
        raise UsageError(
            f"{name} is a result: it stays as it is, has no lock and no blocks. concat(it, more, name=...)"
        )
    return name
