"""View metadata: the first version from a request, and each next one from a list of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from takehold.iceberg.metadata import properties
from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.requirements import check_view, each, kind_of
from takehold.iceberg.metadata.schemas import Schema, same_schema
from takehold.iceberg.metadata.table import UPDATES as TABLE_UPDATES
from takehold.iceberg.metadata.values import (
    INT_MAX,
    Json,
    bounded,
    integer,
    items,
    long,
    optional,
    part,
    record,
    shown,
    text,
    text_map,
    texts,
)

__all__ = ["new_view", "read_version", "update_view"]

HISTORY = "version.history.num-entries"
MAY_DROP = "replace.drop-dialect.allowed"
MEANS = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")


def new_view(request: Mapping[str, Any], *, uuid: str, location: str, now: int) -> dict[str, Any]:
    """The metadata of a view that a CreateViewRequest asks for; its first version is 1, its schema 0."""
    bounded(record(request, "create view request"), "create view request")
    if "name" in request and not optional(text, "name", request):
        raise BadUpdate(f"Invalid view name: {shown(request['name'])}")
    sent = record(part("view-version", request), "view version")
    version = read_version({"version-id": 1, "schema-id": 0, "timestamp-ms": now, "summary": {}, **sent})
    others = sorted({one["type"].lower() for one in version["representations"]} - {"sql"})
    if others:
        raise BadUpdate(f"Found unsupported view representations: [{', '.join(others)}]")
    if not version["representations"]:
        raise BadUpdate("Cannot create view without specifying a query")
    _check_dialects(version)
    schema = Schema(part("schema", request))
    kept = optional(text_map, "properties", request) or {}
    _history_size(kept)
    return {
        "view-uuid": uuid,
        "format-version": 1,
        "location": properties.stripped(location),
        "schemas": [{**schema.raw, "schema-id": 0}],
        "current-version-id": 1,
        "versions": [{**version, "version-id": 1, "schema-id": 0}],
        "version-log": [{"timestamp-ms": version["timestamp-ms"], "version-id": 1}],
        "properties": kept,
    }


def update_view(
    base: dict[str, Any],
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
    *,
    now: int,
) -> dict[str, Any]:
    """The next version of a view: requirements checked, updates applied; `base` itself when nothing changes."""
    requirements, updates = each(requirements, "requirements"), each(updates, "metadata updates")
    check_view(base, requirements)
    draft = Draft(dict(base), now)
    for update in updates:
        action = kind_of(update, "action", "metadata update")
        if (apply := UPDATES.get(action)) is None:
            if action in TABLE_UPDATES:
                raise BadUpdate(f"Cannot apply update {_java_name(action)} to a view")
            raise BadUpdate(f"Cannot convert metadata update action to json: {shown(action)[1:-1]}")
        apply(draft, update)
    return _finished(draft, base) if draft.changed else base


def _java_name(action: str) -> str:
    words = {"spec": "partition spec"}
    return "".join(word.capitalize() for part in action.split("-") for word in words.get(part, part).split())


def read_version(raw: object) -> dict[str, Any]:
    """A version of a view, or which rule it breaks."""
    version = record(raw, "view version")
    if integer("version-id", version) < 1:
        raise BadUpdate(f"Invalid view version id (must be positive): {version['version-id']}")
    integer("schema-id", version)
    long("timestamp-ms", version)
    text_map("summary", version)
    representations = part("representations", version)
    if not isinstance(representations, list | tuple):
        raise BadUpdate(f"Cannot parse representations from non-array: {shown(representations)}")
    for one in representations:
        representation = record(one, "view representation")
        if text("type", representation).lower() == "sql":
            text("sql", representation)
            text("dialect", representation)
    optional(text, "default-catalog", version)
    texts("default-namespace", version)
    return {name: value for name, value in version.items() if value is not None}


def _dialects(version: Json) -> list[str]:
    return [one["dialect"].lower() for one in version["representations"] if one["type"].lower() == "sql"]


def _check_dialects(version: Json) -> None:
    seen: set[str] = set()
    for dialect in _dialects(version):
        if dialect in seen:
            raise BadUpdate(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        seen.add(dialect)


def _add_version(draft: Draft, update: Json) -> None:
    version = read_version(part("view-version", update))
    known = items("versions", draft.data)
    for one in known:
        if all(one.get(name) == version.get(name) for name in MEANS):
            draft.added["version"] = one["version-id"]
            return
    none = "Cannot set last added schema: no schema has been added"
    schema_id = draft.last_added("schema", version["schema-id"], none)
    if all(schema.get("schema-id", 0) != schema_id for schema in draft.get("schemas", ())):
        raise BadUpdate(f"Cannot add version with unknown schema: {schema_id}")
    _check_dialects(version)
    id = max([version["version-id"], *(one["version-id"] + 1 for one in known)])
    if id > INT_MAX:
        raise BadUpdate("Cannot add a view version: no version ids are left")
    draft.own_list("versions").append({**version, "version-id": id, "schema-id": schema_id})
    draft.new_snapshots.add(id)
    draft.added["version"] = id


def _set_current_version(draft: Draft, update: Json) -> None:
    none = "Cannot set last version id: no current version id has been set"
    id = draft.last_added("version", integer("view-version-id", update), none)
    if id == draft.get("current-version-id"):
        return
    if all(one["version-id"] != id for one in draft.get("versions", ())):
        raise BadUpdate(f"Cannot set current version to unknown version: {id}")
    draft.put("current-version-id", id)


def _add_schema(draft: Draft, update: Json) -> None:
    schema = Schema(part("schema", update))
    known = draft.get("schemas", ())
    for one in known:
        if same_schema(one, schema.raw):
            draft.added["schema"] = one.get("schema-id", 0)
            return
    id = max((one.get("schema-id", 0) for one in known), default=-1) + 1
    draft.own_list("schemas").append({**schema.raw, "schema-id": id})
    draft.added["schema"] = id


def _upgrade(draft: Draft, update: Json) -> None:
    version = integer("format-version", update)
    if version < draft.version:
        raise BadUpdate(f"Cannot downgrade v{draft.version} view to v{version}")
    if version > 1:
        raise BadUpdate(f"Unsupported format version: {version}")


def _history_size(kept: Mapping[str, str]) -> int:
    if HISTORY not in kept:
        return 10
    size = properties.number(kept, HISTORY)
    if size is None:
        raise BadUpdate(f"For input string: {shown(kept[HISTORY])}")
    if size <= 0:
        raise BadUpdate(f"{HISTORY} must be positive but was {size}")
    return size


def _finished(draft: Draft, base: Json) -> dict[str, Any]:
    data, kept = draft.data, draft.get("properties", {})
    versions = {one["version-id"]: one for one in data["versions"]}
    current, before = data["current-version-id"], base["current-version-id"]
    if kept.get(MAY_DROP, "false").lower() != "true":
        old = next(one for one in base["versions"] if one["version-id"] == before)
        _check_dropped(set(_dialects(old)), set(_dialects(versions[current])))
    if current != before:
        # A version that comes back is current from now on; a new one says itself since when.
        when = versions[current]["timestamp-ms"] if current in draft.new_snapshots else draft.now
        draft.own_list("version-log").append({"timestamp-ms": when, "version-id": current})
    most = max(_history_size(kept), len(draft.new_snapshots | {current}))
    if len(versions) > most:
        newest = sorted(versions.keys() - {current}, reverse=True)[: most - 1]
        _expire(draft, {current, *newest})
    return data


def _check_dropped(old: set[str], new: set[str]) -> None:
    if not old <= new:
        said = [f"[{', '.join(sorted(dialects))}]" for dialects in (old, new)]
        raise BadUpdate(
            f"Cannot replace view due to loss of view dialects ({MAY_DROP}=false):\n"
            f"Previous dialects: {said[0]}\nNew dialects: {said[1]}"
        )


def _expire(draft: Draft, retained: set[int]) -> None:
    draft.keep("versions", lambda one: one["version-id"] in retained)
    log: list[Json] = []
    for entry in draft.get("version-log", ()):
        if entry["version-id"] in retained:
            log.append(entry)
        else:
            log.clear()
    draft.own_list("version-log")[:] = log


UPDATES: dict[str, Callable[[Draft, Json], None]] = {
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current_version,
    **properties.UPDATES,
}
