"""What holds for every list of updates: the result is sound, the base is as it was, and nothing means nothing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.view.metadata import ViewMetadata

from takehold.iceberg.metadata import BadUpdate, RequirementFailed, update_table, update_view
from tests.iceberg.metadata.requests import (
    NOW,
    commits,
    require,
    table,
    update_lists,
    view,
    view_update_lists,
)

pytestmark = pytest.mark.slow
patient = settings(suppress_health_check=[HealthCheck.too_slow])
REFUSED = (BadUpdate, RequirementFailed)


def ids(metadata: dict[str, Any], many: str, key: str) -> list[int]:
    found = [one[key] for one in metadata[many]]
    assert len(set(found)) == len(found), f"{many} with one id twice: {found}"
    return found


def check_sound(metadata: dict[str, Any]) -> None:
    snapshots = ids(metadata, "snapshots", "snapshot-id")
    assert metadata["current-schema-id"] in ids(metadata, "schemas", "schema-id")
    assert metadata["default-spec-id"] in ids(metadata, "partition-specs", "spec-id")
    assert metadata["default-sort-order-id"] in ids(metadata, "sort-orders", "order-id")
    ids(metadata, "statistics", "snapshot-id")
    ids(metadata, "partition-statistics", "snapshot-id")
    assert all(ref["snapshot-id"] in snapshots for ref in metadata["refs"].values())
    main = metadata["refs"].get("main", {"snapshot-id": -1})
    assert (metadata["current-snapshot-id"] or -1) == main["snapshot-id"]
    log = [entry["snapshot-id"] for entry in metadata["snapshot-log"]]
    assert set(log) <= set(snapshots)
    if main["snapshot-id"] != -1:
        assert log[-1] == main["snapshot-id"]
    if metadata["format-version"] > 1:
        last = metadata["last-sequence-number"]
        assert all(snapshot.get("sequence-number", 0) <= last for snapshot in metadata["snapshots"])
    assert len(metadata["metadata-log"]) <= 100
    assert TableMetadataUtil.parse_raw(json.dumps(metadata)).format_version == metadata["format-version"]


def check_grown(before: dict[str, Any], after: dict[str, Any]) -> None:
    names = ("format-version", "last-column-id", "last-partition-id", "last-sequence-number", "next-row-id")
    for name in (*names, "last-updated-ms"):
        assert after.get(name, 0) >= before.get(name, 0), name


@patient
@given(st.data(), st.integers(1, 3))
def test_a_table_stays_sound_through_any_commits(data: st.DataObject, version: int) -> None:
    base = table(version)
    for at in range(1, 6):
        updates = data.draw(update_lists(base["format-version"]))
        before, sent = copy.deepcopy(base), copy.deepcopy(updates)
        try:
            changed = update_table(base, [], updates, now=NOW + at, metadata_location=f"s3://b/{at}.json")
        except REFUSED:
            changed = base
        assert base == before
        assert updates == sent
        check_sound(changed)
        check_grown(base, changed)
        if changed is not base:
            assert changed["metadata-log"][-1]["metadata-file"] == f"s3://b/{at}.json"
            assert without_traces(changed) != without_traces(base), "a new file that says nothing new"
        base = changed


def without_traces(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in ("last-updated-ms", "metadata-log")}


@patient
@given(st.data(), st.integers(1, 3))
def test_updates_in_one_commit_or_one_by_one_come_to_the_same(data: st.DataObject, version: int) -> None:
    """But for the log of main, which does not show what only existed inside a commit, and ids meant by -1."""
    base = table(version)
    updates = data.draw(update_lists(version))
    try:
        at_once = update_table(base, [], updates, now=NOW + 9)
        one_by_one = base
        for update in updates:
            one_by_one = update_table(one_by_one, [], [update], now=NOW + 9)
    except REFUSED:
        return
    for metadata in (at_once, one_by_one):
        assert {**without_traces(metadata), "snapshot-log": None} == {**without_traces(at_once), "snapshot-log": None}


@patient
@given(st.lists(commits(), max_size=12))
def test_main_dev_and_tag_are_where_a_simple_model_says(lists: list[list[dict[str, Any]]]) -> None:
    base, refs, last = table(2), {}, 0
    known: set[int] = set()
    for at, (added, ref) in enumerate(lists):
        snapshot = added["snapshot"]
        id, sequence = snapshot["snapshot-id"], snapshot["sequence-number"]
        fits = id not in known and (sequence > last or "parent-snapshot-id" not in snapshot)
        try:
            base = update_table(base, [], [added, ref], now=NOW + at)
        except REFUSED:
            assert not fits
            continue
        assert fits
        known.add(id)
        last = max(last, sequence)
        refs[ref["ref-name"]] = id
        assert {name: one["snapshot-id"] for name, one in base["refs"].items()} == refs
        assert base["last-sequence-number"] == last


@pytest.mark.covers("M-27")
@patient
@given(st.lists(commits(), min_size=2, max_size=6))
def test_of_two_commits_on_one_base_the_second_is_told(lists: list[list[dict[str, Any]]]) -> None:
    base = table(2)
    for number, (added, ref) in enumerate(lists):
        updates = [
            {**added, "snapshot": {**added["snapshot"], "snapshot-id": number + 1, "sequence-number": number + 1}}
        ]
        updates.append({**ref, "ref-name": "main", "snapshot-id": number + 1})
        seen = base["refs"].get("main", {}).get("snapshot-id")
        requirement = [require("assert-ref-snapshot-id", ref="main", snapshot_id=seen)]
        won = update_table(base, requirement, updates, now=NOW + 10)
        try:
            update_table(won, requirement, updates, now=NOW + 10)
        except RequirementFailed:
            base = won
        else:
            raise AssertionError("a commit on a base that moved on was let through")


@patient
@given(st.data())
def test_a_view_stays_sound_through_any_commits(data: st.DataObject) -> None:
    base = view()
    for at in range(1, 6):
        updates = data.draw(view_update_lists)
        before, sent = copy.deepcopy(base), copy.deepcopy(updates)
        try:
            changed = update_view(base, [], updates, now=NOW + at)
        except REFUSED:
            changed = base
        assert base == before
        assert updates == sent
        versions, schemas = ids(changed, "versions", "version-id"), ids(changed, "schemas", "schema-id")
        assert changed["current-version-id"] in versions
        assert all(version["schema-id"] in schemas for version in changed["versions"])
        log = [entry["version-id"] for entry in changed["version-log"]]
        assert set(log) <= set(versions)
        assert log[-1] == changed["current-version-id"]
        assert changed is base or changed != base
        ViewMetadata.model_validate_json(json.dumps(changed))
        base = changed
