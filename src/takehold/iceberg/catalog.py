"""The catalog: every operation on warehouses, namespaces, tables and views.

A namespace is a tuple of levels. Requests and metadata are dicts as the REST specification has them. What a method
raises says, through `answer_of`, what a REST server answers; a method that returns has done it, durably.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from takehold import AsyncLocks, UsageError
from takehold.iceberg import paths
from takehold.iceberg.births import Births
from takehold.iceberg.commits import Commits
from takehold.iceberg.contention import Contention
from takehold.iceberg.errors import NotFound
from takehold.iceberg.finding import Finder
from takehold.iceberg.fsck import Fsck
from takehold.iceberg.ground import Ground
from takehold.iceberg.locking import KeyLockers, Lockers
from takehold.iceberg.namespaces import Namespaces
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.registries import Registries
from takehold.iceberg.removals import Removals
from takehold.iceberg.renames import Renames
from takehold.iceberg.stores import Store, open_store
from takehold.iceberg.tables import Tables
from takehold.iceberg.transactions import Transactions
from takehold.iceberg.warehouses import Warehouses
from takehold.iceberg.words import (
    Fault,
    Identifier,
    Loaded,
    Namespace,
    PendingReport,
    Recovered,
    Retrying,
    TableChange,
    UpdatedProperties,
    Warehouse,
)
from takehold.runtime import aio

if TYPE_CHECKING:
    from takehold.runtime import Runtime

__all__ = ["Catalog", "open_catalog"]


async def open_catalog(store: str, locks: str | None = None) -> Catalog:
    """A catalog from two URLs; without the second, locks are those of the store's directory, or of this process."""
    opened = await open_store(store)
    if locks is None:
        locks = lock_url(opened.location)
    return Catalog(opened, AsyncLocks(locks, check_order="off", label="iceberg"), owns_locks=True)


def lock_url(location: str) -> str:
    """The locks that go with a store when no others are named: those beside its directory, or of this process."""
    if location.startswith("memory:"):
        return "memory:"
    if location.startswith("file://"):
        return f"file:{location.removeprefix('file://')}.locks"
    raise UsageError(f"a store that several machines reach needs locks that they all reach: {location} and which?")


def as_identifier(identifier: Identifier) -> Identifier:
    """The same for a plain tuple, or levels in a list."""
    namespace, name = identifier
    return Identifier(tuple(namespace), name)


class Catalog:
    """Tables of many warehouses on one store. Several catalogs on one store and one lock backend act as one.

    `locks` are `AsyncLocks(url, check_order="off")` (the catalog has an order of its own), or what makes lockers.
    `shards=1` is for measuring what the 16 are good for; all catalogs of a store must agree on it.
    """

    def __init__(
        self,
        store: Store,
        locks: AsyncLocks | Lockers,
        *,
        runtime: Runtime | None = None,
        shards: int = paths.SHARDS,
        owns_locks: bool = False,
    ) -> None:
        if shards < 1 or shards > paths.SHARDS or shards & (shards - 1):
            raise UsageError(f"shards is a power of two, at most {paths.SHARDS}, not {shards!r}")
        self._locks = locks if isinstance(locks, AsyncLocks) else None
        self._owns_locks = owns_locks
        self._given = runtime
        self._aio: aio.Aio | None = None
        lockers = KeyLockers(locks) if isinstance(locks, AsyncLocks) else locks
        self._ground = ground = Ground(store, lockers, self._runtime, shards)
        self._recovery = Recovery(ground)
        self._finder = finder = Finder(ground, self._recovery)
        self._registries = registries = Registries(ground)
        self._warehouses = Warehouses(ground, registries)
        self._namespaces = Namespaces(ground, registries, finder)
        births, commits = Births(ground, registries, finder), Commits(ground, registries, finder)
        self._tables = tables = Tables(ground, registries, finder, births, commits)
        self._removals = Removals(ground, registries, finder, self._recovery, tables)
        self._renames = Renames(ground, registries, finder, self._recovery)
        self._transactions = Transactions(ground, registries, finder, self._recovery, tables)

    def _runtime(self) -> Runtime:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if self._aio is None or self._aio.loop is not loop:
            self._aio = aio.Aio(loop)
        return self._aio

    async def close(self) -> None:
        """End background recovery and let go of store and locks."""
        await self._recovery.close()
        if self._locks is not None and self._owns_locks:
            await self._locks.close()
        await self._ground.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Warehouses

    async def create_warehouse(
        self, name: str, *, location: str | None = None, properties: Mapping[str, str] | None = None
    ) -> Warehouse:
        """Make a warehouse; its location is below that of the store. `AlreadyExists`."""
        return await self._warehouses.create(name, location, properties or {})

    async def list_warehouses(self) -> list[Warehouse]:
        """All of them, by name."""
        return await self._warehouses.list()

    async def get_warehouse(self, name: str) -> Warehouse:
        """One of them. `NoSuchWarehouse`."""
        return await self._warehouses.get(name)

    async def delete_warehouse(self, name: str) -> None:
        """Delete an empty one. `NoSuchWarehouse`, `WarehouseNotEmpty`."""
        await self._warehouses.delete(name)

    # Namespaces

    async def list_namespaces(self, warehouse: str, parent: Namespace = ()) -> list[Namespace]:
        """The namespaces directly below `parent`, sorted. `NoSuchNamespace` for a parent that is not there."""
        return await self._namespaces.list(warehouse, tuple(parent))

    async def create_namespace(
        self, warehouse: str, namespace: Namespace, properties: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Make a namespace in one that exists, and return its properties. `AlreadyExists`."""
        return await self._namespaces.create(warehouse, namespace, properties or {})

    async def load_namespace(self, warehouse: str, namespace: Namespace) -> dict[str, str]:
        """Its properties. `NoSuchNamespace`."""
        return await self._namespaces.load(warehouse, namespace)

    async def namespace_exists(self, warehouse: str, namespace: Namespace) -> bool:
        """Whether it is there."""
        try:
            await self._namespaces.load(warehouse, namespace)
        except NotFound:
            return False
        return True

    async def update_namespace(
        self,
        warehouse: str,
        namespace: Namespace,
        *,
        removals: Sequence[str] = (),
        updates: Mapping[str, str] | None = None,
    ) -> UpdatedProperties:
        """Remove and set properties. `Unprocessable` when a key is in both."""
        return await self._namespaces.update(warehouse, namespace, removals, updates or {})

    async def delete_namespace(self, warehouse: str, namespace: Namespace) -> None:
        """Delete an empty namespace. `NoSuchNamespace`, `NamespaceNotEmpty`."""
        await self._namespaces.delete(warehouse, namespace)

    # Tables

    async def list_tables(self, warehouse: str, namespace: Namespace) -> list[str]:
        """The names of its tables, sorted. `NoSuchNamespace`."""
        return await self._tables.list(warehouse, namespace, "table")

    async def create_table(
        self, warehouse: str, namespace: Namespace, request: Mapping[str, Any], *, key: str | None = None
    ) -> Loaded:
        """Make a table from a CreateTableRequest; with `stage-create` only its metadata, which nobody else sees.

        `key` is an idempotency key: a second call with it returns what the first one made.
        """
        return await self._tables.create(warehouse, namespace, "table", request, key)

    async def load_table(self, warehouse: str, table: Identifier) -> Loaded:
        """The table as it is now. `NoSuchTable`."""
        return await self._tables.load(warehouse, table, "table")

    async def load_tables(self, warehouse: str, identifiers: Sequence[Identifier]) -> list[Loaded]:
        """Several tables read together: all of a transaction is in it, or nothing. `NoSuchTable`."""
        return await self._tables.load_many(warehouse, identifiers)

    async def table_exists(self, warehouse: str, table: Identifier) -> bool:
        """Whether there is such a table."""
        return await self._tables.exists(warehouse, table, "table")

    async def commit_table(
        self,
        warehouse: str,
        table: Identifier,
        requirements: Sequence[Mapping[str, Any]] = (),
        updates: Sequence[Mapping[str, Any]] = (),
        *,
        retries: int = 4,
        key: str | None = None,
    ) -> Loaded:
        """Apply updates when the requirements hold; with `assert-create`, a staged table goes live.

        Only a lost compare-and-set is tried again, `retries` times, then `TableUpdateConflict`; `RequirementFailed`
        at once. `NoSuchTable`. `UnknownOutcome` is the one error after which it may have been done.
        """
        return await self._transactions.alone(warehouse, as_identifier(table), [(requirements, updates)], retries, key)

    async def transaction(
        self,
        warehouse: str,
        changes: Sequence[TableChange],
        *,
        retry: Retrying | None = None,
        deadline: float = 5,
        key: str | None = None,
    ) -> list[Loaded]:
        """Change several tables or none; the result has them in the order of first mention.

        Somebody else is at work on one of them: `OperationConflict` at once, or with `retry` when `deadline` seconds
        of trying are over. `assert-create` makes a staged table live in it.
        """
        if not changes:
            return []
        return await self._transactions.run(warehouse, changes, retry, deadline, key)

    async def register_table(
        self, warehouse: str, table: Identifier, metadata_location: str, *, overwrite: bool = False
    ) -> Loaded:
        """Give a table that exists as files a name; `overwrite` replaces the table of that name. `AlreadyExists`."""
        if overwrite:
            return await self._removals.overwrite(warehouse, table, metadata_location)
        return await self._tables.register(warehouse, table, "table", metadata_location)

    async def unregister_table(self, warehouse: str, table: Identifier) -> Loaded:
        """Take it out of the catalog and return what it was; later commits fail, its files stay. `NoSuchTable`."""
        return await self._removals.unregister(warehouse, table)

    async def rename_table(self, warehouse: str, source: Identifier, target: Identifier) -> None:
        """Move it, within a warehouse. `NoSuchTable`, `NoSuchNamespace`, `AlreadyExists`."""
        await self._renames.rename(warehouse, source, target, "table")

    async def drop_table(self, warehouse: str, table: Identifier, *, purge: bool = False) -> None:
        """Take it out of the catalog; `purge` then deletes the files below a location that the catalog chose."""
        await self._removals.drop(warehouse, table, "table", purge=purge)

    # Views

    async def list_views(self, warehouse: str, namespace: Namespace) -> list[str]:
        """The names of its views, sorted. `NoSuchNamespace`."""
        return await self._tables.list(warehouse, namespace, "view")

    async def create_view(
        self, warehouse: str, namespace: Namespace, request: Mapping[str, Any], *, key: str | None = None
    ) -> Loaded:
        """Make a view from a CreateViewRequest. `AlreadyExists`, also for a table of that name."""
        return await self._tables.create(warehouse, namespace, "view", request, key)

    async def load_view(self, warehouse: str, view: Identifier) -> Loaded:
        """The view as it is now. `NoSuchView`."""
        return await self._tables.load(warehouse, view, "view")

    async def view_exists(self, warehouse: str, view: Identifier) -> bool:
        """Whether there is such a view."""
        return await self._tables.exists(warehouse, view, "view")

    async def replace_view(
        self,
        warehouse: str,
        view: Identifier,
        requirements: Sequence[Mapping[str, Any]] = (),
        updates: Sequence[Mapping[str, Any]] = (),
        *,
        retries: int = 4,
        key: str | None = None,
    ) -> Loaded:
        """`commit_table` for a view. `NoSuchView`."""
        steps = [(requirements, updates)]
        return await self._tables.commits.commit(
            warehouse, as_identifier(view), "view", steps, retries=retries, key=key
        )

    async def drop_view(self, warehouse: str, view: Identifier) -> None:
        """Take it out of the catalog. `NoSuchView`."""
        await self._removals.drop(warehouse, view, "view", purge=False)

    async def rename_view(self, warehouse: str, source: Identifier, target: Identifier) -> None:
        """Move it, within a warehouse. `NoSuchView`, `NoSuchNamespace`, `AlreadyExists`."""
        await self._renames.rename(warehouse, source, target, "view")

    async def register_view(self, warehouse: str, view: Identifier, metadata_location: str) -> Loaded:
        """Give a view that exists as a file a name. `AlreadyExists`."""
        return await self._tables.register(warehouse, view, "view", metadata_location)

    # For operators

    async def transactions(self, warehouse: str) -> list[PendingReport]:
        """The changes of several records that are under way, oldest first."""
        found = []
        now = self._ground.runtime.wall()
        for path in await self._ground.store.list(paths.pending_of(warehouse)):
            if (read := await self._ground.pending(path)) is not None:
                record = read[0]
                age = max(0.0, now - record.since)
                found.append(PendingReport(record.tx, record.what, record.state, record.tables, record.owner, age))
        return sorted(found, key=lambda report: -report.age)

    async def recover(self, warehouses: Iterable[str] | None = None) -> list[Recovered]:
        """Finish or undo what dead owners left, in these warehouses or in all; twice is harmless."""
        if warehouses is None:
            warehouses = [warehouse.name for warehouse in await self.list_warehouses()]
        done = []
        for warehouse in warehouses:
            for report in await self.transactions(warehouse):
                outcome = await self._recovery.attend(paths.pending(warehouse, report.id))
                done.append(Recovered(report.id, report.kind, outcome, report.tables))
        return done

    async def fsck(self, warehouse: str, *, repair: bool = False) -> list[Fault]:
        """Look at every record and explain what is not as it should be; changes nothing without `repair`."""
        ground, registries = self._ground, self._registries
        return await Fsck(ground, registries, self._finder, self._recovery, warehouse, repair=repair).run()

    @property
    def contention(self) -> Contention:
        """Waits, timeouts, lost compare-and-sets and conflicts, per class of resource, since it was made."""
        return self._ground.contention
