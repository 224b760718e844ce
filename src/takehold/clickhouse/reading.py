"""Reading: which blocks there are, and the rows of one, in the order in which they were appended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from takehold import UsageError
from takehold.clickhouse.appending import Appender
from takehold.clickhouse.block import Block
from takehold.clickhouse.colour import settled
from takehold.clickhouse.description import BLOCK, Description
from takehold.clickhouse.quoting import identifier

__all__ = ["Reader"]

PHYSICAL_ORDER: Final = "toUInt32(splitByChar('_', _part)[2]), _part_offset"
"""The number of the insert is in the name of its part, and is the lowest one after a merge."""
UNFINISHED: Final = b"takehold.unfinished"


class Reader:
    """What was appended to one table, for both faces."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    async def blocks(self, only: int | None = None) -> list[Block]:
        """Every block, or one; none is called unfinished before it is certain that its writer is gone."""
        appender = self._appender
        described = await appender.description()
        if described.lacks:
            appender.forget()  # nobody has appended yet
            described = await appender.description()
        if described.lacks:
            return []
        blocks = await appender.ledger.blocks(described, only)
        if all(block.state != "running" for block in blocks):
            return blocks
        hold = await settled(appender.lock().try_acquire())
        if hold is None:  # somebody writes: the newest may be it
            newest = max(block.fence for block in blocks)
            return [_left(block) if block.fence < newest else block for block in blocks]
        try:
            return [_left(block) for block in await appender.ledger.blocks(described, only)]
        finally:
            await settled(hold.release())

    async def read(self, block: Block | int | None, *, unfinished: bool = False) -> Any:
        """The rows of one block, or of all that are finished."""
        described = await self._appender.description()
        if block is None:
            return await self._read_all(described, unfinished=unfinished)
        number = block.id if isinstance(block, Block) else block
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageError(f"a block is told by its id, not by {block!r}")
        known = await self.blocks(number)
        if not known:
            raise UsageError(f"{self._appender.name} has no block {number}")
        if not (known[0].finished or unfinished):
            raise UsageError(
                f"block {number} of {self._appender.name} is {known[0].state}; to read it: unfinished=True"
            )
        return await self._rows(described, f" WHERE {BLOCK} = {number}")

    async def _read_all(self, described: Description, *, unfinished: bool) -> Any:
        blocks = [] if unfinished else await self.blocks()
        partial = [block.id for block in blocks if not block.finished]
        table = await self._rows(described, "" if unfinished else await self._whole(blocks, partial))
        return table.replace_schema_metadata({**(table.schema.metadata or {}), UNFINISHED: str(len(partial)).encode()})

    async def _whole(self, blocks: list[Block], partial: list[int]) -> str:
        """The condition for the rows of blocks that were finished when they were listed, and for those of no block.

        Says what is read, and not what is left out: a block may begin, or end, between the list and the rows.
        """
        if (await self._appender.description()).lacks:
            return ""  # nobody has appended yet
        finished = [block.fence for block in blocks if block.finished]
        if not finished:
            return f" WHERE {BLOCK} = 0"
        ledger = self._appender.ledger
        ids = f"SELECT id FROM {ledger.sql} WHERE {ledger.whose} AND state = 'finished' AND fence <= {max(finished)}"
        late = f" AND {BLOCK} NOT IN ({', '.join(map(str, partial))})" if partial else ""
        return f" WHERE ({BLOCK} = 0 OR {BLOCK} IN ({ids})){late}"

    async def _rows(self, described: Description, which: str) -> Any:
        names = ", ".join(identifier(column.name) for column in described.columns if column.default != "EPHEMERAL")
        order = f" ORDER BY {PHYSICAL_ORDER}" if described.scattered is None else ""
        return await self._appender.channel.arrow(f"SELECT {names} FROM {self._appender.name.sql}{which}{order}")


def _left(block: Block) -> Block:
    return replace(block, state="unfinished") if block.state == "running" else block
