"""Snapshots: adding and removing them, sequence numbers and row ids, and the log of what main was."""

from __future__ import annotations

import itertools
from typing import Any

from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate, RetryableValidation
from takehold.iceberg.metadata.refs import drop_ref
from takehold.iceberg.metadata.values import (
    LONG_MAX,
    Json,
    integer,
    long,
    longs,
    optional,
    part,
    record,
    shown,
    text,
    text_map,
    texts,
)

__all__ = ["UPDATES", "snapshot_log"]

ONE_MINUTE = 60_000
"""Clocks of clients and servers may differ by this much."""


def _read_snapshot(raw: object, version: int) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raw = record(raw, "table version")
    # A null stands for a field that is not there, which is what older readers insist on.
    snapshot = {name: value for name, value in raw.items() if value is not None}
    if long("snapshot-id", raw) < 0:
        raise BadUpdate(f"Invalid snapshot id (cannot be negative): {raw['snapshot-id']}")
    if (optional(long, "sequence-number", raw) or 0) < 0:
        raise BadUpdate(f"Invalid sequence number (cannot be negative): {raw['sequence-number']}")
    optional(long, "parent-snapshot-id", raw)
    long("timestamp-ms", raw)
    if "summary" in snapshot:
        record(snapshot["summary"], "summary")
        if summary := text_map("summary", snapshot):
            snapshot["summary"] = {"operation": summary.get("operation", "overwrite"), **summary}
        else:
            del snapshot["summary"]
    optional(integer, "schema-id", raw)
    optional(text, "key-id", raw)
    for name in ("first-row-id", "added-rows"):
        if (optional(long, name, raw) or 0) < 0:
            raise BadUpdate(f"Invalid {name} (cannot be negative): {raw[name]}")
    if "first-row-id" in snapshot and "added-rows" not in snapshot:
        raise BadUpdate("Invalid added-rows (required when first-row-id is set): null")
    if "manifest-list" in snapshot or version > 1:
        text("manifest-list", snapshot)
    else:
        texts("manifests", snapshot)
    return snapshot


def _add_snapshot(draft: Draft, update: Json) -> None:
    snapshot = _read_snapshot(part("snapshot", update), draft.version)
    for name, what in (("schemas", "schema"), ("partition-specs", "partition spec"), ("sort-orders", "sort order")):
        if not draft.get(name):
            raise BadUpdate(f"Attempting to add a snapshot before a {what} is added")
    id, sequence = snapshot["snapshot-id"], snapshot.get("sequence-number", 0)
    if draft.snapshot(id) is not None:
        raise BadUpdate(f"Snapshot already exists for id: {id}")
    if draft.version == 1:
        if sequence:
            raise BadUpdate(f"Sequence number must be 0 in v1: {sequence}")
    else:
        last = draft.get("last-sequence-number", 0)
        if sequence <= last and "parent-snapshot-id" in snapshot:
            raise RetryableValidation(
                "Validation failed, please retry: "
                f"Cannot add snapshot with sequence number {sequence} older than last sequence number {last}"
            )
        # A snapshot without a parent may be late. The last number never goes back: files would be taken for older.
        draft.put("last-sequence-number", max(last, sequence))
    if draft.version >= 3:
        _take_rows(draft, snapshot)
    draft.own_list("snapshots").append(snapshot)
    draft.snapshots()[id] = snapshot
    draft.new_snapshots.add(id)


def _take_rows(draft: Draft, snapshot: Json) -> None:
    first, free = snapshot.get("first-row-id"), draft.get("next-row-id", 0)
    if first is None:
        raise BadUpdate("Cannot add a snapshot: first-row-id is null")
    if first < free:
        raise RetryableValidation(
            "Validation failed, please retry: "
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {free}"
        )
    # From `first`, not from `free`: rows of a snapshot that skipped ids must not be numbered twice.
    free = first + snapshot["added-rows"]
    if free > LONG_MAX:
        raise BadUpdate(f"Cannot add a snapshot: no row ids are left after {shown(first)}")
    draft.put("next-row-id", free)


def _remove_snapshots(draft: Draft, update: Json) -> None:
    if update.get("snapshot-ids") is None:
        raise BadUpdate("Invalid set of snapshot ids to remove: must be non-null")
    known = draft.snapshots()
    gone = {id for id in longs("snapshot-ids", update) if id in known}
    if not gone:
        return
    draft.forgot = True
    for name in ("snapshots", "statistics", "partition-statistics"):
        draft.keep(name, lambda one: one["snapshot-id"] not in gone)
    for id in gone:
        del known[id]
    for name in [name for name, ref in draft.get("refs", {}).items() if ref["snapshot-id"] in gone]:
        drop_ref(draft, name)


def snapshot_log(draft: Draft) -> None:
    """Bring the log of main up to date: no head that only existed inside this commit, no gap in the history."""
    current = draft.get("current-snapshot-id", -1)
    passing = {id for id in draft.mains if id in draft.new_snapshots and id != current}
    if passing or draft.forgot:
        kept: list[Json] = []
        for entry in draft.get("snapshot-log", ()):
            if draft.snapshot(entry["snapshot-id"]) is None:
                if draft.forgot:
                    # What came before a removed snapshot would seem to have been current until the next one.
                    kept.clear()
            elif entry["snapshot-id"] not in passing:
                kept.append(entry)
        if current != -1 and kept and kept[-1]["snapshot-id"] != current:
            raise BadUpdate("Cannot set invalid snapshot log: latest entry is not the current snapshot")
        if kept != draft.get("snapshot-log", []):
            draft.own_list("snapshot-log")[:] = kept
    elif not draft.mains:
        return
    _check_times(draft)


def _check_times(draft: Draft) -> None:
    log = draft.get("snapshot-log", ())
    # Only the end of it is new.
    for before, after in itertools.pairwise(log[-len(draft.mains) - 1 :]):
        if after["timestamp-ms"] - before["timestamp-ms"] < -ONE_MINUTE:
            raise BadUpdate("[BUG] Expected sorted snapshot log entries.")
    if log and draft.now - log[-1]["timestamp-ms"] < -ONE_MINUTE:
        last = log[-1]["timestamp-ms"]
        raise BadUpdate(f"Invalid update timestamp {draft.now}: before last snapshot log entry at {last}")


UPDATES = {"add-snapshot": _add_snapshot, "remove-snapshots": _remove_snapshots}
