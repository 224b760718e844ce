"""Partition specs: adding one (or finding it again), choosing the default, removing old ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.schemas import Schema
from takehold.iceberg.metadata.transforms import check_source, transform
from takehold.iceberg.metadata.values import (
    INT_MAX,
    Json,
    integer,
    integers,
    items,
    optional,
    part,
    record,
    shown,
    text,
)

__all__ = ["UPDATES", "check_spec", "fresh_spec", "read_spec"]

FIRST_FIELD_ID = 1000


def read_spec(raw: object, schema: Schema) -> list[dict[str, Any]]:
    """The fields of a spec over this schema, when they keep the rules; ids only where the request has them."""
    spec = record(raw, "spec")
    optional(integer, "spec-id", spec)
    fields: list[dict[str, Any]] = []
    names: set[str] = set()
    for one in items("fields", spec):
        field = record(one, "partition field")
        name, source = text("name", field), integer("source-id", field)
        known = schema.ids.get(name)
        if known is not None and known != source and source in schema.columns:
            raise BadUpdate(f"Cannot create identity partition sourced from different field in schema: {name}")
        if not name:
            raise BadUpdate("Cannot use empty partition name: ")
        if name in names:
            raise BadUpdate(f"Cannot use partition name more than once: {name}")
        names.add(name)
        fields.append({**field, "transform": transform(text("transform", field))})
    ids = [integer("field-id", field) for field in fields if "field-id" in field]
    if ids and len(ids) != len(fields):
        missing = len(fields) - len(ids)
        raise BadUpdate(f"Cannot parse spec with missing field IDs: {missing} missing of {len(fields)} fields.")
    if len(set(ids)) != len(ids):
        raise BadUpdate(f"Cannot use partition field id more than once: {shown(ids)}")
    check_spec({"fields": fields}, schema)
    return fields


def check_spec(spec: Json, schema: Schema) -> None:
    """Refuse a spec whose sources are gone, of the wrong type, or inside a list or map."""
    for field in spec["fields"]:
        column = check_source(schema, field["source-id"], field["transform"], "partition", _said(field))
        parent = column and column.parent
        while parent is not None and field["transform"] != "void":
            if parent.kind != "struct":
                raise BadUpdate(f"Invalid partition field parent: {parent.kind}")
            parent = parent.parent


def _said(field: Json) -> str:
    return f"{field.get('field-id')}: {field['name']}: {field['transform']}({field['source-id']})"


def fresh_spec(raw: object, schema: Schema, new: Mapping[int, int]) -> dict[str, Any]:
    """The spec of a new table: sources renumbered by `new`, fields numbered from 1000."""
    fields = read_spec(raw, schema)
    for field in fields:
        if field["source-id"] not in new:
            raise BadUpdate(f"Cannot find source column for partition field: {_said(field)}")
    return {
        "spec-id": 0,
        "fields": [
            {**field, "source-id": new[field["source-id"]], "field-id": FIRST_FIELD_ID + at}
            for at, field in enumerate(fields)
        ],
    }


def _add_spec(draft: Draft, update: Json) -> None:
    raw = part("spec", update)
    fields = read_spec(raw, draft.schema())
    specs = draft.get("partition-specs", ())
    for spec in specs:
        if _key(spec["fields"]) == _key(fields):
            draft.added["spec"] = spec["spec-id"]
            return
    _number(draft, fields)
    if draft.version == 1 and any(field["field-id"] != FIRST_FIELD_ID + at for at, field in enumerate(fields)):
        said = ", ".join(map(_said, fields))
        raise BadUpdate(f"Spec does not use sequential IDs that are required in v1: [{said}]")
    id = max((spec["spec-id"] for spec in specs), default=-1) + 1
    draft.own_list("partition-specs").append({**raw, "spec-id": id, "fields": fields})
    highest = max((field["field-id"] for field in fields), default=FIRST_FIELD_ID - 1)
    draft.put("last-partition-id", max(draft.get("last-partition-id", 0), highest))
    draft.added["spec"] = id


def _key(fields: Any) -> list[tuple[Any, ...]]:
    return [(field["source-id"], field["transform"].lower(), field["name"]) for field in fields]


def _number(draft: Draft, fields: list[dict[str, Any]]) -> None:
    """Give ids to fields that came without: those of the same source and transform, else the next."""
    if not fields or "field-id" in fields[0]:
        return
    known: dict[tuple[Any, ...], int] = {}
    if draft.version > 1:
        known = {
            (field["source-id"], field["transform"].lower()): field["field-id"]
            for spec in draft.get("partition-specs", ())
            for field in spec["fields"]
        }
    next_id = FIRST_FIELD_ID
    if draft.version > 1:
        next_id = max(next_id, draft.get("last-partition-id", 0) + 1)
    for field in fields:
        id = known.pop((field["source-id"], field["transform"]), None)
        if id is None:
            id, next_id = next_id, next_id + 1
        field["field-id"] = id
    if next_id > INT_MAX:
        raise BadUpdate("Cannot add a partition spec: no partition field ids are left")


def _set_default_spec(draft: Draft, update: Json) -> None:
    id = draft.last_added("spec", integer("spec-id", update), "Cannot set last added spec: no spec has been added")
    if id == draft.get("default-spec-id"):
        return
    draft.put("default-spec-id", id)
    draft.rebound = True


def _remove_specs(draft: Draft, update: Json) -> None:
    gone = set(integers("spec-ids", update))
    if draft.get("default-spec-id") in gone:
        raise BadUpdate("Cannot remove the default partition spec")
    draft.keep("partition-specs", lambda spec: spec["spec-id"] not in gone)


UPDATES = {
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "remove-partition-specs": _remove_specs,
}
