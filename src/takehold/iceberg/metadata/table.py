"""Table metadata: the first version from a request, and each next one from a list of updates."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from takehold.iceberg.metadata import encryption, orders, properties, refs, snapshots, specs, statistics
from takehold.iceberg.metadata.draft import Draft, opened
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.requirements import check_table, each, kind_of
from takehold.iceberg.metadata.schemas import Schema, fresh_schema, same_schema
from takehold.iceberg.metadata.snapshots import snapshot_log
from takehold.iceberg.metadata.values import (
    Json,
    bounded,
    integer,
    integers,
    optional,
    part,
    record,
    shown,
    text,
    text_map,
)

__all__ = ["NEWEST", "new_table", "update_table"]

NEWEST = 3
"""The newest format version."""
USUAL = 2
"""That of a table that asks for none."""
UNSORTED: Json = {"order-id": 0, "fields": []}
UNPARTITIONED: Json = {"spec-id": 0, "fields": []}
METADATA_LOG = "write.metadata.previous-versions-max"


def new_table(request: Mapping[str, Any], *, uuid: str, location: str, now: int) -> dict[str, Any]:
    """The metadata of a table that a CreateTableRequest asks for, with fresh ids.

    `uuid` and `location` are the catalog's choice; `now` is in milliseconds.
    """
    bounded(record(request, "create table request"), "create table request")
    if "name" in request and not optional(text, "name", request):
        raise BadUpdate(f"Invalid table name: {shown(request['name'])}")
    if request.get("schema") is None:
        raise BadUpdate("Invalid schema: null")
    asked = optional(text_map, "properties", request) or {}
    version = _version(asked)
    old = Schema(request["schema"])
    raw, new = fresh_schema(old)
    schema = Schema(raw)
    schema.check_version(version)
    kept = {"write.parquet.compression-codec": "zstd"}
    kept |= {name: value for name, value in asked.items() if name not in properties.RESERVED}
    properties.check_properties(kept, schema, version)
    spec = specs.fresh_spec(request.get("partition-spec") or UNPARTITIONED, old, new)
    order = orders.fresh_order(request.get("write-order") or UNSORTED, old, new)
    data = _empty(version) | {
        "table-uuid": uuid,
        "location": properties.stripped(location),
        "last-column-id": schema.highest,
        "schemas": [raw],
        "partition-specs": [spec],
        "last-partition-id": 999 + len(spec["fields"]),
        "default-sort-order-id": order["order-id"],
        "sort-orders": [order],
        "properties": kept,
    }
    return _closed(data, now)


def _version(asked: Mapping[str, str]) -> int:
    if "format-version" not in asked:
        return USUAL
    version = properties.number(asked, "format-version")
    if version is None or not 1 <= version <= NEWEST:
        said = shown(asked["format-version"])[1:-1]
        raise BadUpdate(f"Unsupported format version: v{said} (supported: v{NEWEST})")
    return version


def update_table(
    base: dict[str, Any] | None,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
    *,
    now: int,
    metadata_location: str | None = None,
) -> dict[str, Any]:
    """The next version of a table: requirements checked, updates applied; `base` itself when nothing changes.

    `base` is None in a create transaction. `metadata_location` is the file that holds `base`: it goes into the
    metadata log. Refuses with `RequirementFailed` or `BadUpdate`.
    """
    requirements, updates = each(requirements, "requirements"), each(updates, "metadata updates")
    actions = [kind_of(update, "action", "metadata update") for update in updates]
    data = _first(actions, updates) if base is None else opened(base)
    check_table(base and data, requirements)
    # Clocks of several servers differ; the log of a table must not run backwards because of that.
    draft = Draft(data, now if base is None else max(now, base["last-updated-ms"]))
    for action, update in zip(actions, updates, strict=True):
        if (apply := UPDATES.get(action)) is None:
            if action in ("add-view-version", "set-current-view-version"):
                raise BadUpdate(f"Cannot apply update {_java_name(action)} to a table")
            raise BadUpdate(f"Cannot convert metadata update action to json: {shown(action)[1:-1]}")
        apply(draft, update)
    if base is not None and not draft.changed:
        return base
    return _finished(draft, base, metadata_location)


def _java_name(action: str) -> str:
    return "".join(word.capitalize() for word in action.split("-"))


def _first(actions: Sequence[str], updates: Sequence[Json]) -> dict[str, Any]:
    """Nothing, in the format version that the first upgrade asks for."""
    version = USUAL
    for action, update in zip(actions, updates, strict=True):
        if action == "upgrade-format-version":
            version = integer("format-version", update)
            if not 1 <= version <= NEWEST:
                raise BadUpdate(f"Unsupported format version: v{version} (supported: v{NEWEST})")
            break
    return _empty(version)


def _empty(version: int) -> dict[str, Any]:
    return {
        "format-version": version,
        "table-uuid": None,
        "location": None,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": 0,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": -1,
        "next-row-id": 0,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }


def _finished(draft: Draft, base: Json | None, metadata_location: str | None) -> dict[str, Any]:
    data = draft.data
    if base is None:
        data["table-uuid"] = data["table-uuid"] or str(uuids.uuid4())
        if not data["location"]:
            raise BadUpdate(f"Table location is required in format v{draft.version}")
    if base is None or draft.rebound:
        _check_bound(draft)
    snapshot_log(draft)
    if base is not None and metadata_location is not None:
        entry = {"timestamp-ms": base["last-updated-ms"], "metadata-file": metadata_location}
        most = properties.number(draft.get("properties", {}), METADATA_LOG)
        log = [*(data.get("metadata-log") or ()), entry]
        data["metadata-log"] = log[-max(1, 100 if most is None else most) :]
    return _closed(data, draft.now)


def _check_bound(draft: Draft) -> None:
    """The default spec and order must be there, and fit the current schema."""
    if not draft.get("partition-specs"):
        raise BadUpdate("Partition specs cannot be null or empty")
    if not draft.get("sort-orders"):
        raise BadUpdate("Sort orders cannot be null or empty")
    schema = draft.schema()
    for names, id, default, what in (
        ("partition-specs", "spec-id", "default-spec-id", "partition spec to unknown spec"),
        ("sort-orders", "order-id", "default-sort-order-id", "sort order to unknown order"),
    ):
        found = [one for one in draft.get(names) if one[id] == draft.get(default)]
        if not found:
            raise BadUpdate(f"Cannot set default {what}: {draft.get(default)}")
        (specs.check_spec if id == "spec-id" else orders.check_order)(found[0], schema)


def _closed(data: dict[str, Any], now: int) -> dict[str, Any]:
    """What the format version wants written, and nothing of another one."""
    data["last-updated-ms"] = now
    version, none = data["format-version"], data.get("current-snapshot-id") in (None, -1)
    if none:
        data["current-snapshot-id"] = None if version >= 3 else -1
    if version == 1:
        # For readers that are older than lists of schemas and specs.
        data["schema"] = next(one for one in data["schemas"] if one.get("schema-id", 0) == data["current-schema-id"])
        spec = next(one for one in data["partition-specs"] if one["spec-id"] == data["default-spec-id"])
        data["partition-spec"] = spec["fields"]
        data.pop("last-sequence-number", None)
    else:
        data.pop("schema", None)
        data.pop("partition-spec", None)
        data.setdefault("last-sequence-number", 0)
    if version < 3:
        data.pop("next-row-id", None)
    else:
        data.setdefault("next-row-id", 0)
    if not data.get("encryption-keys", True):
        del data["encryption-keys"]
    return data


def _upgrade(draft: Draft, update: Json) -> None:
    version = integer("format-version", update)
    if version > NEWEST:
        raise BadUpdate(f"Cannot upgrade table to unsupported format version: v{version} (supported: v{NEWEST})")
    if version < draft.version:
        raise BadUpdate(f"Cannot downgrade v{draft.version} table to v{version}")
    draft.put("format-version", version)
    if draft.get("table-uuid") is None and draft.changed:
        draft.put("table-uuid", str(uuids.uuid4()))


def _add_schema(draft: Draft, update: Json) -> None:
    schema = Schema(part("schema", update))
    schema.check_version(draft.version)
    known = draft.get("schemas", ())
    for one in known:
        if same_schema(one, schema.raw):
            draft.added["schema"] = one.get("schema-id", 0)
            return
    id = max([draft.get("current-schema-id", 0) - 1, *(one.get("schema-id", 0) for one in known)]) + 1
    draft.own_list("schemas").append({**schema.raw, "schema-id": id})
    draft.put("last-column-id", max(draft.get("last-column-id", 0), schema.highest))
    draft.added["schema"] = id


def _set_current_schema(draft: Draft, update: Json) -> None:
    none = "Cannot set last added schema: no schema has been added"
    id = draft.last_added("schema", integer("schema-id", update), none)
    if id == draft.get("current-schema-id"):
        return
    if all(one.get("schema-id", 0) != id for one in draft.get("schemas", ())):
        raise BadUpdate(f"Cannot set current schema to unknown schema: {id}")
    draft.put("current-schema-id", id)
    draft.rebound = True


def _remove_schemas(draft: Draft, update: Json) -> None:
    gone = set(integers("schema-ids", update))
    if draft.get("current-schema-id") in gone:
        raise BadUpdate("Cannot remove the current schema")
    draft.keep("schemas", lambda one: one.get("schema-id", 0) not in gone)


UPDATES: dict[str, Callable[[Draft, Json], None]] = {
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "remove-schemas": _remove_schemas,
    **specs.UPDATES,
    **orders.UPDATES,
    **snapshots.UPDATES,
    **refs.UPDATES,
    **statistics.UPDATES,
    **encryption.UPDATES,
    **properties.UPDATES,
}
