"""Transaction-scoped advisory locks on a session's own connection.

The server lets go of them when the transaction ends, after its changes can be seen. A statement that fails
aborts the transaction, so whatever may fail runs behind a savepoint of our own.
"""

from __future__ import annotations

import math
import secrets
import weakref
from collections.abc import Hashable
from types import TracebackType
from typing import Any, Final

from sqlalchemy import ARRAY, BigInteger, Boolean, Connection, Engine, Pool, bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from takehold.backends._drivers.wire import ServerError, Wire, WireLost
from takehold.backends.postgres import PostgresBackend
from takehold.backends.postgres.seen import _COLUMNS, Held
from takehold.core.deadline import Deadline
from takehold.core.record import HoldRecord
from takehold.core.seat import HELD, Seat
from takehold.core.want import EXCLUSIVE, Want
from takehold.errors import BackendUnavailable, UsageError, WouldDeadlock
from takehold.locks._within_session import AUTOCOMMIT
from takehold.runtime import Runtime

__all__ = ["PostgresBackend", "holders", "invite", "is_proven", "prove", "take"]

TIMED_OUT: Final = "55P03"
DEADLOCK: Final = "40P01"
LONGEST_MS: Final = 2**31 - 1

_FRESH: Final = "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"
# Nothing here may fail where `takehold init` was not run, or its schema is closed to us, or the transaction only reads.
_FENCE: Final = """CASE WHEN current_setting('transaction_read_only') = 'off'
    AND has_schema_privilege(to_regnamespace('takehold'), 'USAGE') THEN
        CASE WHEN has_sequence_privilege(to_regclass('takehold.fence'), 'USAGE')
            THEN nextval(to_regclass('takehold.fence')) END END"""
_SETTINGS: Final = f"{_FRESH}, current_setting('lock_timeout'), current_setting('statement_timeout')"


def _try(key: str) -> str:
    return f"pg_try_advisory_xact_lock{key}"


# An answer per key: null when it is busy, else its fence, 0 when there are none.
_ONE: Final = {
    shared: text(
        f"SELECT {_SETTINGS}, ARRAY[CASE WHEN {_FRESH} THEN CASE WHEN {_try('_shared' if shared else '')}(:key) "
        f"THEN COALESCE({_FENCE}, 0) END END]"
    ).bindparams(bindparam("key", type_=BigInteger))
    for shared in (False, True)
}
# In order, up to the first one that is busy.
_MANY: Final = text(
    f"""SELECT {_SETTINGS}, ARRAY(WITH RECURSIVE walk(i, fence) AS (
        SELECT 0, CASE WHEN {_FRESH} THEN 0::bigint END
        UNION ALL
        SELECT i + 1, CASE WHEN fence IS NOT NULL THEN
            CASE WHEN CASE WHEN (CAST(:shared AS boolean[]))[i + 1]
                    THEN {_try("_shared")}((CAST(:keys AS bigint[]))[i + 1])
                ELSE {_try("")}((CAST(:keys AS bigint[]))[i + 1]) END
            THEN COALESCE({_FENCE}, 0) END END
        FROM walk WHERE i < cardinality(CAST(:keys AS bigint[]))
    ) SELECT fence FROM walk WHERE i > 0 ORDER BY i)"""  # noqa: S608
).bindparams(bindparam("keys", type_=ARRAY(BigInteger)), bindparam("shared", type_=ARRAY(Boolean)))
# The functions of one target are evaluated from the outside in: the limit, the lock, the old limit, the fence.
_WAIT: Final = {
    shared: text(
        f"""SELECT CASE WHEN set_config('lock_timeout', :limit, true) <> '' THEN
        CASE WHEN CAST(pg_advisory_xact_lock{"_shared" if shared else ""}(:key) AS text) = '' THEN
        CASE WHEN set_config('lock_timeout', :before, true) <> '' THEN COALESCE({_FENCE}, 0) END END END"""
    ).bindparams(bindparam("key", type_=BigInteger))
    for shared in (False, True)
}
_PATIENT: Final = text("SELECT set_config('statement_timeout', :limit, true)")
_PROVE: Final = text(f"SELECT {_FRESH}, CASE WHEN {_FRESH} THEN {_try('_shared')}(:key) END").bindparams(
    bindparam("key", type_=BigInteger)
)
_HOLDERS: Final = text(f"{_COLUMNS} AND l.granted AND (l.classid::bigint << 32) | l.objid::bigint = :key").bindparams(
    bindparam("key", type_=BigInteger)
)

SNAPSHOT: Final = (
    "this transaction reads a snapshot (REPEATABLE READ or SERIALIZABLE) that is older than any lock it can take: what "
    "others committed under the key would stay unseen. Hold the key around the whole transaction, with "
    "locks.lock(...), or use READ COMMITTED"
)
ELSEWHERE: Final = (
    "this session is connected to {there}, these Locks to {here}: that is another database, or a standby of it, and "
    "locks there exclude nobody here"
)


class _Savepoint:
    """What fails inside is undone, locks included, and the transaction lives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.exec_driver_sql("SAVEPOINT takehold")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # After a cancel or an interrupt SQLAlchemy has given up the connection, and the transaction with it.
            if not isinstance(error, Exception) or self._connection.invalidated or self._connection.closed:
                return
            self._connection.exec_driver_sql("ROLLBACK TO SAVEPOINT takehold")
        self._connection.exec_driver_sql("RELEASE SAVEPOINT takehold")


class _Busy(Exception):
    """Somebody else has the key of this seat."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat


# -- which database ------------------------------------------------------------------------------------------

_proven: weakref.WeakKeyDictionary[Pool, set[Hashable]] = weakref.WeakKeyDictionary()
"""By pool: engines that differ only in options have one in common."""


def is_proven(engine: Engine, backend: PostgresBackend) -> bool:
    """Whether sessions of this engine are known to be excluded by locks of this backend."""
    return backend.identity in _proven.get(engine.pool, ())


async def invite(backend: PostgresBackend, rt: Runtime) -> tuple[Wire, int]:
    """A visitor that has a number locked where our locks are; whoever cannot get it is in the same place.

    In a transaction: through a pooler a session lock would be left behind.
    """
    number = secrets.randbits(62)
    wire = await backend._visit(rt)
    try:
        await wire.run(f"BEGIN; SELECT pg_advisory_xact_lock({number})")
    except (WireLost, ServerError) as error:
        wire.close()
        raise BackendUnavailable(f"{backend._masked()}: {error}") from error
    except BaseException:
        wire.close()
        raise
    return wire, number


def prove(session: Session, backend: PostgresBackend, number: int) -> None:
    """Raise `UsageError` unless the visitor's lock is in this session's way."""
    connection = checked_connection(session)
    fresh, taken = connection.execute(_PROVE, {"key": number}).one()
    if not fresh:
        raise UsageError(SNAPSHOT)
    if taken:
        there = connection.engine.url.render_as_string()
        raise UsageError(ELSEWHERE.format(there=there, here=backend._masked()))
    _proven.setdefault(connection.engine.pool, set()).add(backend.identity)


# -- taking --------------------------------------------------------------------------------------------------


def checked_connection(session: Session) -> Connection:
    """The connection of the session's transaction, begun if need be."""
    connection = session.connection()
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise UsageError(AUTOCOMMIT)
    return connection


def take(session: Session, seats: list[Seat], deadline: Deadline, rt: Runtime) -> tuple[Connection, Seat | None]:
    """Take all of them, in order, or none: then also the one that is busy."""
    connection = checked_connection(session)
    fences: list[int] = []
    try:
        if len(seats) == 1:
            fences, *_ = settings = _attempt(connection, seats)
            if not fences:
                if deadline.left() <= 0:
                    raise _Busy(seats[0])
                _may_wait(connection, rt)
                with _Savepoint(connection):
                    fences = [_wait(connection, seats[0], deadline, settings[1:])]
        else:
            with _Savepoint(connection):
                while len(fences) < len(seats):
                    more, *settings = _attempt(connection, seats[len(fences) :])
                    fences += more
                    if len(fences) < len(seats):
                        seat = seats[len(fences)]
                        if deadline.left() <= 0:
                            raise _Busy(seat)
                        _may_wait(connection, rt)
                        fences.append(_wait(connection, seat, deadline, settings))
    except _Busy as busy:
        return connection, busy.seat
    now = rt.now_ns()
    for seat, fence in zip(seats, fences, strict=True):
        seat.fence, seat.at, seat.state = fence or None, now, HELD
    return connection, None


def _may_wait(connection: Connection, rt: Runtime) -> None:
    # An asyncio driver gives the loop back while the server lets us wait, also below `run_sync`.
    if not connection.dialect.is_async:
        rt.may_wait()


def _attempt(connection: Connection, seats: list[Seat]) -> Any:
    """One statement, no waiting: the fences of what was granted, then what to restore after a wait."""
    shared = [seat.want.mode is not EXCLUSIVE for seat in seats]
    if len(seats) == 1:
        answer = connection.execute(_ONE[shared[0]], {"key": seats[0].want.place})
    else:
        answer = connection.execute(_MANY, {"keys": [seat.want.place for seat in seats], "shared": shared})
    fresh, lock_timeout, statement_timeout, fences = answer.one()
    if not fresh:
        raise UsageError(SNAPSHOT)
    return [fence for fence in fences if fence is not None], lock_timeout, statement_timeout


def _wait(connection: Connection, seat: Seat, deadline: Deadline, settings: Any) -> int:
    """Stand in the server's queue, where it sees who waits for whom. Call it behind a savepoint."""
    lock_timeout, statement_timeout = settings
    left = deadline.left()
    limit = 0 if left == math.inf else min(max(1, math.ceil(left * 1000)), LONGEST_MS)
    try:
        if statement_timeout != "0":
            # It is meant for queries; this wait has a limit of its own.
            connection.execute(_PATIENT, {"limit": "0"})
        facts = {"key": seat.want.place, "limit": str(limit), "before": lock_timeout}
        fence: int = connection.execute(_WAIT[seat.want.mode is not EXCLUSIVE], facts).scalar_one()
        if statement_timeout != "0":
            connection.execute(_PATIENT, {"limit": statement_timeout})
    except DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if code == TIMED_OUT:
            raise _Busy(seat) from error
        if code == DEADLOCK:
            seat.caller.tell("deadlock", seat, deadline.waited())
            sentence = f"waiting for {seat.want.text!r} would deadlock, the server says: {error.orig}"
            raise WouldDeadlock(sentence, key=seat.want.text) from error
        raise
    finally:
        seat.caller.tell("waited", seat, deadline.waited())
    return fence


def holders(session: Session, want: Want, rt: Runtime) -> list[HoldRecord]:
    """Who has the key, as the server sees it."""
    connection = session.connection()
    try:
        with _Savepoint(connection):
            rows = connection.execute(_HOLDERS, {"key": want.place}).all()
    except DBAPIError:
        if connection.invalidated:
            raise
        return []
    return [Held(*row).record(rt, want) for row in rows]
