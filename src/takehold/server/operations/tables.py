"""Tables: list, create, load, commit, register, drop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from takehold import TakeholdError, UsageError
from takehold.iceberg import Identifier, Loaded, NoSuchTable
from takehold.server.answers import NO_CONTENT, Reply, json_reply
from takehold.server.call import Call, member, objects
from takehold.server.paging import page
from takehold.server.routing import operation

__all__ = ["listing", "reply"]

NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
ONE = f"{NAMESPACE}/tables/{{table}}"


@operation("GET", f"{NAMESPACE}/tables", "listTables")
async def list_tables(call: Call) -> Reply:
    """The tables of a namespace."""
    names = await call.service.catalog.list_tables(call.warehouse, call.namespace)
    return listing(call, names)


@operation("POST", f"{NAMESPACE}/tables", "createTable", replays=True)
async def create_table(call: Call) -> Reply:
    """Make one, or with `stage-create` only its first metadata."""
    member(call.json, "name", "the table")
    loaded = await call.service.catalog.create_table(call.warehouse, call.namespace, call.json, key=call.key)
    await _prepare(call, loaded)
    return reply(call, loaded)


@operation("GET", ONE, "loadTable")
async def load_table(call: Call) -> Reply:
    """The table as it is now; 304 when the client has that already."""
    snapshots = call.query.get("snapshots") or "all"
    if snapshots not in ("all", "refs"):
        raise UsageError(f"snapshots is all or refs, not {snapshots!r:.100}")
    loaded = await call.service.catalog.load_table(call.warehouse, call.table)
    tag = _tag(loaded, snapshots)
    if tag in _known(call.headers.get(b"if-none-match", b"")):
        return Reply(304, headers={b"etag": tag})
    return reply(call, loaded, snapshots)


@operation("POST", ONE, "updateTable", replays=True)
async def update_table(call: Call) -> Reply:
    """Commit: apply updates when the requirements hold."""
    loaded = await call.service.catalog.commit_table(
        call.warehouse,
        call.table,
        objects(call.json.get("requirements"), "'requirements'"),
        objects(call.json.get("updates"), "'updates'"),
        key=call.key,
    )
    return reply(call, loaded)


@operation("DELETE", ONE, "dropTable", replays=True)
async def drop_table(call: Call) -> Reply:
    """Take it out of the catalog, and with `purgeRequested` delete its files."""
    await call.service.catalog.drop_table(call.warehouse, call.table, purge=call.flag("purgeRequested"))
    return NO_CONTENT


@operation("HEAD", ONE, "tableExists")
async def table_exists(call: Call) -> Reply:
    """Whether it is there."""
    await _expect(call)
    return NO_CONTENT


@operation("POST", f"{ONE}/unregister", "unregisterTable", replays=True)
async def unregister_table(call: Call) -> Reply:
    """Take it out of the catalog and leave its files."""
    return reply(call, await call.service.catalog.unregister_table(call.warehouse, call.table))


@operation("POST", f"{NAMESPACE}/register", "registerTable", replays=True)
async def register_table(call: Call) -> Reply:
    """Give a table that exists as files a name."""
    overwrite = call.json.get("overwrite", False)
    if not isinstance(overwrite, bool):
        raise UsageError("Malformed request: 'overwrite' is true or false")
    table = Identifier(call.namespace, member(call.json, "name"))
    place = member(call.json, "metadata-location")
    return reply(call, await call.service.catalog.register_table(call.warehouse, table, place, overwrite=overwrite))


@operation("POST", f"{ONE}/metrics", "reportMetrics", scope="read")
async def report_metrics(call: Call) -> Reply:
    """What a client measured; counted, and otherwise forgotten."""
    member(call.json, "report-type")
    await _expect(call)
    return NO_CONTENT


def reply(call: Call, loaded: Loaded, snapshots: str = "all") -> Reply:
    """A LoadTableResult."""
    metadata = loaded.metadata if snapshots == "all" else _with_refs_only(loaded.metadata)
    settings = call.service.settings
    value: dict[str, Any] = {
        "metadata-location": loaded.metadata_location,
        "metadata": metadata,
        "config": settings.table_config,
    }
    if settings.vended and b"vended-credentials" in call.headers.get(b"x-iceberg-access-delegation", b""):
        # In both places: some clients read only one of them.
        value["config"] = {**settings.table_config, **settings.vended}
        value["storage-credentials"] = [{"prefix": metadata["location"], "config": value["config"]}]
    return json_reply(value, headers={b"etag": _tag(loaded, snapshots)} if loaded.metadata_location else None)


def listing(call: Call, names: list[str]) -> Reply:
    """A ListTablesResponse."""
    shown, token = page([(name,) for name in names], call.query)
    namespace = list(call.namespace)
    return json_reply(
        {"identifiers": [{"namespace": namespace, "name": name} for (name,) in shown], "next-page-token": token}
    )


async def _prepare(call: Call, loaded: Loaded) -> None:
    """DuckDB writes into a table's directories and does not make them. The catalog has checked where they are."""
    root, location = f"{call.service.store.location}/", loaded.metadata["location"]
    # The table is made: what fails from here on must not look as if it were not.
    with suppress(TakeholdError):
        for part in ("metadata", "data") if location.startswith(root) else ():
            await call.service.store.prepare(f"{location.removeprefix(root)}/{part}")


async def _expect(call: Call) -> None:
    if not await call.service.catalog.table_exists(call.warehouse, call.table):
        raise NoSuchTable(f"Table does not exist: {call.table}")


def _with_refs_only(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Without the snapshots that no branch and no tag names."""
    named = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    return {**metadata, "snapshots": [one for one in metadata.get("snapshots", ()) if one["snapshot-id"] in named]}


def _tag(loaded: Loaded, snapshots: str) -> bytes:
    """Metadata files are never changed, so their location stands for what is in them."""
    text = f"{snapshots} {loaded.metadata_location}".encode()
    return b'"%s"' % hashlib.blake2b(text, digest_size=12).hexdigest().encode()


def _known(header: bytes) -> list[bytes]:
    return [one.strip().removeprefix(b"W/") for one in header.split(b",")]
