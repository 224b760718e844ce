"""Births: a name that stands for nothing gets a table or view.

The pointer is written after the shard was read, and the shard is set last. That is the commit point: before it there
is only a pointer that no entry names, and no reader ever looks at that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final, NamedTuple

from takehold import OperationConflict
from takehold.iceberg import paths
from takehold.iceberg.directory import Directory, Entry, Target
from takehold.iceberg.errors import AlreadyExists
from takehold.iceberg.finding import Finder
from takehold.iceberg.ground import Ground
from takehold.iceberg.pointer import Body, Pointer
from takehold.iceberg.registries import Registries
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Identifier, Kind

__all__ = ["Birth", "Births", "taken"]


class Birth(NamedTuple):
    """What is to be made."""

    identifier: Identifier
    kind: Kind
    uuid: str
    metadata: str
    """The location of its first metadata file."""
    mark: str


def taken(kind: Kind, identifier: Identifier, by: str) -> AlreadyExists:
    """The error for a name that stands for something."""
    if by == kind:
        return AlreadyExists(f"{kind.capitalize()} already exists: {identifier}")
    return AlreadyExists(f"{by.capitalize()} with same name already exists: {identifier}")


class Births:
    """Makes tables and views, under the lock of their shard."""

    ROUNDS: Final = 100

    def __init__(self, ground: Ground, registries: Registries, finder: Finder) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder

    async def bear(self, warehouse: str, birth: Birth, held: Collection[str]) -> bool:
        """Make it, or `AlreadyExists`, `NoSuchNamespace`; False when that was done under this mark already."""
        ground, identifier = self._ground, birth.identifier
        path = ground.shard_of(warehouse, identifier)
        target = Target(birth.kind, birth.uuid, ground.fresh()[:8])
        now = Body(identifier, birth.metadata)
        for _ in range(self.ROUNDS):
            shard, tag = await self._registries.open_shard(warehouse, identifier.namespace, path)
            if birth.mark in shard.recent:
                return False
            await self.expect_free(warehouse, shard, identifier, birth.kind, held)
            await self.claim(warehouse, Pointer(birth.uuid, birth.kind, target.birth, now, recent=(birth.mark,)), held)
            try:
                await ground.shelf.keep(path, shard.having(identifier.name, Entry(target).fields()), tag, birth.mark)
            except Changed:
                continue
            ground.remember(warehouse, identifier, target)
            return True
        raise OperationConflict(f"the shard of {identifier} changes each time it is looked at")

    async def expect_free(
        self, warehouse: str, shard: Directory, identifier: Identifier, kind: Kind, held: Collection[str]
    ) -> None:
        """`AlreadyExists` for a name that stands for something."""
        occupant = await self._finder.occupant(warehouse, shard, identifier, held=held)
        if occupant is not None:
            raise taken(kind, identifier, occupant.kind)

    async def check_free(self, warehouse: str, identifier: Identifier, kind: Kind) -> None:
        """The same by reading only: for a staged table, whose name is looked at again when it goes live."""
        await self._registries.namespace(warehouse, identifier.namespace)
        names = await self._finder.names(warehouse, self._ground.shard_of(warehouse, identifier))
        target = names.get(identifier.name)
        if target is not None:
            sight = await self._finder.sight(warehouse, target)
            if sight is not None and sight.target == target and sight.body.identifier == identifier:
                raise taken(kind, identifier, target.kind)

    async def claim(self, warehouse: str, made: Pointer, held: Collection[str]) -> None:
        """Write a pointer where none is, or over one that nothing names: what a crash left, or our own last round."""
        path = paths.pointer(warehouse, made.uuid)
        try:
            await self._ground.shelf.keep(path, made, None)
            return
        except Changed:
            pass
        for _ in range(self.ROUNDS):
            found = await self._finder.pointer(warehouse, Target(made.what, made.uuid, made.birth), held)
            try:
                if found is None:
                    await self._ground.shelf.keep(path, made, None)
                else:
                    if found[0].birth != made.birth:
                        await self._disown(warehouse, found[0])
                    await self._ground.shelf.swap(path, replace(made, version=found[0].version), found[1])
                return
            except Changed:
                continue
        raise OperationConflict(f"{path} changes each time it is looked at")

    async def _disown(self, warehouse: str, pointer: Pointer) -> None:
        """`AlreadyExists` if a name stands for this pointer; if none does, none will.

        Whoever has written it read the shard before. If that was before our touch, its compare-and-set on the shard
        fails, and it writes the pointer again; if it was after, it wrote the pointer after we read it.
        """
        if pointer.now is None:
            return
        identifier = pointer.now.identifier
        path = self._ground.shard_of(warehouse, identifier)
        target = Target(pointer.what, pointer.uuid, pointer.birth)
        found = await self._ground.shard(path)
        if found is None:
            await self._ground.shelf.keep(path, Directory("shard"), None)
            return
        fields = found[0].entries.get(identifier.name)
        if fields is not None and target in Entry.of(fields)[:2]:
            raise AlreadyExists(f"{pointer.what.capitalize()} {pointer.uuid} already exists: {identifier}")
        await self._ground.shelf.swap(path, found[0], found[1])
