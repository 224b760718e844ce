"""Many processes, each with a store of its own: one table, one number, one block after the other."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from takehold import LockTimeout, advisory, clickhouse
from takehold.clickhouse import Registry
from takehold.runtime import run
from takehold.testing.faces import eventually
from tests.clickhouse.registries import in_processes
from tests.clickhouse.stores import Place, Stores, append_in_a_process, create_in_a_process
from tests.lanes import PROVE

pytestmark = [pytest.mark.slow, pytest.mark.crash]

PROCESSES = 20
IN_ORDER = "ORDER BY toUInt32(splitByChar('_', _part)[2]), _part_offset"


def register_in_a_process(number: int, url: str) -> int:
    with Registry(url) as registry:
        return registry.advisory_id("p_new") if number % 2 else registry.incref("p_new", number)


@pytest.mark.covers("A-5", "A-6", "A-8")
def test_twenty_processes_that_register_one_name_first_all_get_its_one_id(sql_url: str) -> None:
    with Registry(sql_url) as registry:
        registry.upgrade()
    ids = in_processes(PROCESSES, register_in_a_process, sql_url)
    with Registry(sql_url) as registry:
        assert set(ids) == {registry.advisory_id("p_new")}
        assert registry.references("p_new") == list(range(0, PROCESSES, 2))


def check_first_creators(store: Any, tables: list[str]) -> None:
    assert set(tables) == {"p_new"}
    rows = run(store._core.channel.rows(f"SELECT w, n FROM p_new {IN_ORDER}"))
    writers = [rows[place][0] for place in range(0, len(rows), 50)]
    assert sorted(writers) == list(range(PROCESSES))
    assert rows == [(writer, number) for writer in writers for number in range(50)]
    assert Counter(block.state for block in store.blocks("new")) == {"finished": PROCESSES}


@pytest.mark.covers("A-6", "A-22")
def test_twenty_processes_that_create_one_name_first_append_one_after_the_other(distributed: Place) -> None:
    with Stores("blocking", distributed) as stores:
        store = stores.open().made
        tables = in_processes(PROCESSES, create_in_a_process, distributed, "new")
        check_first_creators(store, tables)


@pytest.mark.covers("A-22")
def test_twenty_threads_that_create_one_name_first_append_one_after_the_other(embedded: Place) -> None:
    with Stores("blocking", embedded) as stores:
        store = stores.open().made
        with ThreadPoolExecutor(PROCESSES) as threads:
            tables = list(threads.map(lambda number: create_in_a_process(number, embedded, "new"), range(PROCESSES)))
        check_first_creators(store, tables)


@pytest.mark.covers("A-25", "A-35", "A-39")
def test_calls_of_several_sources_by_processes_of_both_faces_stay_whole(distributed: Place) -> None:
    calls, rows = (20, 20_000) if PROVE else (5, 4_000)
    with Stores("blocking", distributed) as stores:
        store = stores.open().made
        ids = in_processes(4, append_in_a_process, distributed, "new", calls, rows)
        query = f"SELECT w, c, n, row_id, takehold_block FROM p_new {IN_ORDER}"
        found = run(store._core.channel.rows(query))
        runs = [found[place : place + rows] for place in range(0, len(found), rows)]
        assert len(runs) == 4 * calls
        for one in runs:
            assert len({(w, c, block) for w, c, _, _, block in one}) == 1
            assert [row[2] for row in one] == list(range(rows))
        assert [row[3] for row in found] == sorted({row[3] for row in found})
        blocks = store.blocks("new")
        assert [block.id for block in blocks] == [one[0][4] for one in runs], "in the order of their fences"
        assert sorted(one for own in ids for one in own) == sorted(block.id for block in blocks)
        assert all((block.rows, block.state) == (rows, "finished") for block in blocks)


def make_again_in_a_process(_: int, place: Place) -> tuple[int, bool]:
    """With a cold cache: drop the table, make it again, and try its lock."""
    with clickhouse.open(place.ch_url, place.sql_url) as store:
        store.drop("new")
        store.create([2, 2], "new")
        return store.registry.advisory_id("p_new"), True


def try_in_a_process(_: int, place: Place) -> str:
    try:
        with clickhouse.table_lock("p_new", place.sql_url, timeout=0.1):
            return "free"
    except LockTimeout:
        return "busy"


@pytest.mark.covers("A-30", "A-40")
def test_after_a_drop_a_warm_process_and_a_cold_one_still_exclude_each_other(distributed: Place) -> None:
    with Stores("blocking", distributed) as stores:
        store = stores.open().made
        store.create([1], "new")
        store.insert("new", [1])
        number = store.registry.advisory_id("p_new")
        assert in_processes(1, make_again_in_a_process, distributed) == [(number, True)]
        assert store.insert("new", [3]).rows == 1, "with all that it remembers of the old one"
        assert store.object("new").value() == [2, 2, 3]
        with store.table_lock("new") as hold:
            assert hold.keys == (advisory(number, label="p_new"),)
            assert in_processes(1, try_in_a_process, distributed) == ["busy"]
        assert in_processes(1, try_in_a_process, distributed) == ["free"]


@pytest.mark.covers("A-20")
def test_in_local_mode_the_lock_works_between_the_processes_of_a_host(embedded: Place) -> None:
    with Stores("blocking", embedded) as stores, stores.open().made.table_lock("p_new"):
        assert in_processes(1, try_in_a_process, embedded) == ["busy"]
    assert in_processes(1, try_in_a_process, embedded) == ["free"]


def append_slowly(place: Place) -> None:
    """A row at a time, for a minute."""
    with clickhouse.open(place.ch_url, place.sql_url, label="dying") as store:
        store.create([0], "new")
        many = store.create([1] * 2000)
        client = store._core.channel.client
        client.command("ALTER TABLE p_new ADD COLUMN z UInt8 MATERIALIZED sleepEachRow(0.03)")
        for name in ("max_block_size", "min_insert_block_size_rows", "max_insert_block_size"):
            client.set_client_setting(name, 1)
        store.insert("new", many)


@pytest.mark.covers("A-13", "A-27", "A-39")
def test_a_killed_process_in_local_mode_leaves_a_free_lock_and_a_block_that_is_skipped(
    embedded: Place, tmp_path: Path
) -> None:
    dying = multiprocessing.get_context("forkserver").Process(target=append_slowly, args=(embedded,), daemon=True)
    dying.start()
    try:
        eventually(lambda: len(list(tmp_path.glob("chdb/store/*/*/all_*"))) > 8, "it is in the middle", 60)
    finally:
        dying.kill()
        dying.join()
    with Stores("blocking", embedded) as stores:
        store = stores.open().made
        store._core.channel.client.command("ALTER TABLE p_new DROP COLUMN z")
        assert store.object("new").value() == [0]
        assert store.insert("new", [2], timeout=5).rows == 1
        assert store.object("new").value() == [0, 2]
        first, dead, last = store.blocks("new")
        assert [first.state, dead.state, last.state] == ["finished", "unfinished", "finished"]
        assert 0 < dead.rows < 2000
        assert dead.writer.endswith(f":{dying.pid} (dying)")
        assert store.table("new").read().schema.metadata[b"takehold.unfinished"] == b"1"
