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
        described = await self._described()
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

    async def _described(self) -> Description:
        described = await self._appender.description()
        if described.lacks:  # nobody had appended yet
            self._appender.forget()
            described = await self._appender.description()
        return described

    async def read(self, block: Block | int | None, *, unfinished: bool = False) -> Any:
        """The rows of one block, or of all that are finished."""
        if block is None:
            return await self._read_all(unfinished=unfinished)
        described = await self._appender.description()
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

    async def _read_all(self, *, unfinished: bool) -> Any:
        described = await self._described()
        if unfinished or described.lacks:
            which, partial = "", 0
        else:
            which = f" WHERE {await self._appender.ledger.whole()}"
            partial = sum(not block.finished for block in await self.blocks())
        table = await self._rows(described, which)
        return table.replace_schema_metadata({**(table.schema.metadata or {}), UNFINISHED: str(partial).encode()})

    async def _rows(self, described: Description, which: str) -> Any:
        names = ", ".join(identifier(column.name) for column in described.columns if column.default != "EPHEMERAL")
        order = f" ORDER BY {PHYSICAL_ORDER}" if described.scattered is None else ""
        return await self._appender.channel.arrow(f"SELECT {names} FROM {self._appender.name.sql}{which}{order}")


def _left(block: Block) -> Block:
    return replace(block, state="unfinished") if block.state == "running" else block
