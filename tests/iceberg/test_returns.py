"""What comes late: a first write that is carried out when all is over, a shard that is finished last."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from takehold import BackendUnavailable, OperationConflict, UnknownOutcome
from takehold.iceberg import Catalog
from takehold.iceberg.stores import MemoryStore
from tests.iceberg.race import ACTS, beginning
from tests.iceberg.stage import Stage, Trusting, Turnstiles
from tests.iceberg.world import UUID, WH, copied, own, seen, table

CALLS = ("get", "put", "put_new", "put_if", "delete_if", "list")


class Hooked:
    """A store that asks before each call, and says what came of it."""

    def __init__(self, store: MemoryStore, hook: Callable[..., Any]) -> None:
        self._store, self._hook = store, hook
        self.location = store.location

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            return getattr(self._store, name)

        async def call(*args: Any) -> Any:
            return await self._hook(getattr(self._store, name), name, *args)

        return call


def closed(stage: Stage, *catalogs: Catalog) -> None:
    for catalog in catalogs:
        stage.play({"close": catalog.close()})


def is_record(path: str) -> bool:
    return "/.tx/pending/" in path


@pytest.mark.covers("M-27", "M-32")
@pytest.mark.parametrize("act", ["transact ab", "rename a to c", "drop a", "overwrite a", "stage c and a"])
@pytest.mark.parametrize("then", ["pending", "aborted"])
def test_a_record_that_comes_back_after_all_was_finished_is_no_no(act: str, then: str) -> None:
    stage, store = Stage(7), copied(beginning())
    helper = Catalog(store, Trusting(), runtime=stage)
    late: list[Any] = []

    async def hook(work: Callable[..., Any], name: str, path: str, *args: Any) -> Any:
        if name == "put_new" and is_record(path) and not late:
            late.extend((path, *args))
            raise UnknownOutcome("no answer, and it is still on its way")
        done = await work(path, *args)
        if name == "put_if" and is_record(path) and b'"committed"' in args[0]:
            assert await helper.recover()
            tag = await store.put_new(*late)
            if then == "aborted":
                aborting = Catalog(Hooked(store, undeletable), Trusting(), runtime=stage)
                with pytest.raises(BackendUnavailable):
                    await aborting.recover()
                await aborting.close()
                assert (await store.get(path)).tag != tag  # type: ignore[union-attr]
            raise UnknownOutcome("no answer")
        return done

    catalog = Catalog(Hooked(store, hook), Trusting(), runtime=stage)
    result = stage.play({act: ACTS[act](catalog)})[act]
    assert late
    assert not isinstance(result, Exception), result
    # Also the files that tables consist of are there.
    after = stage.play({"see": seen(helper)})["see"]
    alone = copied(beginning())
    other = Stage(8)
    straight = Catalog(alone, Trusting(), runtime=other)
    other.play({act: ACTS[act](straight)})
    assert after == other.play({"see": seen(straight)})["see"]
    closed(stage, catalog, helper)
    closed(other, straight)


async def undeletable(work: Callable[..., Any], name: str, path: str, *args: Any) -> Any:
    if name == "delete_if" and is_record(path):
        raise BackendUnavailable("the store is away")
    found = work(path, *args)
    return await found if inspect.isawaitable(found) else found


@pytest.mark.covers("M-27", "M-32", "M-47")
def test_fsck_leaves_a_table_alone_whose_entry_is_the_last_to_be_finished() -> None:
    stage, store = Stage(7), copied(beginning())
    lockers = Turnstiles(stage)
    pointed, looked, answered = stage.event(), stage.event(), stage.event()
    marks = 0

    async def transacting(work: Callable[..., Any], name: str, path: str, *args: Any) -> Any:
        nonlocal marks
        if name.startswith("put") and "/table-registry-shard-" in path:
            marks += 1
            if marks > 1:
                raise BackendUnavailable("the store is away")
            pointed.set()
            await looked.wait(60.0)
        return await work(path, *args)

    async def looking(work: Callable[..., Any], name: str, path: str, *args: Any) -> Any:
        if name == "get" and path.endswith(f"{UUID[:-1]}3.bin"):
            looked.set()
            await answered.wait(60.0)
        return await work(path, *args)

    owner, looker = (Catalog(Hooked(store, hook), lockers, runtime=stage) for hook in (transacting, looking))

    async def transact() -> Any:
        try:
            return await ACTS["stage c and a"](owner)
        finally:
            answered.set()

    async def repair() -> Any:
        await pointed.wait(60.0)
        return await looker.fsck(WH, repair=True)

    results = stage.play({"transact": transact(), "repair": repair()})
    assert not isinstance(results["transact"], Exception), results
    assert [fault.kind for fault in results["repair"] if fault.kind == "orphan pointer"] == ["orphan pointer"]
    later = Catalog(store, Trusting(), runtime=stage)
    loaded = stage.play({"see": later.load_table(WH, table("c"))})["see"]
    assert not isinstance(loaded, Exception), loaded
    assert own(loaded) == {"staged": "c"}
    closed(stage, owner, looker, later)


@pytest.mark.covers("M-27", "M-32")
@pytest.mark.parametrize("act", ["transact ab", "rename a to c", "drop a", "overwrite a"])
def test_a_record_aborted_before_its_owner_heard_of_it_is_a_conflict(act: str) -> None:
    stage, store = Stage(7), copied(beginning())
    helper = Catalog(Hooked(store, undeletable), Trusting(), runtime=stage)
    watcher = Catalog(store, Trusting(), runtime=stage)
    before = stage.play({"see": seen(watcher)})["see"]
    written = 0

    async def hook(work: Callable[..., Any], name: str, path: str, *args: Any) -> Any:
        nonlocal written
        if name != "put_new" or not is_record(path):
            return await work(path, *args)
        written += 1
        tag = await work(path, *args)
        if written > 1:
            return tag
        with pytest.raises(BackendUnavailable):
            await helper.recover()
        raise UnknownOutcome("no answer")

    catalog = Catalog(Hooked(store, hook), Trusting(), runtime=stage)
    result = stage.play({act: ACTS[act](catalog)})[act]
    after = stage.play({"see": seen(watcher)})["see"]
    if act.startswith("transact"):
        assert isinstance(result, OperationConflict), result
        assert after == before
    else:
        # Nothing was changed, so it is simply done again.
        assert not isinstance(result, Exception), result
        assert written == 2
        assert after != before
    closed(stage, catalog, helper, watcher)
