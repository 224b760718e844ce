"""Metadata files from outside: refused with a sentence, or good enough for every commit that follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from takehold.iceberg.metadata import BadUpdate, check_table, check_view, update_table, update_view
from tests.iceberg.metadata.requests import (
    NOW,
    SCHEMAS,
    action,
    by,
    head,
    require,
    snapshot,
    sort,
    table,
    update_lists,
    view,
    view_update_lists,
)
from tests.iceberg.metadata.test_malformed import UPDATES, answered, broken, copied, places
from tests.lanes import scaled

pytestmark = pytest.mark.slow

many = settings(max_examples=scaled(2000), suppress_health_check=[HealthCheck.too_slow])
STATISTICS = {
    "statistics": {
        "snapshot-id": 5, "statistics-path": "s3://b/s", "file-size-in-bytes": 9, "file-footer-size-in-bytes": 4,
        "blob-metadata": [],
    }
}  # fmt: skip
REQUIREMENTS = [
    require("assert-ref-snapshot-id", ref="main", snapshot_id=5),
    require("assert-last-assigned-field-id", last_assigned_field_id=3),
    require("assert-current-schema-id", current_schema_id=0),
    require("assert-last-assigned-partition-id", last_assigned_partition_id=1000),
    require("assert-default-spec-id", default_spec_id=0),
    require("assert-default-sort-order-id", default_sort_order_id=0),
]


def rich(version: int) -> dict[str, Any]:
    """The metadata of a table that has something of everything."""
    made = table(version)
    new = snapshot(5, first_row_id=0, added_rows=1) if version == 3 else snapshot(5)
    updates = [new, head(5), action("set-statistics", **STATISTICS), action("set-properties", updates={"a": "b"})]
    return update_table(made, [], updates, now=NOW, metadata_location="s3://b/t/metadata/00000-x.metadata.json")


def old() -> dict[str, Any]:
    """The file of a first version, as it was before there were lists of schemas and specs."""
    data = table(1)
    gone = ("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id", "sort-orders")
    return {name: value for name, value in data.items() if name not in (*gone, "default-sort-order-id", "refs")}


@pytest.mark.covers("M-49")
@pytest.mark.parametrize("metadata", [rich(2), rich(3), table(1), old()], ids=["2", "3", "1", "old 1"])
def test_what_a_catalog_writes_may_come_from_outside(metadata: dict[str, Any]) -> None:
    check_table(metadata)
    check_view(view())
    for name in ("location", "last-updated-ms", "last-column-id", "format-version", "table-uuid"):
        with pytest.raises(BadUpdate):
            check_table({key: value for key, value in metadata.items() if key != name})


EACH = [
    *({"action": "remove-snapshots", "snapshot-ids": [id]} for id in (5, 7)),
    snapshot(9, parent_snapshot_id=5, sequence_number=9, first_row_id=1, added_rows=1),
    head(5, "dev"),
    action("add-spec", spec={"spec-id": 0, "fields": [by(1, "bucket[7]")]}),
    action("set-default-spec", spec_id=0),
    action("add-sort-order", sort_order={"order-id": 1, "fields": [sort(1, "bucket[7]")]}),
    action("add-schema", schema=SCHEMAS[1]),
    action("set-current-schema", schema_id=0),
    action("remove-schemas", schema_ids=[7]),
    action("remove-partition-specs", spec_ids=[7]),
    action("set-statistics", **STATISTICS),
    action("remove-statistics", snapshot_id=7),
    action("remove-partition-statistics", snapshot_id=7),
    action("remove-encryption-key", key_id="x"),
    action("set-properties", updates={"c": "d"}),
    action("remove-properties", removals=["a"]),
    action("upgrade-format-version", format_version=3),
]


ODD: tuple[Any, ...] = ("gone", None, 7, "x", [], {}, [{}], {"x": {}})


@pytest.mark.covers("M-49")
@pytest.mark.parametrize("metadata", [rich(3), rich(2), table(1), old()], ids=["3", "2", "1", "old 1"])
def test_with_one_thing_wrong_it_is_refused_or_will_do(metadata: dict[str, Any]) -> None:
    refused = accepted = 0
    for *way, last in places(metadata):
        for odd in ODD:
            changed = copied(metadata)
            inside = changed
            for step in way:
                inside = inside[step]
            if odd == "gone":
                del inside[last]
            else:
                inside[last] = copied(odd)
            try:
                check_table(changed)
            except BadUpdate:
                refused += 1
                continue
            accepted += 1
            for update in EACH:
                answered(update_table, changed, [], [update], now=NOW, metadata_location="s3://b/x")
            for requirement in REQUIREMENTS:
                answered(update_table, changed, [requirement], EACH[-3:-2], now=NOW)
    assert min(refused, accepted) > 20


@pytest.mark.covers("M-49")
@many
@given(st.data(), st.sampled_from([1, 2, 3, 0]))
def test_a_broken_table_file_is_refused_or_will_do(data: st.DataObject, version: int) -> None:
    metadata = broken(data, (rich(version) if version > 1 else table(1)) if version else old())
    try:
        check_table(metadata)
    except BadUpdate:
        return
    updates = data.draw(update_lists()) + data.draw(st.lists(st.sampled_from(UPDATES), max_size=2))
    answered(update_table, metadata, [], updates, now=NOW, metadata_location="s3://b/x")
    answered(update_table, metadata, [], [action("upgrade-format-version", format_version=3), *updates], now=NOW)
    answered(update_table, metadata, [data.draw(st.sampled_from(REQUIREMENTS))], updates[:1], now=NOW)


@pytest.mark.covers("M-49")
@many
@given(st.data())
def test_a_broken_view_file_is_refused_or_will_do(data: st.DataObject) -> None:
    metadata = broken(data, view())
    try:
        check_view(metadata)
    except BadUpdate:
        return
    answered(update_view, metadata, [], data.draw(view_update_lists), now=NOW)
