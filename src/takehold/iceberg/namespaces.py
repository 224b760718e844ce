"""Namespaces: made, listed, changed, deleted; nested as deep as a path allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from takehold.iceberg import paths
from takehold.iceberg.directory import Directory
from takehold.iceberg.errors import AlreadyExists, NamespaceNotEmpty, NoSuchNamespace, Unprocessable
from takehold.iceberg.finding import Finder
from takehold.iceberg.ground import Ground
from takehold.iceberg.registries import Registries, key_of, levels_of
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Identifier, Namespace, UpdatedProperties

__all__ = ["Namespaces"]


class Namespaces:
    """The operations on the registry of a warehouse."""

    def __init__(self, ground: Ground, registries: Registries, finder: Finder) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder

    async def list(self, warehouse: str, parent: Namespace) -> list[Namespace]:
        """The children of a namespace, or the outermost ones."""
        async with self._ground.locked("ListNamespaces", paths.registry(warehouse), read=True):
            registry, _ = await self._registries.registry(warehouse)
        if parent and key_of(parent) not in registry.entries:
            raise _missing(parent)
        levels = map(levels_of, registry.entries)
        return sorted(each for each in levels if each[:-1] == tuple(parent))

    async def create(self, warehouse: str, namespace: Namespace, properties: Mapping[str, str]) -> dict[str, str]:
        """Add one to a registry of a warehouse that exists."""
        ground, path = self._ground, paths.registry(warehouse)
        namespace = paths.checked_namespace(namespace)
        mark = ground.fresh()
        async with ground.locked("CreateNamespace", path) as hold:
            while True:
                registry, tag = await self._registries.open_registry(warehouse)
                if key_of(namespace) in registry.entries:
                    raise AlreadyExists(f"Namespace already exists: {_shown(namespace)}")
                if namespace[:-1] and key_of(namespace[:-1]) not in registry.entries:
                    raise _missing(namespace[:-1])
                hold.check()
                try:
                    made = registry.with_epoch(key_of(namespace), {"properties": dict(properties)})
                    await ground.shelf.keep(path, made, tag, mark)
                except Changed:
                    continue
                return dict(properties)

    async def load(self, warehouse: str, namespace: Namespace) -> dict[str, str]:
        """Its properties."""
        async with self._ground.locked("LoadNamespace", paths.registry(warehouse), read=True):
            entry = await self._registries.namespace(warehouse, namespace)
        return dict(entry["properties"])

    async def update(
        self, warehouse: str, namespace: Namespace, removals: Sequence[str], updates: Mapping[str, str]
    ) -> UpdatedProperties:
        """Remove and set properties, in one step."""
        if both := sorted(set(removals) & set(updates)):
            raise Unprocessable(f"Invalid namespace update, cannot both set and remove properties: {', '.join(both)}")
        ground, path = self._ground, paths.registry(warehouse)
        mark = ground.fresh()
        async with ground.locked("UpdateNamespace", path) as hold:
            while True:
                registry, tag = await self._registries.registry(warehouse)
                entry = registry.entries.get(key_of(namespace))
                if entry is None or tag is None:
                    raise _missing(namespace)
                before = entry["properties"]
                after = {name: value for name, value in before.items() if name not in removals} | dict(updates)
                done = UpdatedProperties(
                    sorted(updates),
                    sorted(name for name in set(removals) if name in before),
                    sorted(name for name in set(removals) if name not in before),
                )
                if after == before:
                    return done
                hold.check()
                try:
                    made = registry.having(key_of(namespace), {**entry, "properties": after})
                    await ground.shelf.swap(path, made, tag, mark)
                except Changed:
                    continue
                return done

    async def delete(self, warehouse: str, namespace: Namespace) -> None:
        """Close its shards, which must be empty, then take it out of the registry."""
        ground = self._ground
        namespace = paths.checked_namespace(namespace)
        shards = ground.shards_of(warehouse, namespace)
        mark = ground.fresh()
        async with (
            ground.locked("DeleteNamespace", paths.function(warehouse, namespace)) as alone,
            ground.locked("DeleteNamespace", *shards) as children,
            ground.locked("DeleteNamespace", paths.registry(warehouse)) as parents,
        ):
            while True:
                registry, tag = await self._registries.registry(warehouse)
                entry = self._deletable(registry, namespace)
                # All are looked at before one is closed: a namespace in use is left as it was.
                await self._expect_empty(warehouse, namespace, shards)
                closed = [await self._registries.close(shard, "shard", entry["epoch"]) for shard in shards]
                if not all(closed) or tag is None:
                    continue  # a table came in, or the registry that we read is out of date
                for hold in (alone, children, parents):
                    hold.check()
                try:
                    made = registry.having(key_of(namespace), None)
                    return await self._put(paths.registry(warehouse), made, tag, mark)
                except Changed:
                    continue

    async def _put(self, path: str, registry: Directory, tag: str, mark: str) -> None:
        await self._ground.shelf.swap(path, registry, tag, mark)

    def _deletable(self, registry: Directory, namespace: Namespace) -> Mapping[str, int]:
        entry = registry.entries.get(key_of(namespace))
        if entry is None:
            raise _missing(namespace)
        depth = len(namespace)
        if any(len(each) > depth and each[:depth] == namespace for each in map(levels_of, registry.entries)):
            raise NamespaceNotEmpty(f"Namespace {_shown(namespace)} is not empty.")
        return entry

    async def _expect_empty(self, warehouse: str, namespace: Namespace, shards: Sequence[str]) -> None:
        for path in shards:
            while (found := await self._ground.shard(path)) is not None and found[0].entries:
                shard, tag = found
                for name in shard.entries:
                    occupant = await self._finder.occupant(warehouse, shard, Identifier(namespace, name), held=shards)
                    if occupant is not None:
                        raise NamespaceNotEmpty(f"Namespace {_shown(namespace)} is not empty.")
                again = await self._ground.shard(path)
                if again is not None and again[1] == tag:
                    # Entries that stand for nothing: a create lost its pointer to another one.
                    try:
                        await self._ground.shelf.swap(path, replace(shard, entries={}), tag)
                    except Changed:
                        continue


def _shown(namespace: Namespace) -> str:
    return ".".join(namespace)


def _missing(namespace: Namespace) -> NoSuchNamespace:
    return NoSuchNamespace(f"Namespace does not exist: {_shown(namespace)}")
