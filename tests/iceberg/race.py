"""The judge of races: what happened must be what some order of the same operations, one after the other, gives.

That is: results, and everything that can be seen afterwards. An operation that raised a conflict counts as not done,
and must have left nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine
from functools import cache, lru_cache
from typing import Any

from takehold import BackendError, Conflict, LockTimeout, TakeholdError
from takehold.iceberg import AlreadyExists, Catalog, NamespaceNotEmpty, TableChange, WarehouseNotEmpty
from takehold.iceberg.locking import Lockers
from takehold.iceberg.stores import MemoryStore
from tests.iceberg.stage import Stage, Trusting, Turnstiles, Voice
from tests.iceberg.world import (
    CREATE,
    NS,
    OTHER,
    UUID,
    WH,
    built,
    copied,
    frozen,
    live,
    own,
    request,
    seen,
    setting,
    table,
)

Act = Callable[[Catalog], Coroutine[Any, Any, Any]]
A, B, C, D = (table(name) for name in "abcd")


async def _both(catalog: Catalog) -> object:
    return [own(loaded) for loaded in await catalog.load_tables(WH, [A, B])]


async def _location(catalog: Catalog) -> str:
    return (await catalog.get_warehouse(WH)).location


async def stage_table(catalog: Catalog, name: str, uuid: str, *, with_a: bool = False) -> object:
    updates = live(f"{await _location(catalog)}/{uuid}", uuid, staged=name)
    if with_a:
        changes = [TableChange(A, (), setting(z="1")), TableChange(table(name), CREATE, updates)]
        return await catalog.transaction(WH, changes)
    return await catalog.commit_table(WH, table(name), CREATE, updates)


left_over: dict[str, str] = {}
"""The metadata file of a table that was unregistered."""


async def _register(catalog: Catalog) -> object:
    return await catalog.register_table(WH, A, left_over["location"], overwrite=True)


async def _hot(catalog: Catalog) -> object:
    """A transaction that takes its tables before it writes their files, as after a commit that was first."""
    catalog._transactions._hot_until = 1e12
    return await catalog.transaction(WH, [TableChange(A, (), setting(h="1")), TableChange(B, (), setting(h="1"))])


ACTS: dict[str, Act] = {
    "transact hot": _hot,
    "commit a": lambda c: c.commit_table(WH, A, [], setting(x="1")),
    "commit b": lambda c: c.commit_table(WH, B, [], setting(y="1")),
    "transact ab": lambda c: c.transaction(
        WH, [TableChange(A, (), setting(t="1")), TableChange(B, (), setting(t="1"))]
    ),
    "transact ba": lambda c: c.transaction(
        WH, [TableChange(B, (), setting(u="1")), TableChange(A, (), setting(u="1"))]
    ),
    "load both": _both,
    "rename a to c": lambda c: c.rename_table(WH, A, C),
    "rename a to d": lambda c: c.rename_table(WH, A, D),
    "rename b to c": lambda c: c.rename_table(WH, B, C),
    "rename a to other": lambda c: c.rename_table(WH, A, table("a", ("empty",))),
    "drop a": lambda c: c.drop_table(WH, A),
    "unregister a": lambda c: c.unregister_table(WH, A),
    "overwrite a": _register,
    "overwrite a again": _register,
    "register c": lambda c: c.register_table(WH, C, left_over["location"]),
    "register d": lambda c: c.register_table(WH, D, left_over["location"]),
    "unregister b": lambda c: c.unregister_table(WH, B),
    "create a": lambda c: c.create_table(WH, NS, request("a", properties={"born": "again"})),
    "create c": lambda c: c.create_table(WH, NS, request("c", properties={"born": "c"})),
    "create in empty": lambda c: c.create_table(WH, ("empty",), request("e", properties={"born": "e"})),
    "stage c": lambda c: stage_table(c, "c", UUID),
    "stage c again": lambda c: stage_table(c, "c", UUID[:-1] + "2"),
    "stage c and a": lambda c: stage_table(c, "c", UUID[:-1] + "3", with_a=True),
    "stage in empty": lambda c: c.commit_table(WH, table("s", ("empty",)), CREATE, live("memory:///warehouses/x/y")),
    "delete empty": lambda c: c.delete_namespace(WH, ("empty",)),
    "delete empty again": lambda c: c.delete_namespace(WH, ("empty",)),
    "create empty": lambda c: c.create_namespace(WH, ("empty",), {"made": "anew"}),
    "change empty": lambda c: c.update_namespace(WH, ("empty",), updates={"p": "1"}),
    "delete bare": lambda c: c.delete_warehouse("bare"),
    "create in bare": lambda c: c.create_namespace("bare", ("n",)),
    "create bare": lambda c: c.create_warehouse("bare", location="memory:///elsewhere"),
}


def _settled(result: object) -> object:
    """What an act said, as far as it can be compared."""
    if isinstance(result, AssertionError) or (isinstance(result, Exception) and not isinstance(result, TakeholdError)):
        raise result
    if isinstance(result, TakeholdError):
        return type(result).__name__
    return result if isinstance(result, list) and all(isinstance(each, dict) for each in result) else None


def refused(result: object) -> bool:
    """Not done because somebody else was at work."""
    clash = isinstance(result, Conflict) and not isinstance(
        result, AlreadyExists | NamespaceNotEmpty | WarehouseNotEmpty
    )
    return clash or isinstance(result, LockTimeout | BackendError)


@lru_cache(maxsize=1)
def beginning() -> MemoryStore:
    """The store that every race starts from."""
    store = MemoryStore()
    store.location = "memory://"

    async def begin() -> None:
        catalog = Catalog(store, Trusting(), runtime=stage)
        await built(catalog, "a", "b")
        await catalog.create_namespace(WH, ("empty",))
        await catalog.create_warehouse("bare")
        await catalog.create_table(WH, OTHER, request("kept", properties={"born": "kept"}))
        left_over["location"] = str((await catalog.unregister_table(WH, table("kept", OTHER))).metadata_location)

    stage = Stage(1)
    assert stage.play({"begin": begin()})["begin"] is None
    return store


@cache
def in_order(names: tuple[str, ...]) -> tuple[tuple[object, ...], tuple[Any, ...]]:
    """Results and world of these acts one after the other."""
    stage = Stage(2)
    catalog = Catalog(copied(beginning()), Trusting(), runtime=stage)
    results = []
    for name in names:
        result = stage.play({name: ACTS[name](catalog)})[name]
        assert not refused(result) or name.startswith(("stage", "rename")), (name, result)
        results.append(_settled(result))
    return tuple(results), frozen(stage.play({"see": seen(catalog)})["see"])


class Race:
    """Some acts at once, each in a process of its own: only the store is common, and the locks."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        honest: bool,
        impatient: bool = False,
        seed: int = 3,
        around: Callable[[MemoryStore], Any] = lambda store: store,
    ) -> None:
        self.names = names
        self.steps: dict[str, int] = {}
        self.stage = stage = Stage(seed, impatient=impatient)
        self.store = copied(beginning(), stage.step)
        self.seen_store = around(self.store)
        self.lockers: Lockers = Turnstiles(stage) if honest else Trusting()
        # Each draws its own ids: the same acts give the same bytes, in whatever order.
        voices = [Voice(stage, name) for name in names]
        self.catalogs = [Catalog(self.seen_store, self.lockers, runtime=voice) for voice in voices]

    def run(self, schedule: list[str]) -> dict[str, int]:
        """Play it, and compare with every order."""
        self.judge(self.play(schedule), schedule)
        return self.steps

    def play(self, schedule: list[str] | None = None) -> dict[str, Any]:
        """What each act returned, or raised."""
        acts = {name: ACTS[name](catalog) for name, catalog in zip(self.names, self.catalogs, strict=True)}
        results = self.stage.play(acts, schedule or [])
        self.steps = dict(self.stage.steps)
        self.stage.play({f"close {number}": catalog.close() for number, catalog in enumerate(self.catalogs)})
        return results

    def judge(self, results: dict[str, Any], schedule: list[str] | None = None) -> None:
        """Find an order that explains it."""
        schedule = schedule or []
        done = [name for name in self.names if not refused(results[name])]
        said = {name: _settled(results[name]) for name in done}
        what = (self.names, str(said), frozenset((path, each.data) for path, each in self.store._objects.items()))
        if what in judged:
            return
        later = Stage(4)
        catalog = Catalog(copied(self.store, skip=200_000), Trusting(), runtime=later)
        world = later.play({"see": seen(catalog)})["see"]
        assert isinstance(world, dict), (short(schedule), results, world)
        for order in itertools.permutations(done):
            expected, then = in_order(order)
            if then == frozen(world) and all(said[name] == one for name, one in zip(order, expected, strict=True)):
                break
        else:
            raise AssertionError(f"no order explains {results} and {world}; schedule {short(schedule)}")
        later.play({"recover": catalog.recover()})
        found = [fault for warehouse in (WH, "bare") for fault in _fsck(later, catalog, warehouse)]
        left = [fault for fault in found if not fault.kind.startswith("orphan")]
        assert not left, (short(schedule), left)
        assert frozen(later.play({"see": seen(catalog)})["see"]) == frozen(world), "recovery changed what could be seen"
        later.play({"close": catalog.close()})
        judged.add(what)


judged: set[object] = set()


def _fsck(stage: Stage, catalog: Catalog, warehouse: str) -> list[Any]:
    found = stage.play({"fsck": catalog.fsck(warehouse)})["fsck"]
    return found if isinstance(found, list) else []


def short(schedule: list[str]) -> str:
    return ", ".join(f"{name} x{len(list(group))}" for name, group in itertools.groupby(schedule))
