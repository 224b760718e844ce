"""What does a commit to the Iceberg catalog cost over HTTP, and a load?

Condition: `takehold serve` in a process of its own, on a directory, file locks, everything fsynced before the answer;
each client is another process on loopback. A commit sets one property. Two clients of ours: one that sends the request
and reads the answer, which is what the server costs, and PyIceberg, which also parses the metadata it is answered.

Peer: PyIceberg's SqlCatalog on SQLite, in the client's own process, so without HTTP; it writes its metadata files
without fsync. With several clients it answers some commits with an error (a locked database): those are not counted.

Bar: at least 2 times SqlCatalog with one client and 4 times with 4 clients on 4 tables; at least 2 000 loads per
second; a commit on a table of 1 000 snapshots at most 3 times one on a table of 10.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.measure import MILLI, Report, Scale, Table, Worker, at_least, at_most, conditions
from takehold.server import Serving
from tests.server.http import Http
from tests.server.replicas import Replica

CLIENTS = 4
FIELDS = pa.schema([("id", pa.int64())])
OURS, WITH_PYICEBERG, SQL = "takehold serve", "takehold serve, asked by PyIceberg", "SqlCatalog, in process"
TABLES = "/v1/main/namespaces/n/tables"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, seconds = scale.of(5, 2), scale.of(3, 1)
    with Replica(str(directory / "lake")) as server:
        _prepare(server.uri)
        _prepare_sql(directory)
        rates = _rates(server.uri, directory, rounds, seconds)
        loads = _loads(server.uri, rounds, seconds)
        grown = {count: _grown(server.uri, count, scale.of(100, 20)) for count in (10, 100, 1000)}
    synced = _synced(directory)
    rows: list[list[Any]] = [
        [name, round(statistics.median(one)), round(statistics.median(four))] for name, (one, four) in rates.items()
    ]
    tables = [
        Table(
            f"Commits per second, the median of {rounds} rounds",
            ["", "1 client", f"{CLIENTS} clients, a table each"], rows,
        ),
        Table("Loads per second", ["", f"{CLIENTS} clients"], [[OURS, round(statistics.median(loads))]]),
        Table(
            "A commit on a table with snapshots", ["snapshots", "median, ms"],
            [[str(count), median * MILLI] for count, median in grown.items()],
        ),
        Table("fsync calls", ["", "for each"], [["commit", synced["commit"]], ["create", synced["create"]]]),
    ]  # fmt: skip
    one, four = (  # each against the SqlCatalog of the same round
        statistics.median(ours / sql for ours, sql in zip(rates[OURS][at], rates[SQL][at], strict=True))
        for at in (0, 1)
    )
    bars = [
        at_least("commits of one client against SqlCatalog", one, 2),
        at_least(f"commits of {CLIENTS} clients against SqlCatalog", four, 4),
        at_least("loads", statistics.median(loads), 2000, "per s"),
        at_most("a commit with 1 000 snapshots against one with 10", grown[1000] / grown[10], 3, "x"),
    ]
    return Report(tables, bars, conditions=conditions(directory, ["pyiceberg", "uvicorn", "starlette"], rounds=rounds))


def _prepare(uri: str) -> None:
    with Http(uri) as http:
        http.namespace("n")
        for number in range(CLIENTS):
            http.table("n", f"t{number}")


def _sql(directory: Path) -> SqlCatalog:
    return SqlCatalog("sql", uri=f"sqlite:///{directory}/sql.db", warehouse=f"file://{directory}/sql")


def _prepare_sql(directory: Path) -> None:
    catalog = _sql(directory)
    catalog.create_namespace("n")
    for number in range(CLIENTS):
        catalog.create_table(f"n.t{number}", FIELDS)
    catalog.close()


# -- clients, each in a process of its own ---------------------------------------------------------------------


def raw_commits(uri: str, table: str) -> Callable[[float], float]:
    """A client that commits for so many seconds; how many a second."""
    http = Http(uri)
    return _counted(lambda number: _expect(http.set("n", table, number=str(number)).status))


def raw_loads(uri: str, table: str) -> Callable[[float], float]:
    """The same with loads."""
    http = Http(uri)
    return _counted(lambda _: _expect(http.get(f"{TABLES}/{table}").status))


def pyiceberg_commits(uri: str, table: str) -> Callable[[float], float]:
    """The same commits by PyIceberg."""
    return _counted(_setting(load_catalog("lake", type="rest", uri=uri), table))


def sql_commits(directory: str, table: str) -> Callable[[float], float]:
    """The same commits on SQLite."""
    return _counted(_setting(_sql(Path(directory)), table))


def _setting(catalog: Any, name: str) -> Callable[[int], None]:
    table = catalog.load_table(f"n.{name}")

    def once(number: int) -> None:
        try:
            table.transaction().set_properties({"number": str(number)}).commit_transaction()
        except Exception:
            table.refresh()
            raise

    return once


def _expect(status: int) -> None:
    if status != 200:
        raise RuntimeError(f"answered {status}")


def _counted(once: Callable[[int], None]) -> Callable[[float], float]:
    def run(seconds: float) -> float:
        done, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            try:
                once(done)
            except Exception:  # noqa: BLE001  not counted
                continue
            done += 1
        return done / spent

    return run


@contextmanager
def _clients(count: int, make: Callable[..., Callable[..., Any]], where: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(make, where, f"t{number}")) for number in range(count)]
        for worker in workers:
            worker.ask(0.2)
        yield workers


def _together(workers: list[Worker], seconds: float) -> float:
    for worker in workers:
        worker.tell(seconds)
    return float(sum(worker.answer() for worker in workers))


# -- measurements ----------------------------------------------------------------------------------------------


def _rates(uri: str, directory: Path, rounds: int, seconds: float) -> dict[str, tuple[list[float], list[float]]]:
    ways = {OURS: (raw_commits, uri), WITH_PYICEBERG: (pyiceberg_commits, uri), SQL: (sql_commits, str(directory))}
    rates: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ways}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(_clients(CLIENTS, *way)) for name, way in ways.items()}
        for number in range(rounds):
            order = list(workers.items())
            for name, clients in reversed(order) if number % 2 else order:
                rates[name][0].append(_together(clients[:1], seconds))
                rates[name][1].append(_together(clients, seconds))
    return rates


def _loads(uri: str, rounds: int, seconds: float) -> list[float]:
    with _clients(CLIENTS, raw_loads, uri) as workers:
        return [_together(workers, seconds) for _ in range(rounds)]


def _grown(uri: str, count: int, commits: int) -> float:
    """The median seconds of a commit on a table with so many snapshots."""
    with Http(uri) as http:
        table = f"s{count}"
        http.table("n", table)
        now = int(time.time() * 1000)
        updates: list[dict[str, Any]] = [
            {
                "action": "add-snapshot",
                "snapshot": {
                    "snapshot-id": number, "sequence-number": number, "timestamp-ms": now + number, "schema-id": 0,
                    "manifest-list": f"s3://bucket/metadata/snap-{number}-1-{number:032x}.avro",
                    "summary": {"operation": "append", "added-data-files": "4", "total-records": str(number)},
                    **({"parent-snapshot-id": number - 1} if number > 1 else {}),
                },
            }
            for number in range(1, count + 1)
        ]  # fmt: skip
        updates.append({"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": count})
        made = http.post(f"{TABLES}/{table}", {"requirements": [], "updates": updates})
        assert made.status == 200, made.body
        spent = []
        for number in range(commits):
            start = time.perf_counter()
            _expect(http.set("n", table, number=str(number)).status)
            spent.append(time.perf_counter() - start)
        return statistics.median(spent)


def _synced(directory: Path) -> dict[str, float]:
    """How often the kernel is asked to write through, counted in a server inside this process."""
    counts = [0]

    def counted(call: Callable[[int], None]) -> Callable[[int], None]:
        def one(descriptor: int) -> None:
            counts[0] += 1
            call(descriptor)

        return one

    kept = os.fsync, os.fdatasync
    os.fsync, os.fdatasync = counted(os.fsync), counted(os.fdatasync)  # type: ignore[assignment]
    try:
        with Serving(str(directory / "counted")) as server, Http(server.uri) as http:
            http.namespace("n")
            http.table("n", "first")
            counts[0] = 0
            for number in range(10):
                http.table("n", f"t{number}")
            creates, counts[0] = counts[0] / 10, 0
            for number in range(10):
                http.set("n", "t0", number=str(number))
            return {"create": creates, "commit": counts[0] / 10}
    finally:
        os.fsync, os.fdatasync = kept
