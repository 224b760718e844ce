"""The conformance suite of stores: what `takehold.iceberg.stores.Store` promises, shown on yours.

One module runs all of it. It imports the cases and says where the store is:

    from takehold.testing.stores import *

    @pytest.fixture
    def store_url(tmp_path):
        return f"file:{tmp_path}/lake"          # what `open_store` takes

or, for a class of your own, a function that opens another handle on the same objects each time; the case with
several processes is skipped then. The objects may be the same for all tests: each uses paths of its
own. Counts are a tenth of the full ones unless `TAKEHOLD_PROVE=1`; override `scaled` for others.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from takehold import Conflict, UsageError
from takehold.iceberg.stores import AlreadyThere, Changed, Store, open_store
from takehold.testing.suite.fixtures import scaled

__all__ = [
    "Place",
    "TestAtOnce",
    "TestListing",
    "TestOneObject",
    "TestPaths",
    "place",
    "scaled",
]

Opening = Callable[[], Awaitable[Store]]
Case = Callable[..., Coroutine[Any, Any, None]]

FIT = (
    "a", "A", "spa ce", "a=b&c", "100%", "a%2Fb", "%1F", "%2e%2e", "é", "e\u0301", "日本", "\U0001f512", "a+b", "q?x",
    "h#x", "a:b", "tilde~", "quo'te", 'quo"te', "[x]", "{x}", "$x", "@", "*", "<x>", "|", "^", "`", "a;b", "a,b",
    "-", "_", ".hidden", " lead", "trail ", "\u00a0", "\u3000", "..x", "x.json.gz", "x" * 255, "CON", "~",
    "d/" * 20 + "deep",
)  # fmt: skip
"""Parts of paths that every store takes, and keeps apart from each other."""

UNFIT = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "./a", "a/./b", "a.", "a./b", "...", "nul\0",
    "a\nb", "a\x7f", "\x1f", "back\\slash", "\ud800", "\u202e", "\u200b", "x" * 256, "é" * 128, "x/" * 500, ".takehold",
    ".takehold/format", ".takehold-x",
)  # fmt: skip
"""Paths that every store refuses before it does anything."""

WORKER = """
import asyncio, sys
from takehold import Conflict
from takehold.iceberg.stores import open_store
async def work(url, path, rounds):
    store = await open_store(url)
    for _ in range(rounds):
        while True:
            found = await store.get(path)
            try:
                await store.put_if(path, b"%d" % (int(found.data) + 1), found.tag)
                break
            except Conflict:
                await asyncio.sleep(0)
    await store.close()
asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


class Place:
    """Paths nobody else uses, and ways to the objects there."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.prefix = f"t{uuid.uuid4().hex}"

    def path(self, name: str = "object") -> str:
        """A path of this test."""
        return f"{self.prefix}/{name}"

    def run(self, case: Case, handles: int = 1) -> None:
        """Run a case with so many handles on the same objects."""

        async def body() -> None:
            async with AsyncExitStack() as stack:
                stores = [await self._opening() for _ in range(handles)]
                for store in stores:
                    stack.push_async_callback(store.close)
                await case(*stores)

        asyncio.run(body())


@pytest.fixture
def place(store_url: str | Opening) -> Place:
    """For one test."""
    if isinstance(store_url, str):
        return Place(lambda: open_store(store_url))
    return Place(store_url)


class TestOneObject:
    """Whole objects, and tags that stand for one write."""

    def test_what_was_put_is_got_back_with_its_tag(self, place: Place) -> None:
        async def case(store: Store) -> None:
            assert await store.get(place.path()) is None
            tag = await store.put_new(place.path(), b"one")
            assert await store.get(place.path()) == (b"one", tag)
            newer = await store.put_if(place.path(), b"two", tag)
            assert await store.get(place.path()) == (b"two", newer)
            assert newer != tag

        place.run(case)

    def test_what_is_there_is_not_made_anew(self, place: Place) -> None:
        async def case(store: Store) -> None:
            tag = await store.put_new(place.path(), b"one")
            with pytest.raises(AlreadyThere) as refused:
                await store.put_new(place.path(), b"two")
            assert refused.value.path == place.path()
            assert await store.get(place.path()) == (b"one", tag)

        place.run(case)

    def test_a_tag_that_is_not_current_changes_nothing(self, place: Place) -> None:
        async def case(store: Store) -> None:
            old = await store.put_new(place.path(), b"one")
            tag = await store.put_if(place.path(), b"two", old)
            with pytest.raises(Changed) as refused:
                await store.put_if(place.path(), b"three", old)
            assert refused.value.path == place.path()
            with pytest.raises(Changed):
                await store.delete_if(place.path(), old)
            with pytest.raises(Conflict):
                await store.put_if(place.path(), b"three", "no tag of anything")
            assert await store.get(place.path()) == (b"two", tag)

        place.run(case)

    def test_what_is_gone_cannot_be_changed_or_deleted_by_its_tag(self, place: Place) -> None:
        async def case(store: Store) -> None:
            tag = await store.put_new(place.path(), b"one")
            await store.delete_if(place.path(), tag)
            assert await store.get(place.path()) is None
            with pytest.raises(Changed):
                await store.put_if(place.path(), b"two", tag)
            with pytest.raises(Changed):
                await store.delete_if(place.path(), tag)
            assert await store.get(place.path()) is None

        place.run(case)

    def test_a_tag_never_comes_back_with_the_same_bytes(self, place: Place) -> None:
        async def case(store: Store) -> None:
            first = await store.put_new(place.path(), b"same")
            second = await store.put_if(place.path(), b"same", first)
            third = await store.put_if(place.path(), b"same", second)
            await store.delete_if(place.path(), third)
            fourth = await store.put_new(place.path(), b"same")
            assert len({first, second, third, fourth}) == 4
            for old in (first, second, third):
                with pytest.raises(Changed):
                    await store.put_if(place.path(), b"late", old)
            assert await store.get(place.path()) == (b"same", fourth)

        place.run(case)

    def test_deleting_without_a_tag_takes_what_is_there_and_may_be_repeated(self, place: Place) -> None:
        async def case(store: Store) -> None:
            await store.put(place.path(), b"one")
            await store.delete_if(place.path(), None)
            assert await store.get(place.path()) is None
            await store.delete_if(place.path(), None)

        place.run(case)

    @pytest.mark.parametrize("data", [b"", b"\0\xff\n", b"takehold object 1 1 x y\nz", b"takehold object 2"])
    def test_any_bytes_come_back_as_they_were(self, place: Place, data: bytes) -> None:
        async def case(store: Store) -> None:
            await store.put(place.path("immutable"), data)
            tag = await store.put_new(place.path(), data)
            await store.put_if(place.path(), data, tag)
            for name in ("immutable", "object"):
                found = await store.get(place.path(name))
                assert found is not None
                assert found.data == data
            found = await store.get(place.path("immutable"))
            assert found is not None
            await store.delete_if(place.path("immutable"), found.tag)

        place.run(case)

    def test_a_large_object_is_whole(self, place: Place, scaled: Callable[[int], int]) -> None:
        data = os.urandom(1 << 20) * scaled(100) + b"end"

        async def case(store: Store) -> None:
            await store.put(place.path("immutable"), data)
            tag = await store.put_new(place.path(), b"small")
            await store.put_if(place.path(), data, tag)
            for name in ("immutable", "object"):
                found = await store.get(place.path(name))
                assert found is not None
                assert found.data == data
                await store.delete_if(place.path(name), found.tag)

        place.run(case)

    def test_what_one_handle_wrote_another_one_sees(self, place: Place) -> None:
        async def case(store: Store, other: Store) -> None:
            tag = await store.put_new(place.path(), b"one")
            assert await other.get(place.path()) == (b"one", tag)
            await other.put_if(place.path(), b"two", tag)
            with pytest.raises(Changed):
                await store.put_if(place.path(), b"three", tag)
            assert await other.list(place.prefix) == [place.path()]

        place.run(case, handles=2)


class TestListing:
    """Every path below a directory, sorted."""

    def test_a_directory_lists_what_is_below_it_and_not_beside_it(self, place: Place) -> None:
        names = ["a/b/c", "a/b/d/e", "a/bc", "a.b", "b"]

        async def case(store: Store) -> None:
            assert await store.list(place.prefix) == []
            for name in names:
                await store.put(place.path(name), b"x")
            every = sorted(map(place.path, names))
            assert await store.list(place.prefix) == await store.list(f"{place.prefix}/") == every
            assert set(every) <= set(await store.list(""))
            assert await store.list(place.path("a")) == [place.path(name) for name in sorted(names[:3])]
            assert await store.list(place.path("a/b")) == [place.path("a/b/c"), place.path("a/b/d/e")]
            assert await store.list(place.path("b")) == await store.list(place.path("none")) == []
            await store.delete_if(place.path("a/bc"), None)
            assert place.path("a/bc") not in await store.list(place.prefix)

        place.run(case)

    @pytest.mark.slow
    def test_more_than_a_page_of_them_are_all_listed(self, place: Place) -> None:
        names = [f"{number:05}" for number in range(1_100)]

        async def case(store: Store) -> None:
            for start in range(0, len(names), 50):
                await asyncio.gather(*(store.put(place.path(name), b"x") for name in names[start : start + 50]))
            assert await store.list(place.prefix) == [place.path(name) for name in names]

        place.run(case)


class TestPaths:
    """The same paths fit everywhere, and none leads elsewhere."""

    def test_odd_names_are_kept_apart_and_come_back_in_a_list(self, place: Place) -> None:
        async def case(store: Store) -> None:
            for name in FIT:
                await store.put_new(place.path(name), name.encode())
            for name in FIT:
                found = await store.get(place.path(name))
                assert found is not None
                assert found.data == name.encode()
            assert await store.list(place.prefix) == sorted(place.path(name) for name in FIT)
            for name in FIT:
                found = await store.get(place.path(name))
                assert found is not None
                await store.delete_if(place.path(name), found.tag)
            assert await store.list(place.prefix) == []

        place.run(case)

    def test_unfit_paths_are_refused_by_every_call(self, place: Place) -> None:
        async def case(store: Store) -> None:
            before = await store.list("")
            for path in UNFIT:
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda path=path: store.get(path),  # type: ignore[misc]
                    lambda path=path: store.put_new(path, b"x"),  # type: ignore[misc]
                    lambda path=path: store.put_if(path, b"x", "t"),  # type: ignore[misc]
                    lambda path=path: store.delete_if(path, None),  # type: ignore[misc]
                    lambda path=path: store.put(path, b"x"),  # type: ignore[misc]
                ]
                if path.strip("/"):
                    calls.append(lambda path=path: store.list(f"{path}/x"))  # type: ignore[misc]
                for call in calls:
                    with pytest.raises(UsageError):
                        await call()
            assert await store.list("") == before

        place.run(case)


class TestAtOnce:
    """Of several writes at once one wins, and the others are told."""

    def test_of_20_writes_with_the_same_tag_exactly_one_wins(self, place: Place, scaled: Callable[[int], int]) -> None:
        async def case(*stores: Store) -> None:
            tag = await stores[0].put_new(place.path(), b"start")
            for _ in range(scaled(50)):
                writes = [stores[n % len(stores)].put_if(place.path(), b"%d" % n, tag) for n in range(20)]
                tag = await _only_winner(writes, Changed)
                found = await stores[0].get(place.path())
                assert found is not None
                assert found.tag == tag

        place.run(case, handles=2)

    def test_of_20_new_objects_at_one_path_exactly_one_is_made(
        self, place: Place, scaled: Callable[[int], int]
    ) -> None:
        async def case(*stores: Store) -> None:
            for turn in range(scaled(50)):
                path = place.path(f"{turn}")
                tag = await _only_winner(
                    [stores[n % len(stores)].put_new(path, b"%d" % n) for n in range(20)], AlreadyThere
                )
                found = await stores[0].get(path)
                assert found is not None
                assert found.tag == tag

        place.run(case, handles=2)

    def test_a_delete_and_a_write_with_the_same_tag_never_both_win(
        self, place: Place, scaled: Callable[[int], int]
    ) -> None:
        async def case(*stores: Store) -> None:
            for turn in range(scaled(50)):
                path = place.path(f"{turn}")
                tag = await stores[0].put_new(path, b"start")
                answers = await asyncio.gather(
                    *(stores[n % 2].delete_if(path, tag) if n % 3 else stores[n % 2].put_if(path, b"x", tag)
                      for n in range(9)),
                    return_exceptions=True,
                )  # fmt: skip
                winners = [answer for answer in answers if not isinstance(answer, BaseException)]
                assert all(isinstance(answer, Changed | str | None) for answer in answers), answers
                assert len(winners) == 1, answers
                assert (await stores[0].get(path) is None) == (winners == [None])

        place.run(case, handles=2)

    def test_no_update_of_a_counter_is_lost_between_tasks(self, place: Place, scaled: Callable[[int], int]) -> None:
        rounds = scaled(200)

        async def work(store: Store) -> None:
            for _ in range(rounds):
                await _count(store, place.path())

        async def case(*stores: Store) -> None:
            await stores[0].put_new(place.path(), b"0")
            await asyncio.gather(*(work(stores[n % 2]) for n in range(4)))
            found = await stores[0].get(place.path())
            assert found is not None
            assert int(found.data) == 4 * rounds

        place.run(case, handles=2)

    @pytest.mark.crash
    def test_no_update_of_a_counter_is_lost_between_processes(
        self, place: Place, store_url: str | Opening, scaled: Callable[[int], int]
    ) -> None:
        if not isinstance(store_url, str) or store_url.startswith("memory:"):
            pytest.skip("this store has no URL that another process could open")
        rounds = scaled(1_000)

        async def start(store: Store) -> None:
            await store.put_new(place.path(), b"0")

        async def end(store: Store) -> None:
            found = await store.get(place.path())
            assert found is not None
            assert int(found.data) == 3 * rounds

        place.run(start)
        command = [sys.executable, "-c", WORKER, store_url, place.path(), str(rounds)]
        workers = [subprocess.Popen(command) for _ in range(3)]  # noqa: S603 - ourselves
        assert [worker.wait(240) for worker in workers] == [0, 0, 0]
        place.run(end)


async def _only_winner(writes: list[Coroutine[Any, Any, str]], loses: type[Conflict]) -> str:
    answers = await asyncio.gather(*writes, return_exceptions=True)
    winners = [answer for answer in answers if isinstance(answer, str)]
    assert len(winners) == 1, answers
    assert sum(isinstance(answer, loses) for answer in answers) == len(answers) - 1, answers
    return winners[0]


async def _count(store: Store, path: str) -> None:
    while True:
        found = await store.get(path)
        assert found is not None
        try:
            await store.put_if(path, b"%d" % (int(found.data) + 1), found.tag)
        except Conflict:
            await asyncio.sleep(0)
        else:
            return
