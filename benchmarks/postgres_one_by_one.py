"""What does one lock on Postgres cost when one task or thread takes one key at a time?

Condition: 64 keys in turn that nobody else wants, an empty block; one real server on loopback, fences on; client
and server pinned to one CPU, because a round trip between two is mostly the scheduler's choice. Peers: lock and
unlock by hand, two prepared round trips on one connection (asyncpg; psycopg with one cursor and `prepare=True`),
and sqlalchemy-dlock as its README shows it, and on a connection that is never given back.
A block of the asyncio face does not wait for its release; the row with `await hold.release()` does, and the blocking
face does always when it is alone.

Bars: each face at least as fast as its raw driver and 3 times faster than sqlalchemy-dlock.
The second pair of tables is the same without pinning, and has no bar.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import psycopg
from sqlalchemy_dlock.factory import create_async_sadlock, create_sadlock

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
from benchmarks.on_postgres import (
    LOCK,
    PSYCOPG_LOCK,
    PSYCOPG_UNLOCK,
    UNLOCK,
    all_back,
    async_engine,
    engine,
    found,
    one_cpu,
    server,
)

KEYS = 64
NAMES = [f"orders/{number}" for number in range(KEYS)]
OURS, SURE = "takehold asyncio", "takehold asyncio, await hold.release()"
ASYNCPG = "asyncpg, prepared"
DLOCK, KEPT = "sqlalchemy-dlock asyncio", "sqlalchemy-dlock asyncio, connection kept"
BLOCKING, PSYCOPG = "takehold", "psycopg, prepared"
BLOCKING_DLOCK, BLOCKING_KEPT = "sqlalchemy-dlock", "sqlalchemy-dlock, connection kept"
PEERS = ("asyncpg", "psycopg", "sqlalchemy-dlock", "SQLAlchemy")


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, operations = scale.of(25, 3), scale.of(256, 64)
    with server(directory) as postgres:
        with one_cpu(postgres):
            pinned = _measured(postgres.url(), rounds, operations)
        free = _measured(postgres.url(), rounds, operations)
        conditions = found(postgres, *PEERS, rounds=rounds, operations=operations)
    return Report(
        [*_tables("one CPU", pinned), *_tables("not pinned", free)],
        [
            at_least("Postgres, one by one, asyncio, against asyncpg", ratio(pinned, ASYNCPG, OURS), 1),
            at_least("Postgres, one by one, blocking, against psycopg", ratio(pinned, PSYCOPG, BLOCKING), 1),
            at_least("Postgres, one by one, asyncio, against sqlalchemy-dlock", ratio(pinned, DLOCK, OURS), 3),
            at_least(
                "Postgres, one by one, blocking, against sqlalchemy-dlock", ratio(pinned, BLOCKING_DLOCK, BLOCKING), 3
            ),
        ],
        conditions=conditions,
    )


def _measured(url: str, rounds: int, operations: int) -> Samples:
    with asyncio.Runner() as runner, opened(runner, _tasks(url)) as tasks, _threads(url) as threads:
        return interleave({**tasks, **threads}, rounds=rounds, operations=operations, runner=runner)


def _tables(where: str, samples: Samples) -> list[Table]:
    asyncio_rows = {name: samples[name] for name in (OURS, SURE, ASYNCPG, DLOCK, KEPT)}
    blocking_rows = {name: samples[name] for name in (BLOCKING, PSYCOPG, BLOCKING_DLOCK, BLOCKING_KEPT)}
    return [
        cost_table(f"async with locks.lock(key): pass, {where}", asyncio_rows, OURS),
        cost_table(f"with locks.lock(key): pass, {where}", blocking_rows, BLOCKING),
    ]


@asynccontextmanager
async def _tasks(url: str) -> AsyncIterator[dict[str, Work]]:
    connection = await asyncpg.connect(url)
    async with takehold.AsyncLocks(url) as locks, async_engine(url) as pool, pool.connect() as kept:
        lock, unlock = await connection.prepare(LOCK), await connection.prepare(UNLOCK)

        async def ours(number: int) -> None:
            async with locks.lock(NAMES[number % KEYS]):
                pass

        async def ours_and_back(operations: int) -> None:
            await each_async(ours)(operations)
            await all_back(locks)

        async def sure(number: int) -> None:
            hold = await locks.lock(NAMES[number % KEYS]).acquire()
            await hold.release()

        async def raw(number: int) -> None:
            await lock.fetchval(number % KEYS)
            await unlock.fetchval(number % KEYS)

        async def dlock(number: int) -> None:
            async with pool.connect() as borrowed, create_async_sadlock(borrowed, NAMES[number % KEYS]):
                pass

        async def dlock_kept(number: int) -> None:
            async with create_async_sadlock(kept, NAMES[number % KEYS]):
                pass

        peers = {SURE: sure, ASYNCPG: raw, DLOCK: dlock, KEPT: dlock_kept}
        yield {OURS: ours_and_back, **{name: each_async(once) for name, once in peers.items()}}
    await connection.close()


@contextmanager
def _threads(url: str) -> Iterator[dict[str, Work]]:
    with (
        takehold.Locks(url) as locks,
        psycopg.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
        engine(url) as pool,
        pool.connect() as kept,
    ):

        def ours(number: int) -> None:
            with locks.lock(NAMES[number % KEYS]):
                pass

        def raw(number: int) -> None:
            cursor.execute(PSYCOPG_LOCK, (number % KEYS,), prepare=True)
            cursor.execute(PSYCOPG_UNLOCK, (number % KEYS,), prepare=True)

        def dlock(number: int) -> None:
            with pool.connect() as borrowed, create_sadlock(borrowed, NAMES[number % KEYS]):
                pass

        def dlock_kept(number: int) -> None:
            with create_sadlock(kept, NAMES[number % KEYS]):
                pass

        contenders = {BLOCKING: ours, PSYCOPG: raw, BLOCKING_DLOCK: dlock, BLOCKING_KEPT: dlock_kept}
        yield {name: each(once) for name, once in contenders.items()}
