"""The conformance suite on a directory, and what only a directory has: links, syncs, killed processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from takehold import BackendError, BackendRefused, BackendUnavailable, UsageError
from takehold.iceberg.stores import LocalStore, open_store
from takehold.iceberg.stores.disk import RealDisk
from takehold.testing.stores import *  # noqa: F403
from tests.lanes import scaled as count

Case = Callable[[LocalStore], Coroutine[Any, Any, None]]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/lake"


def on(root: Path, case: Case) -> None:
    async def body() -> None:
        store = await LocalStore.open(str(root))
        try:
            await case(store)
        finally:
            await store.close()

    asyncio.run(body())


# ------------------------------------------------------------------------------------------------- what a write costs


def test_a_write_syncs_twice_a_delete_once_and_nothing_else_does(tmp_path: Path) -> None:
    async def case(store: LocalStore) -> None:
        disk = store.disk
        assert isinstance(disk, RealDisk)

        async def cost(call: Coroutine[Any, Any, Any]) -> int:
            before = disk.syncs
            try:
                await call
            except Exception as error:
                if "changed meanwhile" not in str(error) and "there already" not in str(error):
                    raise
            return disk.syncs - before

        assert await cost(store.put_new("a/b/1", b"x")) == 4  # and once for each of two new directories
        assert await cost(store.put_new("a/b/2", b"x")) == 2
        tag = (await store.get("a/b/2") or pytest.fail("gone")).tag
        assert await cost(store.put_if("a/b/2", b"y", tag)) == 2
        assert await cost(store.put_if("a/b/2", b"y", tag)) == 0
        assert await cost(store.put_new("a/b/2", b"y")) == 0
        assert await cost(store.put("a/b/3", b"y")) == 2
        assert await cost(store.get("a/b/3")) == await cost(store.list("")) == 0
        assert await cost(store.delete_if("a/b/3", None)) == 1
        assert await cost(store.delete_if("a/b/3", None)) == 0

    on(tmp_path, case)


def test_an_immutable_file_is_what_other_programs_expect(tmp_path: Path) -> None:
    async def case(store: LocalStore) -> None:
        await store.put("wh/1.json", b"{}")
        await store.prepare("wh/data")
        assert store.location == tmp_path.as_uri()

    on(tmp_path, case)
    assert (tmp_path / "wh/1.json").read_bytes() == b"{}"
    assert (tmp_path / "wh/data").is_dir()


# ------------------------------------------------------------------------------------------------------ hostile places


def test_no_link_leads_out_of_the_directory(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "lake"
    outside.mkdir()
    (outside / "canary").write_bytes(b"alive")
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "canary")
    (root / "new").symlink_to(outside / "made")

    async def case(store: LocalStore) -> None:
        for path in ("folder/canary", "folder/made", "folder/deep/made"):
            for call in (
                store.put_new(path, b"x"), store.put(path, b"x"), store.delete_if(path, None), store.prepare(path),
                store.put_if(path, b"x", "t"), store.get(path),
            ):  # fmt: skip
                with pytest.raises(BackendRefused):
                    await call
        for path in ("file", "new"):
            for call in (store.put_new(path, b"x"), store.put_if(path, b"x", "t"), store.get(path)):
                with pytest.raises(BackendRefused):
                    await call
        # What is not compared replaces or removes the link itself.
        await store.put("file", b"ours")
        await store.delete_if("file", None)
        assert await store.list("") == await store.list("folder") == []

    on(root, case)
    assert (outside / "canary").read_bytes() == b"alive"
    assert [one.name for one in outside.iterdir()] == ["canary"]


def test_a_path_cannot_be_an_object_and_a_directory(tmp_path: Path) -> None:
    async def case(store: LocalStore) -> None:
        await store.put_new("a/b", b"x")
        for call in (store.put_new("a/b/c", b"x"), store.get("a/b/c"), store.get("a"), store.put("a", b"x")):
            with pytest.raises(BackendRefused):
                await call
        assert await store.list("") == ["a/b"]

    on(tmp_path, case)


def test_every_flipped_bit_of_a_record_is_noticed(tmp_path: Path) -> None:
    record = tmp_path / "a"

    async def case(store: LocalStore) -> None:
        await store.put_new("a", b"the bytes")
        whole = record.read_bytes()
        magic = whole.index(b"1 1 ")
        for bit in range(magic * 8, len(whole) * 8, 1 if count(10) > 1 else 7):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            record.write_bytes(damaged)
            with pytest.raises(BackendRefused, match=r"damaged|format"):
                await store.get("a")
        # In its first words it is no record any more, but then it is not what was written either.
        for bit in range(magic * 8):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            record.write_bytes(damaged)
            found = await store.get("a")
            assert found is not None
            assert found.data == bytes(damaged)

    on(tmp_path, case)


def test_a_directory_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".takehold").mkdir()
    (tmp_path / ".takehold/format").write_bytes(b"takehold store 2\n")
    with pytest.raises(BackendRefused, match="another release"):
        asyncio.run(LocalStore.open(str(tmp_path)))


def test_a_root_that_is_a_file_and_urls_that_name_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BackendRefused):
        asyncio.run(open_store(f"file:{tmp_path}/file"))
    for url in (
        "",
        "file:",
        "ftp://x",
        "file://host/x",
        "gs://x",
        "s3://",
        "s3://k:s@b",
        "s3://b?verify=no",
        "az:///x",
    ):
        with pytest.raises(UsageError):
            asyncio.run(open_store(url))


@pytest.mark.parametrize("name", ["plain", "spa ce", "q?x", "100%", "h#x", "é"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    async def case(store: LocalStore) -> None:
        await store.put_new("a", b"x")

    on(tmp_path / "deep" / name, case)
    assert (tmp_path / "deep" / name / "a").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_is_told_and_nothing_is_half_written(tmp_path: Path) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.decode()}")

    async def case(store: LocalStore) -> None:
        tag = await store.put_new("a", b"small")
        with pytest.raises(BackendRefused, match="No space"):
            await store.put_if("a", b"x" * 2_000_000, tag)
        assert await store.get("a") == (b"small", tag)
        await store.put_if("a", b"other", tag)

    try:
        on(tmp_path, case)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_directory_removed_under_the_store_is_told_and_made_again(tmp_path: Path) -> None:
    async def case(store: LocalStore) -> None:
        await store.put_new("a/b", b"x")
        (tmp_path / "a/b").unlink()
        (tmp_path / "a").rmdir()
        assert await store.get("a/b") is None
        with pytest.raises(BackendError):
            await store.put_new("a/b", b"x")
        await store.put_new("a/b", b"x")

    on(tmp_path, case)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        store = await LocalStore.open(str(tmp_path))
        await store.close()
        await store.close()
        with pytest.raises(BackendUnavailable, match="closed"):
            await store.get("a")

    asyncio.run(body())


# ----------------------------------------------------------------------------------------------- killed and cancelled


def test_a_cancelled_write_is_over_when_its_caller_goes_on(tmp_path: Path) -> None:
    async def case(store: LocalStore) -> None:
        for turn in range(count(300)):
            task = asyncio.create_task(store.put_new(f"a/{turn}", b"x"))
            await asyncio.sleep(random.random() * 0.002)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            before = await store.get(f"a/{turn}")
            await asyncio.sleep(0.002)
            assert await store.get(f"a/{turn}") == before

    on(tmp_path, case)


WRITER = """
import asyncio, sys
from takehold import Conflict
from takehold.iceberg.stores import open_store
async def work(url):
    store = await open_store(url)
    print("up", flush=True)
    while True:
        found = await store.get("wh/counter")
        value = int(found.data.split()[0]) + 1
        try:
            await store.put_if("wh/counter", b"%d " % value * 500, found.tag)
        except Conflict:
            continue
        print(value, flush=True)
asyncio.run(work(sys.argv[1]))
"""


@pytest.mark.crash
def test_killed_writers_lose_and_tear_nothing_and_leave_nothing_locked(tmp_path: Path) -> None:
    url, acknowledged = f"file:{tmp_path}", 0

    async def start(store: LocalStore) -> None:
        await store.put_new("wh/counter", b"0 " * 500)

    async def read(store: LocalStore) -> None:
        nonlocal acknowledged
        found = await store.get("wh/counter")
        assert found is not None
        words = found.data.split()
        assert len(words) == 500
        assert len(set(words)) == 1
        assert int(words[0]) >= acknowledged
        acknowledged = int(words[0])

    on(tmp_path, start)
    for turn in range(count(40)):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "up\n"
        time.sleep(random.Random(turn).random() * 0.1)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            told, _ = writer.communicate()
            acknowledged = max([acknowledged, *(int(line) for line in told.split("\n")[:-1])])
        on(tmp_path, read)
    assert acknowledged > 0
    assert not list((tmp_path / ".takehold/new").iterdir())
    assert not list((tmp_path / ".takehold/unsynced").iterdir())


OPENER = "import asyncio, sys; from takehold.iceberg.stores import open_store; asyncio.run(open_store(sys.argv[1]))"


@pytest.mark.crash
def test_a_new_directory_may_be_opened_by_several_processes_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPENER, f"file:{tmp_path}/deep/lake"]
    openers = [subprocess.Popen(command) for _ in range(4)]
    assert [opener.wait(60) for opener in openers] == [0] * 4
