"""The real server that the Postgres questions share, and the peers on it, each in its best documented use."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import psycopg
from psycopg_pool import ConnectionPool
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

import takehold
from benchmarks.measure import conditions
from takehold.backends.postgres import PostgresBackend
from takehold.runtime import Threads, run
from tests.servers import watch
from tests.servers.postgres import Postgres

LOCK: Final = "SELECT pg_advisory_lock($1)"
UNLOCK: Final = "SELECT pg_advisory_unlock($1)"
PSYCOPG_LOCK: Final = "SELECT pg_advisory_lock(%s)"
PSYCOPG_UNLOCK: Final = "SELECT pg_advisory_unlock(%s)"
OUR_CONNECTIONS: Final = """SELECT count(*) FROM pg_stat_activity
WHERE application_name LIKE 'takehold%' AND application_name <> 'takehold-tests'"""
PATIENCE: Final = 600.0
"""Seconds a peer's pool may let a caller wait: thousands stand in line, on purpose."""


@contextmanager
def server(directory: Path) -> Iterator[Postgres]:
    """A server of our own with fences, as `takehold init` makes them.

    Without fsync, like the servers of the tests: the disk of the machine is not the question. With it a fence costs a
    flush of the log with every 32nd statement, which the peers, who have no fences, do not pay.
    """
    with Postgres.start(directory, fsync="off") as postgres:
        run(PostgresBackend(postgres.url()).init(Threads(), fence_from=None))
        yield postgres


def found(postgres: Postgres, *peers: str, **counts: object) -> dict[str, str]:
    """What stands beside the numbers."""
    [(version, fsync)] = postgres.query("SELECT current_setting('server_version'), current_setting('fsync')")
    server_is = {"PostgreSQL": f"{version} on loopback", "fsync": fsync, "fences": "on"}
    return conditions(None, peers, **server_is, **counts)


@contextmanager
def one_cpu(postgres: Postgres) -> Iterator[None]:
    """Client and server on one CPU, and with them every thread and connection made inside.

    A round trip between two is a matter of where the scheduler puts them: that would be most of what is measured.
    """
    before = os.sched_getaffinity(0)
    _pin(postgres, {max(before)})
    try:
        yield
    finally:
        _pin(postgres, before)


def _pin(postgres: Postgres, cpus: set[int]) -> None:
    assert postgres._child is not None
    threads = [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
    for pid in (*threads, *watch.family(postgres._child.pid)):
        try:
            os.sched_setaffinity(pid, cpus)
        except ProcessLookupError:  # a server process that has just ended
            continue


@contextmanager
def counting(postgres: Postgres) -> Iterator[list[int]]:
    """How many connections takehold has, every few milliseconds while the block runs."""
    seen: list[int] = []
    ended = threading.Event()

    def count() -> None:
        with psycopg.connect(postgres.socket_url(), autocommit=True) as connection:
            while True:
                row = connection.execute(OUR_CONNECTIONS).fetchone()
                seen.append(0 if row is None else row[0])
                if ended.wait(0.005):
                    return

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


# -- takehold and its peers --------------------------------------------------------------------------------------


async def all_back(locks: takehold.AsyncLocks) -> None:
    """Wait until the server has back what was released: releases leave on their own, and belong to the time."""
    hold = await locks.lock("the last one").acquire()
    await hold.release()


async def _no_reset(_: Any) -> None:
    """For a pool whose users leave connections as they found them."""


@asynccontextmanager
async def asyncpg_pool(url: str, size: int, *, reset: bool = True) -> AsyncIterator[asyncpg.Pool]:
    """Asyncpg's own pool, filled; its statement cache prepares. Without `reset` it saves a round trip per use."""
    more = {} if reset else {"reset": _no_reset}
    async with asyncpg.create_pool(url, min_size=size, max_size=size, **more) as pool:
        yield pool


@contextmanager
def psycopg_pool(url: str, size: int) -> Iterator[ConnectionPool[Any]]:
    """Psycopg's own pool, filled."""
    with ConnectionPool(
        url, min_size=size, max_size=size, kwargs={"autocommit": True}, timeout=PATIENCE, open=True
    ) as pool:
        pool.wait()
        yield pool


@asynccontextmanager
async def async_engine(url: str, size: int = 20) -> AsyncIterator[AsyncEngine]:
    """SQLAlchemy's pool on asyncpg, for sqlalchemy-dlock; filled by the warm-up."""
    asyncpg_url = url.replace("postgresql:", "postgresql+asyncpg:", 1)
    engine = create_async_engine(asyncpg_url, pool_size=size, max_overflow=0, pool_timeout=PATIENCE)
    try:
        yield engine
    finally:
        await engine.dispose()


@contextmanager
def engine(url: str, size: int = 20) -> Iterator[Engine]:
    """The same on psycopg."""
    psycopg_url = url.replace("postgresql:", "postgresql+psycopg:", 1)
    made = create_engine(psycopg_url, pool_size=size, max_overflow=0, pool_timeout=PATIENCE)
    try:
        yield made
    finally:
        made.dispose()
