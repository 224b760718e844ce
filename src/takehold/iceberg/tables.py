"""Tables and views: made, staged, made live, registered, loaded, listed. One class for both kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from takehold import LockTimeout, TakeholdError, UnknownOutcome, UsageError
from takehold.iceberg import paths
from takehold.iceberg.births import Birth, Births
from takehold.iceberg.commits import Commits, Next, Requirements, Updates, staged_uuid
from takehold.iceberg.errors import AlreadyExists, NotFound
from takehold.iceberg.finding import Finder, Sight
from takehold.iceberg.ground import Ground
from takehold.iceberg.instants import is_whole
from takehold.iceberg.locations import check_places, metadata_location, new_places, table_location
from takehold.iceberg.metadata import RequirementFailed, check_table, check_view, new_table, new_view
from takehold.iceberg.registries import Registries
from takehold.iceberg.together import together
from takehold.iceberg.words import Identifier, Kind, Loaded, Namespace

__all__ = ["Tables"]


class Tables:
    """Operations on one table or view, and reading several."""

    COLLECTS: Final = 8

    def __init__(
        self, ground: Ground, registries: Registries, finder: Finder, births: Births, commits: Commits
    ) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder
        self.births = births
        self.commits = commits

    async def create(
        self, warehouse: str, namespace: Namespace, kind: Kind, request: Mapping[str, Any], key: str | None
    ) -> Loaded:
        """Make one from a request; a staged one is only looked at."""
        ground = self._ground
        identifier = paths.checked_identifier(Identifier(namespace, request.get("name", "")), f"a {kind}")
        place = (await self._registries.warehouse(warehouse))["location"]
        uuid = ground.fresh_uuid()
        location = table_location(ground.store, place, uuid, request.get("location"))
        make = new_view if kind == "view" else new_table
        metadata = make(request, uuid=uuid, location=location, now=ground.now_ms())
        check_places(ground.store, place, new_places(metadata, None))
        if request.get("stage-create"):
            await self.births.check_free(warehouse, identifier, kind)
            return Loaded(identifier, kind, uuid, None, metadata)
        first = Next(None, metadata, metadata_location(metadata, None, ground.fresh_uuid()))
        birth = Birth(identifier, kind, uuid, first.location, key or ground.fresh())
        return await self._bear(warehouse, "CreateView" if kind == "view" else "CreateTable", birth, first)

    async def register(self, warehouse: str, identifier: Identifier, kind: Kind, location: str) -> Loaded:
        """Give a metadata file that is there a name."""
        metadata = await self.metadata_to_register(warehouse, kind, location)
        identifier = paths.checked_identifier(identifier, f"a {kind}")
        birth = Birth(identifier, kind, str(metadata[f"{kind}-uuid"]), location, self._ground.fresh())
        path = self._ground.shard_of(warehouse, identifier)
        async with self._ground.locked("RegisterView" if kind == "view" else "RegisterTable", path) as hold:
            hold.check()
            await self.births.bear(warehouse, birth, [path])
        return Loaded(identifier, kind, birth.uuid, location, metadata)

    async def metadata_to_register(self, warehouse: str, kind: Kind, location: str) -> dict[str, Any]:
        """A metadata file of this warehouse; `UsageError` for anything else."""
        place = (await self._registries.warehouse(warehouse))["location"]
        check_places(self._ground.store, place, {"the metadata location": location})
        metadata = await self._ground.files.read(location)
        if metadata is None:
            raise UsageError(f"Failed to open input file: {location} does not exist")
        if f"{kind}-uuid" not in metadata:
            raise UsageError(f"{location} is no metadata of a {kind}")
        (check_view if kind == "view" else check_table)(metadata)
        check_places(self._ground.store, place, new_places(metadata, None))
        return metadata

    async def go_live(
        self, warehouse: str, identifier: Identifier, steps: Sequence[tuple[Requirements, Updates]], key: str | None
    ) -> Loaded:
        """The second half of a staged create: the first of several to commit wins."""
        identifier = paths.checked_identifier(identifier, "a table")
        first = await self.staged(warehouse, steps)
        birth = Birth(identifier, "table", first.metadata["table-uuid"], first.location, key or self._ground.fresh())
        async with self._ground.locked("CommitStaged", paths.pointer(warehouse, birth.uuid)):
            try:
                return await self._bear(warehouse, "CommitStaged", birth, first)
            except AlreadyExists as error:
                raise RequirementFailed("Requirement failed: table already exists") from error

    async def staged(self, warehouse: str, steps: Sequence[tuple[Requirements, Updates]]) -> Next:
        """The first version of a table that a client builds from nothing."""
        uuid = next((found for _, updates in steps if (found := staged_uuid(updates)) is not None), None)
        given = [] if uuid else [{"action": "assign-uuid", "uuid": self._ground.fresh_uuid()}]
        (requirements, updates), *rest = steps
        first = (requirements, [*given, *(updates or ())])
        return await self.commits.applied(warehouse, None, None, "table", [first, *rest])

    async def _bear(self, warehouse: str, by: str, birth: Birth, first: Next) -> Loaded:
        ground = self._ground
        await self._registries.namespace(warehouse, birth.identifier.namespace)
        await ground.files.write(first.location, first.metadata)
        path = ground.shard_of(warehouse, birth.identifier)
        held = [path, paths.pointer(warehouse, birth.uuid)] if by == "CommitStaged" else [path]
        try:
            async with ground.locked(by, path) as hold:
                hold.check()
                made = await self.births.bear(warehouse, birth, held)
        except UnknownOutcome:
            raise
        except TakeholdError:
            await self.commits.discard(first)
            raise
        if made:
            return Loaded(birth.identifier, birth.kind, birth.uuid, first.location, first.metadata)
        # The answer to an earlier request with this idempotency key was lost on its way.
        await self.commits.discard(first)
        sight = await self._finder.see(warehouse, birth.identifier, birth.kind)
        return await self._finder.loaded(warehouse, sight, birth.kind)

    async def load(self, warehouse: str, identifier: Identifier, kind: Kind) -> Loaded:
        """As it is now."""
        sight = await self._see(warehouse, identifier, kind, "LoadView" if kind == "view" else "LoadTable")
        return await self._finder.loaded(warehouse, sight, kind)

    async def exists(self, warehouse: str, identifier: Identifier, kind: Kind) -> bool:
        """Whether it is there."""
        try:
            await self._see(warehouse, identifier, kind, "ViewExists" if kind == "view" else "TableExists")
        except NotFound:
            return False
        return True

    async def _see(self, warehouse: str, identifier: Identifier, kind: Kind, by: str) -> Sight:
        identifier = Identifier(tuple(identifier[0]), identifier[1])
        target = await self._finder.target(warehouse, identifier, kind)
        ground = self._ground
        try:
            async with ground.locked(
                by, paths.pointer(warehouse, target.uuid), timeout=ground.patience.reads, read=True
            ):
                return await self._finder.see(warehouse, identifier, kind)
        except LockTimeout:
            # Whoever has it may be paused. What is there can be read at any time: the lock only spares retries.
            return await self._finder.see(warehouse, identifier, kind)

    async def load_many(self, warehouse: str, identifiers: Sequence[Identifier]) -> list[Loaded]:
        """All as they were at one instant: read until nothing has moved between two readings.

        Where commits never stop, with every transaction whole: what the pointers remember says whether it is. They are
        locked for one reading then, so that no transaction need be met; nothing rests on that.
        """
        wanted = [Identifier(tuple(namespace), name) for namespace, name in identifiers]
        earlier: list[Sight] = []
        before = await self._collect(warehouse, wanted)
        for number in range(self.COLLECTS):
            if number < self.COLLECTS // 2:
                sights = await self._collect(warehouse, wanted)
                chosen = before if _same(before, sights) else None
            else:
                async with self._ground.locked("LoadTables", *(each.path for each in before), read=True):
                    sights = await self._collect(warehouse, wanted)
                chosen = before if _same(before, sights) or is_whole(earlier, before, sights) else None
            if chosen is not None:
                loaded = [await self._finder.loaded(warehouse, sight, "table") for sight in chosen]
                # A file that is gone was followed by another one, which is of another instant.
                if [each.metadata_location for each in loaded] == [each.body.metadata for each in chosen]:
                    return loaded
            earlier, before = before, sights
        raise LockTimeout(f"{', '.join(map(str, wanted))} change each time they are looked at", key=str(wanted[0]))

    async def _collect(self, warehouse: str, wanted: Sequence[Identifier]) -> list[Sight]:
        return [await self._finder.see(warehouse, each, "table") for each in wanted]

    async def list(self, warehouse: str, namespace: Namespace, kind: Kind) -> list[str]:
        """The names of one kind."""
        namespace = paths.checked_namespace(namespace)
        shards = self._ground.shards_of(warehouse, namespace)
        async with self._ground.locked("ListViews" if kind == "view" else "ListTables", *shards, read=True):
            await self._registries.namespace(warehouse, namespace)
            found = await together(self._ground.runtime, [self._finder.names(warehouse, path) for path in shards])
        return sorted(name for names in found for name, target in names.items() if target.kind == kind)


def _same(before: Sequence[Sight], sights: Sequence[Sight]) -> bool:
    """Whether pointers and what they say are the same in two readings: then nothing moved in between."""
    return [each[2:] for each in before] == [each[2:] for each in sights]
