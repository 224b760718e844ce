"""Branches and tags."""

from __future__ import annotations

from takehold.iceberg.metadata.draft import MAIN, Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.values import Json, integer, long, optional, text

__all__ = ["UPDATES", "drop_ref"]

MEANS = ("snapshot-id", "type", "min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def _set_ref(draft: Draft, update: Json) -> None:
    name, id, kind = text("ref-name", update), long("snapshot-id", update), text("type", update)
    if kind.lower() not in ("branch", "tag"):
        raise BadUpdate(f"Invalid snapshot ref type: {kind}")
    _check_limits(update, tag=kind.lower() == "tag")
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name") and value is not None}
    ref["type"] = kind.lower()
    known = draft.get("refs", {}).get(name)
    if known is not None and all(known.get(key) == ref.get(key) for key in MEANS):
        return
    if (snapshot := draft.snapshot(id)) is None:
        raise BadUpdate(f"Cannot set {name} to unknown snapshot: {id}")
    if name == MAIN:
        if ref["type"] != "branch":
            raise BadUpdate("Cannot set main to a tag, it must be a branch")
        draft.put("current-snapshot-id", id)
        # Going back to an old snapshot happens now; a new one says itself when it was made.
        new = id in draft.new_snapshots
        when = snapshot["timestamp-ms"] if new else draft.now
        draft.own_list("snapshot-log").append({"timestamp-ms": when, "snapshot-id": id})
        draft.mains.append(id)
    draft.own_dict("refs")[name] = ref


def _check_limits(update: Json, *, tag: bool) -> None:
    least = optional(integer, "min-snapshots-to-keep", update)
    age, ref_age = optional(long, "max-snapshot-age-ms", update), optional(long, "max-ref-age-ms", update)
    if tag and least is not None:
        raise BadUpdate("Tags do not support setting minSnapshotsToKeep")
    if least is not None and least <= 0:
        raise BadUpdate("Min snapshots to keep must be greater than 0")
    if tag and age is not None:
        raise BadUpdate("Tags do not support setting maxSnapshotAgeMs")
    if age is not None and age <= 0:
        raise BadUpdate("Max snapshot age must be greater than 0 ms")
    if ref_age is not None and ref_age <= 0:
        raise BadUpdate("Max reference age must be greater than 0")


def drop_ref(draft: Draft, name: str) -> None:
    """Take a branch or tag away; without main the table has no current snapshot."""
    if name not in draft.get("refs", {}):
        return
    if name == MAIN:
        draft.put("current-snapshot-id", -1)
    del draft.own_dict("refs")[name]


def _remove_ref(draft: Draft, update: Json) -> None:
    drop_ref(draft, text("ref-name", update))


UPDATES = {"set-snapshot-ref": _set_ref, "remove-snapshot-ref": _remove_ref}
