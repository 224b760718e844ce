"""The asyncio wire, on asyncpg."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

from takehold.backends._drivers.wire import ANSWER_WITHIN, Row, ServerError, Statement, Target, WireLost

__all__ = ["AsyncpgWire"]

_GONE = (asyncpg.InterfaceError, OSError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError)
_TROUBLE = (asyncpg.PostgresError, *_GONE, AttributeError)
_ONLY_LIBPQ = frozenset(
    [
        "application_name",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "load_balance_hosts",
        "max_protocol_version",
        "min_protocol_version",
        "require_auth",
        "requirepeer",
        "sslcertmode",
        "sslcompression",
        "sslsni",
        "tcp_user_timeout",
    ]
)


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """asyncpg's, with its socket remembered: a forked child must let go of it."""

    __slots__ = ("socket",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        transport = next(arg for arg in args if isinstance(arg, asyncio.BaseTransport))
        self.socket: socket.socket | None = transport.get_extra_info("socket")


class AsyncpgWire:
    """One asyncpg connection, used by one task at a time."""

    lost: str | None = None
    _hung_up = False

    def __init__(self, conn: _Connection, *, named: bool = True) -> None:
        self.lost = None
        self._conn = conn
        self._named = named
        self._loop = asyncio.get_running_loop()
        self._prepared: dict[str, PreparedStatement[Any]] = {}
        self._running: asyncio.Task[list[Row]] | None = None
        self._notes: list[tuple[str, str]] = []
        self._bell = asyncio.Event()
        conn.add_termination_listener(lambda _: self._bell.set())
        self.pid = conn.get_server_pid()
        version = conn.get_server_version()
        self.server_version = version.major * 10_000 + version.minor

    @classmethod
    async def connect(cls, target: Target, seconds: float) -> AsyncpgWire:
        """Connect within `seconds`."""
        connecting = asyncio.get_running_loop().create_task(
            asyncpg.connect(
                _without_libpq(target.dsn),
                timeout=seconds,
                statement_cache_size=0,
                connection_class=_Connection,
                server_settings={"application_name": target.application_name},
            ),
            name="takehold-connect",
        )
        try:
            # In a task of its own: asyncpg does not tidy up when a connect is cancelled half-way.
            await asyncio.wait([connecting])
        except BaseException:
            connecting.add_done_callback(_unwanted)
            raise
        try:
            conn = connecting.result()
        except TimeoutError as error:
            raise WireLost(f"no connection within {seconds:.1f} s") from error
        except (asyncpg.PostgresError, *_GONE) as error:
            raise WireLost(_text(error)) from error
        try:
            _keep_alive(conn.socket, target)
        except OSError as error:  # reset already
            conn.terminate()
            raise WireLost(_text(error)) from error
        return cls(conn, named=target.prepared)

    async def fetch(self, statement: Statement, *args: Any, seconds: float | None = None) -> list[Row]:
        """Send, and wait for the answer."""
        if self.lost is not None:
            raise WireLost(self.lost)
        try:
            rows: list[Row]
            if not self._named or not statement.name:
                # Without a name asyncpg parses and runs it in one message, which no pooler can part.
                rows = await self._conn.fetch(statement.sql, *args, timeout=seconds)
                return rows
            prepared = self._prepared.get(statement.name)
            if prepared is None:
                # By name: without one asyncpg, told to cache nothing, would parse it again with each use.
                prepared = self._prepared[statement.name] = await self._prepare(statement)
            rows = await prepared.fetch(*args, timeout=seconds)
            return rows
        except _TROUBLE as error:
            raise self._trouble(error, seconds) from error

    async def _prepare(self, statement: Statement) -> PreparedStatement[Any]:
        try:
            return await self._conn.prepare(statement.sql, name=statement.name, timeout=ANSWER_WITHIN)
        except asyncpg.DuplicatePreparedStatementError:
            # Once made, and cancelled by somebody before that was answered.
            await self._conn.execute(f"DEALLOCATE {statement.name}", timeout=ANSWER_WITHIN)
            return await self._conn.prepare(statement.sql, name=statement.name, timeout=ANSWER_WITHIN)

    def _trouble(self, error: BaseException, seconds: float | None) -> ServerError | WireLost:
        """What an error of the driver means: the server refused a statement, or the wire is gone."""
        if isinstance(error, AttributeError) and not self._hung_up:
            raise error  # asyncpg's own only where we hung up between two of its steps
        refused = isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.PostgresConnectionError)
        fatal = getattr(error, "severity_en", None) in ("FATAL", "PANIC")  # its last word: it hangs up after that
        if refused and not fatal and not self._conn.is_closed():
            return ServerError(getattr(error, "sqlstate", None) or "XX000", str(error))
        self._fail(f"no answer within {seconds} s" if isinstance(error, TimeoutError) else _text(error))
        return WireLost(self.lost)

    def send(self, statement: Statement, *args: Any) -> None:
        """Begin it in a task of its own, so that no caller's cancellation reaches it."""
        self._running = self._loop.create_task(self.fetch(statement, *args), name="takehold-wait")
        # Whoever leaves without the answer does not want to read about it either.
        self._running.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def receive(self, seconds: float | None) -> list[Row] | None:
        """Wait for that task."""
        task = self._running
        assert task is not None
        if not task.done():
            await asyncio.wait([task], timeout=seconds)
        if not task.done():
            return None
        if task.cancelled():
            raise WireLost(self.lost or "hung up")
        return task.result()

    def read(self, seconds: float | None) -> list[Row] | None:
        """Never: tasks await."""
        raise AssertionError("asyncpg is awaited")

    async def run(self, sql: str, seconds: float = ANSWER_WITHIN) -> None:
        """A simple query."""
        if self.lost is not None:
            raise WireLost(self.lost)
        try:
            await self._conn.execute(sql, timeout=seconds)
        except _TROUBLE as error:
            raise self._trouble(error, seconds) from error

    async def prepare(self, statements: Sequence[Statement], seconds: float) -> None:
        """A task can wait for it at the first use."""

    async def listen(self, channel: str, seconds: float = ANSWER_WITHIN) -> None:
        """LISTEN."""
        try:
            async with asyncio.timeout(seconds):
                await self._conn.add_listener(channel, self._note)
        except _TROUBLE as error:
            raise self._trouble(error, seconds) from error

    def _note(self, _conn: object, _pid: int, channel: str, payload: object) -> None:
        self._notes.append((channel, str(payload)))
        self._bell.set()

    async def hear(self, seconds: float) -> list[tuple[str, str]]:
        """Wait for the bell."""
        if self.lost is None and self._conn.is_closed():
            self._fail("the server closed the connection")
        if self.lost is not None:
            raise WireLost(self.lost)
        timer = self._loop.call_later(max(0.0, seconds), self._bell.set)
        try:
            await self._bell.wait()
        finally:
            timer.cancel()
        self._bell.clear()
        heard, self._notes = self._notes, []
        return heard

    def nudge(self) -> None:
        """Ring the bell, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._bell.set)
        except RuntimeError:  # the loop is closed: nobody hears
            pass

    def watch(self, lost: Callable[[str], None]) -> None:
        """Asyncpg reads all the time, so it notices at once."""

        def hung_up(_conn: object) -> None:
            if self.lost is None:
                self.lost = "the server closed the connection"
                lost(self.lost)

        self._conn.add_termination_listener(hung_up)

    def _fail(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
        self._hang_up()

    def close(self) -> None:
        """Hang up; the server sees the end of the stream and ends its side."""
        if self.lost is None:
            self.lost = "closed"
        self._hang_up()

    def _hang_up(self) -> None:
        if self._hung_up:
            return
        self._hung_up = True
        if self._loop.is_closed():
            # Nobody will ever close the transport: the socket can only be taken from under it.
            _drop(self._conn.socket)
            return
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        # A statement on its way ends by itself: cancelling it would make asyncpg call the server once more.
        if here:
            self._conn.terminate()
        else:
            self._loop.call_soon_threadsafe(self._conn.terminate)

    def after_fork(self) -> None:
        """Put the null device where the socket was."""
        self.lost = self.lost or "forked"
        self._hung_up = True
        _drop(self._conn.socket)


def _without_libpq(dsn: str) -> str:
    """The URL without what only libpq knows: asyncpg would send it to the server as a setting."""
    where, mark, query = dsn.partition("?")
    kept = [one for one in query.split("&") if one.partition("=")[0] not in _ONLY_LIBPQ]
    return where + mark + "&".join(kept)


def _unwanted(connecting: asyncio.Task[Any]) -> None:
    """Nobody waits for this connection any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


def _drop(sock: socket.socket | None) -> None:
    """Put the null device where the socket was, without a word to the server."""
    if sock is not None and (fd := sock.fileno()) >= 0:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, fd, inheritable=False)
        os.close(null)


def _keep_alive(sock: socket.socket | None, target: Target) -> None:
    """What libpq does by itself: notice a peer that does not acknowledge."""
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, target.idle)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(target.silence * 1000))


def _text(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
