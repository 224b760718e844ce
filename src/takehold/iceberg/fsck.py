"""fsck: every record of a warehouse is read, and what is not as it should be is explained.

It changes nothing unless told to, and then only what nobody can be using: it may run beside a working catalog.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from takehold import BackendRefused, UsageError
from takehold.iceberg import paths
from takehold.iceberg.directory import Directory, Entry, Target
from takehold.iceberg.errors import BrokenRecord
from takehold.iceberg.finding import Finder
from takehold.iceberg.ground import Ground
from takehold.iceberg.locations import path_of
from takehold.iceberg.pointer import Pointer
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.registries import Registries
from takehold.iceberg.settling import settle
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Fault

__all__ = ["Fsck"]

MOMENT: Final = "or belongs to an operation that is under way this moment"


class Fsck:
    """One look at one warehouse."""

    def __init__(
        self,
        ground: Ground,
        registries: Registries,
        finder: Finder,
        recovery: Recovery,
        warehouse: str,
        *,
        repair: bool,
    ) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder
        self._recovery = recovery
        self._warehouse = warehouse
        self._repair = repair
        self._faults: list[Fault] = []
        self._named: set[tuple[str, str]] = set()
        """Pointers that an entry names, and their births."""
        self._files: set[str] = set()
        """Metadata files that a pointer or a log names."""

    async def run(self) -> list[Fault]:
        """All faults, in the order of their paths."""
        place = (await self._registries.warehouse(self._warehouse))["location"]
        root = paths.registry(self._warehouse).rpartition("/")[0]
        found = await self._ground.store.list(root)
        for path in found:
            if path.startswith(paths.pending_of(self._warehouse) + "/"):
                await self._look(path, self._pending)
        for path in found:
            if "/table-registry-shard-" in path:
                await self._look(path, self._shard)
            elif path == paths.registry(self._warehouse):
                await self._look(path, self._registry)
            elif not path.startswith(
                (f"{paths.pointers_of(self._warehouse)}/", f"{paths.pending_of(self._warehouse)}/")
            ):
                self._found("unknown", path, "nothing of a catalog is stored there")
        for path in found:
            if path.startswith(f"{paths.pointers_of(self._warehouse)}/"):
                await self._look(path, self._pointer)
        await self._metadata_files(place)
        return sorted(self._faults, key=lambda fault: (fault.path, fault.kind))

    def _found(self, kind: str, path: str, explanation: str, *, repaired: bool = False) -> None:
        self._faults.append(Fault(kind, path, explanation, repaired))  # type: ignore[arg-type]

    async def _look(self, path: str, check: object) -> None:
        try:
            await check(path)  # type: ignore[operator]
        except (BrokenRecord, BackendRefused) as error:  # damaged as a record, or as what the store wrote
            self._found("broken", path, f"{error}; restore it from a copy: nothing can be guessed from it")

    async def _registry(self, path: str) -> None:
        await self._ground.shelf.read(path, Directory, "registry")

    async def _pending(self, path: str) -> None:
        found = await self._ground.pending(path)
        if found is None:
            return
        record = found[0]
        outcome = await self._recovery.attend(path) if self._repair else None
        self._found(
            "pending",
            path,
            f"{record.what} of {', '.join(record.tables)} by {record.owner} is {record.state}"
            + ("" if outcome is None else f": {outcome}"),
            repaired=outcome in ("finished", "undone"),
        )

    async def _shard(self, path: str) -> None:
        found = await self._ground.shard(path)
        if found is None:
            return
        for name, fields in sorted(found[0].entries.items()):
            entry = Entry.of(fields)
            if entry.tx is not None and await self._ground.pending(paths.pending(self._warehouse, entry.tx)) is None:
                if self._repair:
                    await settle(self._ground, path, entry.tx, entry.tx, committed=False)
                self._found(
                    "pending", path, f"{name!r} has an intent of a change that was aborted", repaired=self._repair
                )
            for target in (entry.now, entry.next):
                if target is not None:
                    await self._entry(path, name, entry, target)

    async def _entry(self, path: str, name: str, entry: Entry, target: Target) -> None:
        sight = await self._finder.sight(self._warehouse, target)
        self._named.add((target.uuid, target.birth))
        if entry.tx is not None:
            return  # the record of that change says what it stands for
        if sight is None or sight.target != target or sight.body.identifier.name != name:
            repaired = self._repair and await self._remove_entry(path, name, entry)
            self._found(
                "dangling entry", path, f"{name!r} stands for {target.uuid}, which is not that table", repaired=repaired
            )
            return
        if await self._ground.files.read(sight.body.metadata) is None:
            self._found(
                "missing metadata", sight.path, f"{sight.body.identifier} says {sight.body.metadata}, which is gone"
            )

    async def _remove_entry(self, path: str, name: str, entry: Entry) -> bool:
        found = await self._ground.shard(path)
        if found is None or found[0].entries.get(name) != entry.fields():
            return False
        try:
            await self._ground.shelf.swap(path, found[0].having(name, None), found[1])
        except Changed:
            return False
        return True

    async def _pointer(self, path: str) -> None:
        found = await self._ground.pointer(path)
        if found is None:
            return
        pointer, tag = found
        for body in (pointer.now, pointer.intent.next if pointer.intent else None):
            if body is not None:
                self._files.add(body.metadata)
                metadata = await self._ground.files.read(body.metadata) or {}
                self._files |= {entry["metadata-file"] for entry in metadata.get("metadata-log") or ()}
        if (pointer.uuid, pointer.birth) in self._named or pointer.intent is not None:
            return
        # Only now: an operation may have given it an entry since the shards were read.
        repaired = self._repair and await self._remove_orphan(path, pointer, tag)
        name = pointer.now.identifier if pointer.now else "nothing"
        self._found("orphan pointer", path, f"no entry names it; it was to be {name}, {MOMENT}", repaired=repaired)

    async def _remove_orphan(self, path: str, pointer: Pointer, tag: str) -> bool:
        """Touch the shard after the pointer was seen: a creator of before must read again, and writes it anew."""
        if pointer.now is None:
            return False
        identifier = pointer.now.identifier
        shard = self._ground.shard_of(self._warehouse, identifier)
        found = await self._ground.shard(shard)
        fields = found[0].entries.get(identifier.name) if found is not None else None
        # Also what an intent will make of it: the change may be committed, and its shard the last to be finished.
        if fields is not None and Target(pointer.what, pointer.uuid, pointer.birth) in Entry.of(fields)[:2]:
            return False
        try:
            if found is None:
                await self._ground.shelf.add(shard, Directory("shard"))
            else:
                await self._ground.shelf.swap(shard, replace(found[0]), found[1])
            await self._ground.shelf.remove(path, tag)
        except Changed:
            return False
        return True

    async def _metadata_files(self, place: str) -> None:
        try:
            root = path_of(self._ground.store, place)
            known = {path_of(self._ground.store, location) for location in self._files}
        except UsageError:
            return
        for path in await self._ground.store.list(root):
            if path.endswith(".metadata.json") and path not in known:
                self._found("orphan file", path, f"no table names it: a commit that lost left it, {MOMENT}")
