"""That the conformance suite can fail, and that a store which does not compare is refused when it is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from takehold import BackendRefused, Conflict
from takehold.iceberg.stores import MemoryStore, Store, Stored, prove
from takehold.testing import stores
from takehold.testing.stores import Place


class IgnoresTags(MemoryStore):
    """As two of five S3 servers do."""

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        return await self._set(path, data)


class OverwritesNew(MemoryStore):
    async def put_new(self, path: str, data: bytes) -> str:
        return await self._set(path, data)


class DeletesAnything(MemoryStore):
    async def delete_if(self, path: str, tag: str | None) -> None:
        self._objects.pop(path, None)


class TagsAreDigests(MemoryStore):
    """The same bytes have the same tag again."""

    async def _set(self, path: str, data: bytes) -> str:
        self._objects[path] = Stored(data, str(hash(data)))
        return str(hash(data))


class ChecksThenPuts(MemoryStore):
    """Both are right, and somebody comes between."""

    async def put_new(self, path: str, data: bytes) -> str:
        if path in self._objects:
            return await super().put_new(path, data)
        await asyncio.sleep(0)
        return await self._set(path, data)

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        self._expect(path, tag)
        await asyncio.sleep(0)
        return await self._set(path, data)


class ListsAPage(MemoryStore):
    async def list(self, prefix: str) -> Any:
        return (await super().list(prefix))[:1000]


class ListsByText(MemoryStore):
    async def list(self, prefix: str) -> Any:
        return sorted(path for path in self._objects if path.startswith(prefix))


class FoldsCase(MemoryStore):
    async def put_new(self, path: str, data: bytes) -> str:
        return await super().put_new(path.lower(), data)

    async def get(self, path: str) -> Stored | None:
        return await super().get(path.lower())


def few(full: int) -> int:
    return max(1, full // 50)


BROKEN: list[tuple[type[MemoryStore], Callable[[Place], None]]] = [
    (IgnoresTags, lambda place: stores.TestOneObject().test_a_tag_that_is_not_current_changes_nothing(place)),
    (IgnoresTags, lambda place: stores.TestAtOnce().test_of_20_writes_with_the_same_tag_exactly_one_wins(place, few)),
    (OverwritesNew, lambda place: stores.TestOneObject().test_what_is_there_is_not_made_anew(place)),
    (DeletesAnything, lambda place: stores.TestOneObject().test_a_tag_that_is_not_current_changes_nothing(place)),
    (TagsAreDigests, lambda place: stores.TestOneObject().test_a_tag_never_comes_back_with_the_same_bytes(place)),
    (
        ChecksThenPuts,
        lambda place: stores.TestAtOnce().test_of_20_writes_with_the_same_tag_exactly_one_wins(place, few),
    ),
    (
        ChecksThenPuts,
        lambda place: stores.TestAtOnce().test_of_20_new_objects_at_one_path_exactly_one_is_made(place, few),
    ),
    (ChecksThenPuts, lambda place: stores.TestAtOnce().test_no_update_of_a_counter_is_lost_between_tasks(place, few)),
    (ListsAPage, lambda place: stores.TestListing().test_more_than_a_page_of_them_are_all_listed(place)),
    (ListsByText, lambda place: stores.TestListing().test_a_directory_lists_what_is_below_it_and_not_beside_it(place)),
    (FoldsCase, lambda place: stores.TestPaths().test_odd_names_are_kept_apart_and_come_back_in_a_list(place)),
]


@pytest.mark.parametrize(("broken", "case"), BROKEN, ids=[f"{one.__name__}-{n}" for n, (one, _) in enumerate(BROKEN)])
def test_a_broken_store_fails_the_suite(broken: type[MemoryStore], case: Callable[[Place], None]) -> None:
    store = broken()

    async def opened() -> Store:
        return store

    with pytest.raises((AssertionError, pytest.fail.Exception, Conflict)):
        case(Place(opened))


@pytest.mark.parametrize("broken", [IgnoresTags, OverwritesNew, DeletesAnything, ChecksThenPuts])
def test_a_store_that_does_not_compare_is_refused_with_a_sentence(broken: type[MemoryStore]) -> None:
    store = broken()
    with pytest.raises(BackendRefused, match="commits would be lost on it, so it cannot be used"):
        asyncio.run(prove(store))
    assert asyncio.run(store.list("")) == []


def test_a_store_that_compares_is_proven_and_left_as_it_was() -> None:
    store = MemoryStore()
    asyncio.run(prove(store))
    assert asyncio.run(store.list("")) == []
