"""Transactions: several tables change together or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from takehold import LockTimeout, OperationConflict, TakeholdError, UnknownOutcome
from takehold.iceberg import paths
from takehold.iceberg.changes import Aborted, Change, Plan
from takehold.iceberg.commits import Next, Requirements, Updates, is_staged
from takehold.iceberg.directory import Entry, Target
from takehold.iceberg.errors import AlreadyExists, NoSuchTable
from takehold.iceberg.finding import Finder, Sight
from takehold.iceberg.ground import Ground
from takehold.iceberg.metadata import RequirementFailed
from takehold.iceberg.pointer import Body, Pointer
from takehold.iceberg.recovery import Recovery
from takehold.iceberg.registries import Registries
from takehold.iceberg.stores import Changed
from takehold.iceberg.tables import Tables
from takehold.iceberg.together import together
from takehold.iceberg.words import Identifier, Loaded, Retrying, TableChange

__all__ = ["Transactions"]

Steps = Sequence[tuple[Requirements, Updates]]


@dataclass(slots=True)
class Part:
    """One table's part."""

    identifier: Identifier
    steps: Steps
    path: str
    """Of its pointer."""
    following: Next
    sight: Sight | None
    """None for a staged table that goes live in it."""


class Transactions:
    """Validates all, then changes all."""

    ROUNDS: Final = 64
    """How often a table is tried to be taken, when a commit is first each time."""
    HOT: Final = 1.0
    """Seconds in which tables are taken before their files are written, after a commit was first."""

    def __init__(
        self,
        ground: Ground,
        registries: Registries,
        finder: Finder,
        recovery: Recovery,
        tables: Tables,
    ) -> None:
        self._ground = ground
        self._registries = registries
        self._finder = finder
        self._recovery = recovery
        self._births = tables.births
        self._commits = tables.commits
        self._tables = tables
        self._hot_until = 0.0

    async def run(
        self, warehouse: str, changes: Sequence[TableChange], retry: Retrying | None, deadline: float, key: str | None
    ) -> list[Loaded]:
        """One attempt; with `retry` as many as fit, as long as others are at work on these tables."""
        runtime = self._ground.runtime
        until = runtime.now() + deadline
        pause = retry.first if retry is not None else 0.0
        while True:
            try:
                return await self._attempt(warehouse, changes, key)
            except OperationConflict:
                self._ground.contention["pointer locked"].conflicts += 1
                if retry is None or runtime.now() + pause >= until:
                    raise
            await runtime.sleep(pause * (0.5 + runtime.random() / 2))
            pause = min(pause * retry.factor, retry.most)

    async def _attempt(self, warehouse: str, changes: Sequence[TableChange], key: str | None) -> list[Loaded]:
        wanted: dict[Identifier, list[tuple[Requirements, Updates]]] = {}
        for each in changes:
            identifier = Identifier(tuple(each.identifier[0]), each.identifier[1])
            wanted.setdefault(identifier, []).append((each.requirements, each.updates))
        if len(wanted) == 1:
            ((identifier, steps),) = wanted.items()
            return [await self.alone(warehouse, identifier, steps, 4, key)]
        return await self._several(warehouse, wanted, key)

    async def alone(
        self, warehouse: str, identifier: Identifier, steps: Steps, retries: int, key: str | None
    ) -> Loaded:
        """One table: the regular commit, or a staged table that goes live."""
        try:
            return await self._commits.commit(warehouse, identifier, "table", steps, retries=retries, key=key)
        except NoSuchTable:
            if not any(is_staged(requirements) for requirements, _ in steps):
                raise
        return await self._tables.go_live(warehouse, identifier, steps, key)

    async def _several(self, warehouse: str, wanted: Mapping[Identifier, Steps], key: str | None) -> list[Loaded]:
        ground = self._ground
        found = await self._discover(warehouse, wanted)
        if key is not None and all(sight is not None and key in sight.pointer.recent for sight in found.values()):
            return [await self._finder.loaded(warehouse, sight, "table") for sight in found.values() if sight]
        staged = {name: await self._tables.staged(warehouse, wanted[name]) for name, at in found.items() if at is None}
        pointers = {
            name: sight.path if sight else paths.pointer(warehouse, staged[name].metadata["table-uuid"])
            for name, sight in found.items()
        }
        shards = sorted({ground.shard_of(warehouse, name) for name in staged})
        async with AsyncExitStack() as stack:
            holds = await self._lock(stack, sorted(pointers.values()), shards)
            # All are validated before anything is written.
            parts = [
                await self._part(warehouse, name, steps, pointers[name], staged.get(name))
                for name, steps in wanted.items()
            ]
            if any(part.following.changes for part in parts):
                await self._carry_out(warehouse, parts, holds, [*pointers.values(), *shards], key)
        return [self._loaded(part) for part in parts]

    async def _lock(self, stack: AsyncExitStack, *levels: list[str]) -> list[Any]:
        """All pointers, sorted, without waiting; then the shards of staged tables. Leaving gives back in reverse."""
        holds = []
        try:
            for level in filter(None, levels):
                locked = self._ground.locked("Transaction", *level, timeout=self._ground.patience.NONE)
                holds.append(await stack.enter_async_context(locked))
        except LockTimeout as error:
            raise OperationConflict(f"another operation is at work on these tables: {error}") from error
        return holds

    async def _carry_out(
        self, warehouse: str, parts: list[Part], holds: list[Any], locks: list[str], key: str | None
    ) -> None:
        # Where commits were first a moment ago, they will be again: there the tables are taken before the files are
        # written, so that one attempt is enough.
        hot = self._ground.runtime.now() < self._hot_until
        try:
            if not hot:
                await together(self._ground.runtime, [self._write(part) for part in parts])
            for hold in holds:
                hold.check()
            await self._change(warehouse, parts, locks, key, hot=hot)
        except UnknownOutcome:
            raise  # the files may be what the tables consist of
        except TakeholdError as error:
            for part in parts:
                await self._commits.discard(part.following)
            if isinstance(error, Aborted):
                raise OperationConflict(str(error)) from error
            raise
        for part in parts:
            await self._commits.tidy(part.following)

    async def _discover(self, warehouse: str, wanted: Mapping[Identifier, Steps]) -> dict[Identifier, Sight | None]:
        """Where the tables are, once what dead owners left on them is recovered."""
        found: dict[Identifier, Sight | None] = {}
        for identifier, steps in wanted.items():
            try:
                found[identifier] = await self._finder.settled(warehouse, identifier, "table", wait=False)
            except NoSuchTable:
                if not any(is_staged(requirements) for requirements, _ in steps):
                    raise
                found[identifier] = None
        return found

    async def _part(self, warehouse: str, identifier: Identifier, steps: Steps, path: str, staged: Next | None) -> Part:
        if staged is not None:
            return Part(identifier, steps, path, staged, None)
        sight = await self._finder.settled(warehouse, identifier, "table", held=[path], wait=False)
        if sight.path != path:
            raise OperationConflict(f"{identifier} stands for another table now")
        following = await self._commits.following(warehouse, sight, "table", steps)
        return Part(identifier, steps, path, following, sight)

    async def _write(self, part: Part) -> None:
        if part.following.changes:
            await self._ground.files.write(part.following.location, part.following.metadata)

    async def _change(self, warehouse: str, parts: list[Part], locks: list[str], key: str | None, *, hot: bool) -> None:
        ground = self._ground
        parts_by_path = sorted(parts, key=lambda part: part.path)
        born = [part for part in parts if part.sight is None]
        plan = Plan(
            warehouse,
            "transaction",
            [part.path for part in parts_by_path],
            sorted({ground.shard_of(warehouse, part.identifier) for part in born}),
            locks,
            [str(part.identifier) for part in parts],
            key,
        )
        async with Change(ground, self._recovery, plan) as change:
            for part in born:
                await self._bear(warehouse, change, part, locks, hot)
            live = [part for part in parts_by_path if part.sight is not None]
            await together(ground.runtime, [self._intend(warehouse, change, part, hot) for part in live])
            await change.commit()

    async def _intend(self, warehouse: str, change: Change, part: Part, hot: bool) -> None:
        """Put the intent on one table, which may have moved on since it was validated."""
        if not hot:
            assert part.sight is not None
            following = Body(part.identifier, part.following.location)
            try:
                await change.intend(part.sight, following)
            except Changed:
                self._ground.contention["pointer cas"].losses += 1
            else:
                return
            self._hot_until = self._ground.runtime.now() + self.HOT
            await self._commits.discard(part.following)
        # The table is taken as it is, by an intent to leave it so, in one read and one write: those who commit to it
        # all the time would win every race that has a metadata file in it.
        part.sight = await self._reserve(warehouse, change, part)
        part.following = await self._commits.following(warehouse, part.sight, "table", part.steps)
        await self._write(part)
        await change.intend(part.sight, Body(part.identifier, part.following.location))

    async def _reserve(self, warehouse: str, change: Change, part: Part) -> Sight:
        for _ in range(self.ROUNDS):
            self._ground.contention["pointer cas"].retries += 1
            sight = await self._finder.settled(warehouse, part.identifier, "table", held=[part.path], wait=False)
            if sight.path != part.path:
                break
            try:
                return await change.reserve(sight)
            except Changed:
                self._ground.contention["pointer cas"].losses += 1
        raise OperationConflict(f"{part.identifier} changes each time it is looked at")

    async def _bear(self, warehouse: str, change: Change, part: Part, held: list[str], hot: bool) -> None:
        """Write the pointer of a staged table, and give its name an entry: both as intents."""
        ground, identifier = self._ground, paths.checked_identifier(part.identifier, "a table")
        path = ground.shard_of(warehouse, identifier)
        target = Target("table", part.following.metadata["table-uuid"], ground.fresh()[:8])
        intent = change.intent(Body(identifier, part.following.location))
        if hot:
            await self._write(part)
        try:
            await self._births.claim(warehouse, Pointer(target.uuid, "table", target.birth, None, intent), held)
            for _ in range(self.ROUNDS):
                shard, tag = await self._registries.open_shard(warehouse, identifier.namespace, path)
                await self._births.expect_free(warehouse, shard, identifier, "table", held)
                entry = Entry(None, target, change.tx)
                try:
                    return await change.mark_shard(path, shard.having(identifier.name, entry.fields()), tag)
                except Changed:
                    continue
        except AlreadyExists as error:
            raise RequirementFailed("Requirement failed: table already exists") from error
        raise OperationConflict(f"the shard of {identifier} changes each time it is looked at")

    def _loaded(self, part: Part) -> Loaded:
        uuid = part.sight.pointer.uuid if part.sight else part.following.metadata["table-uuid"]
        return Loaded(part.identifier, "table", uuid, part.following.location, part.following.metadata)
