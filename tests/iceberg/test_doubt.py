"""Answers in doubt: every write of every operation is lost on its way there, on its way back, or arrives late."""

from __future__ import annotations

from typing import Any

import pytest

from takehold import BackendUnavailable, Conflict, UnknownOutcome
from takehold.iceberg.stores import MemoryStore, Stored
from tests.iceberg.race import ACTS, Race

WRITES = ("put_new", "put_if", "delete_if", "put")


class Doubtful:
    """A store of which one call goes wrong, or all from one on."""

    def __init__(self, store: MemoryStore, at: int, how: str) -> None:
        self._store, self._at, self._how = store, at, how
        self.location = store.location
        self.calls = 0
        self.told = False
        self._late: tuple[str, tuple[Any, ...]] | None = None

    async def _call(self, name: str, *args: Any) -> Any:
        self.calls += 1
        work = getattr(self._store, name)
        late, self._late = self._late, None
        if late is not None:
            try:
                await getattr(self._store, late[0])(*late[1])
            except Conflict:
                pass
        hit = self.calls == self._at or (self._how == "away from then on" and self.calls >= self._at)
        if not hit:
            return await work(*args)
        if self._how.startswith("away"):
            self.told = True
            raise BackendUnavailable("the store is away")
        if name not in WRITES:
            return await work(*args)
        self.told = True
        if self._how == "the answer is lost":
            try:
                await work(*args)
            except Conflict:
                pass
        elif self._how == "it arrives late":
            self._late = name, args
        raise UnknownOutcome("no answer")

    async def get(self, path: str) -> Stored | None:
        found: Stored | None = await self._call("get", path)
        return found

    async def put_new(self, path: str, data: bytes) -> str:
        return str(await self._call("put_new", path, data))

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        return str(await self._call("put_if", path, data, tag))

    async def delete_if(self, path: str, tag: str | None) -> None:
        await self._call("delete_if", path, tag)

    async def list(self, prefix: str) -> Any:
        return await self._call("list", prefix)

    async def put(self, path: str, data: bytes) -> None:
        await self._call("put", path, data)

    async def close(self) -> None:
        await self._store.close()


ALONE = sorted(set(ACTS) - {"delete empty again", "stage c again", "stage in empty", "rename a to d", "transact ba"})


@pytest.mark.covers("M-27", "M-32")
@pytest.mark.parametrize("act", ALONE)
@pytest.mark.parametrize("how", ["the answer is lost", "the request is lost", "it arrives late"])
def test_a_write_in_doubt_is_asked_about_until_it_is_known(act: str, how: str) -> None:
    for at in range(1, 200):
        race = Race((act,), honest=True, around=lambda store, at=at: Doubtful(store, at, how))  # type: ignore[misc]
        results = race.play()
        assert not isinstance(results[act], UnknownOutcome | BackendUnavailable), (at, results)
        race.judge(results)
        if race.seen_store.calls < at:
            return
    raise AssertionError("never came to the end")


@pytest.mark.covers("M-27", "M-32")
@pytest.mark.parametrize("act", ALONE)
@pytest.mark.parametrize("how", ["away", "away from then on"])
def test_without_a_store_it_is_refused_with_nothing_done_or_done_and_a_success(act: str, how: str) -> None:
    outcomes = set()
    for at in range(1, 200):
        race = Race((act,), honest=True, around=lambda store, at=at: Doubtful(store, at, how))  # type: ignore[misc]
        results = race.play()
        assert not isinstance(results[act], UnknownOutcome), (at, results)
        outcomes.add(isinstance(results[act], BackendUnavailable))
        race.judge(results)
        if race.seen_store.calls < at:
            break
    assert True in outcomes
