"""What tests of appends share: a table, the order of its rows, writers in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import clickhouse_connect
import numpy as np
import pyarrow as pa

from takehold import Locks
from takehold.clickhouse import Table
from takehold.clickhouse.appending import SETTINGS, Rows
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.data import serialised
from takehold.runtime import run

ROOT = Path(__file__).parent.parent.parent
COLUMNS = "(w UInt8, b UInt32, n UInt32)"
"""Writer, number of its insert, number of the row."""
ENGINE = "ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100"
SMALL_BLOCKS = {"min_insert_block_size_rows": 1000, "min_insert_block_size_bytes": 0}
"""With `rows_of` a part for every 1 000 rows: what comes between two of them is seen."""
ROW_BY_ROW = {
    "max_block_size": 1,
    "min_insert_block_size_rows": 1,
    "max_insert_block_size": 1,
    "function_sleep_max_microseconds_per_block": 0,
}


def runs(client: Any, table: str) -> list[tuple[int, int]]:
    """Which insert the rows come from, in physical order, each time it changes."""
    rows = client.query(
        "SELECT DISTINCT w, b, g FROM (SELECT w, b, sum(c) OVER (ORDER BY k, o) AS g FROM ("
        "SELECT w, b, toUInt32(splitByChar('_', _part)[2]) AS k, _part_offset AS o,"
        f" (w, b) != lagInFrame((w, b), 1, (0, 0)) OVER (ORDER BY k, o) AS c FROM {table})) ORDER BY g"
    ).result_rows
    return [(w, b) for w, b, _ in rows]


def rows_of(writer: int, insert: int, count: int, batch: int = 1000) -> pa.Table:
    """So many rows; the server takes them a batch at a time."""
    columns = {
        "w": pa.array(np.full(count, writer), pa.uint8()),
        "b": pa.array(np.full(count, insert), pa.uint32()),
        "n": pa.array(np.arange(count), pa.uint32()),
    }
    return pa.concat_tables([pa.table(columns).slice(first, batch) for first in range(0, count, batch)])


def slow(writer: int, rows: int, seconds: float, insert: int = 1) -> Rows:
    """An INSERT SELECT that writes a row at a time."""
    pause = f"sleepEachRow({seconds})"
    select = (
        f"SELECT toUInt8({writer} + {pause}) AS w, toUInt32({insert}) AS b, toUInt32(number) AS n FROM numbers({rows})"
        " SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0"
    )
    return Rows(("w", "b", "n"), select)


def by_hand(client: Any, table: str, data: pa.Table) -> None:
    """The same insert without a lock."""
    settings = {name: value for name, value in SETTINGS.items() if name != "insert_allow_materialized_columns"}
    into = f"INSERT INTO {table} (w, b, n) SELECT w, b, n FROM"
    with Channel(client, None).source(serialised(data), "w UInt8, b UInt32, n UInt32") as (source, end, body):
        client.command(f"{into} {source}{end}", data=body, settings=settings)


class Writer:
    """A process that appends as it is told: ``python -m tests.clickhouse.appends``, a line of JSON for each order."""

    def __init__(self, **usual: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._usual = usual
        self._ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ready(self) -> None:
        """Wait until it has imported everything."""
        if not self._ready:
            assert self._line() == "ready"
            self._ready = True

    def go(self, **orders: Any) -> None:
        """Let it begin."""
        self.ready()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._usual | orders) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What it says at its end."""
        said: dict[str, Any] = json.loads(self._line() or '{"error": "it died"}')
        return said

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal, and wait until it has ended."""
        self._process.send_signal(how)
        self._process.wait()


def together(writers: Sequence[Writer], *orders: dict[str, Any]) -> None:
    """Let them begin at once."""
    for writer in writers:
        writer.ready()
    for writer, order in zip(writers, orders, strict=True):
        writer.go(**order)


# -- in the process of a writer ---------------------------------------------------------------------------------


def say(what: Any) -> None:
    sys.stdout.write(f"{what if isinstance(what, str) else json.dumps(what)}\n")
    sys.stdout.flush()


def main() -> None:
    """Append so many blocks, or one slow one; with ``unlocked`` the same rows without a lock."""
    say("ready")
    for line in sys.stdin:
        told = json.loads(line)
        try:
            say(_embedded(told) if "embedded" in told else _served(told))
        except KeyboardInterrupt:
            say({"error": "KeyboardInterrupt"})
            return
        except Exception as error:  # noqa: BLE001 - the test says whether it was to be
            say({"error": f"{type(error).__name__}: {error}"})


def _served(told: dict[str, Any]) -> dict[str, Any]:
    server = {"host": "127.0.0.1", "port": told["port"], "database": told["database"]}
    with (
        closing(clickhouse_connect.get_client(**server, autogenerate_session_id=False)) as client,
        Locks(told["locks"], label=told.get("label")) as locks,
    ):
        for name, value in (told.get("settings") or {}).items():
            client.set_client_setting(name, value)
        table = Table(client, told["table"], locks=locks, cluster=told.get("cluster"))
        return {"blocks": _appended(client, table, told)}


def _appended(client: Any, table: Table, told: dict[str, Any]) -> list[int]:
    writer, count = told["writer"], told["rows"]
    blocks: list[int] = []
    for insert in range(1, told.get("inserts", 1) + 1):
        if seconds := told.get("slow"):
            blocks.append(run(table._appender.write([slow(writer, count, seconds, insert)])).id)
        elif told.get("unlocked"):
            by_hand(client, told["table"], rows_of(writer, insert, count))
        else:
            data = rows_of(writer, insert, count, told.get("batch", 1000))
            blocks.append(table.append(data, told.get("token")).id)
    return blocks


def _embedded(told: dict[str, Any]) -> dict[str, Any]:
    """Four threads, each with a connection of its own to the engine inside this process."""
    folder = told["embedded"]
    locks = Locks(f"sqlite:///{folder}/registry.db")
    locks.init()
    with ExitStack() as opened:
        opened.enter_context(locks)
        clients = [
            opened.enter_context(closing(clickhouse_connect.get_client(dsn=f"chdb:///{folder}/data"))) for _ in range(4)
        ]
        for client in clients:
            for name, value in SMALL_BLOCKS.items():
                client.set_client_setting(name, value)
        clients[0].command(f"CREATE TABLE events {COLUMNS} {ENGINE}")
        _threads([_one_of(client, number, locks, told) for number, client in enumerate(clients, 1)])
        table = Table(clients[0], "events", locks=locks)
        return {
            "runs": runs(clients[0], "events"),
            "blocks": [[block.rows, block.state] for block in table.blocks()],
        }


def _one_of(client: Any, number: int, locks: Locks, told: dict[str, Any]) -> Callable[[], None]:
    def work() -> None:
        for insert in range(1, told["inserts"] + 1):
            data = rows_of(number, insert, told["rows"])
            if told.get("unlocked"):
                by_hand(client, "events", data)
            else:
                Table(client, "events", locks=locks).append(data)

    return work


def _threads(works: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
