"""What do 100 keys on Postgres cost in one call?

Condition: the same 100 keys, that nobody else wants, all taken, an empty block, all given back; one task or one
thread, one real server on loopback, fences on; the server's last unlock included. Peers: the raw drivers, prepared,
a round trip for each key, to lock and then to unlock; the same with one `pg_advisory_unlock_all()` at the end, which
only a connection with nothing else to do can afford; and, as a floor, two statements over an array by hand.

Bar: at least 15 times faster than key by key with the raw driver, in both faces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, LiteralString

import asyncpg
import psycopg
from asyncpg.prepared_stmt import PreparedStatement

import takehold
from benchmarks.measure import (
    Report,
    Samples,
    Scale,
    Table,
    Work,
    at_least,
    cost_table,
    each,
    each_async,
    interleave,
    opened,
    ratio,
)
from benchmarks.on_postgres import LOCK, PSYCOPG_LOCK, PSYCOPG_UNLOCK, UNLOCK, all_back, found, server

COUNT = 100
NAMES = [f"orders/{number:03}" for number in range(COUNT)]
NUMBERS = list(range(COUNT))
OURS, BLOCKING = "takehold asyncio", "takehold"
ASYNCPG, PSYCOPG = "asyncpg, key by key", "psycopg, key by key"
ASYNCPG_ALL, PSYCOPG_ALL = "asyncpg, key by key, unlock_all", "psycopg, key by key, unlock_all"
ASYNCPG_FLOOR, PSYCOPG_FLOOR = "floor: asyncpg, two statements", "floor: psycopg, two statements"
ALL = "SELECT pg_advisory_unlock_all()"
LOCK_MANY = "SELECT pg_advisory_lock(key) FROM unnest({}::bigint[]) AS keys(key)"
UNLOCK_MANY = "SELECT pg_advisory_unlock(key) FROM unnest({}::bigint[]) AS keys(key)"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, operations = scale.of(20, 3), scale.of(20, 10)
    with server(directory) as postgres:
        url = postgres.url()
        with asyncio.Runner() as runner, opened(runner, _tasks(url)) as tasks, _threads(url) as threads:
            samples = interleave({**tasks, **threads}, rounds=rounds, operations=operations, runner=runner)
        conditions = found(postgres, "asyncpg", "psycopg", rounds=rounds, operations=operations, keys=COUNT)
    return Report(
        [
            _table("async with locks.lock(*keys): pass, 100 keys", samples, list(tasks)),
            _table("with locks.lock(*keys): pass, 100 keys", samples, list(threads)),
        ],
        [
            at_least("Postgres, 100 keys, asyncio, against asyncpg key by key", ratio(samples, ASYNCPG, OURS), 15),
            at_least("Postgres, 100 keys, blocking, against psycopg key by key", ratio(samples, PSYCOPG, BLOCKING), 15),
        ],
        conditions=conditions,
    )


def _table(title: str, samples: Samples, names: list[str]) -> Table:
    return cost_table(title, {name: samples[name] for name in names}, names[0])


@asynccontextmanager
async def _tasks(url: str) -> AsyncIterator[dict[str, Work]]:
    connection = await asyncpg.connect(url)
    async with takehold.AsyncLocks(url) as locks:
        many = (LOCK_MANY.format("$1"), UNLOCK_MANY.format("$1"))
        lock, unlock, unlock_all, lock_many, unlock_many = [
            await connection.prepare(sql) for sql in (LOCK, UNLOCK, ALL, *many)
        ]

        async def ours(_: int) -> None:
            async with locks.lock(*NAMES):
                pass

        async def ours_and_back(operations: int) -> None:
            await repeated(operations)
            await all_back(locks)

        async def one_by_one(statement: PreparedStatement[Any]) -> None:
            for number in NUMBERS:
                await statement.fetchval(number)

        async def key_by_key(_: int) -> None:
            await one_by_one(lock)
            await one_by_one(unlock)

        async def all_at_the_end(_: int) -> None:
            await one_by_one(lock)
            await unlock_all.fetchval()

        async def floor(_: int) -> None:
            await lock_many.fetch(NUMBERS)
            await unlock_many.fetch(NUMBERS)

        repeated = each_async(ours)
        yield {
            OURS: ours_and_back,
            ASYNCPG: each_async(key_by_key),
            ASYNCPG_ALL: each_async(all_at_the_end),
            ASYNCPG_FLOOR: each_async(floor),
        }
    await connection.close()


@contextmanager
def _threads(url: str) -> Iterator[dict[str, Work]]:
    with (
        takehold.Locks(url) as locks,
        psycopg.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):

        def ours(_: int) -> None:
            with locks.lock(*NAMES):
                pass

        def one_by_one(statement: LiteralString) -> None:
            for number in NUMBERS:
                cursor.execute(statement, (number,), prepare=True)

        def key_by_key(_: int) -> None:
            one_by_one(PSYCOPG_LOCK)
            one_by_one(PSYCOPG_UNLOCK)

        def all_at_the_end(_: int) -> None:
            one_by_one(PSYCOPG_LOCK)
            cursor.execute(ALL, prepare=True)

        def floor(_: int) -> None:
            cursor.execute(LOCK_MANY.format("%s"), (NUMBERS,), prepare=True)
            cursor.execute(UNLOCK_MANY.format("%s"), (NUMBERS,), prepare=True)

        yield {
            BLOCKING: each(ours),
            PSYCOPG: each(key_by_key),
            PSYCOPG_ALL: each(all_at_the_end),
            PSYCOPG_FLOOR: each(floor),
        }
