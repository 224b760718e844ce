"""Requests with anything anywhere: refused with a sentence or applied, never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from takehold.iceberg.metadata import BadUpdate, RequirementFailed, new_table, new_view, update_table, update_view
from tests.iceberg.metadata.requests import (
    NOW,
    POINTS,
    SCHEMA,
    UUID,
    action,
    by,
    column,
    head,
    require,
    snapshot,
    sort,
    struct,
    table,
    update_lists,
    version_of,
    view,
    view_update_lists,
)
from tests.lanes import scaled

pytestmark = pytest.mark.slow

ODD: list[Any] = [
    "9" * 5000,
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 10**400, 0.5, float("inf"), float("nan"),
    "", "x", "main", "\ud800", "long", "struct", "bucket[0]", "bucket[99999999999999999999]", "decimal(99,1)",
    [], [None], [[]], ["a", 1], {}, {"type": "struct"}, {"a": {}}, {"type": "list"}, {1: 2}, {"": None}, b"x", (), {1},
]  # fmt: skip
odd = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)

RICH = struct(
    column(1, "id", required=True),
    column(2, "points", POINTS),
    column(3, "at", "timestamptz", initial_default="2024-01-01T00:00:00+00:00", doc="when"),
    schema_id=1,
    identifier_field_ids=[1],
)
CREATE = {
    "name": "t",
    "schema": RICH,
    "partition-spec": {"spec-id": 0, "fields": [by(1, "bucket[4]", field_id=1000)]},
    "write-order": {"order-id": 1, "fields": [sort(1)]},
    "properties": {"format-version": "3", "a": "b"},
}
CREATE_VIEW = {"name": "v", "schema": SCHEMA, "view-version": version_of("select 1"), "properties": {"a": "b"}}
REQUIREMENTS = [
    require("assert-table-uuid", uuid=UUID),
    require("assert-ref-snapshot-id", ref="main", snapshot_id=None),
    require("assert-last-assigned-field-id", last_assigned_field_id=3),
    require("assert-default-spec-id", default_spec_id=0),
    require("assert-create"),
    require("assert-view-uuid", uuid=UUID),
]
UPDATES = [
    action("add-schema", schema=RICH),
    action("add-spec", spec=CREATE["partition-spec"]),
    action("add-sort-order", sort_order=CREATE["write-order"]),
    snapshot(5, first_row_id=0, added_rows=1),
    head(5, max_ref_age_ms=7),
    action("set-properties", updates={"a": "b"}),
    action("add-encryption-key", encryption_key={"key-id": "k", "encrypted-key-metadata": "AAEC", "properties": {}}),
    action("remove-snapshots", snapshot_ids=[1]),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside a value."""
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [place for key in value for place in places(value[key], (*path, key))]
    if isinstance(value, list):
        return found + [place for at, one in enumerate(value) for place in places(one, (*path, at))]
    return found


def copied(value: Any) -> Any:
    """A copy that shares nothing, not even with itself."""
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def broken(data: st.DataObject, value: Any) -> Any:
    """A copy in which one to three things are replaced, missing, twice or too many."""
    value = copied(value)
    for _ in range(data.draw(st.integers(1, 3))):
        if not (paths := places(value)):
            return value
        *way, last = data.draw(st.sampled_from(paths))
        inside = value
        for step in way:
            inside = inside[step]
        how = data.draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        if how == "replace":
            inside[last] = copied(data.draw(odd))
        elif how == "drop":
            del inside[last]
        elif isinstance(inside, list):
            inside.append(copied(data.draw(odd)) if data.draw(st.booleans()) else copied(inside[last]))
        else:
            inside[data.draw(st.text(max_size=4))] = copied(data.draw(odd))
    return value


def answered(build: Any, *arguments: Any, **options: Any) -> None:
    """It is built, and can be written; or it is refused, with something said."""
    try:
        made = build(*arguments, **options)
    except (BadUpdate, RequirementFailed) as refused:
        said = str(refused)
        assert 0 < len(said) < 20_000, said
        return
    json.dumps(made, allow_nan=False).encode()


many = settings(max_examples=scaled(2000), suppress_health_check=[HealthCheck.too_slow])


@many
@given(st.data())
def test_a_broken_create_request_is_answered(data: st.DataObject) -> None:
    answered(new_table, broken(data, CREATE), uuid=UUID, location="s3://b/t", now=NOW)


@many
@given(st.data())
def test_a_broken_create_view_request_is_answered(data: st.DataObject) -> None:
    answered(new_view, broken(data, CREATE_VIEW), uuid=UUID, location="s3://b/t", now=NOW)


@many
@given(st.data(), st.sampled_from([None, 1, 2, 3]))
def test_broken_updates_of_a_table_are_answered(data: st.DataObject, version: int | None) -> None:
    updates = data.draw(update_lists()) + data.draw(st.lists(st.sampled_from(UPDATES), max_size=2))
    base = None if version is None else table(version)
    answered(update_table, base, [], broken(data, updates), now=NOW)


@many
@given(st.data())
def test_broken_requirements_are_answered(data: st.DataObject) -> None:
    requirements = broken(data, data.draw(st.lists(st.sampled_from(REQUIREMENTS), min_size=1, max_size=3)))
    for base in (None, table()):
        answered(update_table, base, requirements, UPDATES[:1], now=NOW)
    answered(update_view, view(), requirements, [], now=NOW)


@many
@given(st.data())
def test_broken_updates_of_a_view_are_answered(data: st.DataObject) -> None:
    answered(update_view, view(), [], broken(data, data.draw(view_update_lists)), now=NOW)


@given(odd)
def test_a_request_that_is_something_else_is_answered(thing: Any) -> None:
    answered(new_table, thing, uuid=UUID, location="s3://b/t", now=NOW)
    answered(new_view, thing, uuid=UUID, location="s3://b/t", now=NOW)
    answered(update_table, table(), thing, [], now=NOW)
    answered(update_table, table(), [], thing, now=NOW)
    answered(update_view, view(), thing, thing, now=NOW)
