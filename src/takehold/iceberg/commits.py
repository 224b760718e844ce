"""A commit to one table or view: one compare-and-set on its pointer, and no lock."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from takehold import BackendError, TableUpdateConflict, UnknownOutcome, UsageError
from takehold.iceberg.finding import Finder, Sight
from takehold.iceberg.ground import Ground
from takehold.iceberg.locations import check_places, metadata_location, new_places
from takehold.iceberg.metadata import update_table, update_view
from takehold.iceberg.metadata.requirements import CREATE, kind_of
from takehold.iceberg.metadata.requirements import each as listed
from takehold.iceberg.metadata.values import uuid_text
from takehold.iceberg.pointer import Body
from takehold.iceberg.registries import Registries
from takehold.iceberg.stores import Changed
from takehold.iceberg.words import Identifier, Kind, Loaded

__all__ = ["Commits", "Next", "is_staged", "staged_uuid"]

log: Final = logging.getLogger(__name__)
Requirements = Sequence[Mapping[str, Any]]
Updates = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Next:
    """The next version of a table: its metadata, and where that was, or will be, written."""

    base: dict[str, Any] | None
    metadata: dict[str, Any]
    location: str

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return self.metadata is not self.base


def is_staged(requirements: Requirements) -> bool:
    """Whether a commit is the second half of a staged create; `BadUpdate` for what is no list of requirements."""
    kinds = [kind_of(each, "type", "update requirement") for each in listed(requirements, "requirements")]
    return CREATE in kinds


def staged_uuid(updates: Updates) -> str | None:
    """The uuid that a staged create has given its table; `BadUpdate` for what is no list of updates."""
    for each in listed(updates, "metadata updates"):
        if kind_of(each, "action", "metadata update") == "assign-uuid":
            return uuid_text("uuid", each)
    return None


class Commits:
    """Applies requirements and updates to what is there."""

    def __init__(self, ground: Ground, registries: Registries, finder: Finder) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder

    async def commit(
        self,
        warehouse: str,
        identifier: Identifier,
        kind: Kind,
        steps: Sequence[tuple[Requirements, Updates]],
        *,
        retries: int,
        key: str | None,
    ) -> Loaded:
        """Make the next version of a table that is there."""
        ground = self._ground
        counts = ground.contention["pointer cas"]
        mark = key or ground.fresh()
        for attempt in range(retries + 1):
            sight = await self._finder.settled(warehouse, identifier, kind)
            if key is not None and key in sight.pointer.recent:
                return await self._finder.loaded(warehouse, sight, kind)
            following = await self.following(warehouse, sight, kind, steps)
            if not following.changes:
                return Loaded(identifier, kind, sight.pointer.uuid, sight.body.metadata, following.metadata)
            await ground.files.write(following.location, following.metadata)
            try:
                pointer = replace(sight.pointer, now=Body(identifier, following.location))
                await ground.shelf.swap(sight.path, pointer, sight.tag, mark)
            except Changed:
                counts.losses += 1
                await self.discard(following)
            else:
                await self.tidy(following)
                return Loaded(identifier, kind, sight.pointer.uuid, following.location, following.metadata)
            if attempt < retries:
                counts.retries += 1
                # They who met here must not meet again at the same instant.
                await ground.runtime.sleep(0.002 * 2**attempt * ground.runtime.random())
        raise TableUpdateConflict(
            f"Cannot commit to {identifier}: {retries + 1} times in a row another commit was first", key=str(identifier)
        )

    async def following(
        self, warehouse: str, sight: Sight, kind: Kind, steps: Sequence[tuple[Requirements, Updates]]
    ) -> Next:
        """What these requirements and updates make of a table; `RequirementFailed`, `BadUpdate`."""
        base = (await self._finder.loaded(warehouse, sight, kind)).metadata
        return await self.applied(warehouse, base, sight.body.metadata, kind, steps)

    async def applied(
        self,
        warehouse: str,
        base: dict[str, Any] | None,
        before: str | None,
        kind: Kind,
        steps: Sequence[tuple[Requirements, Updates]],
    ) -> Next:
        """The same from metadata at hand; one location more in its log, however many steps there are."""
        now = self._ground.now_ms()
        metadata = base
        for requirements, updates in steps:
            if kind == "view":
                assert metadata is not None
                metadata = update_view(metadata, requirements, updates, now=now)
            else:
                log_as = before if metadata is base else None
                metadata = update_table(metadata, requirements, updates, now=now, metadata_location=log_as)
        assert metadata is not None
        if metadata is base:
            return Next(base, metadata, before or "")
        if asked := new_places(metadata, base):
            check_places(self._ground.store, (await self._registries.warehouse(warehouse))["location"], asked)
        return Next(base, metadata, metadata_location(metadata, before, self._ground.fresh_uuid()))

    async def discard(self, following: Next) -> None:
        """Delete a file that nothing refers to and nothing will; late is as good as now."""
        if following.changes:
            try:
                await self._ground.files.remove(following.location)
            except (BackendError, UnknownOutcome):
                log.info("%s is left over; fsck finds it", following.location)

    async def tidy(self, following: Next) -> None:
        """Delete the metadata files that a table asked to be rid of, after the commit that let go of them."""
        properties = following.metadata.get("properties") or {}
        if following.base is None or properties.get("write.metadata.delete-after-commit.enabled") != "true":
            return
        kept = {entry["metadata-file"] for entry in following.metadata.get("metadata-log") or ()}
        for entry in following.base.get("metadata-log") or ():
            if entry["metadata-file"] not in kept:
                try:
                    await self._ground.files.remove(entry["metadata-file"])
                except (BackendError, UnknownOutcome, UsageError):
                    log.info("%s is left over; fsck finds it", entry["metadata-file"])
