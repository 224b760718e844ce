"""Snapshots, branches and tags, and what is kept about them: logs, sequence numbers, row ids, statistics."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from takehold.iceberg.metadata import BadUpdate, RequirementFailed, RetryableValidation, update_table
from tests.iceberg.metadata.requests import NOW, UUID, action, head, snapshot, table

MINUTE = 60_000


def commit(base: dict[str, Any], *updates: dict[str, Any], at: int = 100, **options: Any) -> dict[str, Any]:
    return update_table(base, [], updates, now=NOW + at, **options)


def append(base: dict[str, Any], id: int, **fields: Any) -> dict[str, Any]:
    return commit(base, snapshot(id, parent_snapshot_id=id - 1 or None, **fields), head(id), at=id)


def heads(metadata: dict[str, Any]) -> list[int]:
    return [entry["snapshot-id"] for entry in metadata["snapshot-log"]]


def refused(words: str, base: dict[str, Any], *updates: dict[str, Any]) -> None:
    with pytest.raises(BadUpdate, match=re.escape(words)):
        commit(base, *updates)


def three() -> dict[str, Any]:
    base = table()
    for id in (1, 2, 3):
        base = append(base, id)
    return base


def test_a_snapshot_becomes_the_head_of_main() -> None:
    changed = append(table(), 1)
    assert (changed["current-snapshot-id"], changed["last-sequence-number"]) == (1, 1)
    assert changed["refs"] == {"main": {"snapshot-id": 1, "type": "branch"}}
    assert changed["snapshot-log"] == [{"timestamp-ms": NOW + 1, "snapshot-id": 1}]


@pytest.mark.covers("M-27")
def test_a_late_sequence_number_is_a_conflict_to_retry() -> None:
    with pytest.raises(RetryableValidation) as late:
        commit(three(), snapshot(9, 3, parent_snapshot_id=2))
    assert str(late.value) == (
        "Validation failed, please retry: Cannot add snapshot with sequence number 3 older than last sequence number 3"
    )
    assert isinstance(late.value, RequirementFailed)


def test_a_snapshot_without_a_parent_does_not_take_the_sequence_number_back() -> None:
    changed = commit(three(), snapshot(9, 1), head(9, "other"))
    assert changed["last-sequence-number"] == 3


def test_rows_of_v3_are_numbered_once() -> None:
    base = append(table(3), 1, first_row_id=0, added_rows=10)
    assert base["next-row-id"] == 10
    base = append(base, 2, first_row_id=50, added_rows=10)
    assert base["next-row-id"] == 60
    with pytest.raises(RetryableValidation, match="first-row-id is behind table next-row-id: 59 < 60"):
        append(base, 3, first_row_id=59, added_rows=1)
    refused("first-row-id is null", base, snapshot(3))
    refused("required when first-row-id is set", base, snapshot(3, first_row_id=60))
    refused("no row ids are left", base, snapshot(3, first_row_id=2**63 - 1, added_rows=1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"snapshot_id": 1}, "Snapshot already exists for id: 1"),
        ({"snapshot_id": -1}, "Invalid snapshot id (cannot be negative): -1"),
        ({"snapshot_id": None}, "Cannot parse missing long: snapshot-id"),
        ({"snapshot_id": 2**63}, "Cannot parse metadata updates: number out of range"),
        ({"snapshot_id": True}, "Cannot parse to a long value: snapshot-id: true"),
        ({"timestamp_ms": "x"}, 'Cannot parse to a long value: timestamp-ms: "x"'),
        ({"summary": []}, "Cannot parse summary from non-object: []"),
        ({"summary": {"a": 1}}, "Cannot parse to a string value: a: 1"),
        ({"manifest_list": None}, "Cannot parse missing string: manifest-list"),
        ({"sequence_number": -1}, "Invalid sequence number"),
        ({"added_rows": -1}, "Invalid added-rows (cannot be negative): -1"),
    ],
)
def test_a_snapshot_that_breaks_a_rule_is_refused(change: dict[str, Any], words: str) -> None:
    refused(words, three(), snapshot(9, **change) if "snapshot_id" not in change else snapshot(9, 9, **change))


def test_snapshots_of_v1_have_no_sequence_number() -> None:
    refused("Sequence number must be 0 in v1: 1", table(1), snapshot(1))
    changed = commit(table(1), snapshot(1, 0, manifest_list=None, manifests=["s3://b/m.avro"]), head(1))
    assert "last-sequence-number" not in changed
    refused("Cannot parse missing list: manifests", table(1), snapshot(1, 0, manifest_list=None))


def test_a_summary_without_an_operation_overwrites_and_an_empty_one_goes() -> None:
    assert append(table(), 1, summary={"a": "b"})["snapshots"][0]["summary"] == {"operation": "overwrite", "a": "b"}
    assert "summary" not in append(table(), 1, summary={})["snapshots"][0]


def test_only_the_last_head_of_a_commit_enters_the_log() -> None:
    changed = commit(table(), snapshot(1), head(1), snapshot(2, parent_snapshot_id=1), head(2))
    assert heads(changed) == [2]


def test_going_back_to_a_snapshot_happens_now() -> None:
    back = commit(three(), head(1), at=50)
    assert back["current-snapshot-id"] == 1
    assert back["snapshot-log"][-1] == {"timestamp-ms": NOW + 50, "snapshot-id": 1}


def test_removed_snapshots_take_their_statistics_refs_and_history_along() -> None:
    file = {"snapshot-id": 2, "statistics-path": "s3://b/s", "file-size-in-bytes": 1}
    full = {**file, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    base = commit(
        three(),
        head(2, "v2", "tag"),
        action("set-statistics", statistics=full),
        action("set-partition-statistics", partition_statistics=file),
    )
    changed = commit(base, action("remove-snapshots", snapshot_ids=[2, 99]))
    assert [one["snapshot-id"] for one in changed["snapshots"]] == [1, 3]
    assert (changed["statistics"], changed["partition-statistics"]) == ([], [])
    assert list(changed["refs"]) == ["main"]
    assert heads(changed) == [3]
    assert changed["snapshots"][1]["parent-snapshot-id"] == 2
    assert commit(base, action("remove-snapshots", snapshot_ids=[99])) is base


def test_without_main_there_is_no_current_snapshot() -> None:
    changed = commit(three(), action("remove-snapshot-ref", ref_name="main"))
    assert (changed["current-snapshot-id"], changed["refs"]) == (-1, {})
    assert len(changed["snapshots"]) == 3
    assert commit(three(), action("remove-snapshots", snapshot_ids=[3]))["current-snapshot-id"] == -1


def test_a_log_that_runs_backwards_is_refused_beyond_a_minute() -> None:
    base = three()
    refused("[BUG] Expected sorted", base, snapshot(4, timestamp_ms=NOW - 2 * MINUTE), head(4))
    refused("before last snapshot log entry", base, snapshot(4, timestamp_ms=NOW + 2 * MINUTE), head(4))
    assert commit(base, snapshot(4, timestamp_ms=NOW + MINUTE // 2), head(4))["current-snapshot-id"] == 4


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        (head(9), "Cannot set main to unknown snapshot: 9"),
        (head(9, "dev"), "Cannot set dev to unknown snapshot: 9"),
        (head(1, kind="tag"), "Cannot set main to a tag, it must be a branch"),
        (head(1, "x", "twig"), "Invalid snapshot ref type: twig"),
        (head(1, "x", "tag", min_snapshots_to_keep=1), "Tags do not support setting minSnapshotsToKeep"),
        (head(1, "x", "tag", max_snapshot_age_ms=1), "Tags do not support setting maxSnapshotAgeMs"),
        (head(1, "x", min_snapshots_to_keep=0), "Min snapshots to keep must be greater than 0"),
        (head(1, "x", max_snapshot_age_ms=0), "Max snapshot age must be greater than 0 ms"),
        (head(1, "x", max_ref_age_ms=0), "Max reference age must be greater than 0"),
        (action("remove-snapshot-ref"), "Cannot parse missing string: ref-name"),
        (action("remove-snapshots"), "Invalid set of snapshot ids to remove: must be non-null"),
        (action("remove-snapshots", snapshot_ids=["1"]), 'Cannot parse long from non-long value in snapshot-ids: "1"'),
    ],
)
def test_a_ref_that_breaks_a_rule_is_refused(ref: dict[str, Any], words: str) -> None:
    refused(words, three(), ref)


def test_a_ref_set_to_what_it_is_changes_nothing() -> None:
    base = commit(three(), head(1, "dev", max_ref_age_ms=5))
    assert commit(base, head(3), head(1, "dev", max_ref_age_ms=5, min_snapshots_to_keep=None)) is base
    assert commit(base, head(1, "dev"))["refs"]["dev"] == {"snapshot-id": 1, "type": "branch"}


def test_each_snapshot_has_at_most_one_statistics_file() -> None:
    def file(id: int, size: int) -> dict[str, Any]:
        blob = {
            "type": "not-yet-known",
            "snapshot-id": id,
            "sequence-number": 1,
            "fields": [1],
            "properties": {"a": "b"},
        }
        return {
            "snapshot-id": id,
            "statistics-path": "s3://b/s",
            "file-size-in-bytes": size,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [blob],
        }

    base = commit(three(), *(action("set-statistics", statistics=file(id, 1)) for id in (1, 2)))
    changed = commit(base, action("set-statistics", statistics=file(1, 5)))
    assert [(one["snapshot-id"], one["file-size-in-bytes"]) for one in changed["statistics"]] == [(1, 5), (2, 1)]
    assert commit(base, action("set-statistics", statistics=file(1, 1))) is base
    assert len(commit(base, action("remove-statistics", snapshot_id=1))["statistics"]) == 1
    assert commit(base, action("remove-statistics", snapshot_id=3)) is base
    assert commit(base, action("remove-partition-statistics", snapshot_id=3)) is base
    refused("non-array: null", base, action("set-statistics", statistics={**file(1, 1), "blob-metadata": None}))
    refused("statistics-path", base, action("set-partition-statistics", partition_statistics={"snapshot-id": 1}))


def test_encryption_keys_come_once_and_go() -> None:
    def key(id: str) -> dict[str, Any]:
        return action("add-encryption-key", encryption_key={"key-id": id, "encrypted-key-metadata": "AAEC"})

    base = commit(table(3), key("a"), key("b"))
    assert [one["key-id"] for one in base["encryption-keys"]] == ["a", "b"]
    assert commit(base, key("a"), action("remove-encryption-key", key_id="z")) is base
    gone = commit(base, *(action("remove-encryption-key", key_id=id) for id in ("a", "b")))
    assert "encryption-keys" not in gone
    refused("must be base64", base, action("add-encryption-key", encryption_key={**key("c")["encryption-key"], "encrypted-key-metadata": "?"}))  # fmt: skip  # noqa: E501
    refused("Invalid encryption key, must be non-null object: null", base, action("add-encryption-key"))


def test_properties_are_set_and_removed() -> None:
    base = commit(table(), action("set-properties", updates={"a": "1", "b": "2"}))
    changed = commit(
        base, action("set-properties", updated={"a": "3"}), action("remove-properties", removed=["b", "x"])
    )
    assert changed["properties"] == {"a": "3", "write.parquet.compression-codec": "zstd"}
    assert (
        commit(base, action("set-properties", updates={"a": "1"}), action("remove-properties", removals=["x"])) is base
    )
    refused("Cannot parse missing map: updates", base, action("set-properties"))
    refused("Cannot parse missing list: removals", base, action("remove-properties"))


def test_a_location_loses_the_slash_at_its_end() -> None:
    assert commit(table(), action("set-location", location="s3://b/u//"))["location"] == "s3://b/u"
    assert commit(table(), action("set-location", location="s3://"))["location"] == "s3://"
    refused("path must not be null or empty", table(), action("set-location", location=""))


def test_a_table_keeps_its_uuid() -> None:
    base = table()
    assert commit(base, action("assign-uuid", uuid=UUID.upper())) is base
    refused("Cannot reassign uuid", base, action("assign-uuid", uuid="00000000-0000-0000-0000-000000000000"))
    refused("Invalid UUID string", base, action("assign-uuid", uuid="../../x"))


def test_a_table_is_upgraded_and_never_downgraded() -> None:
    first = commit(table(1), snapshot(1, 0), head(1))
    second = commit(first, action("upgrade-format-version", format_version=2))
    assert (second["format-version"], second["last-sequence-number"]) == (2, 0)
    assert not {"schema", "partition-spec"} & second.keys()
    third = commit(second, action("upgrade-format-version", format_version=3))
    assert (third["format-version"], third["next-row-id"]) == (3, 0)
    for metadata in (first, second, third):
        TableMetadataUtil.parse_raw(json.dumps(metadata))
    assert commit(third, action("upgrade-format-version", format_version=3)) is third
    refused("Cannot downgrade v3 table to v2", third, action("upgrade-format-version", format_version=2))
    refused("unsupported format version: v4 (supported: v3)", third, action("upgrade-format-version", format_version=4))


def test_an_old_v1_file_is_understood() -> None:
    new = table(1)
    left_out = (
        "schemas",
        "current-schema-id",
        "partition-specs",
        "default-spec-id",
        "last-partition-id",
        "sort-orders",
    )
    old = {key: value for key, value in new.items() if key not in {*left_out, "default-sort-order-id", "refs"}}
    assert commit(old) is old
    changed = commit(old, action("set-properties", updates={"a": "b"}))
    assert {key: changed[key] for key in (*left_out, "refs")} == {key: new[key] for key in (*left_out, "refs")}


@pytest.mark.covers("M-27")
def test_the_metadata_log_remembers_the_files_before_up_to_a_bound() -> None:
    base = commit(table(), action("set-properties", updates={"write.metadata.previous-versions-max": "3"}))
    assert base["metadata-log"] == []
    for at in range(1, 6):
        change = action("set-properties", updates={"at": str(at)})
        base = update_table(base, [], [change], now=NOW + at, metadata_location=f"s3://b/{at}.json")
    assert [entry["metadata-file"] for entry in base["metadata-log"]] == [
        "s3://b/3.json",
        "s3://b/4.json",
        "s3://b/5.json",
    ]
    for bad in ("0", "-5", "many"):
        limit = action("set-properties", updates={"write.metadata.previous-versions-max": bad})
        changed = update_table(base, [], [limit], now=NOW, metadata_location="s3://b/6.json")
        assert len(changed["metadata-log"]) == (4 if bad == "many" else 1)


def test_time_does_not_run_backwards() -> None:
    base = commit(table(), action("set-properties", updates={"a": "1"}), at=5000)
    changed = commit(base, action("set-properties", updates={"a": "2"}), at=-5000)
    assert changed["last-updated-ms"] == base["last-updated-ms"]


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([action("make-coffee")], "Cannot convert metadata update action to json: make-coffee"),
        ([{"uuid": "x"}], "Cannot parse metadata update. Missing field: action"),
        ([7], "Cannot parse metadata update from non-object value: 7"),
        ({"a": 1}, 'Cannot parse metadata updates from non-array: {"a":1}'),
        ([action("add-view-version")], "Cannot apply update AddViewVersion to a table"),
        ([action("set-properties", updates={"a": "\ud800"})], "text that is not Unicode"),
        ([action("add-snapshot", x=float("nan"))], "not a JSON value"),
        ([action("add-snapshot", x={1: 2})], "not a JSON value"),
    ],
)
def test_an_update_that_nobody_knows_is_a_bad_request(updates: Any, words: str) -> None:
    with pytest.raises(BadUpdate, match=re.escape(words)):
        update_table(table(), [], updates, now=NOW)


def test_nesting_without_end_is_a_bad_request() -> None:
    deep: Any = "long"
    for at in range(10_000):
        deep = {"type": "list", "element-id": at, "element-required": True, "element": deep}
    refused("nested more than 200 levels deep", table(), action("add-schema", schema=deep))


def test_a_commit_copies_only_what_it_changes() -> None:
    base = three()
    before = copy.deepcopy(base)
    changed = commit(base, snapshot(4, parent_snapshot_id=3), head(4))
    assert base == before
    for name in ("schemas", "partition-specs", "sort-orders", "properties", "statistics"):
        assert changed[name] is base[name]
    assert all(new is old for new, old in zip(changed["snapshots"], base["snapshots"], strict=False))
