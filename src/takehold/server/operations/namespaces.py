"""Namespaces: list, create, load, drop, properties."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from takehold import UsageError
from takehold.iceberg import NoSuchNamespace
from takehold.server.answers import NO_CONTENT, Reply, json_reply
from takehold.server.call import Call, parents_of, strings, texts
from takehold.server.paging import page
from takehold.server.routing import operation

if TYPE_CHECKING:
    from takehold.iceberg.words import Namespace

__all__: list[str] = []

ALL = "/v1/{prefix}/namespaces"
ONE = "/v1/{prefix}/namespaces/{namespace}"


@operation("GET", ALL, "listNamespaces")
async def list_namespaces(call: Call) -> Reply:
    """The namespaces directly below one, or at the top."""
    found = await call.service.catalog.list_namespaces(call.warehouse, await _parent(call))
    shown, token = page(found, call.query)
    return json_reply({"namespaces": [list(one) for one in shown], "next-page-token": token})


async def _parent(call: Call) -> Namespace:
    """The first meaning that exists, or the last one, for the error to name."""
    text = call.query.get("parent")
    if not text:
        return ()
    *others, last = parents_of(text)
    for one in others:
        with suppress(UsageError):
            if await call.service.catalog.namespace_exists(call.warehouse, one):
                return one
    return last


@operation("POST", ALL, "createNamespace", replays=True)
async def create_namespace(call: Call) -> Reply:
    """Make one."""
    namespace = tuple(texts(call.json.get("namespace"), "'namespace'"))
    if not namespace:
        raise UsageError("Malformed request: 'namespace' is empty")
    properties = strings(call.json.get("properties"), "'properties'")
    kept = await call.service.catalog.create_namespace(call.warehouse, namespace, properties)
    return json_reply({"namespace": list(namespace), "properties": kept})


@operation("GET", ONE, "loadNamespaceMetadata")
async def load_namespace(call: Call) -> Reply:
    """Its properties."""
    properties = await call.service.catalog.load_namespace(call.warehouse, call.namespace)
    return json_reply({"namespace": list(call.namespace), "properties": properties})


@operation("HEAD", ONE, "namespaceExists")
async def namespace_exists(call: Call) -> Reply:
    """Whether it is there."""
    if not await call.service.catalog.namespace_exists(call.warehouse, call.namespace):
        raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(call.namespace)}")
    return NO_CONTENT


@operation("DELETE", ONE, "dropNamespace", replays=True)
async def drop_namespace(call: Call) -> Reply:
    """Delete an empty one."""
    await call.service.catalog.delete_namespace(call.warehouse, call.namespace)
    return NO_CONTENT


@operation("POST", f"{ONE}/properties", "updateProperties", replays=True)
async def update_properties(call: Call) -> Reply:
    """Set and remove properties."""
    done = await call.service.catalog.update_namespace(
        call.warehouse,
        call.namespace,
        removals=texts(call.json.get("removals"), "'removals'"),
        updates=strings(call.json.get("updates"), "'updates'"),
    )
    return json_reply({"updated": done.updated, "removed": done.removed, "missing": done.missing})
