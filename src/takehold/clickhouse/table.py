"""Tables that several writers append to, with the client and the locks that the user already has."""

from __future__ import annotations

from typing import Any

from takehold import Advisory, AsyncLocks, Locks, UsageError
from takehold.clickhouse.appending import Appender
from takehold.clickhouse.block import Block
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.naming import TableName
from takehold.clickhouse.reading import Reader
from takehold.runtime import run

__all__ = ["AsyncTable", "Table"]


class BaseTable:
    """A table and what protects it."""

    def __init__(
        self, client: Any, name: str, *, locks: Any, cluster: str | None = None, key: str | Advisory | None = None
    ) -> None:
        self.name = TableName.of(name, getattr(client, "database", None))
        if key is None:
            self.name.check_key()
        channel = Channel(client, cluster)
        self._appender = Appender(channel, self.name, locks, self.name.key if key is None else key)
        self._reader = Reader(self._appender)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Table(BaseTable):
    """A table of ClickHouse: each `append` is one contiguous block, whoever else appends.

    `client` is a blocking client of clickhouse-connect, `locks` a `Locks` that all writers share. `cluster` names
    the cluster when the server has replicas. The first append adds two hidden columns to the table and a table
    `takehold_blocks` to its database; neither is seen by `SELECT *` or by an INSERT without a column list.
    """

    def __init__(
        self, client: Any, name: str, *, locks: Locks, cluster: str | None = None, key: str | Advisory | None = None
    ) -> None:
        if not isinstance(locks, Locks):
            raise UsageError(f"Table(..., locks=) is a takehold.Locks, not {locks!r}; AsyncTable takes AsyncLocks")
        super().__init__(client, name, locks=locks, cluster=cluster, key=key)

    def append(
        self, data: Any, token: str | None = None, *, contiguous: bool = True, timeout: float | None = None
    ) -> Block:
        """Write the data as one block: records, columns, a pandas DataFrame or an Arrow table.

        The same token twice is one block, so a call may be repeated after `UnknownOutcome`.
        """
        return run(self._appender.append(data, token, contiguous=contiguous, timeout=timeout))

    def blocks(self) -> list[Block]:
        """Every block, oldest first, unfinished ones too."""
        return run(self._reader.blocks())

    def read(self, block: Block | int | None = None, *, unfinished: bool = False) -> Any:
        """The rows of a block as an Arrow table, in the order of the append; without one, of the whole table.

        Rows of unfinished blocks are left out unless asked for; the schema's metadata says of how many blocks.
        """
        return run(self._reader.read(block, unfinished=unfinished))


class AsyncTable(BaseTable):
    """`Table` for asyncio: an `AsyncClient` of clickhouse-connect and `AsyncLocks`."""

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        locks: AsyncLocks,
        cluster: str | None = None,
        key: str | Advisory | None = None,
    ) -> None:
        if not isinstance(locks, AsyncLocks):
            raise UsageError(f"AsyncTable(..., locks=) is a takehold.AsyncLocks, not {locks!r}; Table takes Locks")
        super().__init__(client, name, locks=locks, cluster=cluster, key=key)

    async def append(
        self, data: Any, token: str | None = None, *, contiguous: bool = True, timeout: float | None = None
    ) -> Block:
        """As `Table.append`."""
        return await self._appender.append(data, token, contiguous=contiguous, timeout=timeout)

    async def blocks(self) -> list[Block]:
        """As `Table.blocks`."""
        return await self._reader.blocks()

    async def read(self, block: Block | int | None = None, *, unfinished: bool = False) -> Any:
        """As `Table.read`."""
        return await self._reader.read(block, unfinished=unfinished)
