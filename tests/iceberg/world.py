"""What tests of the catalog start from: a warehouse, two namespaces, some tables, and what can be seen of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from takehold.iceberg import Catalog, Identifier, Loaded
from takehold.iceberg.stores import MemoryStore

WH = "wh"
NS, OTHER = ("ns",), ("other",)
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}]}
UUID = "5b0b1bb6-26a5-4a7a-9ae4-1f5f3f2a9d11"
CREATE = [{"type": "assert-create"}]


def table(name: str, namespace: tuple[str, ...] = NS) -> Identifier:
    return Identifier(namespace, name)


def setting(**properties: str) -> list[dict[str, Any]]:
    return [{"action": "set-properties", "updates": properties}]


def request(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "schema": SCHEMA, **more}


def view_request(name: str, sql: str = "select 1") -> dict[str, Any]:
    return {
        "name": name,
        "schema": {**SCHEMA, "schema-id": 0},
        "view-version": {
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {},
            "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
            "default-namespace": ["ns"],
        },
        "properties": {},
    }


def live(location: str, uuid: str = UUID, **properties: str) -> list[dict[str, Any]]:
    """The updates of a client that commits a staged table."""
    return [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "set-location", "location": location},
        {"action": "add-schema", "schema": {**SCHEMA, "schema-id": 0}},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        *(setting(**properties) if properties else []),
    ]


def own(loaded: Loaded) -> dict[str, str]:
    """The properties that tests have set."""
    return {name: value for name, value in loaded.metadata["properties"].items() if "." not in name}


async def built(catalog: Catalog, *names: str) -> None:
    """A warehouse with two namespaces, the first of which has these tables."""
    await catalog.create_warehouse(WH)
    await catalog.create_namespace(WH, NS)
    await catalog.create_namespace(WH, OTHER)
    for name in names:
        await catalog.create_table(WH, NS, request(name, properties={"born": name}))


async def seen(catalog: Catalog) -> dict[str, Any]:
    """Everything that clients can see."""
    found: dict[str, Any] = {}
    for warehouse in await catalog.list_warehouses():
        for namespace in await catalog.list_namespaces(warehouse.name):
            at = f"{warehouse.name}/{'.'.join(namespace)}"
            found[at] = await catalog.load_namespace(warehouse.name, namespace)
            for name in await catalog.list_tables(warehouse.name, namespace):
                loaded = await catalog.load_table(warehouse.name, Identifier(namespace, name))
                found[f"{at}/{name}"] = own(loaded)
        found[warehouse.name] = "warehouse"
    return found


def copied(store: MemoryStore, pause: Any = None, skip: int = 100_000) -> MemoryStore:
    """A store with the same objects and tags, whose next tags nobody has seen."""
    made = MemoryStore(pause=pause)
    made.location = store.location
    made._objects = dict(store._objects)
    made._writes = itertools.count(skip)
    return made


def frozen(found: Mapping[str, Any]) -> tuple[Any, ...]:
    """Comparable."""
    return tuple(sorted((name, str(sorted(v.items()) if isinstance(v, dict) else v)) for name, v in found.items()))
