"""Opening proves the server: no pooler in the way, no standby, locks that exclude, and what it can hold."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from takehold.backends._drivers.wire import ServerError, Statement, Wire
from takehold.backends.postgres.statements import FORMAT
from takehold.errors import BackendRefused

__all__ = ["Facts", "facts_of", "pid_of", "prove_exclusion", "prove_pooler_keeps", "refuse", "settings_for"]

POOLER: Final = (
    "there is a connection pooler between us and Postgres (the server process is {there}, the connection says {here}): "
    "session locks through it exclude nobody. Connect to the server itself; or use lease+{url}, which needs no "
    "session; or, for a pooler in session mode, say ?pooler=session"
)
STANDBY: Final = "this server is a standby: it grants advisory locks that nobody else sees. Connect to the primary"
# Without names: through a pooler that we are about to refuse they would stay behind, and be in the way next time.
_FACTS: Final = Statement(
    "",
    """SELECT pg_backend_pid(), pg_is_in_recovery(),
    current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
    COALESCE(has_sequence_privilege(to_regclass('takehold.fence'), 'USAGE'), false),
    obj_description(to_regnamespace('takehold'), 'pg_namespace'), current_database()::text""",
)
_TRY: Final = Statement("", "SELECT pg_try_advisory_lock($1::bigint)")
_TRY_BOTH: Final = Statement("", "SELECT pg_try_advisory_lock($1::bigint), pg_try_advisory_lock_shared($1::bigint)")
_UNLOCK: Final = Statement("", "SELECT pg_advisory_unlock($1::bigint)")
_PID: Final = Statement("", "SELECT pg_backend_pid()")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server said of itself."""

    pid: int
    standby: bool
    capacity: int
    """Locks that its table surely holds."""
    fenced: bool
    comment: str | None
    database: str


async def facts_of(wire: Wire, seconds: float) -> Facts:
    """Ask."""
    [row] = await wire.fetch(_FACTS, seconds=seconds)
    return Facts(*row)


async def pid_of(wire: Wire, seconds: float) -> int:
    """The server process itself: a pooler in between has told a number of its own."""
    [row] = await wire.fetch(_PID, seconds=seconds)
    return int(row[0])


def refuse(wire: Wire, facts: Facts, url: str, *, pooler: str | None) -> None:
    """Raise `BackendRefused`, with what to use instead, for a server that cannot be trusted with locks."""
    if facts.pid != wire.pid and pooler != "session":
        raise BackendRefused(POOLER.format(there=facts.pid, here=wire.pid, url=url))
    if facts.standby:
        raise BackendRefused(STANDBY)
    found = re.fullmatch(r"takehold format (\d+)", facts.comment or "")
    if found is not None and int(found[1]) != FORMAT:
        raise BackendRefused(
            f"the schema takehold of this database has format {found[1]}, this release writes format {FORMAT}: "
            "run the same release everywhere, or use another database"
        )


async def prove_exclusion(one: Wire, other: Wire, seconds: float) -> None:
    """Two connections, one key: some servers answer yes to both, or nothing at all."""
    key = secrets.randbits(62)
    try:
        taken = await one.fetch(_TRY, key, seconds=seconds)
        second = await other.fetch(_TRY_BOTH, key, seconds=seconds)
        freed = await one.fetch(_UNLOCK, key, seconds=seconds)
    except ServerError as error:
        raise BackendRefused(f"this server has no advisory locks: {error}") from error
    if [tuple(row) for row in (*taken, *second, *freed)] != [(True,), (False, False), (True,)]:
        raise BackendRefused(
            "advisory locks of this server do not exclude: two connections were tested on one key. "
            "Use lease+postgresql:, which needs only tables"
        )


async def prove_pooler_keeps(one: Wire, busy: Wire, seconds: float) -> None:
    """A pooler in session mode keeps one server process for us, also while another client works."""
    pids = set()
    for _ in range(3):
        await busy.run("BEGIN", seconds)
        pids |= {row[0] for row in await one.fetch(_PID, seconds=seconds)}
        await busy.run("COMMIT", seconds)
        pids |= {row[0] for row in await one.fetch(_PID, seconds=seconds)}
    if len(pids) != 1:
        raise BackendRefused(
            f"?pooler=session was said, but this pooler gave us {len(pids)} server processes in turn: it pools "
            "transactions. Connect to the server itself, or use lease+postgresql:"
        )


def settings_for(wire: Wire, *, check_ms: int, user_timeout_ms: int, idle: int) -> str:
    """What a lock session needs, whatever the role or the database is set to."""
    settings = {
        "search_path": "pg_catalog",
        "client_min_messages": "error",
        "statement_timeout": "0",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "tcp_keepalives_idle": str(idle),
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": str(user_timeout_ms),
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "plan_cache_mode": "force_generic_plan",
        "jit": "off",
    }
    if wire.server_version >= 140_000:
        settings["idle_session_timeout"] = "0"
        settings["client_connection_check_interval"] = str(check_ms)
    if wire.server_version >= 170_000:
        settings["transaction_timeout"] = "0"  # a wait is a transaction
    return "; ".join(f"SET {name} = '{value}'" for name, value in settings.items())
