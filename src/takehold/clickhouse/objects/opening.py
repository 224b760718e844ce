"""Opening a store: from two URLs to a client, a registry and locks, and which pairs of URLs go together."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import clickhouse_connect

from takehold import AsyncLocks, BackendRefused, Locks, UsageError
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.colour import settled
from takehold.clickhouse.description import check_replicas
from takehold.clickhouse.mode import is_distributed
from takehold.clickhouse.objects.core import Core
from takehold.clickhouse.objects.embedded import AsyncEmbedded, embedded_client, is_embedded
from takehold.clickhouse.objects.store import AsyncStore, Store
from takehold.clickhouse.registry import AsyncRegistry, Registry
from takehold.runtime import run

__all__ = ["Opening", "open", "open_async"]

SERVERS: Final = ("clickhouse://", "http://", "https://")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a store is opened with."""

    ch_url: Any
    sql_url: Any
    one_host: bool
    migrate: bool
    label: str | None
    timeout: float | None

    def check(self) -> None:
        """Raise unless the two places go together; opens nothing."""
        if not isinstance(self.ch_url, str) or not (is_embedded(self.ch_url) or self.ch_url.startswith(SERVERS)):
            raise UsageError(f"ClickHouse is chdb:///path or clickhouse://host:8123/database, not {self.ch_url!r}")
        if not isinstance(self.sql_url, str):
            raise UsageError(f"the SQL database is sqlite:///path or postgresql://..., not {self.sql_url!r}")
        if not (is_embedded(self.ch_url) or is_distributed(self.sql_url) or self.one_host):
            raise UsageError(
                "a ClickHouse server with SQLite: writers on other hosts would lock in other files. Take postgresql://"
                ", or say one_host=True if every process that writes there runs on this host"
            )

    @property
    def server(self) -> dict[str, Any]:
        """What a client of a server is made with.

        Sessions would keep threads and tasks from sharing it, and its default for time zones is another in each face.
        """
        secure = {"interface": "https"} if self.ch_url.startswith("https:") else {}
        return {"dsn": self.ch_url, "autogenerate_session_id": False, "tz_mode": "aware", **secure}

    async def made(self, client: Callable[[], Any], registry: Any, locks: Any) -> Core:
        """Everything opened, or closed again."""
        opened = [locks, registry]
        try:
            if self.migrate:
                await settled(registry.upgrade())
                await settled(locks.init())
            await settled(locks.open())
            opened.append(await settled(client()))
            channel = Channel(opened[-1], None)
            try:
                await check_replicas(channel)
            except BackendRefused as error:
                raise BackendRefused(f"{error}, in clickhouse.Table; a store makes tables of one server") from error
            database = (await channel.rows("SELECT currentDatabase()"))[0][0]
            context = (await settled(registry.new(1)))[0]
            return Core(channel, registry, locks, database, context)
        except BaseException:
            for one in opened:
                await settled(one.close())
            raise


def open(  # noqa: A001 - as `shelve.open`
    ch_url: str,
    sql_url: str,
    *,
    one_host: bool = False,
    migrate: bool = True,
    label: str | None = None,
    timeout: float | None = 30,
) -> Store:
    """A store: tables in ClickHouse, `chdb:///path` or `clickhouse://host:8123/db`; names and locks in SQL.

    `sql_url` is `sqlite:///path` or `postgresql://...`. A ClickHouse server with SQLite is refused unless `one_host`
    says that every process that writes there runs on this host: locks beside a SQLite file reach no further.
    `migrate=False` leaves the SQL database as it is; then `registry.upgrade()` and `takehold init` were run before.
    """
    wanted = Wanted(ch_url, sql_url, one_host, migrate, label, timeout)
    wanted.check()

    def client() -> Any:
        return embedded_client(ch_url) if is_embedded(ch_url) else clickhouse_connect.get_client(**wanted.server)

    registry, locks = Registry(sql_url), Locks(sql_url, label=label, timeout=timeout)
    return Store(run(wanted.made(client, registry, locks)))


def open_async(
    ch_url: str,
    sql_url: str,
    *,
    one_host: bool = False,
    migrate: bool = True,
    label: str | None = None,
    timeout: float | None = 30,
) -> Opening:
    """`open` for asyncio: `async with clickhouse.open_async(...) as store`, or `store = await ...`."""
    wanted = Wanted(ch_url, sql_url, one_host, migrate, label, timeout)
    wanted.check()
    return Opening(wanted)


class Opening:
    """A store that is being opened: awaited, or entered, which closes it in the end."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._opened().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._opened()
        return self._store

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()

    async def _opened(self) -> AsyncStore:
        wanted = self._wanted

        async def client() -> Any:
            if is_embedded(wanted.ch_url):
                return AsyncEmbedded(embedded_client(wanted.ch_url))
            return await clickhouse_connect.get_async_client(**wanted.server)

        registry = AsyncRegistry(wanted.sql_url)
        locks = AsyncLocks(wanted.sql_url, label=wanted.label, timeout=wanted.timeout)
        return AsyncStore(await wanted.made(client, registry, locks))
