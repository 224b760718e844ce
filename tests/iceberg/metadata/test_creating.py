"""New tables: fresh ids, properties, format versions; and tables built by a create transaction."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from takehold.iceberg.metadata import BadUpdate, new_table, update_table
from tests.iceberg.metadata.requests import NOW, SCHEMA, UUID, action, by, column, require, sort, struct, table

POINTS = {"type": "list", "element-id": 4, "element-required": True, "element": struct(column(8, "x", "double"))}
ATTRIBUTES = {
    "type": "map",
    "key-id": 1,
    "key": "string",
    "value-id": 9,
    "value-required": False,
    "value": "int",
}


def test_columns_are_numbered_from_one_outer_ones_first() -> None:
    schema = struct(
        column(7, "points", POINTS), column(0, "id", required=True), column(5, "attributes", ATTRIBUTES),
        identifier_field_ids=[0],
    )  # fmt: skip
    made = table(schema=schema)
    first, second, third = made["schemas"][0]["fields"]
    assert [first["id"], second["id"], third["id"]] == [1, 2, 3]
    assert first["type"]["element-id"] == 4
    assert first["type"]["element"]["fields"][0]["id"] == 5
    assert (third["type"]["key-id"], third["type"]["value-id"]) == (6, 7)
    assert made["schemas"][0]["identifier-field-ids"] == [2]
    assert made["last-column-id"] == 7


def test_specs_and_orders_follow_their_columns() -> None:
    made = table(
        schema=struct(column(10, "id"), column(20, "at", "timestamptz")),
        partition_spec={"fields": [by(20, "DAY", "day"), by(10, "bucket[4]")]},
        write_order={"order-id": 9, "fields": [sort(20)]},
    )
    assert [(one["source-id"], one["field-id"]) for one in made["partition-specs"][0]["fields"]] == [
        (2, 1000),
        (1, 1001),
    ]
    assert made["partition-specs"][0]["fields"][0]["transform"] == "day"
    assert made["last-partition-id"] == 1001
    assert made["sort-orders"] == [{"order-id": 1, "fields": [sort(2)]}]
    assert made["default-sort-order-id"] == 1


def test_a_table_is_v2_unless_it_asks_for_another_version() -> None:
    assert new_table({"schema": SCHEMA}, uuid=UUID, location="s3://b/t/", now=NOW)["format-version"] == 2
    third = table(3)
    assert (third["format-version"], third["next-row-id"], third["current-snapshot-id"]) == (3, 0, None)
    first = table(1)
    assert first["schema"] == first["schemas"][0]
    assert first["partition-spec"] == []
    assert "last-sequence-number" not in first
    for asked in ("0", "4", "x", "99999999999999999999"):
        with pytest.raises(BadUpdate, match="Unsupported format version"):
            table(properties={"format-version": asked})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_pyiceberg_reads_a_new_table(version: int) -> None:
    read = TableMetadataUtil.parse_raw(json.dumps(table(version)))
    assert (read.format_version, str(read.table_uuid)) == (version, UUID)


def test_reserved_properties_are_not_kept_and_parquet_is_compressed() -> None:
    asked = {"format-version": "2", "uuid": "x", "current-schema": "y", "owner": "me"}
    assert table(properties=asked)["properties"] == {"owner": "me", "write.parquet.compression-codec": "zstd"}
    assert table(properties={"write.parquet.compression-codec": "gzip"})["properties"] == {
        "write.parquet.compression-codec": "gzip"
    }


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"commit.retry.num-retries": "x"}, "must have integer value"),
        ({"commit.retry.min-wait-ms": "-1"}, "must have non negative integer value"),
        ({"encryption.key-id": "k"}, "Invalid properties for v2"),
        ({"write.metadata.metrics.column.nope": "full"}, "could not find column nope"),
        ({"a": 1}, "Cannot parse to a string value: a: 1"),
        ({"a": None}, "Cannot parse to a string value: a: null"),
        ([], "Cannot parse string map from non-object value"),
    ],
)
def test_a_table_does_not_start_with_wrong_properties(properties: Any, words: str) -> None:
    with pytest.raises(BadUpdate, match=words):
        table(properties=properties)


def test_a_request_without_a_name_or_schema_is_refused() -> None:
    with pytest.raises(BadUpdate, match="Invalid schema: null"):
        new_table({"name": "t"}, uuid=UUID, location="s3://b/t", now=NOW)
    with pytest.raises(BadUpdate, match="Invalid table name: null"):
        table(name=None)
    with pytest.raises(BadUpdate, match="Invalid table name"):
        table(name="")


def test_what_nobody_knows_survives() -> None:
    schema = struct(column(1, "id", remark="unknown to us"), note=1)
    made = table(schema=schema)
    assert made["schemas"][0]["note"] == 1
    assert made["schemas"][0]["fields"][0]["remark"] == "unknown to us"
    changed = update_table(
        {**made, "from-the-future": [1]}, [], [action("set-properties", updates={"a": "b"})], now=NOW
    )
    assert changed["from-the-future"] == [1]


def staged(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The updates with which a client commits a table that was staged."""
    return [
        action("assign-uuid", uuid=made["table-uuid"]),
        action("upgrade-format-version", format_version=made["format-version"]),
        action("add-schema", schema=made["schemas"][0], last_column_id=made["last-column-id"]),
        action("set-current-schema", schema_id=-1),
        action("add-spec", spec=made["partition-specs"][0]),
        action("set-default-spec", spec_id=-1),
        action("add-sort-order", sort_order=made["sort-orders"][0]),
        action("set-default-sort-order", sort_order_id=-1),
        action("set-location", location=made["location"]),
        action("set-properties", updates=made["properties"]),
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_create_transaction_builds_the_table_that_was_staged(version: int) -> None:
    made = table(
        version,
        partition_spec={"fields": [by(1, "bucket[4]")]},
        write_order={"fields": [sort(2, "day")]},
    )
    built = update_table(None, [require("assert-create")], staged(made), now=NOW)
    assert built == made


def test_a_create_transaction_without_a_version_makes_v2() -> None:
    updates = [one for one in staged(table()) if one["action"] not in ("upgrade-format-version", "assign-uuid")]
    built = update_table(None, [require("assert-create")], updates, now=NOW)
    assert built["format-version"] == 2
    assert len(built["table-uuid"]) == 36


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("add-schema", "Cannot set last added schema: no schema has been added"),
        ("add-spec", "Cannot set last added spec: no spec has been added"),
        ("add-sort-order", "Cannot set last added sort order: no sort order has been added"),
        ("set-location", "Table location is required in format v2"),
    ],
)
def test_a_create_transaction_must_say_everything(missing: str, words: str) -> None:
    updates = [one for one in staged(table()) if one["action"] != missing]
    with pytest.raises(BadUpdate, match=words):
        update_table(None, [], updates, now=NOW)


def test_nothing_is_no_table() -> None:
    with pytest.raises(BadUpdate, match="location"):
        update_table(None, [], [], now=NOW)
    with pytest.raises(BadUpdate, match="Partition specs cannot be null or empty"):
        update_table(None, [], [action("set-location", location="s3://b/t")], now=NOW)
