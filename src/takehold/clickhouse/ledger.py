"""The ledger: a table `takehold_blocks` beside the data, with a line for everything that became known of a block."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from takehold.clickhouse.block import Block, State
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.description import BLOCK, WRITER, Description
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.quoting import identifier, text

__all__ = ["Ledger", "writer_of"]

TABLE: Final = "takehold_blocks"
# Of the lines of one block the one with the later state counts.
STATES: Final[tuple[State, ...]] = ("running", "unfinished", "finished")
SETTINGS: Final[dict[str, Any]] = {"async_insert": 0, "max_threads": 1, "max_insert_threads": 1}


def writer_of(row: str) -> tuple[int, str]:
    """Fence and writer, from what the hidden column says."""
    fence, _, writer = row.partition(" ")
    return int(fence or 0), writer


class Ledger:
    """What is known of the blocks of one table."""

    def __init__(self, channel: Channel, name: TableName) -> None:
        self._channel = channel
        self._name = name
        self.sql = f"{identifier(name.database)}.{TABLE}"
        self.whose = f"table = {text(name.table)}"

    async def create(self, description: Description) -> None:
        """Make the ledger of this database, if it has none."""
        states = ", ".join(f"{text(state)} = {number}" for number, state in enumerate(STATES))
        await self._channel.command(
            f"CREATE TABLE IF NOT EXISTS {self.sql}{self._channel.on_cluster} (table String, id UInt64, fence UInt64,"
            " writer String, rows UInt64, first Nullable(UInt64), last Nullable(UInt64),"
            f" state Enum8({states}), token String, at DateTime64(3, 'UTC'))"
            f" ENGINE = {'Replicated' if description.engine.startswith('Replicated') else ''}MergeTree"
            " ORDER BY (table, fence)"
        )

    async def begin(self, block: Block) -> None:
        """Say that a call of several statements is under way: between two of them nothing else would tell."""
        await self._write(block, "running", "SELECT 0 AS takehold_n, NULL AS takehold_low, NULL AS takehold_high")

    async def finish(self, block: Block, description: Description, expected: int | None, **settings: Any) -> None:
        """Record the block as finished.

        Rows are looked at only where something is to be learned from them: a table that was there before us may
        have parts without our columns and their index, and counting would go through all of them.
        """
        if description.row_id is None and expected is not None:
            counted = f"SELECT {expected} AS takehold_n, NULL AS takehold_low, NULL AS takehold_high"
        else:
            counted = _counted(block, description)
            if expected is not None:
                counted += f" HAVING throwIf(takehold_n != {expected}, 'takehold: rows are missing') = 0"
        await self._write(block, "finished", counted, **settings)

    async def abandon(self, block: Block, description: Description) -> None:
        """Record the block as unfinished, with the rows its writer got to."""
        await self._write(block, "unfinished", _counted(block, description), **self._channel.apart())

    async def _write(self, block: Block, state: State, counted: str, **settings: Any) -> None:
        taken = ""
        if state == "finished" and block.token is not None:
            # Another call with the token may have taken the block for left behind, and its rows away.
            newer = f"{self.whose} AND fence > {block.fence} AND id = {block.id}"
            taken = f" WHERE throwIf((SELECT count() FROM {self.sql} WHERE {newer}) > 0, 'takehold: taken over') = 0"
        await self._channel.command(
            f"INSERT INTO {self.sql} (table, id, fence, writer, rows, first, last, state, token, at)"
            f" SELECT {text(self._name.table)}, {block.id}, {block.fence}, {text(block.writer)},"
            f" takehold_n, takehold_low, takehold_high, {text(state)}, {text(block.token or '')}, now64(3)"
            f" FROM ({counted}){taken}",
            **SETTINGS,
            **settings,
        )

    async def rows_of(self, block: int) -> int:
        """How many rows of the block are in the table."""
        sql = f"SELECT count() FROM {self._name.sql} WHERE {BLOCK} = {block}"
        return int((await self._channel.rows(sql, **self._channel.apart()))[0][0])

    async def newest_fence(self) -> int:
        """The highest fence that was recorded."""
        sql = f"SELECT max(fence) FROM {self.sql} WHERE {self.whose}"
        return int((await self._channel.rows(sql))[0][0])

    async def of_token(self, token: str) -> list[int]:
        """The blocks that were begun with this token."""
        sql = f"SELECT DISTINCT id FROM {self.sql} WHERE {self.whose} AND token = {text(token)}"
        return [row[0] for row in await self._channel.rows(sql)]

    def outdates(self, block: Block) -> str:
        """Counts what was recorded that must keep the block from being written: a later call, or its own end.

        The first condition is for the primary key: however many blocks there are, the last few lines are read.
        """
        state = f"id = {block.id} AND state != {text('running')}"
        newer = f"fence >= {block.fence} AND (fence > {block.fence} OR {state})"
        return f"SELECT count() FROM {self.sql} WHERE {self.whose} AND {newer}"

    async def whole(self) -> str:
        """The condition for rows of blocks that are finished now and of none, the same in every statement.

        It says what is read, and not what is left out: a block may begin, or end, before the rows are selected.
        """
        finished = f"{self.whose} AND state = 'finished'"
        last = (await self._channel.rows(f"SELECT max(fence) FROM {self.sql} WHERE {finished}"))[0][0]
        ids = f"SELECT id FROM {self.sql} WHERE {finished} AND fence <= {last}"
        return f"({BLOCK} = 0 OR {BLOCK} IN ({ids}))"

    async def blocks(self, description: Description, only: int | None = None) -> list[Block]:
        """Every block, oldest first: what was recorded, and what rows tell of those who did not live to record.

        One that is not known to be finished is `running` here; whether its writer lives, the lock knows.
        """
        this = "" if only is None else f" AND id = {only}"
        recorded = await self._channel.rows(
            "SELECT id, min(fence), any(writer), argMax(rows, state), argMax(first, state), argMax(last, state),"
            f" toString(max(state)), any(token), toUnixTimestamp64Milli(max(at))"
            f" FROM {self.sql} WHERE {self.whose}{this} GROUP BY id"
        )
        this = "!= 0" if only is None else f"= {only}"
        there = await self._channel.rows(
            f"SELECT {BLOCK}, any({WRITER}), count(), {_ids(description)} FROM {self._name.sql}"
            f" WHERE {BLOCK} {this} GROUP BY {BLOCK}"
        )
        return _merged(str(self._name), recorded, {number: rest for number, *rest in there})


def _ids(description: Description) -> str:
    """First and last row id."""
    if description.row_id is None:
        return "NULL AS takehold_low, NULL AS takehold_high"
    column = identifier(description.row_id)
    return f"toNullable(min({column})) AS takehold_low, toNullable(max({column})) AS takehold_high"


def _counted(block: Block, description: Description) -> str:
    return f"SELECT count() AS takehold_n, {_ids(description)} FROM {description.name.sql} WHERE {BLOCK} = {block.id}"


def _merged(table: str, recorded: list[tuple[Any, ...]], there: dict[int, list[Any]]) -> list[Block]:
    blocks = []
    for number, fence, writer, rows, first, last, state, token, at in recorded:
        found = there.pop(number, None)
        if state != "finished" and found is not None:
            rows, first, last = found[1:]  # noqa: PLW2901 - the line is older than these rows
        elif rows and found is None:
            continue  # of a table of this name that was dropped
        when = datetime.fromtimestamp(at / 1000, UTC)
        blocks.append(Block(number, table, rows, state, writer, fence, first, last, token or None, when))
    for number, (written, rows, first, last) in there.items():
        fence, writer = writer_of(written)
        blocks.append(Block(number, table, rows, "running", writer, fence, first, last))
    return sorted(blocks, key=lambda block: (block.fence, block.at is None, block.id))
