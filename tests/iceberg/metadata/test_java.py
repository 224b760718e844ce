"""What Java's builders make of the same updates is what we make of them."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from takehold import TakeholdError
from takehold.iceberg.metadata import new_table, update_table, update_view
from tests.iceberg.metadata import java as javas
from tests.iceberg.metadata import requests
from tests.iceberg.metadata.java import Java, Refused
from tests.lanes import scaled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(javas.MISSING), reason=f"not installed here: {', '.join(javas.MISSING)}"),
]
FILE = "s3://bucket/t/metadata/0.json"
LENIENT = (
    # What was found again is what was added last: draft.py says why.
    "no schema has been added",
    "no spec has been added",
    "no sort order has been added",
    "no current version id has been set",
    # Its list of what remains gets a negative size when ids to remove are unknown.
    "arraySize cannot be negative",
    # A view's version whose schema is -1 keeps the id that it was sent with (not in newer releases).
    "Multiple entries with same key: ",
)
"""Where Java says no to what has a meaning."""
STRICT = ("Cannot set main to a tag",)
"""What only newer releases of Java refuse."""

SOONER = ("Sequence number must be 0 in v1",)
"""What Java finds out at the end and we at once."""
SHORTER = ("Unsupported type", "Cannot bucket by type", "Cannot truncate type")
"""What Java says of a transform that does not fit, before it comes to say which one."""


@pytest.fixture(scope="module")
def java() -> Iterator[Java]:
    process = Java()
    yield process
    process.close()


def now() -> int:
    return int(time.time() * 1000)


def comparable(metadata: dict[str, Any], *, history: bool) -> dict[str, Any]:
    result = {key: value for key, value in metadata.items() if key != "last-updated-ms"}
    for log, id in (("snapshot-log", "snapshot-id"), ("version-log", "version-id")):
        if log in result:
            result[log] = [entry[id] for entry in result[log]]
    for name, key in (
        ("statistics", "snapshot-id"),
        ("partition-statistics", "snapshot-id"),
        ("versions", "version-id"),
    ):
        if name in result:
            result[name] = sorted(result[name], key=operator.itemgetter(key))
    if not history:
        result.pop("metadata-log", None)
    return result


def outcome(build: Any, *arguments: Any, **options: Any) -> tuple[dict[str, Any] | None, str]:
    try:
        return build(*arguments, **options), ""
    except TakeholdError as refused:
        return None, str(refused)
    except Refused as refused:
        return None, f"{refused.args[0]}: {refused.args[1]}"


def settled(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Snapshots of a moment ago, as Java looks at the clock of this machine."""
    for update in updates:
        for part in ("snapshot", "view-version"):
            if part in update:
                stamped = {**update[part], "timestamp-ms": now()}
                update[part] = stamped
    return updates


def counts_back(base: dict[str, Any], updates: list[dict[str, Any]]) -> bool:
    """Java lets a snapshot without a parent take the last sequence number back, and does not see row ids skipped."""
    last, free = base.get("last-sequence-number", 0), base.get("next-row-id", 0)
    for snapshot in (update["snapshot"] for update in updates if "snapshot" in update):
        if snapshot["sequence-number"] < last or snapshot.get("first-row-id", free) != free:
            return True
        last, free = snapshot["sequence-number"], free + snapshot["added-rows"]
    return False


@settings(max_examples=scaled(1000), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_tables_become_what_java_makes_of_them(java: Java, data: st.DataObject) -> None:
    base = {**requests.table(data.draw(st.integers(1, 3))), "last-updated-ms": now()}
    for _ in range(3):
        updates = settled(data.draw(requests.update_lists(base["format-version"])))
        theirs, why_not = outcome(java.table, base, FILE, updates)
        ours, refused = outcome(update_table, base, [], updates, now=now(), metadata_location=FILE)
        if ours is None or theirs is None:
            if (
                counts_back(base, updates)
                or any(sentence in why_not for sentence in LENIENT)
                or refused.startswith(STRICT)
            ):
                return
            assert (ours is None) == (theirs is None), f"java: {why_not or 'yes'}; we: {refused or 'yes'}; {updates}"
            check_words(why_not, refused)
            continue
        if counts_back(base, updates):
            return
        assert comparable(java.read_table(ours), history=ours is not base) == comparable(
            theirs, history=ours is not base
        )
        base = ours


def check_words(theirs: str, ours: str) -> None:
    """Both say the same, unless Java fell over something or we were asked about two things and named the other."""
    kind, _, words = theirs.partition(": ")
    if kind == "NullPointerException" or ours.startswith(SOONER) or words.startswith(SHORTER):
        return
    ours = ours.removeprefix("Validation failed, please retry: ")
    assert "".join(ours.split()) == "".join(words.split())


@settings(max_examples=scaled(1000), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_views_become_what_java_makes_of_them(java: Java, data: st.DataObject) -> None:
    base = requests.view()
    for _ in range(3):
        updates = settled(data.draw(requests.view_update_lists))
        if sum(update["action"] == "add-schema" for update in updates) > 1:
            # -1 is for Java the last schema that was new, for us the last that was added.
            return
        theirs, why_not = outcome(java.view, base, updates)
        ours, refused = outcome(update_view, base, [], updates, now=now())
        if ours is None or theirs is None:
            if any(sentence in why_not for sentence in LENIENT):
                return
            assert (ours is None) == (theirs is None), f"java: {why_not or 'yes'}; we: {refused or 'yes'}; {updates}"
            check_words(why_not, refused)
            continue
        if ours is base:
            # Java builds it once more, with old versions gone, and then does not write it.
            continue
        assert comparable(java.read_view(ours), history=True) == comparable(theirs, history=True)
        base = ours


@settings(max_examples=scaled(1000), suppress_health_check=list(HealthCheck))
@given(requests.create_requests())
def test_a_new_table_is_what_java_makes_of_the_request(java: Java, request_: dict[str, Any]) -> None:
    theirs, why_not = outcome(java.new_table, request_, "s3://bucket/t")
    ours, refused = outcome(new_table, request_, uuid=requests.UUID, location="s3://bucket/t", now=now())
    assert (ours is None) == (theirs is None), f"java: {why_not or 'yes'}; we: {refused or 'yes'}; {request_}"
    if ours is not None and theirs is not None:
        theirs["table-uuid"] = ours["table-uuid"]
        assert comparable(java.read_table(ours), history=True) == comparable(theirs, history=True)
