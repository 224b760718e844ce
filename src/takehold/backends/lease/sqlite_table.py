"""The lease table in SQLite, and every question to it as one short transaction.

SQLite has one writer at a time, so a transaction that has begun sees and changes everything alone. Time is the
host's clock since boot: all processes share it, and nobody can set it. A session of an earlier boot is dead.
"""

# ruff: noqa: S608 - put together from constants of this module alone
from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from takehold.backends.lease.channel import FENCE_STEP, LEASE_FORMAT, MARK, PATIENCE, Reply, Request
from takehold.errors import BackendRefused

__all__ = ["SqliteTable", "boot_id", "foreign_format"]

SCHEMA: Final = """
CREATE TABLE takehold_lease_format (number INTEGER NOT NULL);
CREATE TABLE takehold_lease_counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE takehold_lease_session (
    name TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, boot TEXT NOT NULL,
    ttl REAL NOT NULL, beat REAL NOT NULL, expires REAL NOT NULL,
    batch INTEGER NOT NULL DEFAULT 0, answer TEXT, board TEXT, evict TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
CREATE TABLE takehold_lease (
    key INTEGER NOT NULL, fence INTEGER NOT NULL, session TEXT NOT NULL,
    shared INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0, since REAL NOT NULL,
    hold TEXT NOT NULL, text TEXT NOT NULL, namespace TEXT NOT NULL, implied INTEGER NOT NULL,
    label TEXT, site TEXT NOT NULL, party INTEGER NOT NULL,
    PRIMARY KEY (key, fence)
) WITHOUT ROWID;
CREATE INDEX takehold_lease_by_session ON takehold_lease (session);
CREATE TABLE takehold_lease_waiter (
    key INTEGER NOT NULL, session TEXT NOT NULL, ticket INTEGER NOT NULL,
    shared INTEGER NOT NULL, since REAL NOT NULL, expires REAL NOT NULL,
    hold TEXT NOT NULL, text TEXT NOT NULL, namespace TEXT NOT NULL, implied INTEGER NOT NULL,
    label TEXT, site TEXT NOT NULL, party INTEGER NOT NULL,
    PRIMARY KEY (key, session)
) WITHOUT ROWID;
CREATE INDEX takehold_lease_waiter_by_session ON takehold_lease_waiter (session);
"""
_ABOUT: Final = ("hold", "text", "namespace", "implied", "label", "site", "party")
_ABOUT_COLUMNS: Final = ", ".join(_ABOUT)


def foreign_format(number: object, where: str) -> BackendRefused:
    """The refusal of a table that another release made."""
    return BackendRefused(
        f"the lease table in {where} has format {number}, this release of takehold knows format {LEASE_FORMAT}: "
        "use a release that knows it, everywhere"
    )


def boot_id() -> str:
    """Names this boot of the host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class SqliteTable:
    """One connection's view of the table. Every method runs inside a transaction that its caller began."""

    def __init__(self, connection: sqlite3.Connection, boot: str) -> None:
        self._db = connection
        self._boot = boot
        self.answers = {
            "open": self._open, "apply": self._apply, "beat": self._beat, "look": self._look,
            "evict": self._evict, "revoke": self._revoke, "bye": self._bye,
        }  # fmt: skip

    def _one(self, sql: str, *values: Any) -> Any:
        return self._db.execute(sql, values).fetchone()

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._db.execute(sql, values).fetchall()

    @staticmethod
    def _now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    # -- the format ----------------------------------------------------------------------------------

    def format(self) -> object:
        """The number that is there; None when there is no table."""
        there = self._one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'takehold_lease_format'")
        found = self._one("SELECT number FROM takehold_lease_format") if there else None
        return found[0] if found else None

    def make(self) -> None:
        """Make the tables."""
        for statement in SCHEMA.split(";"):
            self._db.execute(statement)
        self._db.execute("INSERT INTO takehold_lease_format VALUES (?)", (LEASE_FORMAT,))
        self._db.execute("INSERT INTO takehold_lease_counter VALUES ('fence', 0), ('ticket', 0)")

    def raise_fences(self, above: int) -> None:
        """Every later fence is greater."""
        least = (above // FENCE_STEP + 1) * FENCE_STEP
        self._db.execute("UPDATE takehold_lease_counter SET value = max(value, ?) WHERE name = 'fence'", (least,))

    def _count(self, name: str, step: int) -> int:
        self._db.execute("UPDATE takehold_lease_counter SET value = value + ? WHERE name = ?", (step, name))
        value: int = self._one("SELECT value FROM takehold_lease_counter WHERE name = ?", name)[0]
        return value

    # -- sessions ------------------------------------------------------------------------------------

    def _open(self, request: Request) -> Reply:
        now = self._now()
        self._bury([name for (name,) in self._all(
            "SELECT name FROM takehold_lease_session WHERE expires <= ? OR boot <> ?", now, self._boot
        )])  # fmt: skip
        self._db.execute(
            "INSERT INTO takehold_lease_session (name, host, pid, boot, ttl, beat, expires) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (request["me"], request["host"], request["pid"], self._boot, request["ttl"], now, now + request["ttl"]),
        )
        return {"now": now}

    def _bury(self, names: list[str]) -> None:
        for name in names:
            self._db.execute("DELETE FROM takehold_lease WHERE session = ?", (name,))
            self._db.execute("DELETE FROM takehold_lease_waiter WHERE session = ?", (name,))
            self._db.execute("DELETE FROM takehold_lease_session WHERE name = ?", (name,))

    def _bye(self, request: Request) -> Reply:
        self._bury([request["me"]])
        return {}

    def _beat(self, request: Request) -> Reply:
        me, now = request["me"], self._now()
        found = self._one("SELECT ttl, evict FROM takehold_lease_session WHERE name = ?", me)
        if found is None:
            return {"gone": True}
        ttl, text = found
        evict = [hold for hold in json.loads(text) if hold not in request["done"]]
        self._db.execute(
            "UPDATE takehold_lease_session SET beat = ?, expires = ?, board = ?, evict = ? WHERE name = ?",
            (now, now + ttl, request["board"], json.dumps(evict), me),
        )
        if request["clean"]:
            self._bury([name for (name,) in self._all(
                "SELECT name FROM takehold_lease_session WHERE expires <= ? OR boot <> ?", now, self._boot
            )])  # fmt: skip
        held = self._all("SELECT key, fence, revoked FROM takehold_lease WHERE session = ?", me)
        revoked = [[key, fence] for key, fence, is_revoked in held if is_revoked]
        return {"now": now, "evict": evict, "revoked": revoked, "held": len(held) - len(revoked)}

    # -- keys ----------------------------------------------------------------------------------------

    def _apply(self, request: Request) -> Reply:
        me, number, now = request["me"], request["n"], self._now()
        known = self._one("SELECT batch, answer FROM takehold_lease_session WHERE name = ?", me)
        if known is None:
            return {"gone": True}
        if known[0] >= number:
            known_reply: Reply = json.loads(known[1]) if known[0] == number else {"stale": True}
            return known_reply
        missing = [pair for pair in request["give"] if not self._given(me, pair)]
        for key in request["leave"]:
            self._db.execute("DELETE FROM takehold_lease_waiter WHERE key = ? AND session = ?", (key, me))
        granted: list[list[int]] = []
        ahead: list[int] = []
        for ask in request["asks"]:
            fences, waiting = self._granted(me, ask, now)
            granted.append(fences)
            ahead.append(waiting)
        reply = {"missing": missing, "granted": granted, "ahead": ahead}
        if any(granted) or request["give"] or request["again"]:
            self._db.execute(
                "UPDATE takehold_lease_session SET batch = ?, answer = ? WHERE name = ?",
                (number, json.dumps(reply), me),
            )
        return reply

    def _given(self, me: str, pair: list[int]) -> bool:
        gone = self._db.execute(
            "DELETE FROM takehold_lease WHERE key = ? AND fence = ? AND session = ?", (pair[0], pair[1], me)
        )
        return gone.rowcount > 0

    def _granted(self, me: str, ask: dict[str, Any], now: float) -> tuple[list[int], int]:
        """The fences of what was granted, in order; and how many wait before the one that was not."""
        fences: list[int] = []
        for want in ask["wants"]:
            mine = None
            if ask["wait"]:
                mine = self._one(
                    "SELECT ticket, expires FROM takehold_lease_waiter WHERE key = ? AND session = ?", want["key"], me
                )
            ahead = self._ahead(me, want, now, None if mine is None else mine[0])
            if ahead or self._held(want, now):
                if ask["wait"]:
                    self._mark(me, want, now, mine)
                return fences, ahead
            fences.append(self._count("fence", FENCE_STEP))
            self._db.execute(
                f"INSERT INTO takehold_lease (key, fence, session, shared, since, {_ABOUT_COLUMNS}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (want["key"], fences[-1], me, want["shared"], now, *(want[name] for name in _ABOUT)),
            )
            self._db.execute("DELETE FROM takehold_lease_waiter WHERE key = ? AND session = ?", (want["key"], me))
        return fences, 0

    def _held(self, want: dict[str, Any], now: float) -> bool:
        """Whether somebody alive has it in a mode that excludes ours; the dead are buried on the way."""
        holders = self._all(
            "SELECT s.name, s.expires <= ? OR s.boot <> ? FROM takehold_lease l "
            "JOIN takehold_lease_session s ON s.name = l.session "
            "WHERE l.key = ? AND NOT l.revoked AND NOT (l.shared AND ?)",
            now, self._boot, want["key"], want["shared"],
        )  # fmt: skip
        self._bury([name for name, dead in holders if dead])
        return not all(dead for _, dead in holders)

    def _ahead(self, me: str, want: dict[str, Any], now: float, ticket: int | None) -> int:
        """How many of other sessions wait before us; before who only comes now, those who have waited a little."""
        if want["turn"]:
            return 0
        before = "since <= ?" if ticket is None else "ticket < ?"
        count: int = self._one(
            "SELECT count(*) FROM takehold_lease_waiter WHERE key = ? AND session <> ? AND expires > ? "
            f"AND NOT (shared AND ?) AND {before}",
            want["key"], me, now, want["shared"], now - PATIENCE if ticket is None else ticket,
        )[0]  # fmt: skip
        return count

    def _mark(self, me: str, want: dict[str, Any], now: float, mine: Any) -> None:
        """Stand in line, or go on standing there; written only now and then."""
        if mine is None:
            self._db.execute(
                f"INSERT INTO takehold_lease_waiter (key, session, ticket, shared, since, expires, {_ABOUT_COLUMNS}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (want["key"], me, self._count("ticket", 1), want["shared"], now, now + MARK,
                 *(want[name] for name in _ABOUT)),
            )  # fmt: skip
        elif mine[1] < now + MARK / 2:
            self._db.execute(
                "UPDATE takehold_lease_waiter SET expires = ? WHERE key = ? AND session = ?",
                (now + MARK, want["key"], me),
            )

    # -- seeing --------------------------------------------------------------------------------------

    def _look(self, request: Request) -> Reply:
        now = self._now()
        alive = "s.expires > ? AND s.boot = ?"
        key = "" if request["key"] is None else f"AND key = {int(request['key'])}"
        sessions = self._all(
            f"SELECT name, host, pid, ? - beat, ttl, board FROM takehold_lease_session s WHERE {alive}",
            now, now, self._boot,
        )  # fmt: skip
        leases = self._all(
            f"SELECT key, session, fence, shared, since, {_ABOUT_COLUMNS} FROM takehold_lease l "
            f"JOIN takehold_lease_session s ON s.name = l.session WHERE {alive} AND NOT revoked {key}",
            now, self._boot,
        )  # fmt: skip
        waiters = self._all(
            f"SELECT key, session, ticket, shared, since, {_ABOUT_COLUMNS} FROM takehold_lease_waiter w "
            "JOIN takehold_lease_session s ON s.name = w.session "
            f"WHERE {alive} AND w.expires > ? {key} ORDER BY ticket",
            now, self._boot, now - MARK,
        )  # fmt: skip
        return {"now": now, "sessions": sessions, "leases": leases, "waiters": waiters}

    def _evict(self, request: Request) -> Reply:
        found = self._one("SELECT evict FROM takehold_lease_session WHERE name = ?", request["session"])
        if found is None:
            return {"found": False}
        evict = [*json.loads(found[0]), request["hold"]]
        self._db.execute(
            "UPDATE takehold_lease_session SET evict = ? WHERE name = ?", (json.dumps(evict), request["session"])
        )
        return {"found": True}

    def _revoke(self, request: Request) -> Reply:
        gone = self._db.execute(
            "UPDATE takehold_lease SET revoked = 1 WHERE key = ? AND fence = ?", (request["key"], request["fence"])
        )
        return {"found": gone.rowcount > 0}
