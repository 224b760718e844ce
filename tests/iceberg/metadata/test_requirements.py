"""Each requirement lets a commit through when it holds, and refuses it in Java's words when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from takehold import CommitConflict, UsageError
from takehold.iceberg.metadata import BadUpdate, RequirementFailed, update_table, update_view
from tests.iceberg.metadata.requests import NOW, UUID, action, head, require, snapshot, table, view

CHANGE = [action("set-properties", updates={"a": "b"})]
OTHER = "00000000-0000-0000-0000-000000000000"


def commit(base: dict[str, Any] | None, *requirements: dict[str, Any]) -> dict[str, Any]:
    return update_table(base, requirements, CHANGE, now=NOW)


def with_main() -> dict[str, Any]:
    return update_table(table(), [], [snapshot(1), head(1), head(1, "v1", "tag")], now=NOW + 10)


@pytest.mark.parametrize(
    "requirement",
    [
        require("assert-table-uuid", uuid=UUID),
        require("assert-table-uuid", uuid=UUID.upper()),
        require("ASSERT-TABLE-UUID", uuid=UUID),
        require("assert-ref-snapshot-id", ref="main", snapshot_id=1),
        require("assert-ref-snapshot-id", ref="dev", snapshot_id=None),
        {"type": "assert-ref-snapshot-id", "ref": "dev"},
        require("assert-last-assigned-field-id", last_assigned_field_id=3),
        require("assert-current-schema-id", current_schema_id=0),
        require("assert-last-assigned-partition-id", last_assigned_partition_id=999),
        require("assert-default-spec-id", default_spec_id=0),
        require("assert-default-sort-order-id", default_sort_order_id=0),
    ],
)
def test_a_requirement_that_holds_lets_the_commit_through(requirement: dict[str, Any]) -> None:
    assert commit(with_main(), requirement)["properties"]["a"] == "b"


@pytest.mark.covers("M-27")
@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        (require("assert-create"), "table already exists"),
        (require("assert-table-uuid", uuid=OTHER), f"UUID does not match: expected {UUID} != {OTHER}"),
        (
            require("assert-ref-snapshot-id", ref="main", snapshot_id=7),
            "branch main has changed: expected id 7 != 1",
        ),
        (require("assert-ref-snapshot-id", ref="v1", snapshot_id=7), "tag v1 has changed: expected id 7 != 1"),
        (require("assert-ref-snapshot-id", ref="main", snapshot_id=None), "branch main was created concurrently"),
        (require("assert-ref-snapshot-id", ref="v1", snapshot_id=None), "tag v1 was created concurrently"),
        (require("assert-ref-snapshot-id", ref="no", snapshot_id=7), "branch or tag no is missing, expected 7"),
        (
            require("assert-last-assigned-field-id", last_assigned_field_id=2),
            "last assigned field id changed: expected id 2 != 3",
        ),
        (require("assert-current-schema-id", current_schema_id=1), "current schema changed: expected id 1 != 0"),
        (
            require("assert-last-assigned-partition-id", last_assigned_partition_id=1000),
            "last assigned partition id changed: expected id 1000 != 999",
        ),
        (require("assert-default-spec-id", default_spec_id=1), "default partition spec changed: expected id 1 != 0"),
        (
            require("assert-default-sort-order-id", default_sort_order_id=1),
            "default sort order changed: expected id 1 != 0",
        ),
    ],
)
def test_a_requirement_that_fails_is_a_conflict_in_javas_words(requirement: dict[str, Any], words: str) -> None:
    with pytest.raises(RequirementFailed) as refused:
        commit(with_main(), requirement)
    assert str(refused.value) == f"Requirement failed: {words}"
    assert isinstance(refused.value, CommitConflict)


def test_requirements_are_looked_at_before_updates() -> None:
    with pytest.raises(RequirementFailed):
        update_table(table(), [require("assert-current-schema-id", current_schema_id=9)], [action("nonsense")], now=NOW)


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        (require("assert-nothing"), "Unrecognized update requirement. Cannot convert to json: assert-nothing"),
        ({"uuid": UUID}, "Cannot parse update requirement. Missing field: type"),
        ({"type": 3}, "Cannot parse to a string value: type: 3"),
        ("assert-create", 'Cannot parse update requirement from non-object value: "assert-create"'),
        (require("assert-table-uuid"), "Cannot parse missing string: uuid"),
        (require("assert-table-uuid", uuid=5), "Cannot parse to a string value: uuid: 5"),
        (
            require("assert-current-schema-id", current_schema_id=2**40),
            f"Cannot parse to an integer value: current-schema-id: {2**40}",
        ),
        (
            require("assert-current-schema-id", current_schema_id=False),
            "Cannot parse to an integer value: current-schema-id: false",
        ),
        (require("assert-view-uuid", uuid=UUID), "Cannot validate AssertViewUUID against a table"),
    ],
)
def test_a_requirement_that_nobody_knows_is_a_bad_request(requirement: Any, words: str) -> None:
    with pytest.raises(BadUpdate) as refused:
        commit(table(), requirement)
    assert str(refused.value) == words
    assert isinstance(refused.value, UsageError)


def test_a_create_takes_no_other_requirement() -> None:
    both = [require("assert-create"), require("assert-table-uuid", uuid=UUID)]
    for base in (None, table()):
        with pytest.raises(BadUpdate, match="Invalid create requirements"):
            commit(base, *both)
    with pytest.raises(BadUpdate, match="Invalid create requirements"):
        commit(None, both[1])


def test_a_view_is_recognised_by_its_uuid() -> None:
    base = view()
    changed = update_view(base, [require("assert-view-uuid", uuid=UUID.upper())], CHANGE, now=NOW)
    assert changed["properties"] == {"a": "b"}
    with pytest.raises(RequirementFailed) as refused:
        update_view(base, [require("assert-view-uuid", uuid=OTHER)], CHANGE, now=NOW)
    assert str(refused.value) == f"Requirement failed: view UUID does not match: expected {UUID} != {OTHER}"
    with pytest.raises(BadUpdate, match="Cannot validate AssertTableUUID against a view"):
        update_view(base, [require("assert-table-uuid", uuid=UUID)], CHANGE, now=NOW)
    with pytest.raises(BadUpdate, match="Unrecognized update requirement"):
        update_view(base, [require("assert-nothing")], CHANGE, now=NOW)
