"""The embedded engine, chdb: opened with a sentence where it refuses, and made awaitable for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from takehold import UsageError

__all__ = ["AsyncEmbedded", "embedded_client", "is_embedded"]


def is_embedded(url: str) -> bool:
    """Whether the URL means an engine inside this process."""
    return url.startswith("chdb:")


def embedded_client(url: str) -> Any:
    """A blocking client of the engine at `chdb:///path`; `?database=` names a database in it."""
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ProgrammingError

    try:
        return clickhouse_connect.get_client(dsn=url)
    except ImportError as error:
        raise UsageError("chdb is not installed; it comes with: pip install 'takehold[chdb]'") from error
    except ProgrammingError as error:
        if "different path" in str(error):
            raise UsageError(
                f"a process can have one embedded ClickHouse, and this one has another than {url}: close that store"
                " first, or name databases in it, chdb:///path?database=NAME"
            ) from error
        if "Error initializing EmbeddedServer" in str(error):
            raise UsageError(
                f"{url} cannot be opened: only one process at a time can have it open. Close it there, or let a"
                " ClickHouse server have the data: clickhouse://host:8123/database"
            ) from error
        raise


class AsyncEmbedded:
    """The blocking client, each statement in a thread."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.uri = client.uri
        self.database = client.database

    async def command(self, *args: Any, **options: Any) -> Any:
        """As the client's."""
        return await _in_thread(self._client.command, *args, **options)

    async def query(self, *args: Any, **options: Any) -> Any:
        """As the client's."""
        return await _in_thread(self._client.query, *args, **options)

    async def query_arrow(self, *args: Any, **options: Any) -> Any:
        """As the client's."""
        return await _in_thread(self._client.query_arrow, *args, **options)

    async def close(self) -> None:
        """As the client's."""
        await _in_thread(self._client.close)


async def _in_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A statement inside this process cannot be ended: who is cancelled waits for it, so that no lock goes before."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **options))
    cancelled: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        call.exception()  # nobody will ask
        raise cancelled
    return call.result()
