"""Appending: one call writes one block, alone and whole, and says what became of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from takehold import Advisory, AsyncHold, BackendError, Hold, Key, StaleFence, UsageError
from takehold.clickhouse.block import Block, UnknownBlock, new_id
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.colour import settled
from takehold.clickhouse.columns import structure
from takehold.clickhouse.data import arrow_table, serialised
from takehold.clickhouse.description import BLOCK, WRITER, Description, altered, check_replicas, describe
from takehold.clickhouse.ledger import Ledger
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.quoting import identifier, text

__all__ = ["Altered", "Appender", "Rows", "check_token", "query_id", "query_tag"]

# One thread, so that rows keep their order and ids ascend; no buffer at the server that outlives the lock.
SETTINGS: Final[dict[str, Any]] = {
    "async_insert": 0,
    "max_insert_threads": 1,
    "max_threads": 1,
    "insert_allow_materialized_columns": 1,
}
REFUSED_BY_GUARD: Final = 395  # FUNCTION_THROW_IF_VALUE_IS_NON_ZERO
ANOTHER_WRITER: Final = "takehold: another writer"
ANOTHER_TABLE: Final = "takehold: another table"
TABLE_CHANGED: Final = frozenset({16, 47, 60})  # no such column, unknown identifier, unknown table: nothing was begun
ACCESS_DENIED: Final = 497
ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Rows:
    """What one statement inserts: columns, and an Arrow stream or a SELECT that gives them."""

    columns: Sequence[str]
    source: bytes | str
    structure: str = ""
    """How the server reads the stream."""
    count: int | None = None
    """How many, when that is known before."""
    fingerprint: int = 0
    """Of the table that they are for."""


class Altered(UsageError):
    """The table is no longer what the data was checked against; it was looked at anew, so check again."""


def query_tag(key: str | Key | Advisory) -> str:
    """What the query ids of all inserts under this key begin with."""
    hashed = hashlib.blake2b(str(key).encode(), digest_size=8).hexdigest()
    name = str(key.number) if isinstance(key, Advisory) else hashed
    return f"takehold-{name}-"


def query_id(hold: Hold | AsyncHold) -> str:
    """A query id for an INSERT of your own under `table_lock`: the next writer ends it if you do not live to."""
    return f"{query_tag(hold.keys[0])}{hold.fence}-{new_id()}-0"


def check_token(token: object) -> None:
    """Raise unless it can tell a repeated call."""
    if token is not None and not (isinstance(token, str) and token):
        raise UsageError(f"a token is text, and not empty: not {token!r}")


class Appender:
    """Appends to one table, for both faces."""

    def __init__(self, channel: Channel, name: TableName, locks: Any, key: str | Advisory) -> None:
        self.channel = channel
        self.name = name
        self.ledger = Ledger(channel, name)
        self._locks = locks
        self._key = key
        self._tag = query_tag(key)
        self._description: Description | None = None
        self._prepared = False

    def lock(self, timeout: Any = None) -> Any:
        """The request for the key of this table."""
        return self._locks.lock(self._key) if timeout is None else self._locks.lock(self._key, timeout=timeout)

    async def description(self) -> Description:
        """The table, as it was when it was first looked at."""
        if self._description is None:
            await check_replicas(self.channel)
            self._description = await describe(self.channel, self.name)
        return self._description

    def forget(self) -> None:
        """Look at the table anew next time."""
        self._description = None
        self._prepared = False

    async def append(self, data: Any, token: str | None, *, contiguous: bool, timeout: Any) -> Block:
        """Check the data, then write it as one block."""
        check_token(token)
        try:
            return await self._append(data, token, contiguous=contiguous, timeout=timeout)
        except Altered:
            return await self._append(data, token, contiguous=contiguous, timeout=timeout)

    async def _append(self, data: Any, token: str | None, *, contiguous: bool, timeout: Any) -> Block:
        described = await self.description()
        try:
            if contiguous:
                described.check_contiguous()
            if token is not None:
                described.check_token()
            table = arrow_table(data, described.columns, name=str(self.name))
        except UsageError:
            self.forget()  # by the next time it may have been altered
            raise
        given = [column for column in described.columns if column.name in table.schema.names]
        rows = Rows(table.schema.names, serialised(table), structure(given), table.num_rows)
        return await self.write([rows], token, timeout=timeout, checked=described)

    async def write(
        self,
        parts: Sequence[Rows],
        token: str | None = None,
        *,
        timeout: Any = None,
        checked: Description | None = None,
    ) -> Block:
        """Lock, insert every part, record, unlock."""
        hold = await settled(self.lock(timeout).acquire())
        try:
            return await self.write_held(parts, hold, token, checked)
        finally:
            await settled(hold.release())

    async def write_held(
        self, parts: Sequence[Rows], hold: Any, token: str | None = None, checked: Description | None = None
    ) -> Block:
        """Insert every part and record, under a hold of this table's key."""
        described = await self._prepare()
        if checked is not None and not described.same(checked):
            described = await self._looked_at_anew(checked)
        parts = [replace(rows, fingerprint=described.fingerprint) for rows in parts]
        counts = [rows.count for rows in parts]
        expected = None if None in counts else sum(filter(None, counts))
        if token is not None and (before := await self._before(token, described, expected, hold.fence)) is not None:
            return before
        owner = hold.owner
        writer = f"{owner.host}:{owner.pid}" + (f" ({owner.label})" if owner.label else "")
        block = Block(new_id(), str(self.name), 0, "running", writer, hold.fence, token=token)
        if token is not None or len(parts) > 1:
            await self.ledger.begin(block)
        for index, rows in enumerate(parts):
            query_id = f"{self._tag}{block.fence}-{block.id}-{index}"
            written = await self._insert(rows, block, query_id, hold, last=index + 1 == len(parts))
            block = replace(block, rows=block.rows + written)
        try:
            query_id = f"{self._tag}{block.fence}-{block.id}-{len(parts)}"  # who takes the block's token over ends it
            await self.ledger.finish(block, described, expected, query_id=query_id)
        except Exception as error:
            raise _unknown(block, "its lock was lost" if hold.lost else "it could not be recorded") from error
        if hold.lost:
            raise _unknown(block, "its lock was lost")
        return replace(block, state="finished")

    async def _prepare(self) -> Description:
        """Give the table its hidden columns, and the database its ledger; the hold keeps two from doing it at once."""
        described = await self.description()
        if self._prepared:
            return described
        if described.lacks:
            sql = (
                f"ALTER TABLE {self.name.sql}{self.channel.on_cluster}"
                + "".join(f" ADD COLUMN IF NOT EXISTS {definition}," for definition in described.lacks)
                + f" ADD INDEX IF NOT EXISTS {BLOCK} {BLOCK} TYPE minmax GRANULARITY 1"
            )
            try:
                await self.channel.command(sql)
            except Exception as error:
                if getattr(error, "code", None) != ACCESS_DENIED:
                    raise
                raise UsageError(
                    f"this user may not mark the blocks of {self.name}; let one who may run: {sql}"
                ) from error
            self._description = described = await describe(self.channel, self.name)
        await self.ledger.create(described)
        self._prepared = True
        return described

    async def _looked_at_anew(self, checked: Description) -> Description:
        """The table as it is now; somebody may have altered it, or dropped it and made it again."""
        self.forget()
        described = await self._prepare()
        if not described.same(checked):
            raise Altered(f"{self.name} was altered meanwhile, and nothing was written: repeat the call")
        return described

    async def _before(self, token: str, described: Description, expected: int | None, fence: int) -> Block | None:
        """What an earlier call with the token left: its block if it is whole, else nothing is left of it afterwards."""
        left: list[Block] = []
        for number in await self.ledger.of_token(token):
            found = await self.ledger.blocks(described, number)  # none if it is of a table that was dropped
            if found and found[0].finished:
                return found[0]
            left += found
        for block in left:
            # Its writer may only be slow. What it sends from here on is refused, what it has sent is ended; then look.
            taken = replace(block, fence=fence)
            await self.ledger.abandon(taken, described)
            await self._end(f"query_id LIKE {text(f'{self._tag}%-{block.id}-%')}")
            rows = await self.ledger.rows_of(block.id)
            (now,) = await self.ledger.blocks(described, block.id) or [block]
            if now.finished:
                return now
            if rows == expected:
                await self.ledger.finish(taken, described, expected)
                return (await self.ledger.blocks(described, block.id))[0]
            if rows:
                await self.channel.command(
                    f"DELETE FROM {self.name.sql}{self.channel.on_cluster} WHERE {BLOCK} = {block.id}"
                )
        return None

    # -- one statement -----------------------------------------------------------------------------------

    async def _insert(self, rows: Rows, block: Block, query_id: str, hold: Any, *, last: bool) -> int:
        for attempt in range(ATTEMPTS):
            if block.rows and hold.lost:
                raise _unknown(block, "its lock was lost")
            hold.check()
            try:
                return await self._send(rows, block, query_id)
            except Exception as error:  # noqa: BLE001 - every one is looked into, and raised
                code = getattr(error, "code", None)
                if code == REFUSED_BY_GUARD and f"Exception: {ANOTHER_WRITER}" in str(error):
                    await self._clear(block)
                elif attempt == 0 and (code in TABLE_CHANGED or f"Exception: {ANOTHER_TABLE}" in str(error)):
                    rows = replace(rows, fingerprint=await self._altered(block))
                else:
                    return await self._settle(rows, block, query_id, error, hold, last=last)
            except BaseException:  # cancelled, or Ctrl-C: the server would go on
                await self._give_up(block, query_id)
                raise
        raise await self._refused(block, f"{self.name}: inserts of other writers kept coming")

    async def _altered(self, block: Block) -> int:
        """The table's new fingerprint, if it may be gone on with."""
        try:
            return (await self._looked_at_anew(await self.description())).fingerprint
        except Altered as error:
            if not block.rows:
                raise
            await self.ledger.abandon(block, await self.description())
            raise _unknown(block, "the table was altered") from error

    async def _send(self, rows: Rows, block: Block, query_id: str) -> int:
        names = ", ".join(map(identifier, rows.columns))
        marks = f"{block.id}, {text(f'{block.fence} {block.writer}')}"
        settings: dict[str, Any] = {**SETTINGS, "query_id": query_id, "log_comment": block.writer}
        if block.token is not None:
            settings["insert_deduplication_token"] = f"{block.token}/{query_id}"  # each statement has its own
        into = f"INSERT INTO {self.name.sql} ({names}, {BLOCK}, {WRITER}) SELECT {names}, {marks} FROM"
        if isinstance(rows.source, str):
            answer = await self.channel.command(
                f"{into} ({rows.source}){self._guard(block, rows.fingerprint)}", **settings
            )
        else:
            with self.channel.source(rows.source, rows.structure) as (source, end, body):
                answer = await self.channel.command(
                    f"{into} {source}{self._guard(block, rows.fingerprint)}{end}", body, **settings
                )
        if rows.count is None:
            # The answer's number would also count what materialized views of the table have written.
            return await self.ledger.rows_of(block.id) - block.rows
        if not self.channel.embedded and int(answer.written_rows) < rows.count:
            raise BackendError(f"the server wrote {answer.written_rows} of {rows.count} rows to {self.name}")
        return rows.count

    def _guard(self, block: Block, fingerprint: int) -> str:
        """Evaluated at the server before the first row: no insert of another call is running, none has overtaken us.

        It costs no round trip, and it also holds for an insert that reaches the server after its writer has died
        and the next one has come, and was recorded. And the table is what the rows were made for.
        """
        same = f" WHERE throwIf({altered(self.name, fingerprint)}, {text(ANOTHER_TABLE)}) = 0"
        if self.channel.embedded:
            return same
        running = (
            f"SELECT count() AS n FROM {self.channel.processes}"
            f" WHERE startsWith(query_id, {text(self._tag)}) AND query_id != queryID()"
        )
        others = f"SELECT sum(n) FROM ({running} UNION ALL {self.ledger.outdates(block)})"
        return f"{same} AND throwIf(({others}) > 0, {text(ANOTHER_WRITER)}) = 0"

    async def _clear(self, block: Block) -> None:
        """End the inserts of dead predecessors, and record how far they got."""
        running = await self.channel.rows(
            "SELECT query_id, any(Settings['log_comment'])"
            f" FROM {self.channel.processes} WHERE startsWith(query_id, {text(self._tag)}) GROUP BY query_id"
        )
        orphans: dict[int, Block] = {}
        for query_id, writer in running:
            fence, number, _ = (int(part) for part in query_id.removeprefix(self._tag).split("-"))
            orphans[number] = Block(number, block.table, 0, "unfinished", writer, fence)
        newest = max([await self.ledger.newest_fence(), *(orphan.fence for orphan in orphans.values())])
        if newest > block.fence:
            raise await self._refused(
                block,
                f"{self.name}: a writer with fence {newest} was there, this one has {block.fence}",
                f". If the locks moved to another place, let their fences start above: takehold init URL --fence-from"
                f" {newest}",
            )
        if orphans:  # these, and not what a later writer has begun since they were listed
            await self._end(f"query_id IN ({', '.join(text(query_id) for query_id, _ in running)})")
            described = await self.description()
            for orphan in orphans.values():
                await self.ledger.abandon(orphan, described)

    async def _refused(self, block: Block, why: str, remedy: str = "") -> Exception:
        """What to raise when the server took nothing of a statement: the block may have rows of an earlier one."""
        if not block.rows:
            return StaleFence(f"{why}; nothing was written{remedy}")
        await self.ledger.abandon(block, await self.description())
        return _unknown(block, why)

    async def clear(self, hold: Any) -> None:
        """End every earlier insert of this key, for a holder who is about to insert by other means."""
        fence = f"toUInt64OrZero(splitByChar('-', substring(query_id, {len(self._tag) + 1}))[1])"
        await self._end(f"startsWith(query_id, {text(self._tag)}) AND {fence} < {hold.fence}")

    async def _end(self, which: str) -> None:
        if not self.channel.embedded:
            apart = self.channel.apart()
            await self.channel.command(f"KILL QUERY{self.channel.on_cluster} WHERE {which} SYNC", **apart)

    # -- when it failed ----------------------------------------------------------------------------------

    async def _settle(self, rows: Rows, block: Block, query_id: str, error: Exception, hold: Any, *, last: bool) -> int:
        """Find out what became of an insert that failed: how many rows it wrote, if it was all of them."""
        described = await self.description()
        try:
            lost = getattr(error, "code", None) is None  # no answer of the server: it may run on, or only just arrive
            if lost:
                await self.ledger.abandon(block, described)  # from here on the guard refuses it
                await self._end(f"query_id = {text(query_id)}")
            written = await self.ledger.rows_of(block.id) - block.rows
        except Exception as second:  # noqa: BLE001 - it is told
            error.add_note(f"and nobody could look what became of it: {second}")
            raise _unknown(block, "the server did not answer") from error
        if hold.lost:
            raise _unknown(block, "its lock was lost") from error
        if written and written == rows.count:
            if lost and not last:  # the guard that kept this part from arriving late keeps the others out too
                raise _unknown(block, "the server's answer was lost") from error
            return written
        if written or block.rows:
            await self.ledger.abandon(block, described)
            error.add_note(f"block {block.id} of {self.name} is unfinished: {block.rows + written} rows of it stay")
        raise error

    async def _give_up(self, block: Block, query_id: str) -> None:
        try:
            await self._end(f"query_id = {text(query_id)}")
            await self.ledger.abandon(block, await self.description())
        except Exception:  # noqa: BLE001, S110 - the next writer ends it, and rows tell whose they are
            pass


def _unknown(block: Block, why: str) -> UnknownBlock:
    return UnknownBlock(
        f"{why} while block {block.id} was appended to {block.table}: it may be there, whole or in part, or not."
        " blocks() tells; repeating the call with the same token= is safe",
        block.id,
    )
