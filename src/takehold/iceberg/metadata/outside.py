"""Files from outside: metadata that somebody else has written is read once with suspicion, and then relied on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from takehold.iceberg.metadata.draft import MAIN, opened
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.schemas import Schema
from takehold.iceberg.metadata.table import NEWEST
from takehold.iceberg.metadata.values import (
    Json,
    bounded,
    integer,
    items,
    long,
    optional,
    record,
    shown,
    text,
    text_map,
    uuid_text,
)
from takehold.iceberg.metadata.view import read_version

__all__ = ["check_table", "check_view"]

Reader = Callable[[str, Json], Any]
SOURCE: Mapping[str, Reader] = {"source-id": integer, "transform": text}
PARTITION: Mapping[str, Reader] = {**SOURCE, "name": text, "field-id": integer}
SORTED: Mapping[str, Reader] = {**SOURCE, "direction": text, "null-order": text}
SINCE: Mapping[str, Reader] = {"snapshot-id": long, "timestamp-ms": long}
LISTS: Mapping[str, Mapping[str, Reader]] = {
    "snapshots": SINCE,
    "snapshot-log": SINCE,
    "metadata-log": {"metadata-file": text, "timestamp-ms": long},
    "statistics": {"snapshot-id": long},
    "partition-statistics": {"snapshot-id": long},
    "encryption-keys": {"key-id": text},
}
"""Lists that may be missing, and what each of their objects has."""


def check_table(metadata: object) -> None:
    """Refuse with `BadUpdate` what is no metadata of a table, or not enough of it for a commit to build on."""
    data = _file(metadata, "table", NEWEST)
    for name in ("last-updated-ms", "last-column-id"):
        long(name, data)
    if "schemas" not in data:
        Schema(data.get("schema"))
    if "partition-specs" in data:
        _check_bound("partition-specs", "spec-id", PARTITION, data)
    else:
        _each("partition-spec", PARTITION if data["format-version"] > 1 else {**SOURCE, "name": text}, data)
    if "refs" in data:
        optional(_refs, "refs", data)
    data = opened(data)
    integer("last-partition-id", data)
    _check_schemas(data)
    _check_current("schemas", "schema-id", "current-schema-id", data)
    _check_bound("partition-specs", "spec-id", PARTITION, data)
    _check_current("partition-specs", "spec-id", "default-spec-id", data)
    _check_bound("sort-orders", "order-id", SORTED, data)
    _check_current("sort-orders", "order-id", "default-sort-order-id", data)
    for name in ("last-sequence-number", "next-row-id", "current-snapshot-id"):
        optional(long, name, data)
    for name, fields in LISTS.items():
        if data.get(name) is not None:
            _each(name, fields, data)
    _check_heads(data)


def check_view(metadata: object) -> None:
    """Refuse with `BadUpdate` what is no metadata of a view, or not enough of it for a commit to build on."""
    data = _file(metadata, "view", 1)
    _check_schemas(data)
    for version in items("versions", data):
        read_version(version)
    _check_current("versions", "version-id", "current-version-id", data)
    _each("version-log", {"version-id": integer, "timestamp-ms": long}, data)


def _file(metadata: object, kind: str, newest: int) -> Json:
    """What tables and views share."""
    data = record(metadata, f"{kind} metadata")
    bounded(data, f"{kind} metadata")
    if not 1 <= (version := integer("format-version", data)) <= newest:
        raise BadUpdate(f"Cannot read unsupported version {version}")
    uuid_text(f"{kind}-uuid", data)
    if not text("location", data):
        raise BadUpdate(f"Invalid location of a {kind}: empty")
    optional(text_map, "properties", data)
    return data


def _each(name: str, fields: Mapping[str, Reader], data: Json) -> Sequence[Any]:
    found = items(name, data)
    for one in found:
        for field, read in fields.items():
            read(field, record(one, name))
    return found


def _check_schemas(data: Json) -> None:
    for one in items("schemas", data):
        if "schema-id" in Schema(one).raw:
            integer("schema-id", one)


def _check_bound(name: str, id: str, fields: Mapping[str, Reader], data: Json) -> None:
    for one in _each(name, {id: integer}, data):
        _each("fields", fields, one)


def _check_current(name: str, id: str, current: str, data: Json) -> None:
    wanted = integer(current, data)
    if all(one.get(id, 0) != wanted for one in data[name]):
        raise BadUpdate(f"Cannot find {current}: {wanted} is not among the {name}")


def _refs(name: str, node: Json) -> None:
    """Branches and tags: an object of objects."""
    for ref in record(node[name], name).values():
        long("snapshot-id", record(ref, "snapshot ref"))
        if text("type", ref) not in ("branch", "tag"):
            raise BadUpdate(f"Invalid snapshot ref type: {shown(ref['type'])}")


def _check_heads(data: Json) -> None:
    """What branches and tags stand for is there, and main is what is current."""
    known = {one["snapshot-id"] for one in data.get("snapshots") or ()}
    for name, ref in data["refs"].items():
        if ref["snapshot-id"] not in known:
            raise BadUpdate(f"Snapshot for reference {name} does not exist in the existing snapshots list")
    current, head = data.get("current-snapshot-id"), data["refs"].get(MAIN, {}).get("snapshot-id")
    if current not in (None, -1) and current not in known:
        raise BadUpdate(f"Invalid table metadata: Cannot find current version: {shown(current)}")
    if head not in (None, current):
        raise BadUpdate(f"Current snapshot ID does not match main branch ({shown(current)} != {shown(head)})")
