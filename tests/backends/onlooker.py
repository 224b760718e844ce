"""What a Postgres server shows to somebody who is no party to it: sessions, locks, statements."""

from __future__ import annotations

import time
from typing import Any

from takehold.backends.postgres.session import PostgresSession
from takehold.locks._base import BaseHold
from takehold.testing.faces import Held, eventually
from tests.servers.postgres import Postgres

LOCKS = """
SELECT (l.classid::bigint << 32) | l.objid::bigint, l.mode, l.granted, l.pid
FROM pg_locks l JOIN pg_database d ON d.oid = l.database
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND d.datname = %s ORDER BY l.granted DESC, l.pid, 1
"""


class Onlooker:
    """One database, seen over the Unix socket: no proxy and no partition stands in front of it."""

    def __init__(self, server: Postgres, database: str) -> None:
        self.server, self.database = server, database

    def query(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        return self.server.query(sql, *params, database=self.database)

    def locks(self, key: int | None = None) -> list[tuple[int, str, bool, int]]:
        """Whole keys, modes, granted, server processes."""
        return [row for row in self.query(LOCKS, self.database) if key is None or row[0] == key]

    def waiting(self, key: int | None = None) -> list[int]:
        """Server processes that stand in the server's queue."""
        return [pid for _, _, granted, pid in self.locks(key) if not granted]

    def sessions(self, like: str = "takehold%") -> dict[int, str]:
        """Server processes of ours, and their names."""
        sql = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = %s AND application_name LIKE %s"
        found = dict(self.query(sql, self.database, like))
        return {pid: name for pid, name in found.items() if name != "takehold-tests"}

    def activity(self, pid: int) -> tuple[Any, ...]:
        """State, and when that and the last statement began: equal twice when nothing ran in between."""
        sql = "SELECT state, state_change, query_start, xact_start FROM pg_stat_activity WHERE pid = %s"
        (row,) = self.query(sql, pid)
        return row

    def terminate(self, pid: int) -> None:
        assert self.query("SELECT pg_terminate_backend(%s)", pid) == [(True,)]

    def until_gone(self, pid: int) -> None:
        eventually(lambda: not self.query("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid), f"the end of {pid}")


def session_of(hold: Held | BaseHold) -> PostgresSession:
    """The session that keeps it."""
    inner: Any = hold.hold if isinstance(hold, Held) else hold
    session = inner._seats[0].session
    assert isinstance(session, PostgresSession)
    return session


def place_of(hold: Held | BaseHold) -> int:
    """The number of its key at the server."""
    inner: Any = hold.hold if isinstance(hold, Held) else hold
    number: int = inner._seats[-1].want.place
    return number


class Told:
    """When a hold was told of its loss, by each way there is."""

    def __init__(self, hold: Held) -> None:
        self.hold = hold
        self.called: list[float] = []
        hold.on_lost(lambda: self.called.append(time.monotonic()))

    def after(self, cut: float, within: float = 1.0) -> float:
        """Seconds from the cut to the callback; the other ways tell the same by then."""
        eventually(lambda: self.called, f"{self.hold} is told of its loss", within)
        assert self.hold.lost
        assert self.hold.wait_lost(0)
        assert len(self.called) == 1
        return self.called[0] - cut
