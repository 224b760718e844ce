"""What do 10 000 tasks cost that wait for one key on Postgres, and how fast does it go from one to the next?

Condition: a connection of somebody else holds the key; 10 000 tasks of one process ask for it and wait; then it is
released, and each task takes the key once, with an empty block: the time from the release until the last task is
through, by the tasks. One real server on loopback, fences on. Memory is what Python allocated (tracemalloc) from no
tasks to all of them waiting, in a crowd of its own, beside as many tasks that wait for an `asyncio.Event`. Peer:
`pg_advisory_lock` and `pg_advisory_unlock`, prepared, on two raw connections that both want the same key all the
time: in two tasks (asyncpg) and in two threads (psycopg); each round the quicker of them counts.

Bars: at most 3 connections; hand-overs at least as fast as between two raw connections.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

import takehold
from benchmarks.measure import (
    Report,
    Scale,
    Table,
    Work,
    at_least,
    at_most,
    cost_table,
    interleave,
    opened,
    rate_table,
    ratio,
)
from benchmarks.on_postgres import LOCK, PSYCOPG_LOCK, PSYCOPG_UNLOCK, UNLOCK, counting, found, server

TASKS = 10_000
KEY, RAW_KEY = 42, 43
OURS, RAW_TASKS, RAW_THREADS = "takehold, 10 000 tasks", "asyncpg, two connections", "psycopg, two connections"
IN_LINE = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {KEY} AND NOT granted"


class Crowd:
    """Tasks that wait for one key, which somebody else has until `through`."""

    def __init__(self, locks: takehold.AsyncLocks, other: asyncpg.Connection) -> None:
        self._locks, self._other = locks, other
        self._tasks: list[asyncio.Task[None]] = []

    async def gather(self, tasks: int) -> None:
        """Returns when all of them wait, and one connection in the server's queue for them."""
        await self._other.fetchval(LOCK, KEY)
        self._tasks = [asyncio.create_task(self._one()) for _ in range(tasks)]
        while not await self._other.fetchval(IN_LINE):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)

    async def through(self) -> None:
        """Each takes the key once."""
        await self._other.fetchval(UNLOCK, KEY)
        await asyncio.gather(*self._tasks)
        self._tasks.clear()

    async def _one(self) -> None:
        async with self._locks.lock(takehold.advisory(KEY)):
            pass

    async def timed(self, tasks: int) -> float:
        """The seconds from the release to the last task."""
        await self.gather(tasks)
        start = time.perf_counter()
        await self.through()
        return time.perf_counter() - start


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds = scale.of(9, 2)
    with server(directory) as postgres, asyncio.Runner() as runner:
        url = postgres.url()
        with opened(runner, _crowd(url)) as crowd:
            with counting(postgres) as waiting:
                memory = _grown(runner, crowd.gather(TASKS))
            with counting(postgres) as handing:
                runner.run(crowd.through())
        event = asyncio.Event()
        bare = _grown(runner, _idle(event))
        runner.run(_let_go(event))
        with opened(runner, _crowd(url)) as crowd, opened(runner, _tasks(url)) as tasks, _threads(url) as threads:
            contenders: dict[str, Work] = {OURS: crowd.timed, RAW_TASKS: tasks, RAW_THREADS: threads}
            samples = interleave(contenders, rounds=rounds, operations=TASKS, runner=runner)
        conditions = found(postgres, "asyncpg", "psycopg", rounds=rounds, tasks=TASKS)
    return Report(
        [
            cost_table("one key from hand to hand, per lock and unlock", samples, OURS),
            rate_table("the same as a rate, median", samples, "hand-overs"),
            Table(
                "memory of 10 000 tasks that wait",
                ["", "bytes per task"],
                [["for a key of takehold", round(memory)], ["for an asyncio.Event", round(bare)]],
            ),
            Table(
                "connections of takehold",
                ["", "most seen"],
                [["while the tasks wait", max(waiting)], ["while they get the key", max(handing)]],
            ),
        ],
        [
            at_most("Postgres, 10 000 waiters of one key, connections", max(waiting + handing), 3, "connections"),
            at_least(
                "Postgres, 10 000 waiters of one key, against two raw connections",
                ratio(samples, [RAW_TASKS, RAW_THREADS], OURS),
                1,
            ),
        ],
        conditions=conditions,
    )


@asynccontextmanager
async def _crowd(url: str) -> AsyncIterator[Crowd]:
    other = await asyncpg.connect(url)
    async with takehold.AsyncLocks(url, timeout=None) as locks:
        yield Crowd(locks, other)
    await other.close()


def _grown(runner: asyncio.Runner, gather: Coroutine[Any, Any, None]) -> float:
    """Bytes per task that are in use afterwards, and were not before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        runner.run(gather)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / TASKS


async def _idle(event: asyncio.Event) -> None:
    """Leaves tasks behind that wait for the event, and live as long as it does."""
    for _ in range(TASKS):
        asyncio.create_task(event.wait())  # noqa: RUF006
    await asyncio.sleep(0.1)


async def _let_go(event: asyncio.Event) -> None:
    event.set()
    await asyncio.sleep(0.1)


@asynccontextmanager
async def _tasks(url: str) -> AsyncIterator[Work]:
    connections = [await asyncpg.connect(url) for _ in range(2)]
    statements = [[await connection.prepare(sql) for sql in (LOCK, UNLOCK)] for connection in connections]

    async def one(side: int, times: int) -> None:
        lock, unlock = statements[side]
        for _ in range(times):
            await lock.fetchval(RAW_KEY)
            await unlock.fetchval(RAW_KEY)

    async def work(operations: int) -> None:
        await asyncio.gather(*(one(side, operations // 2) for side in (0, 1)))

    yield work
    for connection in connections:
        await connection.close()


@contextmanager
def _threads(url: str) -> Iterator[Work]:
    def one(connection: psycopg.Connection, times: int) -> None:
        with connection.cursor() as cursor:
            for _ in range(times):
                cursor.execute(PSYCOPG_LOCK, (RAW_KEY,), prepare=True)
                cursor.execute(PSYCOPG_UNLOCK, (RAW_KEY,), prepare=True)

    with (
        psycopg.connect(url, autocommit=True) as left,
        psycopg.connect(url, autocommit=True) as right,
        ThreadPoolExecutor(2) as threads,
    ):

        def work(operations: int) -> None:
            list(threads.map(one, (left, right), [operations // 2] * 2))

        yield work
