"""Sessions that hold or await advisory locks, whoever wrote their program: what `takehold doctor` finds wrong there.

Both kinds of keys: one bigint, or two ints. Nothing is ended here; the statement that would do it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from takehold.backends._drivers.wire import Statement, Wire
from takehold.backends.check import Check, duration, ok, trouble, warning
from takehold.backends.postgres.clients import End, Neighbours

__all__ = ["LockSession", "judged", "sessions_of"]

IDLE_AT_ONCE: Final = 5.0
"""Seconds after which nobody is between two statements of one transaction any more."""
VERY_MANY: Final = 1000
SHOWN_KEYS: Final = 5
SHOWN_SESSIONS: Final = 20
_LOCKS: Final = """
SELECT l.pid, l.objsubid = 2, l.classid::bigint, l.objid::bigint, l.mode = 'ShareLock', l.granted, {waited}
FROM pg_locks l WHERE l.locktype = 'advisory'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_LOCKS_SINCE_14: Final = Statement(
    "takehold_doctor_locks",
    _LOCKS.format(waited="EXTRACT(epoch FROM clock_timestamp() - l.waitstart)::float8"),
)
_LOCKS_BEFORE: Final = Statement("takehold_doctor_locks", _LOCKS.format(waited="NULL::float8"))
# The last statement of an idle session is looked at, and never shown: it may have secrets in it.
_SESSIONS: Final = Statement(
    "takehold_doctor_sessions",
    """WITH a AS MATERIALIZED (SELECT * FROM pg_stat_activity),
    alike AS (SELECT usename, application_name, client_addr, datname, count(*) AS n FROM a GROUP BY 1, 2, 3, 4),
    l AS MATERIALIZED (SELECT pid, bool_or(NOT granted) AS waits FROM pg_locks WHERE locktype = 'advisory' GROUP BY 1)
    SELECT a.pid, a.usename::text, COALESCE(a.application_name, ''), a.state, host(a.client_addr),
        COALESCE(a.client_port, 0)::bigint,
        EXTRACT(epoch FROM clock_timestamp() - a.state_change)::float8,
        EXTRACT(epoch FROM clock_timestamp() - a.backend_start)::float8,
        a.query ~* '^\\s*(commit|rollback|end|abort|begin|discard|reset|select 1|;|--)' OR a.query = '',
        COALESCE((SELECT n FROM alike WHERE (alike.usename, alike.application_name, alike.datname)
            = (a.usename, a.application_name, a.datname) AND alike.client_addr IS NOT DISTINCT FROM a.client_addr), 1),
        CASE WHEN l.waits THEN pg_blocking_pids(a.pid)::bigint[] ELSE ARRAY[]::bigint[] END
    FROM a JOIN l USING (pid)""",
)


@dataclass(slots=True)
class LockSession:
    """One server process with advisory locks of this database."""

    pid: int
    role: str | None
    application: str
    state: str | None
    """None: we may not see it."""
    address: str | None
    port: int
    idle: float | None
    """Seconds since it last began or ended something."""
    age: float | None
    reset: bool | None
    """Its last statement is one of those that a pool sends, or that end a transaction."""
    alike: int
    """Sessions of the same role, program and host, this one included."""
    blocked_by: list[int]
    held: list[str] = field(default_factory=list)
    awaited: str | None = None
    waited: float = 0.0

    @property
    def ours(self) -> bool:
        """Whether it is one of this library: idle is what those are."""
        return self.application.startswith("takehold")

    @property
    def client(self) -> End | None:
        """Its TCP end, if it has one."""
        return (self.address, self.port) if self.address is not None and self.port > 0 else None

    @property
    def pooled(self) -> bool:
        """Whether it looks like one connection of a pool that was given back."""
        return bool(self.reset) and self.alike > 1

    @property
    def person(self) -> str:
        """Who that is, in few words."""
        name = f" {self.application!r}" if self.application else ""
        return f"pid {self.pid}, role {self.role or 'unknown'},{name} from {self.address or 'this host'}"

    def line(self, waiting: int = 0) -> str:
        """All that an operator needs to decide."""
        words = [self.person]
        if self.state is not None and self.awaited is None:
            words.append(f"{self.state} for {duration(self.idle or 0.0)}")
        if self.awaited is not None:
            words.append(f"waits {duration(self.waited)} for {self.awaited}")
        if self.held:
            words.append(f"holds {shown(self.held)}")
        if self.pooled and self.awaited is None:
            words.append(f"given back to a pool of {self.alike}")
        if waiting:
            words.append(f"{waiting} behind it")
        return ", ".join(words)

    def facts(self) -> dict[str, Any]:
        """For a program."""
        return {
            "pid": self.pid, "role": self.role, "application_name": self.application, "client": self.address,
            "state": self.state, "idle_seconds": self.idle, "session_seconds": self.age, "pooled": self.pooled,
            "held": len(self.held), "keys": self.held[:SHOWN_KEYS], "awaits": self.awaited,
            "waited_seconds": self.waited if self.awaited else None, "blocked_by": self.blocked_by,
            "takehold": self.ours, "statement": end_of(self),
        }  # fmt: skip


def end_of(session: LockSession) -> str:
    """What would end it; for somebody else to run."""
    return f"SELECT pg_terminate_backend({session.pid})"


def shown(keys: list[str]) -> str:
    """A few of them."""
    more = f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else ""
    return ", ".join(keys[:SHOWN_KEYS]) + more


async def sessions_of(wire: Wire, seconds: float) -> list[LockSession]:
    """Everybody who holds or waits, but for ourselves."""
    rows = await wire.fetch(_SESSIONS, seconds=seconds)
    found = {row[0]: LockSession(*row) for row in rows}
    locks = _LOCKS_SINCE_14 if wire.server_version >= 140_000 else _LOCKS_BEFORE
    for pid, pair, high, low, is_shared, granted, waited in await wire.fetch(locks, seconds=seconds):
        session = found.get(pid)
        if session is None:  # it came after the first question
            continue
        key = _key(pair, high, low) + (" shared" if is_shared else "")
        if granted:
            session.held.append(key)
        else:
            session.awaited = key
            session.waited = session.idle or 0.0 if waited is None else waited
    return [session for session in found.values() if session.held or session.awaited]


def _key(pair: bool, high: int, low: int) -> str:
    """As its program wrote it: `pg_advisory_lock(4711)` or `pg_advisory_lock(1, 2)`."""
    if pair:
        return f"({_signed(high, 32)}, {_signed(low, 32)})"
    return str(_signed(high << 32 | low, 64))


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >= 1 << bits - 1 else number


# -- what is wrong with them -------------------------------------------------------------------------


def judged(sessions: list[LockSession], neighbours: Neighbours, *, long: float, capacity: int) -> list[Check]:
    """All checks about sessions, worst first within each."""
    behind: dict[int, int] = {}
    for session in sessions:
        for pid in session.blocked_by:
            behind[pid] = behind.get(pid, 0) + 1
    return [
        _idle_in_transaction(sessions, behind, long),
        _idle_holders(sessions, behind, long),
        _long_waits(sessions, long),
        _dead_waiters(sessions, neighbours),
        _many_locks(sessions, capacity),
    ]


def _listed(sessions: Iterable[LockSession], behind: dict[int, int] | None = None) -> list[str]:
    chosen = sorted(sessions, key=lambda one: -(one.waited or one.idle or 0.0))
    lines = [f"{one.line((behind or {}).get(one.pid, 0))}: {end_of(one)}" for one in chosen[:SHOWN_SESSIONS]]
    return lines + ([f"... and {len(chosen) - SHOWN_SESSIONS} more"] if len(chosen) > SHOWN_SESSIONS else [])


def _facts(sessions: Iterable[LockSession]) -> list[dict[str, Any]]:
    return [session.facts() for session in sessions]


def _count(sessions: list[LockSession], what: str, several: str | None = None) -> str:
    return f"1 session {what}" if len(sessions) == 1 else f"{len(sessions)} sessions {several or what}"


def _idle_in_transaction(sessions: list[LockSession], behind: dict[int, int], long: float) -> Check:
    name = "idle-in-transaction"
    chosen = [
        one
        for one in sessions
        if one.held
        and (one.state or "").startswith("idle in transaction")
        and (one.idle or 0) >= min(long, IDLE_AT_ONCE)
    ]
    if not chosen:
        return ok(name, "no lock is held by a session that sits idle in its transaction", sessions=[])
    bad = any(behind.get(one.pid) or (one.idle or 0) >= long for one in chosen)
    return (trouble if bad else warning)(
        name,
        _count(chosen, "holds locks and sits idle in its transaction", "hold locks and sit idle in their transactions"),
        "Commit or roll back there before anything slow is done, set idle_in_transaction_session_timeout for that "
        "role, or end the session with the statement shown.",
        _listed(chosen, behind),
        sessions=_facts(chosen),
    )


def _idle_holders(sessions: list[LockSession], behind: dict[int, int], long: float) -> Check:
    name = "idle-holders"
    chosen = [
        one
        for one in sessions
        if one.held
        and one.state == "idle"
        and not one.ours
        and (one.idle or 0) >= (min(long, IDLE_AT_ONCE) if one.pooled or behind.get(one.pid) else long)
    ]
    if not chosen:
        return ok(name, "no idle session of another program keeps a session lock", sessions=[])
    return (trouble if any(behind.get(one.pid) for one in chosen) else warning)(
        name,
        _count(chosen, "has been idle with a session lock", "have been idle with session locks"),
        "A session lock stays with its connection when that goes back to a pool: take it through takehold or on a "
        "connection of its own, or use pg_advisory_xact_lock, and free it now with the statement shown.",
        _listed(chosen, behind),
        sessions=_facts(chosen),
    )


def _long_waits(sessions: list[LockSession], long: float) -> Check:
    name = "long-waits"
    chosen = [one for one in sessions if one.awaited is not None and one.waited >= long]
    if not chosen:
        return ok(name, f"nobody has waited {duration(long)} for an advisory lock", sessions=[])
    known = {one.pid: one for one in sessions}
    lines = []
    for one in sorted(chosen, key=lambda each: -each.waited)[:SHOWN_SESSIONS]:
        lines.append(one.line())
        lines += [f"  behind {known[pid].line() if pid in known else _other(pid)}" for pid in one.blocked_by]
    return warning(
        name,
        _count(chosen, "has waited long for an advisory lock", "have waited long for advisory locks"),
        "Look at who is in the way, and give the wait a lock_timeout (takehold waits 30 s unless told).",
        lines,
        sessions=_facts(chosen),
    )


def _other(pid: int) -> str:
    """Somebody in the way who has no advisory lock of this database to be listed by."""
    return f"pid {pid}" if pid else "a prepared transaction (see pg_prepared_xacts)"


def _dead_waiters(sessions: list[LockSession], neighbours: Neighbours) -> Check:
    name = "dead-waiters"
    chosen = [one for one in sessions if one.awaited is not None and neighbours.gone(one.client)]
    if not chosen:
        return ok(name, "no waiter is known to have lost its client", sessions=[])
    return trouble(
        name,
        _count(chosen, "waits for a client that is gone", "wait for clients that are gone"),
        "It will be granted the lock and keep it a moment for nobody: end it with the statement shown, and set "
        "client_connection_check_interval so that the server notices by itself.",
        _listed(chosen),
        sessions=_facts(chosen),
    )


def _many_locks(sessions: list[LockSession], capacity: int) -> Check:
    name = "many-locks"
    limit = min(VERY_MANY, capacity // 5)
    chosen = [one for one in sessions if len(one.held) > limit]
    if not chosen:
        return ok(name, f"no session holds more than {limit} advisory locks", sessions=[], limit=limit)
    return warning(
        name,
        _count(chosen, f"holds more than {limit} advisory locks", f"hold more than {limit} advisory locks each"),
        "Lock what is being worked on, not everything that is known: a full lock table refuses even new connections.",
        _listed(chosen),
        sessions=_facts(chosen),
        limit=limit,
    )
