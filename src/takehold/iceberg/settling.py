"""Taking an intent out of one record, once it is decided. Whoever does it writes the same."""

from __future__ import annotations

from dataclasses import replace

from takehold.iceberg.directory import Directory, Entry
from takehold.iceberg.ground import Ground
from takehold.iceberg.pointer import Pointer
from takehold.iceberg.stores import Changed

__all__ = ["settle", "settled_shard"]


async def settle(
    ground: Ground, path: str, tx: str, mark: str, *, committed: bool, known: tuple[Pointer, str] | None = None
) -> None:
    """Leave no intent of `tx` in the record at this path; `known` is the pointer there, as far as the caller knows."""
    while True:
        try:
            if "/table-registry-shard-" in path:
                return await _settle_shard(ground, path, tx, mark, committed)
            found, known = known or await ground.pointer(path), None
            return await _settle_pointer(ground, path, tx, found, committed)
        except Changed:
            continue  # somebody else was here: look again


async def _settle_pointer(
    ground: Ground, path: str, tx: str, found: tuple[Pointer, str] | None, committed: bool
) -> None:
    if found is None or found[0].intent is None or found[0].intent.tx != tx:
        return
    pointer = found[0].settled(committed=committed)
    if pointer.now is None:
        await ground.shelf.remove(path, found[1])
    else:
        await ground.shelf.swap(path, pointer, found[1])


async def _settle_shard(ground: Ground, path: str, tx: str, mark: str, committed: bool) -> None:
    found = await ground.shard(path)
    if found is None:
        return
    shard = settled_shard(found[0], tx, committed)
    if shard is not found[0]:
        await ground.shelf.swap(path, shard, found[1], mark if committed else None)


def settled_shard(shard: Directory, tx: str, committed: bool) -> Directory:
    """The shard without entries of `tx`; itself when it has none."""
    mine = {name: Entry.of(fields) for name, fields in shard.entries.items() if fields.get("tx") == tx}
    if not mine:
        return shard
    entries = {name: fields for name, fields in shard.entries.items() if name not in mine}
    for name, entry in mine.items():
        target = entry.next if committed else entry.now
        if target is not None:
            entries[name] = Entry(target).fields()
    return replace(shard, entries=entries)
