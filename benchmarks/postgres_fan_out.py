"""What does a lock on Postgres cost when 1 000 tasks of one process ask at once?

Condition: 1 000 asyncio tasks on 1 000 different keys, each takes and releases its own key five times, with an
empty block; one real server on loopback, fences on. The time of the whole fan-out by the locks taken, starting the
tasks and the server's last unlock included. Peers: hand-written lock and unlock on an asyncpg pool of 20, which
prepares what it runs, as it comes and with its reset query (one more round trip per use) turned off; and
sqlalchemy-dlock on asyncpg as its README shows it, with a pool of 20. Pools are full before the first round.

Bars: at least 30 times faster than sqlalchemy-dlock and 12 times faster than the raw pool, on at most 2 connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy_dlock.factory import create_async_sadlock

import takehold
from benchmarks.measure import (
    Report,
    Scale,
    Work,
    at_least,
    at_most,
    cost_table,
    interleave,
    opened,
    rate_table,
    ratio,
)
from benchmarks.on_postgres import LOCK, UNLOCK, all_back, async_engine, asyncpg_pool, counting, found, server

TASKS = 1000
OURS = "takehold"
RAW = "asyncpg, pool of 20"
BARE = "asyncpg, pool of 20, no reset"
DLOCK = "sqlalchemy-dlock, pool of 20"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, each = scale.of(9, 2), scale.of(5, 1)
    with server(directory) as postgres, asyncio.Runner() as runner:
        with opened(runner, _contenders(postgres.url())) as contenders:
            samples = interleave(contenders, rounds=rounds, operations=TASKS * each, runner=runner)
            with counting(postgres) as connections:
                interleave({OURS: contenders[OURS]}, rounds=3, operations=TASKS * each, runner=runner)
        conditions = found(
            postgres, "asyncpg", "sqlalchemy-dlock", "SQLAlchemy", rounds=rounds, tasks=TASKS, locks_per_task=each
        )
    return Report(
        [
            cost_table(f"{TASKS} tasks on {TASKS} keys, per lock and unlock", samples, OURS),
            rate_table("the same as a rate, median", samples),
        ],
        [
            at_least("Postgres, 1 000 tasks, against sqlalchemy-dlock", ratio(samples, DLOCK, OURS), 30),
            at_least("Postgres, 1 000 tasks, against a raw asyncpg pool", ratio(samples, RAW, OURS), 12),
            at_most("Postgres, 1 000 tasks, connections", max(connections), 2, "connections"),
        ],
        conditions=conditions,
    )


@asynccontextmanager
async def _contenders(url: str) -> AsyncIterator[dict[str, Work]]:
    async with (
        takehold.AsyncLocks(url) as locks,
        asyncpg_pool(url, 20) as pool,
        asyncpg_pool(url, 20, reset=False) as bare,
        async_engine(url) as engine,
    ):
        names = [f"orders/{task}" for task in range(TASKS)]

        async def ours(task: int) -> None:
            async with locks.lock(names[task], timeout=None):
                pass

        async def raw(task: int) -> None:
            async with pool.acquire() as connection:
                await connection.fetchval(LOCK, task)
                await connection.fetchval(UNLOCK, task)

        async def without_reset(task: int) -> None:
            async with bare.acquire() as connection:
                await connection.fetchval(LOCK, task)
                await connection.fetchval(UNLOCK, task)

        async def dlock(task: int) -> None:
            async with engine.connect() as connection, create_async_sadlock(connection, names[task]):
                pass

        async def ours_and_back(operations: int) -> None:
            await fan(operations)
            await all_back(locks)

        fan = _fan(ours)
        yield {OURS: ours_and_back, RAW: _fan(raw), BARE: _fan(without_reset), DLOCK: _fan(dlock)}


def _fan(once: Callable[[int], Awaitable[None]]) -> Callable[[int], Coroutine[Any, Any, None]]:
    async def one(task: int, times: int) -> None:
        for _ in range(times):
            await once(task)

    async def work(operations: int) -> None:
        tasks = min(TASKS, operations)
        await asyncio.gather(*(one(task, operations // tasks) for task in range(tasks)))

    return work
