"""What does it cost that an append to ClickHouse is locked, and whole?

Condition: one writer, nobody else; a real server and a real Postgres on loopback, each contender in a table of its own,
ENGINE = MergeTree ORDER BY tuple(), emptied before every insert. Rows are those of a web log, ten columns, and three
numbers. The same client for everybody, without a session, and the same settings: async_insert=0, max_insert_threads=1,
max_threads=1. Given an Arrow table, the peer is `client.insert_arrow`, which sends it as it is: the fastest way in.
Given lists of Python, it is `client.insert` of columns, as the client's manual has it. Beside them the statement that
an append sends, written by hand without lock, marks, guard and record; the client looks through its body for SQL.
Round trips are counted by proxies before both servers.

Bars: 100 000 rows at least 0.9 times as fast as the same client without a lock; 10 rows at most 2 round trips more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import clickhouse_connect
import pyarrow as pa

from benchmarks.measure import MILLI, Bar, Cell, Report, Samples, Scale, Table, at_least, at_most, conditions, ratio
from benchmarks.on_postgres import server
from takehold import Locks, clickhouse
from takehold.clickhouse.columns import clickhouse_type
from takehold.clickhouse.quoting import text
from tests.clickhouse.front import Trips
from tests.servers.clickhouse import ClickHouse

SETTINGS: Final = {"async_insert": 0, "max_insert_threads": 1, "max_threads": 1}
OURS, ARROW, SELECT = "takehold, Arrow", "client.insert_arrow", "INSERT ... SELECT FROM input(), by hand"
LISTS, INSERT = "takehold, lists", "client.insert"
SIZES: Final = {"10 rows": 10, "100 000 rows": 100_000, "1 000 000 rows": 1_000_000}
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds = scale.of(15, 2)
    tables, bars = [], []
    with ClickHouse.start(directory) as house, server(directory) as postgres, Locks(postgres.url()) as locks:
        for shape, columns in (("web log", _web_log), ("three numbers", _numbers)):
            for size, count in SIZES.items():
                rows = columns(min(count, scale.of(count, 1_000)))
                samples = _measured(house, locks, rows, max(2, rounds // (count // 100_000 or 1)))
                tables.append(_table(f"{shape}, {size}", samples))
                if count == 100_000:
                    bars += _bars(shape, samples)
        trips = {way: _trips(house, postgres, way) for way in (OURS, ARROW, INSERT)}
        [(version,)] = house.query("SELECT version()")
    rows_of_table: list[list[Cell]] = [[way, *counts, sum(counts)] for way, counts in trips.items()]
    tables.append(Table("round trips of 10 rows", ["", "to ClickHouse", "to Postgres", "together"], rows_of_table))
    for way in (INSERT, ARROW):
        what = f"10 rows, round trips more than {way}"
        bars.append(at_most(what, sum(trips[OURS]) - sum(trips[way]), 2, "round trips"))
    peers = ["clickhouse-connect", "pyarrow"]
    found = conditions(None, peers, ClickHouse=f"{version} on loopback", PostgreSQL="on loopback", rounds=rounds)
    return Report(tables, bars, conditions=found)


def _bars(shape: str, samples: Samples) -> list[Bar]:
    return [
        at_least(f"{shape}, 100 000 rows, lists, against {INSERT}", ratio(samples, INSERT, LISTS), 0.9),
        at_least(f"{shape}, 100 000 rows, Arrow, against {ARROW}", ratio(samples, ARROW, OURS), 0.9),
    ]


def _table(title: str, samples: Samples) -> Table:
    grid: list[list[Cell]] = [
        [way, min(costs) * MILLI, sorted(costs)[len(costs) // 2] * MILLI, ratio(samples, ARROW, way)]
        for way, costs in samples.items()
    ]
    return Table(title, ["", "best, ms", "median, ms", f"speed, {ARROW} is 1"], grid)


def _measured(house: ClickHouse, locks: Locks, rows: pa.Table, rounds: int) -> Samples:
    with closing(house.client()) as client:
        ways = _ways(client, locks, rows)
        samples: Samples = {way: [] for way in ways}
        for number in range(rounds + 1):
            order = list(ways.items())
            for way, (table, insert) in reversed(order) if number % 2 else order:
                client.command(f"TRUNCATE TABLE {table} SYNC")
                began = time.perf_counter()
                insert()
                if number:  # the first is the warm-up
                    samples[way].append(time.perf_counter() - began)
        for table, _ in ways.values():
            client.command(f"DROP TABLE {table} SYNC")
    return samples


def _ways(client: Any, locks: Locks, rows: pa.Table) -> dict[str, tuple[str, Callable[[], Any]]]:
    """Each with its table."""
    structure = ", ".join(f"{field.name} {clickhouse_type(field.type, False)}" for field in rows.schema)
    for number in range(5):
        client.command(f"CREATE TABLE t{number} ({structure}) ENGINE = MergeTree ORDER BY tuple()")
    arrow, lists = (clickhouse.Table(client, name, locks=locks) for name in ("t0", "t3"))
    columns = rows.to_pydict()
    names = ", ".join(rows.column_names)
    statement = f"INSERT INTO t2 ({names}) SELECT {names} FROM input({text(structure)}) FORMAT ArrowStream"
    return {
        OURS: ("t0", lambda: arrow.append(rows)),
        ARROW: ("t1", lambda: client.insert_arrow("t1", rows, settings=SETTINGS)),
        SELECT: ("t2", lambda: client.command(statement, data=_stream(rows), settings=SETTINGS)),
        LISTS: ("t3", lambda: lists.append(columns)),
        INSERT: (
            "t4",
            lambda: client.insert("t4", list(columns.values()), list(columns), column_oriented=True, settings=SETTINGS),
        ),
    }


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _trips(house: ClickHouse, postgres: Any, way: str) -> tuple[int, int]:
    """How often one of them asks, of ClickHouse and of Postgres, when everything is open."""
    rows = _numbers(10)
    with _counted(house, postgres) as (http, sql, client, locks):
        insert = _ways(client, locks, rows)[way][1]
        insert()
        begun = http.trips, sql.trips
        insert()
        counts = http.trips - begun[0], sql.trips - begun[1]
        for number in range(5):
            client.command(f"DROP TABLE t{number} SYNC")
    return counts


@contextmanager
def _counted(house: ClickHouse, postgres: Any) -> Iterator[tuple[Trips, Trips, Any, Locks]]:
    with ExitStack() as opened:
        http, sql = opened.enter_context(Trips(house.port)), opened.enter_context(Trips(postgres.port))
        client = clickhouse_connect.get_client(host="127.0.0.1", port=http.port, autogenerate_session_id=False)
        opened.enter_context(closing(client))
        yield http, sql, client, opened.enter_context(Locks(sql.url(postgres.url())))


# -- what is inserted --------------------------------------------------------------------------------------------


def _web_log(count: int) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {
            "at": pa.array([BEGAN + timedelta(milliseconds=7 * n) for n in numbers], pa.timestamp("ms", "UTC")),
            "host": [f"web-{n % 12}" for n in numbers],
            "address": [f"10.{n % 7}.{n % 251}.{n % 241}" for n in numbers],
            "method": [("GET", "GET", "POST")[n % 3] for n in numbers],
            "path": [f"/shop/{n % 97}/article/{n * 7919 % 100_003}?page={n % 5}" for n in numbers],
            "status": pa.array([(200, 200, 304, 404)[n % 4] for n in numbers], pa.uint16()),
            "bytes": pa.array([n * 31 % 65_521 for n in numbers], pa.uint64()),
            "seconds": [n % 1_009 / 1_009 for n in numbers],
            "referrer": [f"https://example.com/search?q={n * 104_729 % 1_000_003}" for n in numbers],
            "agent": [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n % 40 + 90}.0) Gecko/20100101" for n in numbers],
        }
    )


def _numbers(count: int) -> pa.Table:
    numbers = pa.array(range(count), pa.uint32())
    return pa.table({"a": numbers, "b": numbers, "c": numbers})
