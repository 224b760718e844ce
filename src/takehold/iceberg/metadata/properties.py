"""Properties and the few other single values that tables and views share."""

from __future__ import annotations

import re
from collections.abc import Mapping

from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.schemas import Schema
from takehold.iceberg.metadata.values import INT_MAX, Json, shown, text, text_map, texts, uuid_text

__all__ = ["RESERVED", "UPDATES", "check_properties", "number", "stripped"]

RESERVED = frozenset(
    [
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    ]
)
"""Words to the catalog, which are not kept."""
COMMIT = ("num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms")
METRICS = "write.metadata.metrics.column."
ENCRYPTION = ("encryption.data-key-length", "encryption.key-id")
NUMBER = re.compile(r"[+-]?\d{1,10}", re.ASCII)


def stripped(location: str) -> str:
    """A location without the slashes at its end; those of a bare scheme stay."""
    if not location:
        raise BadUpdate("path must not be null or empty")
    while location.endswith("/") and not location.endswith("://"):
        location = location[:-1]
    return location


def number(properties: Mapping[str, str], name: str) -> int | None:
    """A property as a number, or None when it is missing or not one."""
    value = properties.get(name)
    if not isinstance(value, str) or not NUMBER.fullmatch(value):
        return None
    return int(value) if -INT_MAX - 1 <= int(value) <= INT_MAX else None


def check_properties(properties: Mapping[str, str], schema: Schema, version: int) -> None:
    """Refuse what a new table must not start with; a table that has it already may keep it."""
    for name in (f"commit.retry.{name}" for name in COMMIT):
        if name in properties:
            value = number(properties, name)
            if value is None:
                raise BadUpdate(f"Table property {name} must have integer value")
            if value < 0:
                raise BadUpdate(f"Table property {name} must have non negative integer value")
    if version < 3 and (found := [name for name in ENCRYPTION if name in properties]):
        raise BadUpdate(f"Invalid properties for v{version}: [{', '.join(found)}]")
    for name in properties:
        if name.startswith(METRICS) and name.removeprefix(METRICS) not in schema.ids:
            column = name.removeprefix(METRICS)
            raise BadUpdate(f"Invalid metrics config, could not find column {column} from table prop {name} in schema")


def _set_properties(draft: Draft, update: Json) -> None:
    updated = text_map("updated" if "updates" not in update and "updated" in update else "updates", update)
    known = draft.get("properties", {})
    if any(known.get(key) != value for key, value in updated.items()):
        draft.own_dict("properties").update(updated)


def _remove_properties(draft: Draft, update: Json) -> None:
    removed = texts("removed" if "removals" not in update and "removed" in update else "removals", update)
    known = draft.get("properties", {})
    for key in removed:
        if key in known:
            draft.own_dict("properties").pop(key, None)


def _set_location(draft: Draft, update: Json) -> None:
    draft.put("location", stripped(text("location", update)))


def _assign_uuid(draft: Draft, update: Json) -> None:
    uuid = uuid_text("uuid", update)
    name = "view-uuid" if "view-uuid" in draft.data else "table-uuid"
    known = draft.get(name)
    if known is None:
        draft.put(name, uuid)
    elif known.lower() != uuid.lower():
        # Our pointers are named by it.
        raise BadUpdate(f"Cannot reassign uuid: {shown(uuid)}")


UPDATES = {
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-location": _set_location,
    "assign-uuid": _assign_uuid,
}
