"""From a name to its table: the shard's entry says where to look, the pointer says whether that is it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from takehold.iceberg import paths
from takehold.iceberg.directory import Directory, Entry, Target
from takehold.iceberg.errors import BrokenRecord, NoSuchTable, NoSuchView, NotFound
from takehold.iceberg.ground import Ground
from takehold.iceberg.pointer import Body, Pointer
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Identifier, Kind, Loaded

__all__ = ["Finder", "Sight", "missing"]


class Sight(NamedTuple):
    """A pointer as it was read, and what it says."""

    path: str
    pointer: Pointer
    tag: str
    body: Body

    @property
    def target(self) -> Target:
        """What an entry for it says."""
        return Target(self.pointer.what, self.pointer.uuid, self.pointer.birth)


def missing(identifier: Identifier, kind: Kind) -> NotFound:
    """The error for a name that stands for nothing of this kind."""
    if kind == "view":
        return NoSuchView(f"View does not exist: {identifier}")
    return NoSuchTable(f"Table does not exist: {identifier}")


class Finder:
    """Looks up names, for those who read and for those who are going to write."""

    ROUNDS: Final = 100

    def __init__(self, ground: Ground, recovery: Recovery) -> None:
        self._ground = ground
        self._recovery = recovery

    # For readers: an intent is read as its record says, and left alone.

    async def target(self, warehouse: str, identifier: Identifier, kind: Kind) -> Target:
        """What the name stands for, or stood for a moment ago; `NoSuchTable`, `NoSuchView`."""
        known = self._ground.known(warehouse, identifier)
        if known is None:
            known = await self._entry(warehouse, identifier)
        if known is None or known.kind != kind:
            raise missing(identifier, kind)
        return known

    async def see(self, warehouse: str, identifier: Identifier, kind: Kind) -> Sight:
        """The table as it is now; `NoSuchTable`, `NoSuchView`."""
        for _ in range(self.ROUNDS):
            guessed = self._ground.known(warehouse, identifier)
            target = guessed or await self._entry(warehouse, identifier)
            if target is None or target.kind != kind:
                if guessed is None:
                    raise missing(identifier, kind)
                self._ground.forget(warehouse, identifier)
                continue
            sight = await self.sight(warehouse, target)
            if sight is not None and sight.body.identifier == identifier and sight.target == target:
                self._ground.remember(warehouse, identifier, target)
                return sight
            self._ground.forget(warehouse, identifier)
            if guessed is None and await self._entry(warehouse, identifier) == target:
                raise missing(identifier, kind)
        raise BrokenRecord(f"{identifier} stands for something else each time it is looked up")

    async def sight(self, warehouse: str, target: Target) -> Sight | None:
        """A pointer with the value that its intent's record decides."""
        path = paths.pointer(warehouse, target.uuid)
        while True:
            found = await self._ground.pointer(path)
            if found is None:
                return None
            pointer, tag = found
            body: Body | None = pointer.now
            if pointer.intent is not None:
                committed = await self._committed(warehouse, pointer.intent.tx, path)
                if committed is None:
                    again = await self._ground.pointer(path)
                    if again is None or again[1] != tag:
                        continue  # it was decided, finished and forgotten between our two reads
                body = pointer.value(committed=bool(committed))
            return None if body is None else Sight(path, pointer, tag, body)

    async def names(self, warehouse: str, path: str) -> dict[str, Target]:
        """The names in a shard, and what they stand for."""
        found = await self._ground.shard(path)
        if found is None:
            return {}
        named = {}
        for name in found[0].entries:
            target = await self._value(warehouse, path, found, name)
            if target is not None:
                named[name] = target
        return named

    async def _entry(self, warehouse: str, identifier: Identifier) -> Target | None:
        path = self._ground.shard_of(warehouse, identifier)
        found = await self._ground.shard(path)
        return None if found is None else await self._value(warehouse, path, found, identifier.name)

    async def _value(self, warehouse: str, path: str, found: tuple[Directory, str] | None, name: str) -> Target | None:
        while found is not None and name in found[0].entries:
            entry = Entry.of(found[0].entries[name])
            if entry.tx is None:
                return entry.now
            committed = await self._committed(warehouse, entry.tx, path)
            if committed is not None:
                return entry.next if committed else entry.now
            again = await self._ground.shard(path)
            if again is not None and again[1] == found[1]:
                return entry.now
            found = again
        return None

    async def _committed(self, warehouse: str, tx: str, met: str) -> bool | None:
        """Whether it is; None without a record, which is no, if what we read is still there."""
        found = await self._ground.pending(paths.pending(warehouse, tx))
        self._recovery.notice(warehouse, tx, met)
        return None if found is None else found[0].state == "committed"

    async def loaded(self, warehouse: str, sight: Sight, kind: Kind) -> Loaded:
        """With its metadata. A file that is gone was followed by another one."""
        for _ in range(self.ROUNDS):
            metadata = await self._ground.files.read(sight.body.metadata)
            if metadata is not None:
                body = sight.body
                return Loaded(body.identifier, kind, sight.pointer.uuid, body.metadata, metadata)
            again = await self.see(warehouse, sight.body.identifier, kind)
            if again.body == sight.body:
                break
            sight = again
        raise BrokenRecord(f"{sight.body.metadata} is gone, and {sight.path} says that it is current", path=sight.path)

    # For writers: nothing is changed that has an intent.

    async def settled(
        self, warehouse: str, identifier: Identifier, kind: Kind, *, held: Collection[str] = (), wait: bool = True
    ) -> Sight:
        """The table as it is now, with no change of several records under way."""
        for _ in range(self.ROUNDS):
            sight = await self.see(warehouse, identifier, kind)
            if sight.pointer.intent is None:
                return sight
            await self._recovery.resolve(warehouse, sight.pointer.intent.tx, sight.path, held=held, wait=wait)
        raise BrokenRecord(f"{identifier} has a new change under way each time one is finished")

    async def occupant(
        self, warehouse: str, shard: Directory, identifier: Identifier, *, held: Collection[str] = ()
    ) -> Target | None:
        """What a name in this shard stands for; None when it is free, or has an entry that stands for nothing.

        A change that is under way for the entry is resolved first, and then the shard is not this one any more:
        `Changed` will say so.
        """
        if (fields := shard.entries.get(identifier.name)) is None:
            return None
        entry = Entry.of(fields)
        if entry.tx is not None:
            path = self._ground.shard_of(warehouse, identifier)
            await self._recovery.resolve(warehouse, entry.tx, path, held=held)
            found = await self._ground.shard(path)
            return None if found is None else await self.occupant(warehouse, found[0], identifier, held=held)
        if entry.now is None:
            return None
        pointed = await self.pointer(warehouse, entry.now, held)
        if pointed is None or pointed[0].birth != entry.now.birth or pointed[0].now is None:
            return None
        return entry.now if pointed[0].now.identifier == identifier else None

    async def expect(
        self,
        warehouse: str,
        shelved: tuple[Directory, str | None] | None,
        identifier: Identifier,
        target: Target,
        held: Collection[str],
    ) -> None:
        """`Changed` unless the name stands for this in the shard as it was read, and nobody is changing that."""
        path = self._ground.shard_of(warehouse, identifier)
        fields = shelved[0].entries.get(identifier.name) if shelved is not None else None
        if fields is not None and fields.get("tx") is not None:
            await self._recovery.resolve(warehouse, fields["tx"], path, held=held)
        if fields != Entry(target).fields():
            raise Changed(f"{identifier} stands for something else now", path=path)

    async def pointer(self, warehouse: str, target: Target, held: Collection[str] = ()) -> tuple[Pointer, str] | None:
        """A pointer without an intent, and its tag; None when there is none."""
        path = paths.pointer(warehouse, target.uuid)
        for _ in range(self.ROUNDS):
            found = await self._ground.pointer(path)
            if found is None or found[0].intent is None:
                return found
            await self._recovery.resolve(warehouse, found[0].intent.tx, path, held=held)
        raise BrokenRecord(f"{path} has a new change under way each time one is finished", path=path)
