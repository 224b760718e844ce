"""The catalog on the simulated disk: the power goes after every step, with every part of what had not lasted.

Then somebody recovers, and the power goes again. What was acknowledged is there; what was shown once stays; tables of
one transaction agree; nothing is left behind; recovering twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache, partial
from typing import Any

import pytest

from takehold import Conflict
from takehold.iceberg import Catalog, NotFound, TableChange
from takehold.iceberg.stores import LocalStore
from takehold.runtime import run
from takehold.testing.crashes import explore
from takehold.testing.disk import SimulatedDisk
from tests.iceberg.stage import Still, Trusting
from tests.iceberg.world import CREATE, NS, UUID, WH, built, live, own, request, setting, table
from tests.lanes import PROVE

Act = Callable[[Catalog], Coroutine[Any, Any, Any]]
NAMES = ("a", "b", "c", "d", "e")


def catalog_on(disk: SimulatedDisk, seed: int = 1) -> Catalog:
    store = LocalStore(disk)
    store.tidy()
    return Catalog(store, Trusting(), runtime=Still(seed))


@cache
def beginning() -> dict[str, bytes]:
    disk = SimulatedDisk()

    async def begin() -> None:
        catalog = catalog_on(disk)
        await built(catalog, *NAMES)
        await catalog.create_namespace(WH, ("empty",))

    run(begin())
    return disk.files


def _transaction(count: int) -> Act:
    return lambda c: c.transaction(WH, [TableChange(table(name), (), setting(t="1")) for name in NAMES[:count]])


async def _refused(catalog: Catalog) -> None:
    changes = [
        TableChange(table("a"), (), setting(t="1")),
        TableChange(table("b"), [{"type": "assert-table-uuid", "uuid": UUID}], setting(t="1")),
    ]
    with pytest.raises(Conflict):
        await catalog.transaction(WH, changes)


class Interrupted:
    """A store before whose n-th call another process commits to `b`, whole."""

    def __init__(self, store: LocalStore, at: int, act: Act) -> None:
        self._store, self._at, self._act = store, at, act
        self.location = store.location
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if name not in ("get", "put_new", "put_if", "delete_if", "put", "list"):
            return work

        async def call(*args: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                try:
                    await self._act(Catalog(self._store, Trusting(), runtime=Still(9)))
                except (Conflict, NotFound):
                    pass  # the first has come too far for it
            return await work(*args)

        return call


async def _hot(catalog: Catalog) -> None:
    catalog._transactions._hot_until = 1e12
    await _transaction(2)(catalog)


async def _staged(catalog: Catalog, *, with_a: bool) -> None:
    updates = live(f"{(await catalog.get_warehouse(WH)).location}/{UUID}", staged="1")
    if with_a:
        changes = [TableChange(table("a"), (), setting(t="1")), TableChange(table("s"), CREATE, updates)]
        await catalog.transaction(WH, changes)
    else:
        await catalog.commit_table(WH, table("s"), CREATE, updates)


async def _overwrite(catalog: Catalog) -> None:
    gone = await catalog.unregister_table(WH, table("e"))
    await catalog.register_table(WH, table("a"), str(gone.metadata_location), overwrite=True)


ACTS: dict[str, Act] = {
    "commit": lambda c: c.commit_table(WH, table("a"), [], setting(x="1")),
    "transaction of 2": _transaction(2),
    "transaction of 3": _transaction(3),
    "transaction of 5": _transaction(5),
    "transaction that takes its tables first": _hot,
    "transaction that is refused": _refused,
    "rename": lambda c: c.rename_table(WH, table("a"), table("z")),
    "rename into another namespace": lambda c: c.rename_table(WH, table("a"), table("a", ("empty",))),
    "staged to live": lambda c: _staged(c, with_a=False),
    "staged to live in a transaction": lambda c: _staged(c, with_a=True),
    "create": lambda c: c.create_table(WH, NS, request("n")),
    "drop": lambda c: c.drop_table(WH, table("a")),
    "overwrite": _overwrite,
    "delete namespace": lambda c: c.delete_namespace(WH, ("empty",)),
    "create namespace": lambda c: c.create_namespace(WH, ("new",)),
}


COULD_BE = (*map(table, (*NAMES, "n", "s", "z")), table("a", ("empty",)))


async def world(catalog: Catalog) -> tuple[Any, ...]:
    """What is where, by name: quicker than a listing, of which `fsck` checks what it lists."""
    found = []
    for identifier in COULD_BE:
        try:
            found.append((str(identifier), str(own(await catalog.load_table(WH, identifier)))))
        except NotFound:
            continue
    there = [(name, str(await catalog.namespace_exists(WH, (name,)))) for name in ("empty", "new")]
    return (*found, *there)


def after(*acts: Act) -> tuple[Any, ...]:
    """What can be seen after these acts, one after the other."""
    disk = SimulatedDisk(beginning())
    for seed, act in enumerate(acts, 3):
        run(act(catalog_on(disk, seed)))
    return run(world(catalog_on(disk)))


async def check(disk: SimulatedDisk, stages: list[tuple[Any, ...]], acknowledged: dict[str, set[int]]) -> None:
    """Recover, and see that nobody was told or shown anything else."""
    catalog = catalog_on(disk, seed=2)
    allowed = set(range(len(stages)))
    for fact in disk.notes:
        # What was shown stays, but for what was under way when the power went and had not been shown.
        allowed &= acknowledged[fact] if isinstance(fact, str) else {i for i, one in enumerate(stages) if one == fact}
    found = await world(catalog)
    assert found in [stages[i] for i in allowed], f"{found} is none of {[stages[i] for i in sorted(allowed)]}"
    disk.note(found)
    await catalog.recover([WH])
    assert not await catalog.transactions(WH), "something pending is left"
    assert await world(catalog) == found, "recovery changed what could be seen"
    if disk.generation == 1:
        assert not await catalog.recover([WH])
        for fault in await catalog.fsck(WH):
            assert fault.kind.startswith("orphan"), fault


@pytest.mark.slow
@pytest.mark.covers("M-32", "M-35", "M-47")
@pytest.mark.parametrize("name", ACTS)
def test_no_crash_leaves_half_of_anything_or_takes_back_what_was_told(name: str) -> None:
    disk = SimulatedDisk(beginning())
    stages = [after(), after(ACTS[name])]

    async def scenario() -> None:
        await ACTS[name](catalog_on(disk, seed=3))
        disk.note("acknowledged")

    if name == "overwrite":  # two operations of one client
        stages.insert(1, after(lambda c: c.unregister_table(WH, table("e"))))
    run(scenario())
    found = explore(
        disk,
        lambda image: check(image, stages, {"acknowledged": {len(stages) - 1}}),
        shares=(1.0,) * (4 if PROVE else 2),
    )
    counted[name] = found.images
    assert found.checked >= 10


counted: dict[str, int] = {}


PAIRS = {
    "transaction, and a commit to one of its tables": (
        _transaction(3),
        lambda c: c.commit_table(WH, table("b"), [], setting(x="1")),
    ),
    "transaction, and a rename of one of its tables": (
        _transaction(2),
        lambda c: c.rename_table(WH, table("b"), table("z")),
    ),
    "rename, and a commit": (ACTS["rename"], lambda c: c.commit_table(WH, table("a"), [], setting(x="1"))),
    "drop, and a transaction": (ACTS["drop"], _transaction(2)),
    "delete namespace, and a create there": (
        ACTS["delete namespace"],
        lambda c: c.create_table(WH, ("empty",), request("a")),
    ),
}
"""Both orders are known to be right (test_races): what is looked for here is what a crash leaves in between."""


@pytest.mark.slow
@pytest.mark.covers("M-32", "M-33", "M-35")
@pytest.mark.parametrize("name", PAIRS)
def test_no_crash_of_two_that_meet_leaves_half_of_anything(name: str) -> None:
    """At every step of the first the second runs whole, and the power goes at every step of both."""
    first, second = PAIRS[name]
    steps = interrupted(first, second, 10_000)[1].calls
    images = 0
    for at in range(1, steps + 1, 1 if PROVE else max(1, steps // 6)):
        disk, _ = interrupted(first, second, at)
        both = run(world(catalog_on(SimulatedDisk(disk.files))))
        look = partial(check_pair, first=first, second=second, both=both)
        images += explore(disk, look, shares=(1.0, 1.0, 0.2) if PROVE else (1.0,)).images
    counted[name] = images
    assert images > 100


def interrupted(first: Act, second: Act, at: int) -> tuple[SimulatedDisk, Interrupted]:
    """What the first did, with the second before one of its calls."""
    disk = SimulatedDisk(beginning())
    store = Interrupted(LocalStore(disk), at, second)

    async def scenario() -> None:
        try:
            await first(Catalog(store, Trusting(), runtime=Still(3)))
        except (Conflict, NotFound):
            pass
        disk.note("over")

    run(scenario())
    return disk, store


async def check_pair(disk: SimulatedDisk, first: Act, second: Act, both: tuple[Any, ...]) -> None:
    """What is there is what some of the two have made, in an order; and it stays."""
    catalog = catalog_on(disk, seed=2)
    found = await world(catalog)
    shown = [fact for fact in disk.notes if not isinstance(fact, str)]
    if "over" in disk.notes:
        assert found == both
    elif shown:
        assert found == shown[-1]
    else:
        assert found in (*possible(first, second), both), found
    disk.note(found)
    await catalog.recover([WH])
    assert await world(catalog) == found, "recovery changed what could be seen"
    assert not await catalog.transactions(WH), "something pending is left"
    if disk.generation == 1:
        for fault in await catalog.fsck(WH):
            assert fault.kind.startswith("orphan"), fault


@cache
def possible(first: Act, second: Act) -> tuple[tuple[Any, ...], ...]:
    """None, one, or both, in either order."""
    worlds = [after(), after(first), after(second)]
    for order in ((first, second), (second, first)):
        try:
            worlds.append(after(*order))
        except (Conflict, NotFound):
            continue
    return tuple(worlds)
