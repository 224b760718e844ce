"""A change of several records: intents on all of them, one commit point, then each on its own.

The steps of docs/protocol.md. Who makes a change has read and validated everything, and holds its locks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from takehold import BackendError, CommitConflict, TakeholdError, UnknownOutcome
from takehold.iceberg import paths
from takehold.iceberg.directory import Directory
from takehold.iceberg.finding import Sight
from takehold.iceberg.ground import Ground
from takehold.iceberg.pending import Pending
from takehold.iceberg.pointer import Body, Intent, Pointer
from takehold.iceberg.records import RING
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.settling import settle
from takehold.iceberg.stores import AlreadyThere, Changed
from takehold.iceberg.together import together

__all__ = ["Aborted", "Change", "Plan"]

log: Final = logging.getLogger(__name__)


class Aborted(CommitConflict):
    """Somebody took us for dead and aborted the change. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change is about, as its record says."""

    warehouse: str
    what: str
    pointers: Sequence[str]
    shards: Sequence[str]
    locks: Collection[str]
    tables: Sequence[str]
    mark: str | None = None


class Change:
    """One change under way. Leaving its block without `commit()` undoes it."""

    def __init__(self, ground: Ground, recovery: Recovery, plan: Plan) -> None:
        self._ground = ground
        self._recovery = recovery
        self._plan = plan
        self.tx = ground.fresh()
        self.mark = plan.mark or self.tx
        self._path = paths.pending(plan.warehouse, self.tx)
        self._record = Pending(
            self.tx,
            self.mark,
            plan.what,
            "pending",
            tuple(plan.pointers),
            tuple(plan.shards),
            tuple(sorted(plan.locks)),
            tuple(plan.tables),
            ground.owner,
            ground.runtime.wall(),
        )
        self._tag: str | None = None
        self._versions: dict[str, int] = {}
        self._placed: dict[str, tuple[Pointer, str]] = {}
        """Pointers as we left them: nobody else changes them before we are decided."""
        self.decided = False

    async def __aenter__(self) -> Self:
        try:
            self._tag = await self._ground.shelf.add(self._path, self._record)
        except AlreadyThere:
            # The answer to our write was lost, and somebody has aborted the record before we looked.
            raise self._aborted() from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Also after a commit in doubt: either it was first, or now it can never be.
        if not self.decided:
            await self._undo()

    def intent(self, following: Body | None) -> Intent:
        """What this change would make of a pointer."""
        return Intent(self.tx, following, self.mark)

    async def intend(self, sight: Sight, following: Body | None) -> None:
        """Put our intent on a pointer as it was seen, or `Changed`."""
        await self._put(sight, following)

    async def reserve(self, sight: Sight) -> Sight:
        """Put an intent to leave it as it is on a pointer, or `Changed`; `intend` says more later."""
        return await self._put(sight, sight.body)

    async def _put(self, sight: Sight, following: Body | None) -> Sight:
        pointer = replace(sight.pointer, intent=self.intent(following))
        tag = await self._ground.shelf.swap(sight.path, pointer, sight.tag)
        pointer = replace(pointer, version=pointer.version + 1)
        self._versions[sight.path] = pointer.version
        self._placed[sight.path] = pointer, tag
        return sight._replace(pointer=pointer, tag=tag)

    async def mark_shard(self, path: str, shard: Directory, tag: str | None) -> None:
        """Set a shard whose entries have our intents, or `Changed`."""
        await self._ground.shelf.keep(path, shard, tag)
        self._versions[path] = shard.version + 1

    async def commit(self) -> None:
        """The commit point, then what follows from it; `Aborted` when somebody aborted it before."""
        assert self._tag is not None
        try:
            self._tag = await self._ground.shelf.swap(self._path, replace(self._record, state="committed"), self._tag)
        except Changed:
            if not await self._was_committed():
                raise self._aborted() from None
        self.decided = True
        await self._afterwards(self._finish)

    def _aborted(self) -> Aborted:
        return Aborted(f"{self._plan.what} {self.tx} was aborted by somebody who took its owner for dead")

    async def _was_committed(self) -> bool:
        """Whether it was our commit after all, the answer to which was lost."""
        found = await self._ground.pending(self._path)
        if found is not None and found[0].state == "committed":
            return True
        # Decided by somebody else. A record that is there, pending or aborted, may be a delayed copy of its first
        # version, which came when the one we had was finished and deleted: only participants know.
        unknown = False
        for path, version in self._versions.items():
            shelved: tuple[Any, str] | None = await (
                self._ground.shard(path) if path in self._plan.shards else self._ground.pointer(path)
            )
            if shelved is None:
                unknown = True
                continue
            if self.mark in shelved[0].recent:
                return True
            if shelved[0].version - version < RING:
                return False
            unknown = True
        if unknown:
            raise UnknownOutcome(f"{self._plan.what} {self.tx} was decided by somebody else, and nobody remembers how")
        return False

    async def _undo(self) -> None:
        self.decided = True
        try:
            if self._tag is not None:
                self._tag = await self._ground.shelf.swap(self._path, replace(self._record, state="aborted"), self._tag)
        except Changed:
            pass  # decided by somebody else, who may have been here before our last intent was
        except (BackendError, UnknownOutcome):
            log.warning("the store is away: %s %s is left to recovery", self._plan.what, self.tx)
            self._recovery.notice(self._plan.warehouse, self.tx)
            return
        await self._afterwards(self._clean)

    async def _afterwards(self, step: Callable[[], Any]) -> None:
        """What is left to do when it is decided. It cannot fail any more, only be late."""
        try:
            await step()
        except TakeholdError:
            log.warning("%s %s is decided; recovery finishes it", self._plan.what, self.tx, exc_info=True)
            self._recovery.notice(self._plan.warehouse, self.tx)

    async def _finish(self) -> None:
        await self._settle(committed=True)

    async def _clean(self) -> None:
        found = await self._ground.pending(self._path)
        if found is None or found[0].state == "aborted":
            await self._settle(committed=False)

    async def _settle(self, *, committed: bool) -> None:
        every = (*self._plan.pointers, *self._plan.shards)
        await together(
            self._ground.runtime,
            [
                settle(self._ground, path, self.tx, self.mark, committed=committed, known=self._placed.pop(path, None))
                for path in every
            ],
        )
        try:
            await self._ground.shelf.remove(self._path, self._tag or "")
        except Changed:
            pass  # somebody helped
