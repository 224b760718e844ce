"""The checks of `takehold doctor` on a Postgres server: what opening proves, and what it cannot refuse for.

Two short connections, unprepared and without a setting changed, so that they do no harm behind a pooler either.
Everything is read; the one lock that is taken, to see whether locks exclude, is given back at once.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from takehold.backends._drivers.wire import ServerError, Statement, Wire, WireLost, connect
from takehold.backends.check import Check, duration, ok, trouble, warning
from takehold.backends.postgres.clients import Neighbours
from takehold.backends.postgres.line import Line, Options
from takehold.backends.postgres.proving import Facts, facts_of, prove_exclusion, prove_pooler_keeps
from takehold.backends.postgres.sessions import LockSession, judged, sessions_of
from takehold.backends.postgres.statements import FENCE_STEP, FORMAT
from takehold.backends.postgres.waiters import MAX_WAITERS
from takehold.errors import BackendError, BackendUnavailable
from takehold.runtime import Runtime

__all__ = ["examine"]

ANSWER: Final = 10.0
PER_PROCESS: Final = 2 + MAX_WAITERS
"""Connections that one process of ours opens at most: keeper, ear, waiters."""
TOO_LONG_IDLE: Final = 300
CLOCK_TOLERANCE: Final = 2.0
_FUNCTIONS: Final = [
    f"pg_{name}(bigint)"
    for name in (
        "try_advisory_lock", "try_advisory_lock_shared", "advisory_lock", "advisory_lock_shared", "advisory_unlock",
        "advisory_unlock_shared",
    )
]  # fmt: skip
_ME: Final = Statement(
    "takehold_doctor_me",
    """SELECT version(), current_user::text, r.rolsuper, r.rolconnlimit::bigint, d.datconnlimit::bigint,
        r.rolsuper OR pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
        r.rolsuper OR pg_has_role(current_user, 'pg_signal_backend', 'USAGE'),
        EXTRACT(epoch FROM clock_timestamp())::float8, host(inet_client_addr()), COALESCE(inet_client_port(), 0)
    FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()""",
)
_MAY_LOCK: Final = Statement(
    "takehold_doctor_may_lock",
    "SELECT f FROM unnest($1::text[]) AS t(f) WHERE NOT has_function_privilege(f, 'EXECUTE')",
)
_FENCES: Final = Statement(
    "takehold_doctor_fences",
    """SELECT obj_description(n.oid, 'pg_namespace'), s.seqincrement, s.seqcache, s.seqcycle,
        has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'USAGE')
    FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'fence' AND c.relkind = 'S'
        LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
    WHERE n.nspname = 'takehold'""",
)
_TABLE: Final = Statement(
    "takehold_doctor_table", "SELECT count(*) FILTER (WHERE locktype = 'advisory'), count(*) FROM pg_locks"
)
_USED: Final = Statement(
    "takehold_doctor_used",
    """SELECT (SELECT sum(numbackends)::bigint FROM pg_stat_database),
        (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
        (SELECT numbackends::bigint FROM pg_stat_database WHERE datname = current_database())""",
)
_SETTINGS: Final = Statement(
    "takehold_doctor_settings", "SELECT name, setting, source FROM pg_settings WHERE name = ANY($1::text[])"
)
_STANDBYS: Final = Statement(
    "takehold_doctor_standbys",
    """SELECT COALESCE(application_name, ''), COALESCE(host(client_addr), 'local'), COALESCE(sync_state, 'unknown')
    FROM pg_stat_replication WHERE state IS NULL OR state IN ('streaming', 'catchup')""",
)
_WANTED: Final = [
    "client_connection_check_interval", "default_transaction_isolation", "fsync", "idle_in_transaction_session_timeout",
    "idle_session_timeout", "max_connections", "reserved_connections", "superuser_reserved_connections",
    "synchronous_standby_names", "tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval",
    "tcp_user_timeout", "transaction_timeout",
]  # fmt: skip


async def examine(url: str, options: Options, shown: str, rt: Runtime, long: float) -> list[Check]:
    """All checks, in the order people read them; `BackendUnavailable` when there is nobody to ask."""
    wires: list[Wire] = []
    target = replace(Line(url, options).target("-doctor"), prepared=False)

    async def dial() -> Wire:
        wire = await connect(rt, target, options.connect)
        wires.append(wire)
        return wire

    try:
        wire = await dial()
        began = rt.now()
        facts = await facts_of(wire, ANSWER)
        took = rt.now() - began
        made = _Examination(wire, dial, facts, options, shown, rt, long)
        made.wires = wires
        return await made.run(took)
    except WireLost as error:
        raise BackendUnavailable(f"no connection to {shown}: {error}") from error
    except ServerError as error:
        raise BackendUnavailable(f"{shown} does not answer as Postgres does: {error}") from error
    finally:
        for one in wires:
            one.close()


class _Examination:
    """One connection, what it has told so far, and one method for each check."""

    def __init__(  # noqa: PLR0913, PLR0917 - everything a check may look at
        self,
        wire: Wire,
        dial: Callable[[], Awaitable[Wire]],
        facts: Facts,
        options: Options,
        shown: str,
        rt: Runtime,
        long: float,
    ) -> None:
        self._wire = wire
        self._dial = dial
        self._facts = facts
        self._options = options
        self._shown = shown
        self._rt = rt
        self._long = long
        self._settings: dict[str, tuple[str, str]] = {}
        self.wires: list[Wire] = []
        """What we have opened ourselves: not to be counted."""

    async def run(self, took: float) -> list[Check]:
        """One after the other; a server that does not know a question is told of, not given up."""
        before = self._rt.wall()
        [me] = await self._wire.fetch(_ME, seconds=ANSWER)
        self._offset = me[7] - (before + self._rt.wall()) / 2
        self._version, self._role, self._super = me[0], me[1], me[2]
        self._limits, self._sees, self._ends, self._end = (me[3], me[4]), me[5], me[6], (me[8], me[9])
        rows = await self._wire.fetch(_SETTINGS, _WANTED, seconds=ANSWER)
        self._settings = {name: (value, source) for name, value, source in rows}
        checks = [self._reachable(took), *await self._proof()]
        for name, check in (
            ("may-lock", self._may_lock),
            ("fences", self._fences),
            ("lock-table", self._lock_table),
            ("connections", self._connections),
        ):
            checks += await self._tried(name, check)
        checks += [
            self._clock(),
            self._keepalives(),
            self._client_check(),
            self._timeouts(),
            self._isolation(),
            self._durable(),
        ]
        checks += await self._tried("failover", self._failover)
        checks += await self._tried("sessions", self._others)
        return checks

    @staticmethod
    async def _tried(name: str, check: Callable[[], Awaitable[list[Check]]]) -> list[Check]:
        try:
            return await check()
        except ServerError as error:
            return [warning(name, f"the server would not say: {error}", "Run doctor as a role that may read this.")]

    def _number(self, name: str) -> int:
        return int(self._settings.get(name, ("0", ""))[0])

    # -- what opening proves -------------------------------------------------------------------------

    def _reachable(self, took: float) -> Check:
        number = self._wire.server_version
        product = " ".join(self._version.split()[:2])
        found = f"{product}, database {self._facts.database}, role {self._role}, answers in {took * 1e3:.1f} ms"
        facts: dict[str, Any] = {
            "version": number, "product": self._version, "database": self._facts.database, "role": self._role,
            "answer_seconds": round(took, 4),
        }  # fmt: skip
        if not self._version.startswith("PostgreSQL"):
            advice = "It speaks the protocol and is another server: trust it only as far as the checks below do."
            return warning("reachable", found, advice, **facts)
        if number < 140_000:
            advice = "Before Postgres 14 a waiter whose client died stays in the queue: upgrade when you can."
            return warning("reachable", found, advice, **facts)
        return ok("reachable", found, **facts)

    async def _proof(self) -> list[Check]:
        checks = [await self._direct(), self._primary()]
        if checks[0].verdict == "trouble":
            return checks  # two connections through it may be one session
        try:
            await prove_exclusion(self._wire, await self._dial(), ANSWER)
        except BackendError as error:
            advice = "Use lease+postgresql:, which needs only tables, or a PostgreSQL server."
            return [*checks, trouble("exclusion", str(error), advice)]
        return [*checks, ok("exclusion", "two connections exclude each other")]

    async def _direct(self) -> Check:
        here, there = self._wire.pid, self._facts.pid
        facts: dict[str, Any] = {"startup_pid": here, "backend_pid": there}
        if here == there:
            return ok("direct", "no connection pooler in between", **facts)
        found = f"a connection pooler is in between (server process {there}, the connection says {here})"
        if self._options.pooler != "session":
            advice = (
                "Session locks through a pooler exclude nobody: connect to the server itself, use "
                f"lease+{self._shown}, or say ?pooler=session when it pools sessions."
            )
            return trouble("direct", found, advice, **facts)
        try:
            await prove_pooler_keeps(self._wire, await self._dial(), ANSWER)
        except BackendError as error:
            advice = "Connect to the server itself, or use lease+postgresql:, which needs no session."
            return trouble("direct", str(error), advice, **facts)
        return ok("direct", f"{found}, and it keeps one server process for a client", **facts)

    def _primary(self) -> Check:
        if self._facts.standby:
            return trouble(
                "primary",
                "this server is a standby: it grants locks that nobody else sees",
                "Connect to the primary, for example with ?target_session_attrs=read-write.",
                standby=True,
            )
        return ok("primary", "this server is a primary", standby=False)

    async def _fences(self) -> list[Check]:
        name, rows = "fences", await self._wire.fetch(_FENCES, seconds=ANSWER)
        comment, step, cache, cycle, usable = rows[0] if rows else (None, None, None, None, False)
        found = re.fullmatch(r"takehold format (\d+)", comment or "")
        number = int(found[1]) if found else None
        facts: dict[str, Any] = {"format": number, "usable": bool(usable)}
        if number is not None and number != FORMAT:
            text = f"the schema takehold has format {number}, this release writes format {FORMAT}"
            return [trouble(name, text, "Run the same release everywhere, or use another database.", **facts)]
        if step is None or number is None:
            advice = f"To have a fencing token with every hold, run: takehold init {self._shown}"
            return [warning(name, "there are none: the schema takehold is not prepared", advice, **facts)]
        if (step, cache, cycle) != (FENCE_STEP, 1, False):
            text = f"the sequence takehold.fence was altered (increment {step}, cache {cache}, cycle {cycle})"
            advice = (
                f"Fences may repeat: ALTER SEQUENCE takehold.fence INCREMENT BY {FENCE_STEP} CACHE 1 NO CYCLE, and "
                "restart the users of these locks."
            )
            return [trouble(name, text, advice, **facts)]
        if not usable:
            text = f"role {self._role} may not use the sequence: its holds have no fences"
            advice = (
                f'GRANT USAGE ON SCHEMA takehold TO "{self._role}"; '
                f'GRANT USAGE ON SEQUENCE takehold.fence TO "{self._role}".'
            )
            return [warning(name, text, advice, **facts)]
        return [ok(name, f"the sequence takehold.fence is there, format {number}", **facts)]

    # -- room ----------------------------------------------------------------------------------------

    async def _lock_table(self) -> list[Check]:
        [(advisory, used)] = await self._wire.fetch(_TABLE, seconds=ANSWER)
        capacity = self._facts.capacity
        found = f"{used} of the {capacity} locks that the table is sure to hold, {advisory} of them advisory"
        facts: dict[str, Any] = {
            "capacity": capacity,
            "used": used,
            "advisory": advisory,
            "refused_from": capacity // 2,
        }
        advice = "Raise max_locks_per_transaction (needs a restart): a full table refuses even new connections."
        if used * 2 >= capacity:
            return [trouble("lock-table", found, advice, **facts)]
        if used * 4 >= capacity:
            return [warning("lock-table", found, advice, **facts)]
        return [ok("lock-table", found, **facts)]

    async def _connections(self) -> list[Check]:
        [row] = await self._wire.fetch(_USED, seconds=ANSWER)
        used, of_role, of_database = (max(0, count - len(self.wires)) for count in row)
        most = self._number("max_connections") - (0 if self._super else self._reserved)
        rooms = [(most - used, f"{used} of {most} connections in use")]
        role, database = self._limits
        if role >= 0 and not self._super:
            rooms.append((role - of_role, f"role {self._role} has {of_role} of its {role} connections in use"))
        if database >= 0 and not self._super:
            rooms.append((database - of_database, f"the database has {of_database} of its {database} in use"))
        left, found = min(rooms)
        facts: dict[str, Any] = {"max": most, "used": used, "left": left, "per_process": PER_PROCESS}
        found += f"; a process of ours opens 2, at most {PER_PROCESS}"
        advice = f"Raise the limit or close some: each process needs 2, and up to {MAX_WAITERS} more while it waits."
        if left < 2:
            return [trouble("connections", found, advice, **facts)]
        if left < max(PER_PROCESS, most // 10):
            return [warning("connections", found, advice, **facts)]
        return [ok("connections", found, **facts)]

    @property
    def _reserved(self) -> int:
        return self._number("superuser_reserved_connections") + self._number("reserved_connections")

    def _clock(self) -> Check:
        facts: dict[str, Any] = {"server_ahead_seconds": round(self._offset, 3)}
        if abs(self._offset) <= CLOCK_TOLERANCE:
            return ok("clock", "the clocks of server and this host agree", **facts)
        which = "ahead of" if self._offset > 0 else "behind"
        found = f"the server's clock is {duration(abs(self._offset))} {which} this host's"
        return warning("clock", found, "Synchronise both: ages of holds are compared between hosts.", **facts)

    # -- what the sessions of applications lack ------------------------------------------------------

    def _keepalives(self) -> Check:
        name, idle = "tcp-keepalives", self._number("tcp_keepalives_idle")
        pause, count = self._number("tcp_keepalives_interval"), self._number("tcp_keepalives_count")
        unacknowledged = self._number("tcp_user_timeout")
        facts: dict[str, Any] = {"idle": idle, "interval": pause, "count": count, "user_timeout_ms": unacknowledged}
        if not idle:
            return ok(name, "not on TCP here, nothing to see", **facts)
        after = idle + pause * count
        if idle <= TOO_LONG_IDLE:
            return ok(name, f"a session whose host died ends after {duration(after)}", **facts)
        return warning(
            name,
            f"a session whose host died keeps its locks for {duration(after)}; ours set their own limits",
            "For the application's own sessions: ALTER SYSTEM SET tcp_keepalives_idle = 60, tcp_keepalives_interval = "
            "10, tcp_keepalives_count = 6 and tcp_user_timeout = '60s', one statement each, then pg_reload_conf().",
            **facts,
        )

    def _client_check(self) -> Check:
        name, milliseconds = "client-check", self._number("client_connection_check_interval")
        facts: dict[str, Any] = {"client_connection_check_interval_ms": milliseconds}
        if milliseconds:
            return ok(name, f"a waiter whose client died is noticed within {duration(milliseconds / 1e3)}", **facts)
        return warning(
            name,
            "a session that waits for a lock does not notice that its client died; ours do",
            "For the application's own sessions: ALTER SYSTEM SET client_connection_check_interval = '10s', then "
            "pg_reload_conf().",
            **facts,
        )

    def _timeouts(self) -> Check:
        names = ("idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
        chosen = {name: self._settings[name] for name in names if self._number(name)}
        facts: dict[str, Any] = {name: {"ms": int(value), "set_by": source} for name, (value, source) in chosen.items()}
        told = [f"{name} is {duration(int(value) / 1e3)} ({source})" for name, (value, source) in chosen.items()]
        if "idle_session_timeout" in chosen:
            return warning(
                "timeouts",
                "; ".join(told),
                "It ends idle sessions of this role, and their session locks, without a word to the program: give "
                "programs that hold some a role with idle_session_timeout = 0 (ours switch it off).",
                **facts,
            )
        return ok("timeouts", "; ".join(told) or "no timeout ends an idle session with its locks", **facts)

    def _isolation(self) -> Check:
        level, source = self._settings.get("default_transaction_isolation", ("read committed", "default"))
        if level.startswith("read"):
            return ok("isolation", f"transactions are {level}", level=level)
        return warning(
            "isolation",
            f"transactions are {level} ({source}): what they read is from before they waited for a lock",
            "Take the lock first and begin the transaction after it.",
            level=level,
        )

    def _durable(self) -> Check:
        if self._settings.get("fsync", ("on", ""))[0] == "on":
            return ok("durable", "fsync is on: fences survive a crash", fsync=True)
        found = "fsync is off: after a crash of the machine fences may go back"
        return warning("durable", found, "Set fsync = on, but for servers that are thrown away.", fsync=False)

    async def _failover(self) -> list[Check]:
        rows = await self._wire.fetch(_STANDBYS, seconds=ANSWER)
        standbys = [{"name": name, "client": host, "sync": sync} for name, host, sync in rows]
        facts: dict[str, Any] = {"standbys": standbys}
        late = [one for one in standbys if one["sync"] not in ("sync", "quorum")]
        if late:
            return [
                warning(
                    "failover",
                    f"{len(late)} of {len(standbys)} standbys follow late: after a failover to one fences may go back",
                    "Name them in synchronous_standby_names, or run takehold init --fence-from after a failover; "
                    "holds are lost by any failover.",
                    [f"{one['name'] or 'a standby'} from {one['client']}, {one['sync']}" for one in late],
                    **facts,
                )
            ]
        found = "no standby follows" if not standbys else "every standby is synchronous: fences survive a failover"
        return [ok("failover", found, **facts)]

    # -- who may do what, and what others do ---------------------------------------------------------

    async def _may_lock(self) -> list[Check]:
        missing = [row[0] for row in await self._wire.fetch(_MAY_LOCK, _FUNCTIONS, seconds=ANSWER)]
        if missing:
            advice = f'GRANT EXECUTE ON FUNCTION {", ".join(missing)} TO "{self._role}".'
            return [trouble("may-lock", f"role {self._role} may not call {missing[0]}", advice, missing=missing)]
        return [ok("may-lock", f"role {self._role} may take advisory locks", missing=[])]

    async def _others(self) -> list[Check]:
        sessions = [one for one in await sessions_of(self._wire, ANSWER) if one.pid != self._facts.pid]
        own = None if self._end[0] is None else self._end
        found = judged(sessions, Neighbours(own), long=self._long, capacity=self._facts.capacity)
        return [self._may_see(sessions), self._may_end(sessions), *found]

    def _foreign(self, sessions: Iterable[LockSession]) -> list[str]:
        return sorted({one.role or "unknown" for one in sessions} - {self._role})

    def _may_see(self, sessions: list[LockSession]) -> Check:
        hidden = [one.pid for one in sessions if one.state is None]
        facts: dict[str, Any] = {"pg_read_all_stats": self._sees, "hidden": hidden}
        if not hidden:
            return ok("may-see", f"{len(sessions)} sessions hold or await advisory locks, all can be seen", **facts)
        return warning(
            "may-see",
            f"{len(hidden)} of {len(sessions)} sessions with advisory locks cannot be judged: they are other roles'",
            f'GRANT pg_read_all_stats TO "{self._role}", or run doctor as a role that has it.',
            **facts,
        )

    def _may_end(self, sessions: list[LockSession]) -> Check:
        others = self._foreign(sessions)
        facts: dict[str, Any] = {"pg_signal_backend": self._ends, "other_roles": others}
        if self._ends or not others:
            return ok("may-end", f"role {self._role} may end every session that holds a lock", **facts)
        return warning(
            "may-end",
            f"role {self._role} may not end sessions of {', '.join(others)}",
            f'To let it evict them when they do not answer: GRANT pg_signal_backend TO "{self._role}".',
            **facts,
        )
