"""Parents and children: who may add a name to a directory, and how a directory is closed for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from takehold import OperationConflict
from takehold.iceberg import paths
from takehold.iceberg.directory import Directory, standing
from takehold.iceberg.errors import NoSuchNamespace, NoSuchWarehouse
from takehold.iceberg.ground import Ground
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Namespace

__all__ = ["Registries", "key_of", "levels_of"]


def key_of(namespace: Namespace) -> str:
    """The name of a namespace in its registry."""
    return paths.SEPARATOR.join(namespace)


def levels_of(key: str) -> Namespace:
    """The namespace of such a name."""
    return tuple(key.split(paths.SEPARATOR))


class Registries:
    """The list of warehouses, and the registry of each."""

    ROUNDS: Final = 100

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    async def warehouses(self) -> tuple[Directory, str | None]:
        """The list of warehouses, and its tag."""
        found = await self._ground.shelf.read(paths.WAREHOUSES, Directory, "warehouses")
        return found or (Directory("warehouses"), None)

    async def warehouse(self, name: str) -> Mapping[str, Any]:
        """The entry of a warehouse; `NoSuchWarehouse`."""
        entry = (await self.warehouses())[0].entries.get(name)
        if entry is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {name}")
        return entry

    async def registry(self, warehouse: str) -> tuple[Directory, str | None]:
        """The namespaces of a warehouse, and the tag; `NoSuchWarehouse`."""
        found = await self._ground.shelf.read(paths.registry(warehouse), Directory, "registry")
        if found is None or found[0].closed:
            await self.warehouse(warehouse)
        return found or (Directory("registry"), None)

    async def namespace(self, warehouse: str, namespace: Namespace) -> Mapping[str, Any]:
        """The entry of a namespace; `NoSuchNamespace`."""
        entry = (await self.registry(warehouse))[0].entries.get(key_of(namespace))
        if entry is None:
            raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(namespace)}")
        return entry

    async def open_registry(self, warehouse: str) -> tuple[Directory, str | None]:
        """The registry, such that setting it with its tag adds to a warehouse that exists."""
        for _ in range(self.ROUNDS):
            epoch = (await self.warehouse(warehouse))["epoch"]
            found = await self._ground.shelf.read(paths.registry(warehouse), Directory, "registry")
            directory, tag = found or (Directory("registry"), None)
            match standing(directory, epoch):
                case "open":
                    return directory.under(epoch), tag
                case "closed":
                    await self._reopen_warehouse(warehouse, epoch)
                case "ahead":
                    pass  # the list that we read is out of date
        raise OperationConflict(f"warehouse {warehouse} is deleted and made again each time it is looked at")

    async def open_shard(self, warehouse: str, namespace: Namespace, path: str) -> tuple[Directory, str | None]:
        """A shard, such that setting it with its tag adds to a namespace that exists."""
        for _ in range(self.ROUNDS):
            epoch = (await self.namespace(warehouse, namespace))["epoch"]
            directory, tag = await self._ground.shard(path) or (Directory("shard"), None)
            match standing(directory, epoch):
                case "open":
                    return directory.under(epoch), tag
                case "closed":
                    await self._reopen_namespace(warehouse, namespace, epoch)
                case "ahead":
                    pass
        raise OperationConflict(f"namespace {'.'.join(namespace)} is deleted and made again each time it is looked at")

    async def close(self, path: str, kind: str, epoch: int) -> bool:
        """Close a child of this epoch; False when it is not empty, or of a later epoch than that."""
        while True:
            found = await self._ground.shelf.read(path, Directory, kind)
            directory, tag = found or (Directory(kind), None)
            if directory.entries or directory.parent > epoch:
                return False
            if directory.closed and directory.parent == epoch:
                return True
            try:
                await self._ground.shelf.keep(path, replace(directory, parent=epoch, closed=True), tag)
                return True
            except Changed:
                continue

    async def _reopen_namespace(self, warehouse: str, namespace: Namespace, epoch: int) -> None:
        """A deleter closed a shard and did not come to the end: a new epoch makes all of that void."""
        registry, tag = await self.registry(warehouse)
        entry = registry.entries.get(key_of(namespace))
        if entry is not None and entry["epoch"] == epoch and tag is not None:
            try:
                await self._ground.shelf.swap(
                    paths.registry(warehouse), registry.with_epoch(key_of(namespace), entry), tag
                )
            except Changed:
                pass

    async def _reopen_warehouse(self, warehouse: str, epoch: int) -> None:
        directory, tag = await self.warehouses()
        entry = directory.entries.get(warehouse)
        if entry is not None and entry["epoch"] == epoch and tag is not None:
            try:
                await self._ground.shelf.swap(paths.WAREHOUSES, directory.with_epoch(warehouse, entry), tag)
            except Changed:
                pass
