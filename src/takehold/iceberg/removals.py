"""Removals: drop, unregister, and a register that takes the place of another table."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from takehold import BackendError, OperationConflict, UnknownOutcome, UsageError
from takehold.iceberg import paths
from takehold.iceberg.births import Birth
from takehold.iceberg.changes import Aborted, Change, Plan
from takehold.iceberg.directory import Entry, Target
from takehold.iceberg.errors import AlreadyExists, NoSuchTable
from takehold.iceberg.finding import Finder, Sight
from takehold.iceberg.ground import Ground
from takehold.iceberg.locations import path_of
from takehold.iceberg.pointer import Body, Pointer
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.registries import Registries
from takehold.iceberg.stores import Changed
from takehold.iceberg.tables import Tables
from takehold.iceberg.words import Identifier, Kind, Loaded

__all__ = ["Removals"]

log: Final = logging.getLogger(__name__)


class Removals:
    """Takes names away from what they stand for."""

    ROUNDS: Final = 100

    def __init__(
        self,
        ground: Ground,
        registries: Registries,
        finder: Finder,
        recovery: Recovery,
        tables: Tables,
    ) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder
        self._recovery = recovery
        self._births = tables.births
        self._tables = tables

    async def drop(self, warehouse: str, identifier: Identifier, kind: Kind, *, purge: bool) -> None:
        """Take it out of the catalog, then delete its files if asked to."""
        by = "DropView" if kind == "view" else "DeleteTable"
        sight, _ = await self._remove(warehouse, identifier, kind, by)
        if purge:
            await self._purge(warehouse, sight, kind)

    async def unregister(self, warehouse: str, identifier: Identifier) -> Loaded:
        """Take it out of the catalog, and say what it was."""
        _, loaded = await self._remove(warehouse, identifier, "table", "UnregisterTable", load=True)
        assert loaded is not None
        return loaded

    async def _remove(
        self, warehouse: str, identifier: Identifier, kind: Kind, by: str, *, load: bool = False
    ) -> tuple[Sight, Loaded | None]:
        ground = self._ground
        identifier = Identifier(tuple(identifier[0]), identifier[1])
        path = ground.shard_of(warehouse, identifier)
        async with ground.locked(by, path) as hold:
            for _ in range(self.ROUNDS):
                sight = await self._finder.settled(warehouse, identifier, kind, held=[path])
                # Before the commit point: after it nothing may fail.
                loaded = await self._finder.loaded(warehouse, sight, kind) if load else None
                plan = Plan(warehouse, "drop", [sight.path], [path], [path], [str(identifier)])
                try:
                    async with Change(ground, self._recovery, plan) as change:
                        await self._mark(warehouse, change, identifier, sight.target, None)
                        await change.intend(sight, None)
                        hold.check()
                        await change.commit()
                except (Changed, Aborted):
                    ground.contention["pointer cas"].losses += 1
                    continue
                ground.forget(warehouse, identifier)
                return sight, loaded
        raise OperationConflict(f"{identifier} changes each time it is looked at")

    async def _mark(
        self, warehouse: str, change: Change, identifier: Identifier, now: Target, following: Target | None
    ) -> None:
        """Give the entry of a name an intent; `Changed` when it stands for something else by now."""
        path = self._ground.shard_of(warehouse, identifier)
        found = await self._ground.shard(path)
        await self._finder.expect(warehouse, found, identifier, now, [path])
        assert found is not None
        entry = Entry(now, following, change.tx)
        await change.mark_shard(path, found[0].having(identifier.name, entry.fields()), found[1])

    async def overwrite(self, warehouse: str, identifier: Identifier, location: str) -> Loaded:
        """Register a metadata file under a name, in the place of the table that has it."""
        ground = self._ground
        metadata = await self._tables.metadata_to_register(warehouse, "table", location)
        identifier = paths.checked_identifier(identifier, "a table")
        uuid = str(metadata["table-uuid"])
        path = ground.shard_of(warehouse, identifier)
        async with ground.locked("RegisterTable", path) as hold:
            for _ in range(self.ROUNDS):
                hold.check()
                occupant = await self._occupant(warehouse, identifier)
                try:
                    await self._replace(warehouse, identifier, occupant, uuid, location)
                except (Changed, Aborted):
                    ground.contention["pointer cas"].losses += 1
                except (AlreadyExists, NoSuchTable):
                    # Who has the name, or the uuid, may just have got it or given it up: that is for another look.
                    if await self._occupant(warehouse, identifier) == occupant:
                        raise
                else:
                    break
            else:
                raise OperationConflict(f"{identifier} changes each time it is looked at")
        ground.forget(warehouse, identifier)
        return Loaded(identifier, "table", uuid, location, metadata)

    async def _occupant(self, warehouse: str, identifier: Identifier) -> Target | None:
        path = self._ground.shard_of(warehouse, identifier)
        shard, _ = await self._registries.open_shard(warehouse, identifier.namespace, path)
        return await self._finder.occupant(warehouse, shard, identifier, held=[path])

    async def _replace(
        self, warehouse: str, identifier: Identifier, occupant: Target | None, uuid: str, location: str
    ) -> None:
        ground, path = self._ground, self._ground.shard_of(warehouse, identifier)
        if occupant is None or occupant.kind == "view":
            # Free, or `AlreadyExists` for the view.
            birth = Birth(identifier, "table", uuid, location, ground.fresh())
            await self._births.bear(warehouse, birth, [path])
            return
        sight = await self._finder.settled(warehouse, identifier, "table", held=[path])
        if sight.pointer.uuid == uuid:
            pointer = replace(sight.pointer, now=Body(identifier, location))
            await ground.shelf.swap(sight.path, pointer, sight.tag, ground.fresh())
        else:
            await self._exchange(warehouse, identifier, sight, uuid, location)

    async def _exchange(self, warehouse: str, identifier: Identifier, sight: Sight, uuid: str, location: str) -> None:
        path = self._ground.shard_of(warehouse, identifier)
        pointers = [sight.path, paths.pointer(warehouse, uuid)]
        plan = Plan(warehouse, "overwrite", pointers, [path], [path], [str(identifier)])
        async with Change(self._ground, self._recovery, plan) as change:
            target = Target("table", uuid, self._ground.fresh()[:8])
            made = Pointer(uuid, "table", target.birth, None, change.intent(Body(identifier, location)))
            await self._births.claim(warehouse, made, [path])
            await self._mark(warehouse, change, identifier, sight.target, target)
            await change.intend(sight, None)
            await change.commit()

    async def _purge(self, warehouse: str, sight: Sight, kind: Kind) -> None:
        """Delete what is below a location that the catalog chose: nobody else can have files there.

        The table is dropped: from here on nothing fails.
        """
        store = self._ground.store
        try:
            metadata = await self._ground.files.read(sight.body.metadata)
            location = str((metadata or {}).get("location", ""))
            if location.rpartition("/")[2] != sight.pointer.uuid:
                log.warning(
                    "%s keeps its files: its location %s was chosen by a client", sight.body.identifier, location
                )
                return
            for path in await store.list(path_of(store, location)):
                await store.delete_if(path, None)
        except (BackendError, UnknownOutcome, UsageError):
            log.warning("some files of %s are left over", sight.body.identifier, exc_info=True)
