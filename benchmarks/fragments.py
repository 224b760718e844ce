"""What does coordination cost per fragment, do replicas scale, and what does a second run cost?

Condition: 5 000 fragments in 100 Markdown documents, each result one row in the same database; replicas are processes,
each with 4 extractions at a time, started and imported before the clock starts. The time of a run is from the word "go"
until the last replica says that all is done, with reading the corpus, proving the locks and making the tables inside.
A fresh database before each run that is not a second one. Real server on loopback, without fsync.

Coordination is what a run costs with an extractor that returns at once, per fragment: locks, stamps, ledger, the write
of the row, and its share of reading. Scaling is with an extractor that waits 5 ms, one replica against four. The
replicas share the processors that the conditions name with the server.

Peer: what people write by hand, as riverbank's page shows it: `pg_try_advisory_lock`, insert, `pg_advisory_unlock` on a
psycopg connection per thread, four threads. It has no ledger: it neither knows what is done nor notices a lost lock.

Bars: at most 1 ms of coordination per fragment, 4 replicas at least 3.5 times one, a second run over an unchanged
corpus at most a tenth of the first one's coordination, at most 4 connections per replica.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, text

from benchmarks.measure import MILLI, Cell, Report, Scale, Table, Worker, at_least, at_most
from benchmarks.on_postgres import counting, found, server
from takehold.fragments import AsyncWorker, Folder, Fragment, Pipeline
from tests.servers.postgres import Postgres

CONCURRENCY = 4
REPLICAS = 4
WAIT = 0.005
EACH = 50
CREATE = text("CREATE TABLE IF NOT EXISTS results (fragment text PRIMARY KEY, size int NOT NULL)")
INSERT = text("INSERT INTO results (fragment, size) VALUES (:fragment, :size)")
DELETE = text("DELETE FROM results WHERE fragment = :fragment")
EMPTY = "DROP TABLE IF EXISTS takehold_fragment_runs, takehold_fragments, takehold_fragment_format, results"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, count = scale.of(3, 1), scale.of(5_000, 300)
    corpus = _corpus(directory / "corpus", count)
    with server(directory) as postgres:
        url = postgres.url()
        replicas = [Worker(_replica, url, str(corpus)) for _ in range(REPLICAS)]
        try:
            times = _times(postgres, replicas, rounds)
            lite = _on_sqlite(directory, corpus, scale)
        finally:
            for replica in replicas:
                replica.close()
        times["by hand"] = [_by_hand(postgres, corpus) for _ in range(rounds)]
        connections = {tasks: _connections(postgres, corpus, tasks) for tasks in (4, 16, 64)}
        conditions = found(postgres, "psycopg", "SQLAlchemy", "xxhash", rounds=rounds, fragments=count)
    per = {name: statistics.median(values) / count * MILLI for name, values in times.items()}
    best = {name: min(values) / count * MILLI for name, values in times.items()}
    scaling = statistics.median(one / four for one, four in zip(times["one waits"], times["four wait"], strict=True))
    again = statistics.median(a / b for a, b in zip(times["again"], times["one"], strict=True))
    titles = {
        "by hand": "by hand, no ledger, 4 connections",
        "one": "one replica",
        "four": "four replicas",
        "again": "one replica, second run, all unchanged",
        "one waits": "one replica, extractor waits 5 ms",
        "four wait": "four replicas, extractor waits 5 ms",
    }
    rows: list[list[Cell]] = [
        [titles[name], best[name], per[name], round(1000 / per[name])] for name in titles if name in per
    ]
    rows += [[f"SQLite and file locks: {what}", value, value, round(1000 / value)] for what, value in lite.items()]
    return Report(
        [
            Table("a run, per fragment", ["", "best, ms", "median, ms", "fragments per s"], rows),
            Table(
                "connections of one replica",
                ["concurrency", "most seen"],
                [[str(k), v] for k, v in connections.items()],
            ),
        ],
        [
            at_most("coordination per fragment, one replica", per["one"], 1, "ms"),
            at_least("four replicas to one, extractor waits 5 ms", scaling, 3.5),
            at_most("a second run, to the coordination of the first", again, 0.1, "x"),
            at_most("connections per replica at concurrency 64", max(connections.values()), 4, "connections"),
        ],
        conditions=conditions,
    )


def _corpus(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count // EACH):
        sections = (f"# Section {one}\n\nText {one} of document {number}.\n" for one in range(EACH))
        (folder / f"d{number:04}.md").write_text("\n".join(sections))
    return folder


def _pipeline(wait: float) -> Pipeline[int]:
    async def extract(fragment: Fragment) -> int:
        if wait:
            await asyncio.sleep(wait)
        return len(fragment.content)

    def write(connection: Connection, results: Sequence[tuple[Fragment, int]]) -> None:
        connection.execute(INSERT, [{"fragment": fragment.identity, "size": size} for fragment, size in results])

    def remove(connection: Connection, identities: Sequence[str]) -> None:
        connection.execute(DELETE, [{"fragment": identity} for identity in identities])

    return Pipeline("size/1", extract, write, remove, prepare=lambda connection: connection.execute(CREATE))


def _replica(url: str, corpus: str) -> Any:
    """In its own process: one run, when it is told to."""

    def run(wait: float, where: str = url, concurrency: int = CONCURRENCY) -> int:
        worker = AsyncWorker(_pipeline(wait), Folder(corpus), where, concurrency=concurrency)
        return asyncio.run(worker.run()).done

    return run


def _together(replicas: Sequence[Worker], *message: object) -> float:
    began = time.perf_counter()
    for replica in replicas:
        replica.tell(*message)
    for replica in replicas:
        replica.answer()
    return time.perf_counter() - began


def _times(postgres: Postgres, replicas: Sequence[Worker], rounds: int) -> dict[str, list[float]]:
    """Seconds of each kind of run in each round."""
    times: dict[str, list[float]] = {}

    def one(name: str, crew: Sequence[Worker], wait: float, *, fresh: bool = True) -> None:
        if fresh:
            postgres.query(EMPTY)
        times.setdefault(name, []).append(_together(crew, wait))

    one("warm", replicas, 0.0)
    for _ in range(rounds):
        one("one", replicas[:1], 0.0)
        one("again", replicas[:1], 0.0, fresh=False)
        one("one waits", replicas[:1], WAIT)
        one("four wait", replicas, WAIT)
        one("four", replicas, 0.0)
    del times["warm"]
    return times


def _on_sqlite(directory: Path, corpus: Path, scale: Scale) -> dict[str, float]:
    """The embedded default, for comparison: milliseconds per fragment, one round."""
    url = f"sqlite:///{directory}/fragments.db"
    with Worker(_replica, url, str(corpus)) as replica:
        first = _together([replica], 0.0)
        again = _together([replica], 0.0)
    count = scale.of(5_000, 300)
    return {"one replica": first / count * MILLI, "second run": again / count * MILLI}


def _by_hand(postgres: Postgres, corpus: Path) -> float:
    """Four threads with a connection each; the fragments are read and hashed before."""
    postgres.query("DROP TABLE IF EXISTS by_hand")
    postgres.query("CREATE TABLE by_hand (fragment text PRIMARY KEY, size int NOT NULL)")
    folder = Folder(corpus)
    waiting = [fragment for document in folder.documents() for fragment in folder.fragments(document)]
    keys = [(fragment.key, fragment) for fragment in waiting]

    def work(number: int) -> None:
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            for key, fragment in keys[number::CONCURRENCY]:
                row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
                assert row == (True,)
                size = (fragment.identity, len(fragment.content))
                connection.execute("INSERT INTO by_hand VALUES (%s, %s) ON CONFLICT DO NOTHING", size)
                connection.execute("SELECT pg_advisory_unlock(%s)", (key,))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONCURRENCY)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _connections(postgres: Postgres, corpus: Path, concurrency: int) -> int:
    """The most that one replica had while it ran."""
    postgres.query(EMPTY)
    with Worker(_replica, postgres.url(), str(corpus)) as replica, counting(postgres) as seen:
        replica.ask(WAIT, postgres.url(), concurrency)
    return max(seen)
