"""A wire: one connection to a Postgres server, the same words for psycopg (threads) and asyncpg (asyncio).

A wire carries one statement at a time and never reconnects. A statement is sent and its answer received
apart, so that whoever waits for the answer may leave while the statement goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from takehold.core.backend import SessionLost
from takehold.errors import UsageError
from takehold.runtime import Runtime

__all__ = ["ANSWER_WITHIN", "Row", "ServerError", "Statement", "Target", "Wire", "WireLost", "connect"]

Row: TypeAlias = tuple[Any, ...]
ANSWER_WITHIN: Final = 10.0
"""Seconds after which a server that says nothing is taken for gone, where nobody says how long."""
_NO_DRIVER: Final = "{} is not installed; it comes with: pip install 'takehold[postgres]'"


class WireLost(SessionLost):
    """The connection is gone, and with it whatever its server session kept."""


class ServerError(Exception):
    """The server refused a statement; the connection lives."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        """The five letters of SQLSTATE."""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """Text with `$1` places, prepared on each wire when it is first sent there; without a name it is not."""

    name: str
    sql: str
    label: bytes = field(init=False)
    """The name as libpq wants it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.name.encode())


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, as the driver wants it, and how to be seen there."""

    dsn: str
    application_name: str
    silence: float = 5.0
    """Seconds after which a connection whose bytes are not acknowledged is given up."""
    prepared: bool = True
    """Whether statements get names at the server. Behind a pooler in transaction mode they must not."""

    @property
    def idle(self) -> int:
        """Whole seconds of idleness after which the other side is asked whether it lives, once a second."""
        return max(1, min(3, int(self.silence) - 2))


class Wire(Protocol):
    """One connection."""

    pid: int
    """The server process that the start-up message named."""
    lost: str | None
    """Why it is gone, or None."""
    server_version: int
    """As `server_version_num`."""

    async def fetch(self, statement: Statement, *args: Any, seconds: float | None = None) -> list[Row]:
        """Send and receive. No answer within `seconds` ends the wire: nothing it says later can be believed."""

    def send(self, statement: Statement, *args: Any) -> None:
        """Begin a statement; `receive` gets its answer."""

    async def receive(self, seconds: float | None) -> list[Row] | None:
        """The answer, or None when it has not come in time; then it can be asked for again."""

    def read(self, seconds: float | None) -> list[Row] | None:
        """`receive` without a coroutine; for threads."""

    async def run(self, sql: str, seconds: float = ANSWER_WITHIN) -> None:
        """Several statements without parameters, unprepared; as `fetch`."""

    async def prepare(self, statements: Sequence[Statement], seconds: float) -> None:
        """Make statements known before their first use, where that would otherwise block a thread; as `fetch`."""

    async def listen(self, channel: str, seconds: float = ANSWER_WITHIN) -> None:
        """Hear what is sent to this channel; as `fetch`."""

    async def hear(self, seconds: float) -> list[tuple[str, str]]:
        """Wait for notifications, as (channel, payload); `nudge` ends the wait early."""

    def nudge(self) -> None:
        """Make a running `hear` return, from any thread."""

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call back, from any thread, when the connection ends without our doing; no query is needed for it."""

    def close(self) -> None:
        """Hang up at once. Idempotent; the watcher is not called."""

    def after_fork(self) -> None:
        """In a forked child: let go of the socket without a word to the server."""


async def connect(rt: Runtime, target: Target, seconds: float) -> Wire:
    """A new connection with the driver of this face; `WireLost` says why there is none."""
    if rt.face == "asyncio":
        try:
            from takehold.backends._drivers.asyncpg_wire import AsyncpgWire
        except ImportError as error:
            raise UsageError(_NO_DRIVER.format("asyncpg")) from error
        return await AsyncpgWire.connect(target, seconds)
    try:
        from takehold.backends._drivers.psycopg_wire import PsycopgWire
    except ImportError as error:
        raise UsageError(_NO_DRIVER.format("psycopg")) from error
    return PsycopgWire.connect(target, seconds)
