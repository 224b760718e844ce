"""Where operations meet: each row of the table in docs/iceberg.md, provoked and counted.

Eight clients at once on a store that takes 5 ms for each call.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import orjson
import pytest

from takehold import AsyncLocks, OperationConflict, TakeholdError
from takehold.iceberg import Catalog, Identifier, Retrying, TableChange, paths
from takehold.iceberg.paths import shard_number
from takehold.iceberg.stores import MemoryStore
from takehold.server import Settings, create_service
from tests.server.http import SCHEMA, change
from tests.server.inside import Inside

CLIENTS = 8
LATENCY = 0.0025  # before a call takes effect, and again before it answers

pytestmark = [pytest.mark.slow, pytest.mark.covers("M-51")]


@asynccontextmanager
async def opened() -> AsyncIterator[Catalog]:
    store = MemoryStore(pause=lambda: asyncio.sleep(LATENCY))
    catalog = Catalog(store, AsyncLocks("memory:", check_order="off"), owns_locks=True)
    try:
        await catalog.create_warehouse("w")
        await catalog.create_namespace("w", ("n",))
        for name in ("a", "b", "c"):
            await catalog.create_table("w", ("n",), {"name": name, "schema": SCHEMA})
        yield catalog
    finally:
        await catalog.close()


def counted(work: Callable[[Catalog, int], Awaitable[Any]], resource: str) -> tuple[dict[str, Any], list[Any]]:
    """Run it for every client at once; what was counted at a resource, and what came out."""

    async def run() -> tuple[dict[str, Any], list[Any]]:
        async with opened() as catalog:
            before = asdict(catalog.contention[resource])
            came = await asyncio.gather(*(work(catalog, n) for n in range(CLIENTS)), return_exceptions=True)
            after = asdict(catalog.contention[resource])
            # The same numbers are in the metrics, for somebody who is not here.
            text = create_service(catalog, MemoryStore()).meters.page().decode()
            assert f'takehold_iceberg_grants_total{{resource="{resource}"}} {float(after["grants"])}' in text
            return {name: after[name] - before[name] for name in after}, came

    counts, came = asyncio.run(run())
    unexpected = [one for one in came if isinstance(one, BaseException) and not isinstance(one, TakeholdError)]
    assert not unexpected
    logging.getLogger(__name__).info("%s: %s", resource, counts)
    return counts, came


def properties(number: int) -> list[dict[str, Any]]:
    return [{"action": "set-properties", "updates": {f"p{number}": "1"}}]


def test_creates_of_one_shard_wait_for_each_other_and_none_fails() -> None:
    names = [name for name in (f"t{n}" for n in range(1000)) if shard_number(name) == 3][:CLIENTS]

    async def create(catalog: Catalog, number: int) -> None:
        await catalog.create_table("w", ("n",), {"name": names[number], "schema": SCHEMA})

    counts, came = counted(create, "shard")
    assert came == [None] * CLIENTS
    assert (counts["grants"], counts["waits"], counts["timeouts"]) == (CLIENTS, CLIENTS - 1, 0)


def test_creates_of_different_shards_do_not() -> None:
    found: dict[int, str] = {}
    for name in (f"t{n}" for n in range(1000)):
        found.setdefault(shard_number(name), name)

    async def create(catalog: Catalog, number: int) -> None:
        await catalog.create_table("w", ("n",), {"name": found[number], "schema": SCHEMA})

    counts, came = counted(create, "shard")
    assert came == [None] * CLIENTS
    assert counts["waits"] <= 1  # a busy machine may take a millisecond for a lock that is free


def test_commits_to_one_table_take_no_lock_and_try_again() -> None:
    async def commit(catalog: Catalog, number: int) -> None:
        await catalog.commit_table("w", Identifier(("n",), "a"), (), properties(number), retries=50)

    counts, came = counted(commit, "pointer cas")
    assert came == [None] * CLIENTS
    assert counts["losses"] >= CLIENTS - 1
    assert counts["retries"] == counts["losses"]


def overlapping(number: int) -> list[TableChange]:
    """Each of them has table a, and one of the others."""
    return [TableChange(Identifier(("n",), name), (), properties(number)) for name in ("a", "bc"[number % 2])]


def test_transactions_that_overlap_fail_at_once() -> None:
    async def transact(catalog: Catalog, number: int) -> None:
        await catalog.transaction("w", overlapping(number))

    counts, came = counted(transact, "pointer locked")
    conflicts = [one for one in came if isinstance(one, OperationConflict)]
    assert 1 <= came.count(None) < CLIENTS
    assert len(conflicts) == CLIENTS - came.count(None)
    assert counts["conflicts"] == len(conflicts)


@pytest.mark.covers("M-54")
def test_with_retries_all_of_them_succeed_one_after_the_other() -> None:
    async def transact(catalog: Catalog, number: int) -> None:
        await catalog.transaction("w", overlapping(number), retry=Retrying(), deadline=60)

    counts, came = counted(transact, "pointer locked")
    assert [type(one) for one in came] == [list] * CLIENTS or came == [None] * CLIENTS
    assert counts["conflicts"] >= CLIENTS - 1


def test_a_namespace_that_is_deleted_holds_up_creates_in_it() -> None:
    async def work(catalog: Catalog, number: int) -> None:
        if number == 0:
            await catalog.create_namespace("w", ("m",))
            await catalog.delete_namespace("w", ("m",))
        elif number == 1:
            await catalog.delete_namespace("w", ("n",))
        else:
            await catalog.create_table("w", ("n",), {"name": f"x{number}", "schema": SCHEMA})

    counts, _ = counted(work, "shard")
    assert counts["waits"] >= 1
    assert counts["timeouts"] == 0


def test_namespaces_are_made_one_after_the_other() -> None:
    async def create(catalog: Catalog, number: int) -> None:
        await catalog.create_namespace("w", (f"n{number}",))

    counts, came = counted(create, "namespace registry")
    assert not [one for one in came if isinstance(one, BaseException)]
    assert (counts["grants"], counts["waits"], counts["timeouts"]) == (CLIENTS, CLIENTS - 1, 0)


@pytest.mark.covers("M-30")
def test_over_rest_a_transaction_is_tried_for_a_while_and_then_is_a_409() -> None:
    async def run() -> None:
        name = f"memory:{secrets.token_hex(8)}"
        inside = Inside(MemoryStore(), locks=name, settings=Settings(patience=0.3))
        await inside.catalog.create_warehouse("main")
        await inside.catalog.create_namespace("main", ("n",))
        made = [await inside.catalog.create_table("main", ("n",), {"name": x, "schema": SCHEMA}) for x in ("a", "b")]
        body = {"table-changes": [change("n", "a", x="1"), change("n", "b", x="1")]}
        async with AsyncLocks(name).lock(paths.pointer("main", made[1].uuid)):
            began = time.monotonic()
            refused = await inside.ask("POST", "/v1/main/transactions/commit", body)
            waited = time.monotonic() - began
        assert (refused.status, orjson.loads(refused.body)["error"]["type"]) == (409, "CommitFailedException")
        assert waited >= 0.05  # pauses are random; one attempt takes a few milliseconds
        for table in ("a", "b"):
            found = await inside.catalog.load_table("main", Identifier(("n",), table))
            assert "x" not in found.metadata["properties"]
        assert (await inside.ask("POST", "/v1/main/transactions/commit", body)).status == 204

    asyncio.run(run())
