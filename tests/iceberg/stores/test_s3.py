"""The conformance suite on SeaweedFS through S3, and what a bucket must say when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from takehold import BackendRefused, BackendUnavailable, TakeholdError, UnknownOutcome
from takehold.iceberg.stores import open_store
from takehold.testing.stores import *  # noqa: F403
from tests import lanes
from tests.servers.proxy import Proxy
from tests.servers.seaweedfs import SeaweedFS

pytestmark = pytest.mark.slow


@pytest.fixture
def store_url(s3_url: str) -> str:
    return s3_url


@pytest.fixture  # type: ignore[no-redef]
def scaled() -> Callable[[int], int]:
    """Fewer than of a local store: writes to one object at once wait for each other in steps of a second here."""
    return lambda full: full if lanes.PROVE else max(1, full // 50)


def told_by(call: Callable[[], Coroutine[Any, Any, Any]]) -> BaseException | None:
    """What a call raised, however long it took."""
    try:
        asyncio.run(call())
    except TakeholdError as error:
        return error
    return None


@pytest.mark.parametrize("name", ["put_new", "put_if", "put"])
def test_a_write_without_an_answer_is_found_to_have_happened_or_is_unknown(
    name: str, s3_url: str, seaweedfs_server: SeaweedFS
) -> None:
    async def case() -> None:
        direct = await open_store(s3_url)
        tag = await direct.put_new("object", b"old")
        with Proxy(seaweedfs_server.port) as proxy:
            store = await open_store(s3_url.replace(f":{seaweedfs_server.port}", f":{proxy.port}"))
            calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                "put_new": lambda: store.put_new("made", b"new"),
                "put_if": lambda: store.put_if("object", b"new", tag),
                "put": lambda: store.put("made", b"new"),
            }
            path = "object" if name == "put_if" else "made"
            proxy.drop_reply()
            try:
                answer = await calls[name]()
            except UnknownOutcome:
                assert name == "put"  # which has nothing to compare with
            else:
                # Asked again, it saw its own write.
                assert await direct.get(path) == (b"new", answer)
            found = await direct.get(path)
            assert found is not None
            assert found.data == b"new"

    asyncio.run(case())


def test_a_delete_without_an_answer_is_unknown(s3_url: str, seaweedfs_server: SeaweedFS) -> None:
    async def case() -> None:
        with Proxy(seaweedfs_server.port) as proxy:
            store = await open_store(s3_url.replace(f":{seaweedfs_server.port}", f":{proxy.port}"))
            tag = await store.put_new("object", b"old")
            proxy.drop_reply()
            with pytest.raises(UnknownOutcome):
                await store.delete_if("object", tag)
            assert await store.get("object") is None

    asyncio.run(case())


def test_nobody_there_means_that_nothing_was_changed(s3_url: str, seaweedfs_server: SeaweedFS) -> None:
    async def case() -> None:
        with Proxy(seaweedfs_server.port) as proxy:
            store = await open_store(s3_url.replace(f":{seaweedfs_server.port}", f":{proxy.port}"))
            tag = await store.put_new("object", b"old")
            proxy.refuse()
            proxy.reset()
            for call in (
                store.put_new("made", b"x"), store.put_if("object", b"x", tag), store.put("made", b"x"),
                store.delete_if("object", tag), store.delete_if("object", None),
            ):  # fmt: skip
                with pytest.raises(BackendUnavailable):
                    await call
        direct = await open_store(s3_url)
        assert await direct.get("object") == (b"old", tag)
        assert await direct.list("") == ["object"]

    asyncio.run(case())


def test_wrong_keys_and_a_bucket_that_is_not_there_are_refused(
    s3_url: str, seaweedfs_server: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    nowhere = seaweedfs_server.url("no-such-bucket")
    assert isinstance(told_by(lambda: open_store(nowhere)), BackendRefused)
