"""Planted bugs: each is a mistake that somebody makes, and each is found by the judge of races or of crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from takehold.iceberg import births, changes, finding, recovery, registries, removals, settling, tables
from takehold.iceberg.changes import Change
from takehold.iceberg.directory import Directory
from takehold.iceberg.pointer import Body
from takehold.iceberg.stores import Changed
from takehold.runtime import run
from takehold.testing.crashes import explore
from takehold.testing.disk import SimulatedDisk
from tests.iceberg import race
from tests.iceberg.race import Race
from tests.iceberg.test_crashes import ACTS, after, beginning, catalog_on, check
from tests.iceberg.world import UUID

Patch = pytest.MonkeyPatch


def no_intents(patch: Patch) -> None:
    """Pointers are locked and then written; a commit takes no lock."""

    async def straight(self: Change, sight: Any, following: Body | None) -> Any:
        await self._ground.shelf.swap(sight.path, replace(sight.pointer, now=following), sight.tag, self.mark)
        return sight

    patch.setattr(Change, "_put", straight)


def overwrites(patch: Patch) -> None:
    """A transaction sets what it read, without comparing."""
    put = Change._put

    async def blindly(self: Change, sight: Any, following: Body | None) -> Any:
        found = await self._ground.pointer(sight.path)
        assert found is not None
        return await put(self, sight._replace(tag=found[1]), following)

    patch.setattr(Change, "_put", blindly)


def does_not_close(patch: Patch) -> None:
    """A namespace is deleted when its shards were seen to be empty."""

    async def looked(self: Any, path: str, kind: str, epoch: int) -> bool:
        found = await self._ground.shelf.read(path, Directory, kind)
        return found is None or not found[0].entries

    patch.setattr(registries.Registries, "close", looked)


def absent_is_committed(patch: Patch) -> None:
    """An intent without a record is finished."""
    settle = settling.settle

    async def finished(*args: Any, committed: bool, **more: Any) -> None:
        await settle(*args, committed=True, **more)

    patch.setattr(recovery, "settle", finished)


def reads_once(patch: Patch) -> None:
    """Several tables are read one after the other."""

    async def once(self: Any, warehouse: str, identifiers: Any) -> Any:
        sights = await self._collect(warehouse, identifiers)
        return [await self._finder.loaded(warehouse, sight, "table") for sight in sights]

    patch.setattr(tables.Tables, "load_many", once)


def keeps_quiet_about_intents(patch: Patch) -> None:
    """A commit takes a pointer with an intent for one without."""

    async def settled(
        self: Any, warehouse: str, identifier: Any, kind: Any, *, held: Any = (), wait: bool = True
    ) -> Any:
        sight = await self.see(warehouse, identifier, kind)
        return sight._replace(pointer=replace(sight.pointer, intent=None))

    patch.setattr(finding.Finder, "settled", settled)


def does_not_touch(patch: Patch) -> None:
    """An orphan is taken over as soon as it was seen to be one."""

    async def looked(self: Any, warehouse: str, pointer: Any) -> None:
        return None

    patch.setattr(births.Births, "_disown", looked)


def asks_nobody(patch: Patch) -> None:
    """The commit point is passed without comparing."""

    async def commit(self: Change) -> None:
        found = await self._ground.pending(self._path)
        tag = found[1] if found else ""
        try:
            self._tag = await self._ground.shelf.swap(self._path, replace(self._record, state="committed"), tag)
        except Changed:
            pass
        self.decided = True
        await self._finish()

    patch.setattr(changes.Change, "commit", commit)


RACES: list[tuple[Callable[[Patch], None], tuple[str, str]]] = [
    (no_intents, ("transact ab", "load both")),
    (overwrites, ("transact ab", "commit a")),
    (does_not_close, ("create in empty", "delete empty")),
    (absent_is_committed, ("drop a", "transact ab")),
    (reads_once, ("load both", "transact ab")),
    (keeps_quiet_about_intents, ("transact ab", "commit a")),
    (does_not_touch, ("stage c", "stage c twin")),
    (asks_nobody, ("transact ab", "commit a")),
]


@pytest.mark.slow
@pytest.mark.covers("M-33", "M-47")
@pytest.mark.parametrize(("bug", "pair"), RACES, ids=[bug.__name__ for bug, _ in RACES])
def test_the_judge_of_races_finds_a_planted_bug(
    bug: Callable[[Patch], None], pair: tuple[str, str], monkeypatch: Patch
) -> None:
    monkeypatch.setitem(race.ACTS, "stage c twin", lambda catalog: race.stage_table(catalog, "c", UUID))
    for names in (pair, pair[::-1], pair[:1], pair[1:], ()):
        race.in_order(names)  # known before there is a bug
    monkeypatch.setattr(race, "judged", set())
    bug(monkeypatch)
    assert _found(pair), "no order of steps shows it"


def _found(pair: tuple[str, str]) -> bool:
    first, second = pair
    for impatient in (False, True):
        for before in range(60):
            for then in (2000, 4, 8, 12, 16, 20):
                try:
                    Race(pair, honest=False, impatient=impatient).run(
                        [first] * before + [second] * then + [first] * 2000
                    )
                except Exception:  # noqa: BLE001 - found, one way or another
                    return True
    return False


def forgets_the_record(patch: Patch) -> None:
    """No write-ahead record: each table is changed on its own."""
    no_intents(patch)


def deletes_first(patch: Patch) -> None:
    """The record goes before the tables are finished."""

    async def early(self: Change, *, committed: bool) -> None:
        await self._ground.shelf.remove(self._path, self._tag or "")
        for path in (*self._plan.pointers, *self._plan.shards):
            await settling.settle(self._ground, path, self.tx, self.mark, committed=committed)

    patch.setattr(Change, "_settle", early)


def recovers_half(patch: Patch) -> None:
    """Recovery finishes the first table it finds."""

    async def half(self: Any, path: str, record: Any, tag: str) -> None:
        committed = record.state == "committed"
        await settling.settle(self._ground, record.pointers[0], record.tx, record.mark, committed=committed)
        await self._ground.shelf.remove(path, tag)

    patch.setattr(recovery.Recovery, "_finish", half)


def removes_before(patch: Patch) -> None:
    """A drop deletes the pointer and then sees to the entry."""

    async def commit(self: Any, warehouse: str, identifier: Any, kind: Any, by: str, *, load: bool = False) -> Any:
        sight = await self._finder.settled(warehouse, identifier, kind)
        await self._ground.shelf.remove(sight.path, sight.tag)
        path = self._ground.shard_of(warehouse, identifier)
        shard, tag = await self._ground.shard(path)
        await self._ground.shelf.swap(path, shard.having(identifier.name, None), tag)
        return sight, None

    patch.setattr(removals.Removals, "_remove", commit)


CRASHES: list[tuple[Callable[[Patch], None], str]] = [
    (forgets_the_record, "transaction of 2"),
    (deletes_first, "transaction of 3"),
    (recovers_half, "transaction of 2"),
    (removes_before, "drop"),
    (recovers_half, "rename"),
]


@pytest.mark.slow
@pytest.mark.covers("M-32", "M-35")
@pytest.mark.parametrize(("bug", "name"), CRASHES, ids=[f"{bug.__name__} in {name}" for bug, name in CRASHES])
def test_the_crashes_find_a_planted_bug(bug: Callable[[Patch], None], name: str, monkeypatch: Patch) -> None:
    stages = [after(), after(ACTS[name])]
    bug(monkeypatch)
    disk = SimulatedDisk(beginning())

    async def scenario() -> None:
        await ACTS[name](catalog_on(disk, seed=3))
        disk.note("acknowledged")

    run(scenario())
    with pytest.raises(Exception):  # noqa: B017, PT011 - found, one way or another
        explore(disk, lambda image: check(image, stages, {"acknowledged": {1}}), shares=(1.0, 1.0))
