"""Views: versions and schemas found again, the history and its bound, dialects that may not get lost."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pyiceberg.view.metadata import ViewMetadata

from takehold.iceberg.metadata import BadUpdate, update_view
from tests.iceberg.metadata.requests import NOW, SCHEMA, UUID, action, column, head, struct, version_of, view

LAST = action("set-current-view-version", view_version_id=-1)


def commit(base: dict[str, Any], *updates: dict[str, Any], at: int = 100) -> dict[str, Any]:
    return update_view(base, [], updates, now=NOW + at)


def add(sql: str, dialect: str = "spark", **fields: Any) -> dict[str, Any]:
    return action("add-view-version", view_version=version_of(sql, dialect, **fields))


def refused(words: str, base: dict[str, Any], *updates: dict[str, Any]) -> None:
    with pytest.raises(BadUpdate, match=re.escape(words)):
        commit(base, *updates)


def ids(metadata: dict[str, Any]) -> list[int]:
    return [one["version-id"] for one in metadata["versions"]]


def test_a_new_view_has_version_1_of_schema_0() -> None:
    made = view(schema={**SCHEMA, "schema-id": 7}, view_version=version_of("x", version_id=5, schema_id=7))
    assert (made["current-version-id"], made["schemas"][0]["schema-id"]) == (1, 0)
    assert (made["versions"][0]["version-id"], made["versions"][0]["schema-id"]) == (1, 0)
    assert made["version-log"] == [{"timestamp-ms": NOW, "version-id": 1}]
    assert str(ViewMetadata.model_validate_json(json.dumps(made)).view_uuid) == UUID


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"view_version": None}, "Cannot parse missing field: view-version"),
        ({"view_version": version_of("x", representations=[])}, "Cannot create view without specifying a query"),
        (
            {"view_version": version_of("x", representations=[{"type": "ast"}])},
            "unsupported view representations: [ast]",
        ),
        (
            {"view_version": version_of("x", representations=2 * version_of("x")["representations"])},
            "Cannot add multiple queries for dialect spark",
        ),
        ({"schema": None}, "Cannot parse missing field: schema"),
        ({"name": None}, "Invalid view name: null"),
        ({"properties": {"version.history.num-entries": "0"}}, "must be positive but was 0"),
    ],
)
def test_a_request_that_makes_no_view_is_refused(request_: dict[str, Any], words: str) -> None:
    with pytest.raises(BadUpdate, match=re.escape(words)):
        view(**request_)


def test_a_replaced_view_has_a_new_version_and_a_longer_history() -> None:
    wider = struct(*SCHEMA["fields"], column(4, "more"))
    changed = commit(view(), action("add-schema", schema=wider), add("select 2", schema_id=-1, version_id=2), LAST)
    assert (ids(changed), changed["current-version-id"]) == ([1, 2], 2)
    assert changed["versions"][1]["schema-id"] == 1
    assert [entry["version-id"] for entry in changed["version-log"]] == [1, 2]


def test_a_version_that_is_there_already_is_found_again() -> None:
    base = commit(view(), add("select 2"), LAST)
    assert commit(base, add("select 2", version_id=9, timestamp_ms=5), LAST) is base
    back = commit(base, add("select 1"), LAST, at=300)
    assert (ids(back), back["current-version-id"]) == ([1, 2], 1)
    assert back["version-log"][-1] == {"timestamp-ms": NOW + 300, "version-id": 1}
    assert commit(base, action("add-schema", schema={**SCHEMA, "schema-id": 4})) is base


def test_the_history_is_bounded_and_has_no_gaps() -> None:
    base = commit(view(), action("set-properties", updates={"version.history.num-entries": "2"}))
    for at in range(2, 6):
        base = commit(base, add(f"select {at}"), LAST)
    assert ids(base) == [4, 5]
    assert [entry["version-id"] for entry in base["version-log"]] == [4, 5]
    back = commit(base, action("set-current-view-version", view_version_id=4))
    changed = commit(back, add("select 6"))
    assert ids(changed) == [4, 6]
    assert [entry["version-id"] for entry in changed["version-log"]] == [4]


def test_versions_added_together_are_all_kept() -> None:
    base = commit(view(), action("set-properties", updates={"version.history.num-entries": "1"}))
    assert ids(commit(base, add("a"), add("b"), LAST)) == [2, 3]


def test_a_dialect_is_not_lost_by_accident() -> None:
    both = version_of("x")["representations"] + version_of("y", "Trino")["representations"]
    base = view(view_version=version_of("x", representations=both))
    refused(
        "Cannot replace view due to loss of view dialects (replace.drop-dialect.allowed=false):\n"
        "Previous dialects: [spark, trino]\nNew dialects: [spark]",
        base,
        add("z"),
        LAST,
    )
    allowed = action("set-properties", updates={"replace.drop-dialect.allowed": "true"})
    assert commit(base, allowed, add("z"), LAST)["current-version-id"] == 2


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (LAST, "Cannot set last version id: no current version id has been set"),
        (action("set-current-view-version", view_version_id=9), "Cannot set current version to unknown version: 9"),
        (add("x", schema_id=9), "Cannot add version with unknown schema: 9"),
        (add("x", schema_id=-1), "Cannot set last added schema: no schema has been added"),
        (add("x", version_id=0), "Invalid view version id (must be positive): 0"),
        (add("x", default_namespace=None), "Cannot parse JSON array from non-array value: default-namespace: null"),
        (add("x", default_namespace=[1]), "Cannot parse string from non-text value in default-namespace: 1"),
        (add("x", representations={}), "Cannot parse representations from non-array: {}"),
        (add("x", representations=[{"type": "sql", "sql": "x"}]), "Cannot parse missing string: dialect"),
        (add("x", representations=2 * version_of("x")["representations"]), "multiple queries for dialect spark"),
        (add("x", summary={"a": 1}), "Cannot parse to a string value: a: 1"),
        (action("upgrade-format-version", format_version=2), "Unsupported format version: 2"),
        (action("upgrade-format-version", format_version=0), "Cannot downgrade v1 view to v0"),
        (action("set-properties", updates={"version.history.num-entries": "x"}), 'For input string: "x"'),
        (action("assign-uuid", uuid="00000000-0000-0000-0000-000000000000"), "Cannot reassign uuid"),
        (head(1), "Cannot apply update SetSnapshotRef to a view"),
        (action("add-spec"), "Cannot apply update AddPartitionSpec to a view"),
        (action("make-coffee"), "Cannot convert metadata update action to json: make-coffee"),
    ],
)
def test_an_update_that_breaks_a_rule_is_refused(update: dict[str, Any], words: str) -> None:
    refused(words, view(), update)


def test_version_ids_do_not_run_over() -> None:
    base = commit(view(), add("x", version_id=2**31 - 1))
    refused("no version ids are left", base, add("y"))


def test_location_and_properties_change() -> None:
    base = view()
    changed = commit(
        base,
        action("set-location", location="s3://b/w/"),
        action("set-properties", updates={"a": "b", "c": "d"}),
        action("remove-properties", removals=["c"]),
        action("assign-uuid", uuid=UUID),
        action("upgrade-format-version", format_version=1),
    )
    assert (changed["location"], changed["properties"]) == ("s3://b/w", {"a": "b"})
    assert commit(base) is base
