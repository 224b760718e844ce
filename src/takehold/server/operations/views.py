"""Views: list, create, load, replace, register, drop."""

from __future__ import annotations

from takehold.iceberg import Identifier, Loaded, NoSuchView
from takehold.server.answers import NO_CONTENT, Reply, json_reply
from takehold.server.call import Call, member, objects
from takehold.server.operations.tables import listing
from takehold.server.routing import operation

__all__: list[str] = []

NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
ONE = f"{NAMESPACE}/views/{{view}}"


@operation("GET", f"{NAMESPACE}/views", "listViews")
async def list_views(call: Call) -> Reply:
    """The views of a namespace."""
    return listing(call, await call.service.catalog.list_views(call.warehouse, call.namespace))


@operation("POST", f"{NAMESPACE}/views", "createView", replays=True)
async def create_view(call: Call) -> Reply:
    """Make one."""
    member(call.json, "name", "the view")
    return _reply(await call.service.catalog.create_view(call.warehouse, call.namespace, call.json, key=call.key))


@operation("GET", ONE, "loadView")
async def load_view(call: Call) -> Reply:
    """The view as it is now."""
    return _reply(await call.service.catalog.load_view(call.warehouse, call.view))


@operation("POST", ONE, "replaceView", replays=True)
async def replace_view(call: Call) -> Reply:
    """Commit a new version."""
    loaded = await call.service.catalog.replace_view(
        call.warehouse,
        call.view,
        objects(call.json.get("requirements"), "'requirements'"),
        objects(call.json.get("updates"), "'updates'"),
        key=call.key,
    )
    return _reply(loaded)


@operation("DELETE", ONE, "dropView", replays=True)
async def drop_view(call: Call) -> Reply:
    """Take it out of the catalog."""
    await call.service.catalog.drop_view(call.warehouse, call.view)
    return NO_CONTENT


@operation("HEAD", ONE, "viewExists")
async def view_exists(call: Call) -> Reply:
    """Whether it is there."""
    if not await call.service.catalog.view_exists(call.warehouse, call.view):
        raise NoSuchView(f"View does not exist: {call.view}")
    return NO_CONTENT


@operation("POST", f"{NAMESPACE}/register-view", "registerView", replays=True)
async def register_view(call: Call) -> Reply:
    """Give a view that exists as a file a name."""
    view = Identifier(call.namespace, member(call.json, "name"))
    return _reply(
        await call.service.catalog.register_view(call.warehouse, view, member(call.json, "metadata-location"))
    )


def _reply(loaded: Loaded) -> Reply:
    return json_reply({"metadata-location": loaded.metadata_location, "metadata": loaded.metadata, "config": {}})
