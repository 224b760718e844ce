"""Renames: a table or view gets another name, within a warehouse."""

from __future__ import annotations

from typing import Final

from takehold import OperationConflict
from takehold.iceberg import paths
from takehold.iceberg.changes import Aborted, Change, Plan
from takehold.iceberg.directory import Directory, Entry
from takehold.iceberg.errors import AlreadyExists
from takehold.iceberg.finding import Finder, Sight
from takehold.iceberg.ground import Ground
from takehold.iceberg.pointer import Body
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.registries import Registries
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Identifier, Kind

__all__ = ["Renames"]


class Renames:
    """Moves names. Only what is live can be renamed: a staged table has no name yet."""

    ROUNDS: Final = 100

    def __init__(self, ground: Ground, registries: Registries, finder: Finder, recovery: Recovery) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder
        self._recovery = recovery

    async def rename(self, warehouse: str, source: Identifier, target: Identifier, kind: Kind) -> None:
        """Move it, under the locks of both shards and of its pointer."""
        ground = self._ground
        source = Identifier(tuple(source[0]), source[1])
        target = paths.checked_identifier(target, f"a {kind}")
        by = "RenameView" if kind == "view" else "RenameTable"
        shards = sorted({ground.shard_of(warehouse, source), ground.shard_of(warehouse, target)})
        async with ground.locked(by, *shards) as outer:
            for _ in range(self.ROUNDS):
                sight = await self._finder.see(warehouse, source, kind)
                if source == target:
                    return
                held = [*shards, sight.path]
                async with ground.locked(by, sight.path) as inner:
                    # Whoever had the pointer before us may have left an intent, or a new version.
                    sight = await self._finder.settled(warehouse, source, kind, held=held)
                    if sight.path != held[-1]:
                        continue
                    outer.check()
                    inner.check()
                    try:
                        await self._move(warehouse, sight, target, shards)
                    except (Changed, Aborted):
                        ground.contention["pointer cas"].losses += 1
                        continue
                    ground.forget(warehouse, source)
                    return
        raise OperationConflict(f"{source} changes each time it is looked at")

    async def _move(self, warehouse: str, sight: Sight, target: Identifier, shards: list[str]) -> None:
        source = sight.body.identifier
        held = [*shards, sight.path]
        there = self._ground.shard_of(warehouse, target)
        shard, _ = await self._registries.open_shard(warehouse, target.namespace, there)
        occupant = await self._finder.occupant(warehouse, shard, target, held=held)
        if occupant is not None:
            raise AlreadyExists(f"Cannot rename {source} to {target}. {occupant.kind.capitalize()} already exists")
        plan = Plan(warehouse, "rename", [sight.path], shards, held, [str(source), str(target)])
        async with Change(self._ground, self._recovery, plan) as change:
            for path in shards:
                await self._mark(warehouse, change, path, sight, target, held)
            await change.intend(sight, Body(target, sight.body.metadata))
            await change.commit()

    async def _mark(
        self, warehouse: str, change: Change, path: str, sight: Sight, target: Identifier, held: list[str]
    ) -> None:
        source = sight.body.identifier
        shelved: tuple[Directory, str | None] | None
        if path == self._ground.shard_of(warehouse, target):
            # Read in this order, the namespace cannot be deleted without a change of the shard's tag.
            shelved = await self._registries.open_shard(warehouse, target.namespace, path)
            if await self._finder.occupant(warehouse, shelved[0], target, held=held) is not None:
                raise Changed(f"{target} was taken meanwhile", path=path)
            marked = shelved[0].having(target.name, Entry(None, sight.target, change.tx).fields())
        else:
            shelved = await self._ground.shard(path)
            marked = shelved[0] if shelved is not None else Directory("shard")
        if path == self._ground.shard_of(warehouse, source):
            await self._finder.expect(warehouse, shelved, source, sight.target, held)
            marked = marked.having(source.name, Entry(sight.target, None, change.tx).fields())
        assert shelved is not None
        await change.mark_shard(path, marked, shelved[1])
