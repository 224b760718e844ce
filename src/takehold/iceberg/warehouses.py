"""Warehouses: made, listed, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from takehold.iceberg import paths
from takehold.iceberg.errors import AlreadyExists, NoSuchWarehouse, WarehouseNotEmpty
from takehold.iceberg.ground import Ground
from takehold.iceberg.locations import warehouse_location
from takehold.iceberg.registries import Registries
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Warehouse

__all__ = ["Warehouses"]


class Warehouses:
    """The operations on the list of warehouses."""

    def __init__(self, ground: Ground, registries: Registries) -> None:
        self._ground = ground
        self._registries = registries

    async def create(self, name: str, location: str | None, properties: Mapping[str, str]) -> Warehouse:
        """Add one."""
        paths.checked_name(name, "a warehouse")
        place = warehouse_location(self._ground.store, location, self._ground.fresh_uuid())
        mark = self._ground.fresh()
        async with self._ground.locked("CreateWarehouse", paths.WAREHOUSES) as hold:
            while True:
                directory, tag = await self._registries.warehouses()
                if name in directory.entries:
                    raise AlreadyExists(f"Warehouse already exists: {name}")
                made = directory.with_epoch(name, {"location": place, "properties": dict(properties)})
                hold.check()
                try:
                    await self._ground.shelf.keep(paths.WAREHOUSES, made, tag, mark)
                except Changed:
                    continue
                return Warehouse(name, place, dict(properties))

    async def list(self) -> list[Warehouse]:
        """All of them."""
        async with self._ground.locked("ListWarehouses", paths.WAREHOUSES, read=True):
            directory, _ = await self._registries.warehouses()
        return [_warehouse(name, entry) for name, entry in sorted(directory.entries.items())]

    async def get(self, name: str) -> Warehouse:
        """One of them."""
        async with self._ground.locked("GetWarehouse", paths.WAREHOUSES, read=True):
            return _warehouse(name, await self._registries.warehouse(name))

    async def delete(self, name: str) -> None:
        """Close its registry, which must be empty, then take it off the list."""
        ground, registry = self._ground, paths.registry(name)
        paths.checked_name(name, "a warehouse")
        async with (
            ground.locked("DeleteWarehouse", registry) as children,
            ground.locked("DeleteWarehouse", paths.WAREHOUSES) as parents,
        ):
            mark = ground.fresh()
            while True:
                directory, tag = await self._registries.warehouses()
                entry = directory.entries.get(name)
                if entry is None or tag is None:
                    raise NoSuchWarehouse(f"Warehouse does not exist: {name}")
                if not await self._registries.close(registry, "registry", entry["epoch"]):
                    if (await self._registries.registry(name))[0].entries:
                        raise WarehouseNotEmpty(f"Warehouse {name} is not empty.")
                    continue  # the list that we read is out of date
                children.check()
                parents.check()
                entries = {other: fields for other, fields in directory.entries.items() if other != name}
                try:
                    return await self._drop(replace(directory, entries=entries), tag, mark)
                except Changed:
                    continue

    async def _drop(self, directory: Any, tag: str, mark: str) -> None:
        await self._ground.shelf.swap(paths.WAREHOUSES, directory, tag, mark)


def _warehouse(name: str, entry: Mapping[str, Any]) -> Warehouse:
    return Warehouse(name, entry["location"], entry["properties"])
