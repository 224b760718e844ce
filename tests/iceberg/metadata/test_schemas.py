"""Schemas, specs and sort orders: the rules they keep, and how one is found again instead of added twice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from takehold.iceberg.metadata import BadUpdate, update_table
from tests.iceberg.metadata.requests import NOW, SCHEMA, action, by, column, sort, struct, table

WIDER = struct(*SCHEMA["fields"], column(4, "price", "decimal(9,2)"))
NESTED = struct(
    column(1, "id", required=True),
    column(2, "place", struct(column(3, "city", "string", required=True)), required=True),
    column(4, "maybe", struct(column(5, "x", required=True))),
    column(
        6,
        "tags",
        {"type": "list", "element-id": 7, "element-required": True, "element": struct(column(8, "n", required=True))},
        required=True,
    ),
)


def commit(base: dict[str, Any], *updates: dict[str, Any]) -> dict[str, Any]:
    return update_table(base, [], updates, now=NOW + 1)


def add(schema: Any) -> dict[str, Any]:
    return action("add-schema", schema=schema)


def add_spec(*fields: Any, id: int = 0) -> dict[str, Any]:
    return action("add-spec", spec={"spec-id": id, "fields": list(fields)})


def add_order(*fields: Any, id: int = 1) -> dict[str, Any]:
    return action("add-sort-order", sort_order={"order-id": id, "fields": list(fields)})


def refused(words: str, base: dict[str, Any], *updates: dict[str, Any]) -> None:
    with pytest.raises(BadUpdate, match=re.escape(words)):
        commit(base, *updates)


def test_a_new_schema_gets_the_next_id_and_raises_the_last_column_id() -> None:
    changed = commit(table(), add({**WIDER, "schema-id": 77}), action("set-current-schema", schema_id=-1))
    assert [one["schema-id"] for one in changed["schemas"]] == [0, 1]
    assert (changed["current-schema-id"], changed["last-column-id"]) == (1, 4)


def test_a_schema_that_is_there_already_is_found_again() -> None:
    base = commit(table(), add(WIDER))
    respelled = struct(*SCHEMA["fields"], column(4, "price", "DECIMAL( 9, 2 )", doc=None))
    assert commit(base, add(respelled)) is base
    changed = commit(base, add(respelled), action("set-current-schema", schema_id=-1))
    assert (len(changed["schemas"]), changed["current-schema-id"]) == (2, 1)


def test_the_last_column_id_never_goes_down() -> None:
    base = commit(table(), add(WIDER))
    assert commit(base, add(struct(column(1, "id", required=True))))["last-column-id"] == 4


def test_schemas_go_except_the_current_one() -> None:
    base = commit(table(), add(WIDER))
    assert len(commit(base, action("remove-schemas", schema_ids=[1, 9]))["schemas"]) == 1
    assert commit(base, action("remove-schemas", schema_ids=[9])) is base
    refused("Cannot remove the current schema", base, action("remove-schemas", schema_ids=[0]))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (struct(column(1, "a"), column(1, "b")), "Multiple entries with same key: 1=a and 1=b"),
        (struct(column(1, "a"), column(2, "a")), "Invalid schema: multiple fields for name a: 1 and 2"),
        (struct(column(1, "a", "varchar")), "Cannot parse type string to primitive: varchar"),
        (struct(column(1, "a", "decimal(39, 1)")), "Decimals with precision larger than 38 are not supported: 39"),
        (struct(column(1, "a", f"fixed[{'9' * 5000}]")), "Cannot parse type string to primitive"),
        (struct(column(1, "a", {"type": "bag"})), "Cannot parse type from json"),
        (struct(column(1, "a", {"type": "list"})), "Cannot parse missing field: element"),
        (struct(column(-1, "a")), "Invalid field id for a: -1"),
        (struct(column(2**31 - 1, "a")), "Invalid field id for a: 2147483647"),
        (struct(column(2**31, "a")), "Cannot parse to an integer value: id: 2147483648"),
        (struct({"id": 1, "name": "a", "type": "int"}), "Cannot parse missing boolean: required"),
        (struct({"id": 1, "required": True, "type": "int"}), "Cannot parse missing string: name"),
        ({"type": "struct"}, "Cannot parse missing field: fields"),
        ({"type": "struct", "fields": {}}, "Cannot parse struct fields from non-array"),
        ({"type": "list", "fields": []}, "Cannot create schema, not a struct type"),
        ("long", "Cannot parse schema from non-object"),
        (struct(column(1, "a", "unknown", required=True)), "Cannot create required field with unknown type: a"),
        (struct(column(1, "a"), identifier_field_ids=[2]), "field does not exist"),
        (struct(column(1, "a"), identifier_field_ids=[1]), "not a required field"),
        (struct(column(1, "a", "double", required=True), identifier_field_ids=[1]), "float or double"),
        ({**NESTED, "identifier-field-ids": [2]}, "not a primitive type field"),
        ({**NESTED, "identifier-field-ids": [5]}, "must not be nested in an optional field maybe"),
        ({**NESTED, "identifier-field-ids": [8]}, "must not be nested in"),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused(schema: Any, words: str) -> None:
    refused(words, table(3), add(schema))


def test_a_required_column_of_required_structs_may_identify_rows() -> None:
    assert commit(table(), add({**NESTED, "identifier-field-ids": [1, 3]}))["last-column-id"] == 8


@pytest.mark.parametrize(
    "kind", ["variant", "unknown", "timestamp_ns", "timestamptz_ns", "geometry", "geography(a, karney)"]
)
def test_types_of_v3_are_refused_before(kind: str) -> None:
    schema = struct(column(1, "id", kind))
    for version in (1, 2):
        refused(f"Invalid schema for v{version}:\n- Invalid type for id: ", table(version), add(schema))
    assert len(commit(table(3), add(schema))["schemas"]) == 2


def test_defaults_are_for_v3_and_fit_their_type() -> None:
    good = struct(column(1, "n", "int", initial_default=7, write_default=8))
    refused("Invalid initial default for n: non-null default (7) is not supported until v3", table(), add(good))
    assert len(commit(table(3), add(good))["schemas"]) == 2


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("boolean", True, 1),
        ("int", 5, 2**31),
        ("long", 2**62, "1"),
        ("double", 1.5, "1.5"),
        ("string", "x", 1),
        ("date", "2024-02-29", "2024-13-01"),
        ("time", "10:00:00.123456", "25:00"),
        ("timestamp", "2024-01-01T10:00:00", "2024-01-01T10:00:00+00:00"),
        ("timestamptz", "2024-01-01T10:00:00+00:00", "2024-01-01T10:00:00+01:00"),
        ("uuid", "9c12d441-03fe-4693-9a96-a0705ddf69c1", "x"),
        ("fixed[2]", "00ff", "00"),
        ("binary", "00ff", "0g"),
        ("decimal(5, 2)", "12.34", "12.3"),
        ("variant", None, "x"),
    ],
)
def test_a_default_fits_its_column(kind: str, good: Any, bad: Any) -> None:
    def schema(value: Any) -> dict[str, Any]:
        return add(struct(column(1, "c", kind, write_default=value)))

    assert len(commit(table(3), schema(good))["schemas"]) == 2
    refused("default", table(3), schema(bad))


def test_partition_fields_get_ids_and_specs_are_found_again() -> None:
    base = commit(table(), add_spec(by(1, "bucket[16]", "b", field_id=1000), id=5))
    assert (base["partition-specs"][1]["spec-id"], base["last-partition-id"]) == (1, 1000)
    assert commit(base, add_spec(by(1, "BUCKET[16]", "b", field_id=1000))) is base
    changed = commit(
        base, add_spec(by(2, "day", "d"), by(1, "bucket[16]", "c")), action("set-default-spec", spec_id=-1)
    )
    assert [one["field-id"] for one in changed["partition-specs"][2]["fields"]] == [1001, 1000]
    assert (changed["default-spec-id"], changed["last-partition-id"]) == (2, 1001)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([by(9)], "Cannot find source column for partition field: None: by_9_ident: identity(9)"),
        ([by(1, "hour")], "Invalid source type long for transform: hour"),
        ([by(1, "sparkle")], "Unknown transform: sparkle"),
        ([by(1, "bucket[0]")], "Invalid number of buckets: 0 (must be > 0)"),
        ([by(1, "truncate[99999999999]")], "Invalid truncate width"),
        ([by(1, name="")], "Cannot use empty partition name: "),
        ([by(1, name="x"), by(2, "day", "x")], "Cannot use partition name more than once: x"),
        ([by(1, name="name")], "Cannot create identity partition sourced from different field in schema: name"),
        ([by(1), by(2, "day", field_id=1001)], "missing field IDs: 1 missing of 2 fields."),
        ([by(1, field_id=7), by(2, "day", field_id=7)], "Cannot use partition field id more than once"),
        ([{"name": "x", "transform": "identity"}], "Cannot parse missing int: source-id"),
        (["x"], "Cannot parse partition field from non-object"),
    ],
)
def test_a_spec_that_breaks_a_rule_is_refused(fields: Any, words: str) -> None:
    refused(words, table(), add_spec(*fields))


def test_columns_in_lists_partition_nothing() -> None:
    base = table(schema=NESTED)
    ids = {one["name"]: one for one in base["schemas"][0]["fields"]}
    inside = ids["tags"]["type"]["element"]["fields"][0]["id"]
    refused("Invalid partition field parent: list", base, add_spec(by(inside)))
    refused("Cannot partition by non-primitive source field: struct", base, add_spec(by(ids["place"]["id"])))


def test_specs_of_v1_are_numbered_in_sequence() -> None:
    refused("Spec does not use sequential IDs", table(1), add_spec(by(1, field_id=1001)))
    changed = commit(table(1), add_spec(by(1, "bucket[4]")), action("set-default-spec", spec_id=-1))
    assert changed["partition-spec"][0]["field-id"] == 1000


def test_specs_go_except_the_default_one() -> None:
    base = commit(table(), add_spec(by(1, "bucket[4]")))
    assert len(commit(base, action("remove-partition-specs", spec_ids=[1]))["partition-specs"]) == 1
    refused("Cannot remove the default partition spec", base, action("remove-partition-specs", spec_ids=[0]))
    refused("unknown spec: 7", base, action("set-default-spec", spec_id=7))


def test_a_column_under_the_default_spec_or_order_stays() -> None:
    without = add(struct(column(1, "id", required=True)))
    to_last = action("set-current-schema", schema_id=-1)
    split = commit(table(), add_spec(by(2, "day")), action("set-default-spec", spec_id=-1))
    refused("Cannot find source column for partition field: 1000: by_2_day: day(2)", split, without, to_last)
    sorted_by = commit(table(), add_order(sort(3)), action("set-default-sort-order", sort_order_id=-1))
    refused("Cannot find source column for sort field: identity(3) ASC NULLS FIRST", sorted_by, without, to_last)


def test_a_sort_order_is_added_once() -> None:
    base = commit(table(), add_order(sort(1), id=4), action("set-default-sort-order", sort_order_id=-1))
    assert (base["sort-orders"][1]["order-id"], base["default-sort-order-id"]) == (1, 1)
    assert commit(base, add_order(sort(1, "IDENTITY", "ASC"))) is base
    back = commit(base, add_order(id=0), action("set-default-sort-order", sort_order_id=-1))
    assert back["default-sort-order-id"] == 0


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (add_order(sort(9)), "Cannot find source column for sort field: identity(9) ASC NULLS FIRST"),
        (add_order(sort(1, "hour")), "Invalid source type long for transform: hour"),
        (add_order(sort(1, direction="up")), "Invalid sort direction: up"),
        (add_order({**sort(1), "null-order": "x"}), "Unexpected null order: x"),
        (add_order(id=3), "Unsorted order ID must be 0"),
        (add_order(sort(1), id=0), "Sort order ID 0 is reserved for unsorted order"),
        (action("set-default-sort-order", sort_order_id=3), "unknown order: 3"),
        (action("set-default-sort-order", sort_order_id=-1), "no sort order has been added"),
    ],
)
def test_a_sort_order_that_breaks_a_rule_is_refused(order: dict[str, Any], words: str) -> None:
    refused(words, table(), order)
