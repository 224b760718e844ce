"""Four processes append to one table of ClickHouse, and one of them is killed in the middle of an insert.

First without a lock, then with one. Each time it prints whose rows lie where in the table: a3 is a run of rows of the
third insert of writer a. The inserts are slow on purpose, and come in blocks of 1 000 rows, as large ones do.

    pip install 'takehold[clickhouse,postgres]'
    python -m examples.clickhouse_appends clickhouse://default@127.0.0.1:8123/default postgresql://app@127.0.0.1/app

    without the lock     28 runs of rows: b1 a1 c1 d1 b1 a1 d1 c1 b1 d1 a1 c1 ...
    with the lock        10 runs of rows: d1 a1 b1 c1 a2 b2 c2 a3 b3 c3
                         d was killed: 2000 of 4000 rows are there, unfinished; the next row came 0.15 s later
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import clickhouse_connect
import pyarrow as pa

from takehold import Locks, clickhouse

WRITERS = "abcd"  # d is killed
BATCH = 1_000
SLOW = "sleepEachRow(0.00005)"
TABLE = f"""CREATE TABLE {{table:Identifier}}
(writer String, insert UInt8, n UInt32, slow UInt8 MATERIALIZED {SLOW}, at DateTime64(3) MATERIALIZED now64(3))
ENGINE = MergeTree ORDER BY tuple()"""
RUNS = """SELECT groupArray(run) FROM (
    SELECT run, lagInFrame(run, 1, '') OVER (ORDER BY place) AS before FROM (
        SELECT writer || toString(insert) AS run, (toUInt32(splitByChar('_', _part)[2]), _part_offset) AS place
        FROM {table:Identifier}))
WHERE run != before"""
BEGUN = "SELECT count() FROM {table:Identifier} WHERE writer = {dying:String}"
PAUSE = """SELECT min(at)::Float64 - {killed:DateTime64(3)}::Float64 FROM {table:Identifier}
WHERE writer != {dying:String} AND at > {killed:DateTime64(3)}"""


def connected(url: str) -> Any:
    """A client whose inserts reach the table in blocks of 1 000 rows."""
    settings = {"min_insert_block_size_rows": BATCH, "min_insert_block_size_bytes": 0, "async_insert": 0}
    return closing(clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False, settings=settings))


def rows_of(writer: str, insert: int, count: int) -> pa.Table:
    """What a writer appends in one call."""
    columns = {"writer": [writer] * count, "insert": pa.array([insert] * count, pa.uint8())}
    rows = pa.table(columns | {"n": pa.array(range(count), pa.uint32())})
    return pa.concat_tables([rows.slice(first, BATCH) for first in range(0, count, BATCH)])


def write(url: str, locks_url: str | None, writer: str, batches: list[pa.Table], together: Barrier) -> None:
    """One process: its inserts, with the lock or without."""
    with connected(url) as client:
        if locks_url is None:
            together.wait()
            for data in batches:
                client.insert_arrow("without_lock", data)
            return
        with Locks(locks_url, label=f"writer {writer}", timeout=120) as locks:
            table = clickhouse.Table(client, "with_lock", locks=locks)
            together.wait()
            for data in batches:
                table.append(data)


def run(url: str, locks_url: str | None, inserts: int, rows: int) -> dict[str, Any]:
    """All of them, and what the table looks like afterwards."""
    asked = {"table": "without_lock" if locks_url is None else "with_lock", "dying": WRITERS[-1]}
    context = get_context("spawn")
    together = context.Barrier(len(WRITERS))
    processes = []
    with connected(url) as client:
        client.command("DROP TABLE IF EXISTS {table:Identifier} SYNC", parameters=asked)
        client.command(TABLE, parameters=asked)
        for writer in WRITERS:
            batches = [rows_of(writer, insert, rows) for insert in range(1, inserts + 1)]
            processes.append(context.Process(target=write, args=(url, locks_url, writer, batches, together)))
            processes[-1].start()
        while not client.command(BEGUN, parameters=asked):
            time.sleep(0.005)
        processes[-1].kill()
        asked["killed"] = client.command("SELECT now64(3)")
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes[:-1]):
            raise SystemExit("a writer failed; its traceback is above")
        found: dict[str, Any] = {"runs": client.query(RUNS, parameters=asked).result_rows[0][0]}
        if locks_url is not None:
            with Locks(locks_url) as locks:
                blocks = clickhouse.Table(client, "with_lock", locks=locks).blocks()
            found["blocks"] = [(block.state, block.rows) for block in blocks]
            found["pause"] = float(client.command(PAUSE, parameters=asked))
    return found


def main(argv: list[str] | None = None) -> int:
    """Both, one after the other."""
    parser = argparse.ArgumentParser(description="four processes append to one table, one of them is killed")
    parser.add_argument("url", help="of ClickHouse: clickhouse://user@host:8123/database")
    parser.add_argument("locks", help="of the locks: postgresql://..., or file:... if all is on one host")
    parser.add_argument("--inserts", type=int, default=3, help="by each writer")
    parser.add_argument("--rows", type=int, default=4_000, help="in each insert")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    chosen = parser.parse_args(argv)
    with Locks(chosen.locks) as locks:
        locks.init()
    report = {
        "without the lock": run(chosen.url, None, chosen.inserts, chosen.rows),
        "with the lock": run(chosen.url, chosen.locks, chosen.inserts, chosen.rows),
    }
    if chosen.json:
        print(json.dumps(report))
        return 0
    for how, found in report.items():
        runs = found["runs"]
        print(f"{how:18} {len(runs):4} runs of rows: {' '.join(runs[:30])}{' ...' if len(runs) > 30 else ''}")
    locked = report["with the lock"]
    for rows in [rows for state, rows in locked["blocks"] if state == "unfinished"]:
        print(f"{'':20} {WRITERS[-1]} was killed: {rows} of {chosen.rows} rows are there, unfinished;", end=" ")
        print(f"the next row came {locked['pause']:.2f} s later")
    return 0


if __name__ == "__main__":
    sys.exit(main())
