"""What does a lock on Postgres cost when 64 threads of one process ask at once?

Condition: 64 threads on 64 different keys, each takes and releases its own key again and again, with an empty
block; all through one `Locks`; one real server on loopback, fences on. Peer: psycopg_pool with 16 connections, full
before the first round, autocommit, lock and unlock by hand with `prepare=True`. The threads wait in an executor
between the rounds.

Bar: at least 3 times faster than the raw pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import takehold
from benchmarks.measure import Report, Scale, Work, at_least, cost_table, interleave, rate_table, ratio
from benchmarks.on_postgres import PSYCOPG_LOCK, PSYCOPG_UNLOCK, found, psycopg_pool, server

THREADS = 64
OURS, RAW = "takehold, one Locks", "psycopg_pool of 16"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, each = scale.of(20, 3), scale.of(40, 10)
    with server(directory) as postgres:
        with _contenders(postgres.url()) as contenders:
            samples = interleave(contenders, rounds=rounds, operations=THREADS * each)
        conditions = found(postgres, "psycopg", "psycopg-pool", rounds=rounds, threads=THREADS, locks_per_thread=each)
    return Report(
        [
            cost_table(f"{THREADS} threads on {THREADS} keys, per lock and unlock", samples, OURS),
            rate_table("the same as a rate, median", samples),
        ],
        [
            at_least("Postgres, 64 threads, against a raw psycopg pool", ratio(samples, RAW, OURS), 3),
        ],
        conditions=conditions,
    )


@contextmanager
def _contenders(url: str) -> Iterator[dict[str, Work]]:
    with takehold.Locks(url) as locks, psycopg_pool(url, 16) as pool, ThreadPoolExecutor(THREADS) as threads:
        started = Barrier(THREADS)
        list(threads.map(lambda _: started.wait(), range(THREADS)))
        names = [f"orders/{number}" for number in range(THREADS)]

        def ours(thread: int) -> None:
            with locks.lock(names[thread], timeout=None):
                pass

        def raw(thread: int) -> None:
            with pool.connection() as connection:
                connection.execute(PSYCOPG_LOCK, (thread,), prepare=True)
                connection.execute(PSYCOPG_UNLOCK, (thread,), prepare=True)

        yield {OURS: _spread(threads, ours), RAW: _spread(threads, raw)}


def _spread(threads: ThreadPoolExecutor, once: Callable[[int], None]) -> Work:
    begin = Barrier(THREADS)

    def one(thread: int, times: int) -> None:
        begin.wait()
        for _ in range(times):
            once(thread)

    def work(operations: int) -> None:
        times = max(1, operations // THREADS)
        list(threads.map(one, range(THREADS), [times] * THREADS))

    return work
