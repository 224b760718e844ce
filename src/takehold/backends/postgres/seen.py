"""What can be seen from outside: `pg_locks` with its keys put together again, and lines that owners send."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from takehold.backends._drivers.wire import Statement, Wire
from takehold.core.owner import Owner, site_text
from takehold.core.record import HoldRecord, since
from takehold.core.seat import HELD, Seat
from takehold.core.waits import hold_id
from takehold.core.want import EXCLUSIVE, Want
from takehold.runtime import Runtime

__all__ = ["HELD", "Held", "PostgresLine", "count", "ears", "everything", "held"]

_COLUMNS: Final = """
SELECT (l.classid::bigint << 32) | l.objid::bigint, l.mode = 'ShareLock', l.granted, l.pid,
    COALESCE(a.application_name, ''), COALESCE(host(a.client_addr), 'local'),
    EXTRACT(epoch FROM clock_timestamp() - COALESCE(a.state_change, a.backend_start, clock_timestamp()))::float8,
    (EXTRACT(epoch FROM a.backend_start) * 1000000)::bigint, a.usename::text, a.state
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_HELD: Final = Statement(
    "takehold_seen", f"{_COLUMNS} AND (l.classid::bigint << 32) | l.objid::bigint = ANY($1::bigint[])"
)
_ALL: Final = Statement("takehold_seen_all", _COLUMNS)
_COUNT: Final = Statement("takehold_count", "SELECT count(*) FROM pg_locks")
_EARS: Final = Statement(
    "takehold_ears",
    """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'takehold-ear %'""",
)
_NAME: Final = re.compile(r"takehold(?:-ear)? ([0-9a-f]{8}) (.*):([0-9]+)")


@dataclass(frozen=True, slots=True)
class Held:
    """One row of `pg_locks` with a whole 64-bit key."""

    key: int
    shared: bool
    granted: bool
    pid: int
    application: str
    host: str
    age: float
    """Seconds since its session last did something: a holder took the key no later than that."""
    started: int | None
    """When its session began, in microseconds: with the pid it names one session."""
    role: str | None
    state: str | None

    @property
    def token(self) -> str | None:
        """The session of ours that it belongs to."""
        found = _NAME.fullmatch(self.application)
        return found[1] if found else None

    @property
    def id(self) -> str:
        """What `evict` takes: session and key."""
        return f"{self.pid}.{self.started or 0:x}-{self.key & (2**64 - 1):x}"

    @property
    def owner(self) -> Owner:
        """Who that seems to be."""
        found = _NAME.fullmatch(self.application)
        if found:
            return Owner(found[2], int(found[3]), None, f"server process {self.pid}")
        label = self.application or None
        return Owner(self.host, self.pid, label, f"server process {self.pid}, role {self.role or 'unknown'}")

    def record(self, rt: Runtime, want: Want | None) -> HoldRecord:
        """As `who` shows it: it does not answer for itself."""
        text, namespace = (f"#{self.key}", "") if want is None else (want.text, want.namespace)
        state = "held" if self.granted else "waiting"
        mode = "shared" if self.shared else "exclusive"
        began = since(self.age, rt.wall())
        return HoldRecord(self.id, text, namespace, mode, state, self.owner, began, self.age, None, silent=True)


async def held(wire: Wire, keys: list[int]) -> list[Held]:
    """Who holds or waits for these keys, as the server sees it."""
    return [Held(*row) for row in await wire.fetch(_HELD, keys, seconds=5.0)]


async def everything(wire: Wire) -> list[Held]:
    """All advisory locks of this database."""
    return [Held(*row) for row in await wire.fetch(_ALL, seconds=5.0)]


async def count(wire: Wire) -> int:
    """All locks of the whole server, of every kind."""
    [row] = await wire.fetch(_COUNT, seconds=5.0)
    return int(row[0])


async def ears(wire: Wire) -> int:
    """How many sessions of this database listen."""
    [row] = await wire.fetch(_EARS, seconds=5.0)
    return int(row[0])


@dataclass(frozen=True, slots=True)
class PostgresLine:
    """One holder or waiter, as its own process describes it."""

    process: str
    id: str
    key_id: int
    key: str
    namespace: str
    shared: bool
    held: bool
    at_gate: bool
    task: int
    age: float
    at: float
    """Wall clock: it must be comparable between hosts."""
    fence: int | None
    host: str
    pid: int
    label: str | None
    site: str

    @classmethod
    def of(cls, token: str, seat: Seat, rt: Runtime) -> PostgresLine:
        """One seat of this process."""
        want, owner = seat.want, seat.owner
        age = max(0.0, (rt.now_ns() - seat.at) / 1e9)
        is_held = seat.state == HELD
        at_gate = not is_held and seat.entry is not None and seat.entry.agent is seat
        return cls(
            token, hold_id(seat), want.place, want.text, want.namespace, want.mode is not EXCLUSIVE, is_held, at_gate,
            id(seat.me), age, rt.wall() - age, seat.fence, owner.host, owner.pid, owner.label, site_text(seat.site),
        )  # fmt: skip

    @classmethod
    def read(cls, process: str, line: list[Any]) -> PostgresLine:
        """From an answer."""
        return cls(process, *line)

    def text(self) -> list[Any]:
        """For an answer: everything but the process, which is said once."""
        return [getattr(self, name) for name in self.__slots__[1:]]

    @property
    def party(self) -> tuple[str, int]:
        """The task or thread."""
        return self.process, self.task

    @property
    def owner(self) -> Owner:
        """Who it is."""
        return Owner(self.host, self.pid, self.label, self.site)

    def record(self, rt: Runtime, blocked_by: tuple[str, ...] = ()) -> HoldRecord:
        """As `who` shows it."""
        mode = "shared" if self.shared else "exclusive"
        state = "held" if self.held else "waiting"
        began = since(max(0.0, rt.wall() - self.at), rt.wall())
        return HoldRecord(
            self.id, self.key, self.namespace, mode, state, self.owner, began, self.age, self.fence,
            blocked_by=blocked_by,
        )  # fmt: skip
