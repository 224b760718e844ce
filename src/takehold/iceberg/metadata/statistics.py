"""Statistics files of snapshots, and those of their partitions: at most one of each per snapshot."""

from __future__ import annotations

import functools

from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.values import Json, integers, long, part, record, shown, text, text_map

__all__ = ["UPDATES"]


def _check_statistics(file: Json) -> None:
    _check_partition_statistics(file)
    long("file-footer-size-in-bytes", file)
    blobs = file.get("blob-metadata")
    if not isinstance(blobs, list | tuple):
        raise BadUpdate(f"Cannot parse blob metadata from non-array: {shown(blobs)}")
    for one in blobs:
        blob = record(one, "blob metadata")
        text("type", blob)
        long("snapshot-id", blob)
        long("sequence-number", blob)
        integers("fields", blob)
        if "properties" in blob:
            text_map("properties", blob)


def _check_partition_statistics(file: Json) -> None:
    long("snapshot-id", file)
    text("statistics-path", file)
    long("file-size-in-bytes", file)


def _set(name: str, draft: Draft, update: Json) -> None:
    file = record(part(name, update), "statistics file")
    (_check_statistics if name == "statistics" else _check_partition_statistics)(file)
    files = draft.get(name, ())
    for at, one in enumerate(files):
        if one["snapshot-id"] == file["snapshot-id"]:
            if one != file:
                draft.own_list(name)[at] = file
            return
    draft.own_list(name).append(file)


def _remove(name: str, draft: Draft, update: Json) -> None:
    id = long("snapshot-id", update)
    draft.keep(name, lambda one: one["snapshot-id"] != id)


UPDATES = {
    "set-statistics": functools.partial(_set, "statistics"),
    "remove-statistics": functools.partial(_remove, "statistics"),
    "set-partition-statistics": functools.partial(_set, "partition-statistics"),
    "remove-partition-statistics": functools.partial(_remove, "partition-statistics"),
}
