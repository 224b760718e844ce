"""Sort orders: adding one (or finding it again), choosing the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.schemas import Schema
from takehold.iceberg.metadata.transforms import check_source, transform
from takehold.iceberg.metadata.values import Json, integer, items, optional, part, record, text

__all__ = ["UPDATES", "check_order", "fresh_order"]


def _read_order(raw: object, schema: Schema) -> list[dict[str, Any]]:
    order = record(raw, "sort order")
    id = optional(integer, "order-id", order)
    fields = [_read_field(record(one, "sort field")) for one in items("fields", order)]
    if id and not fields:
        raise BadUpdate("Unsorted order ID must be 0")
    if id == 0 and fields:
        raise BadUpdate("Sort order ID 0 is reserved for unsorted order")
    check_order({"fields": fields}, schema)
    return fields


def _read_field(field: Json) -> dict[str, Any]:
    integer("source-id", field)
    direction, nulls = text("direction", field), text("null-order", field)
    if direction.lower() not in ("asc", "desc"):
        raise BadUpdate(f"Invalid sort direction: {direction}")
    if nulls.lower() not in ("nulls-first", "nulls-last"):
        raise BadUpdate(f"Unexpected null order: {nulls}")
    by = transform(text("transform", field))
    return {**field, "transform": by, "direction": direction.lower(), "null-order": nulls.lower()}


def check_order(order: Json, schema: Schema) -> None:
    """Refuse an order whose sources are gone or of the wrong type."""
    for field in order["fields"]:
        said = f"{field['transform']}({field['source-id']}) {field['direction'].upper()} "
        said += field["null-order"].upper().replace("-", " ")
        check_source(schema, field["source-id"], field["transform"], "sort", said)


def fresh_order(raw: object, schema: Schema, new: Mapping[int, int]) -> dict[str, Any]:
    """The sort order of a new table: id 1, or 0 when it sorts by nothing."""
    fields = [{**field, "source-id": new[field["source-id"]]} for field in _read_order(raw, schema)]
    return {"order-id": 1 if fields else 0, "fields": fields}


def _key(order: Json) -> list[tuple[Any, ...]]:
    return [
        (field["source-id"], field["transform"].lower(), field["direction"].lower(), field["null-order"].lower())
        for field in order["fields"]
    ]


def _add_order(draft: Draft, update: Json) -> None:
    raw = part("sort-order", update)
    fields = _read_order(raw, draft.schema())
    orders = draft.get("sort-orders", ())
    for order in orders:
        if _key(order) == _key({"fields": fields}):
            draft.added["order"] = order["order-id"]
            return
    id = max((order["order-id"] for order in orders), default=0) + 1 if fields else 0
    draft.own_list("sort-orders").append({**raw, "order-id": id, "fields": fields})
    draft.added["order"] = id


def _set_default_order(draft: Draft, update: Json) -> None:
    none = "Cannot set last added sort order: no sort order has been added"
    id = draft.last_added("order", integer("sort-order-id", update), none)
    if id == draft.get("default-sort-order-id"):
        return
    draft.put("default-sort-order-id", id)
    draft.rebound = True


UPDATES = {"add-sort-order": _add_order, "set-default-sort-order": _set_default_order}
