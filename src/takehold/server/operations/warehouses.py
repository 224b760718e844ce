"""Warehouses: the one part of the surface that is ours, because the specification has none for it. Admins only."""

from __future__ import annotations

from typing import Any

from takehold import UsageError
from takehold.iceberg import Warehouse
from takehold.server.answers import NO_CONTENT, Reply, json_reply
from takehold.server.call import Call, member, strings
from takehold.server.operations.configuration import reserved
from takehold.server.routing import operation

__all__: list[str] = []

ALL = "/v1/warehouses"
ONE = "/v1/warehouses/{warehouse}"


@operation("GET", ALL, "listWarehouses", scope="admin", advertised=False)
async def list_warehouses(call: Call) -> Reply:
    """All of them."""
    return json_reply({"warehouses": [_shown(one) for one in await call.service.catalog.list_warehouses()]})


@operation("POST", ALL, "createWarehouse", scope="admin", advertised=False, replays=True)
async def create_warehouse(call: Call) -> Reply:
    """Make one: `{"name": ..., "location": ..., "properties": {...}}`, of which only the name is needed."""
    name = member(call.json, "name", "the warehouse")
    if name in call.service.routes.reserved:
        raise reserved(name)
    location = call.json.get("location")
    if location is not None and not isinstance(location, str):
        raise UsageError("Malformed request: 'location' is not a text")
    made = await call.service.catalog.create_warehouse(
        name, location=location, properties=strings(call.json.get("properties"), "'properties'")
    )
    return json_reply(_shown(made))


@operation("GET", ONE, "getWarehouse", scope="admin", advertised=False)
async def get_warehouse(call: Call) -> Reply:
    """One of them."""
    return json_reply(_shown(await call.service.catalog.get_warehouse(call.names["warehouse"])))


@operation("DELETE", ONE, "deleteWarehouse", scope="admin", advertised=False, replays=True)
async def delete_warehouse(call: Call) -> Reply:
    """Delete an empty one."""
    await call.service.catalog.delete_warehouse(call.names["warehouse"])
    return NO_CONTENT


def _shown(one: Warehouse) -> dict[str, Any]:
    return {"name": one.name, "location": one.location, "properties": dict(one.properties)}
