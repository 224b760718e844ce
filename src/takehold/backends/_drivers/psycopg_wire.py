"""The blocking wire, on libpq itself: `psycopg.pq` costs half of what a cursor costs, and honours deadlines."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any, Final

from psycopg import OperationalError, pq

from takehold.backends._drivers.hangup import hangups
from takehold.backends._drivers.wire import ANSWER_WITHIN, Row, ServerError, Statement, Target, WireLost

__all__ = ["PsycopgWire"]

_BOOL: Final = 16
_INTEGERS: Final = frozenset((20, 21, 23, 26))
_FLOATS: Final = frozenset((700, 701))
_INT8S: Final = 1016
_BOOLS: Final = 1000
_ONCE: Final = ((),)
_BAD: Final = pq.ConnStatus.BAD
_ALREADY: Final = "42P05"
_FINE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)


class PsycopgWire:
    """One libpq connection, used by one thread at a time; closed by any."""

    lost: str | None = None
    _inside = False
    """A thread is at it: libpq cannot be closed under its hands."""

    def __init__(self, conn: pq.abc.PGconn, *, named: bool = True) -> None:
        self.lost = None
        self._inside = False
        self._conn = conn
        self._named = named
        self._prepared: set[str] = set()
        self._results: list[pq.abc.PGresult | None] = []
        """Of the last statement; None at its end."""
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ringing = threading.RLock()  # a Ctrl-C may find this thread inside
        """A number that was closed may be another file's by now: nobody rings while it is closed."""
        # Our own descriptor of the socket: libpq closes its when it gives up, and the number may be anybody's then.
        self._fd = os.dup(conn.socket)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self.pid = conn.backend_pid
        self.server_version = conn.server_version

    @classmethod
    def connect(cls, target: Target, seconds: float) -> PsycopgWire:
        """Connect within `seconds`."""
        until = time.monotonic() + seconds
        options = (
            f"application_name={_quoted(target.application_name)} client_encoding=UTF8 "
            f"keepalives=1 keepalives_idle={target.idle} keepalives_interval=1 keepalives_count=3 "
            f"tcp_user_timeout={int(target.silence * 1000)}"
        )
        conninfo = pq.Conninfo.parse(target.dsn.encode())
        given = {o.keyword.decode(): o.val.decode() for o in conninfo if o.val is not None}
        given.pop("application_name", None)
        text = " ".join([*(f"{key}={_quoted(value)}" for key, value in given.items()), options])
        try:
            conn = pq.PGconn.connect_start(text.encode())
            while (status := conn.connect_poll()) != pq.PollingStatus.OK:
                if status == pq.PollingStatus.FAILED:
                    raise WireLost(_message(conn))
                poll = select.poll()
                poll.register(conn.socket, select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT)
                if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                    conn.finish()
                    raise WireLost(f"no connection within {seconds:.1f} s")
        except OperationalError as error:
            raise WireLost(str(error).strip()) from error
        conn.nonblocking = 1
        return cls(conn, named=target.prepared)

    async def fetch(self, statement: Statement, *args: Any, seconds: float | None = None) -> list[Row]:
        """Send, and wait for the answer."""
        self.send(statement, *args)
        return await self._answered(seconds)

    async def _answered(self, seconds: float | None) -> list[Row]:
        rows = await self.receive(seconds)
        if rows is None:
            self._fail(f"no answer within {seconds} s")
            raise WireLost(self.lost)
        return rows

    def send(self, statement: Statement, *args: Any) -> None:
        """One message; before the first use of a statement another one, to prepare it."""
        self._inside = True
        try:
            if self.lost is not None:
                raise WireLost(self.lost)
            named = self._named and statement.name
            if named and named not in self._prepared:
                self._prepare(statement)
            self._results = []
            given = [b"%d" % arg if type(arg) is int else _encoded(arg) for arg in args]
            if named:
                self._conn.send_query_prepared(statement.label, given)
            else:
                self._conn.send_query_params(statement.sql.encode(), given)
            if self._conn.flush():
                self._flush()
        except OperationalError as error:
            raise self._trouble(error) from error
        finally:
            self._leave()

    def _flush(self) -> None:
        until = time.monotonic() + ANSWER_WITHIN
        while self._conn.flush():
            if not self._wait(select.POLLIN | select.POLLOUT, until - time.monotonic()):
                raise OperationalError(f"the server did not take a statement within {ANSWER_WITHIN:g} s")
            self._conn.consume_input()

    def _prepare(self, statement: Statement) -> None:
        self._conn.send_prepare(statement.name.encode(), statement.sql.encode())
        self._results = []
        if not self._collect(ANSWER_WITHIN):
            raise OperationalError(f"no answer within {ANSWER_WITHIN:g} s")
        try:
            _rows_of(self._results)
        except ServerError as error:
            if error.code != _ALREADY:  # once made, and cancelled by somebody before that was answered
                raise
        self._prepared.add(statement.name)

    async def receive(self, seconds: float | None) -> list[Row] | None:
        """Read until the answer is complete."""
        return self.read(seconds)

    def read(self, seconds: float | None) -> list[Row] | None:
        """The same for a caller that is no coroutine."""
        self._inside = True
        try:
            if self.lost is not None:
                raise WireLost(self.lost)
            if not self._collect(seconds):
                return None
            if self.lost is not None:  # closed by another thread; what was read may be half of it
                raise WireLost(self.lost)
        except OperationalError as error:
            raise self._trouble(error) from error
        finally:
            self._leave()
        return _rows_of(self._results)

    def _leave(self) -> None:
        self._inside = False
        if self.lost is not None:
            self._hang_up()

    def _collect(self, seconds: float | None) -> bool:
        """Read what is still to come of an answer; whoever is interrupted here can go on later, or another can."""
        conn, results = self._conn, self._results
        if results and results[-1] is None:
            return True
        until, left = None, None
        if seconds is not None:
            until, left = time.monotonic() + seconds, max(0.0, seconds) * 1000
        while True:
            while conn.is_busy():
                if not self._poll.poll(left):
                    return False
                conn.consume_input()
                if until is not None and conn.is_busy():
                    left = max(0.0, until - time.monotonic()) * 1000
            # One call: Ctrl-C finds a result here or in libpq, and never on the way.
            results.extend(starmap(conn.get_result, _ONCE))
            if (result := results[-1]) is None:
                return True
            if result.status not in _FINE and (conn.status == _BAD or _is_fatal(result)):
                raise OperationalError(str(_error_of(result)))

    def _wait(self, events: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, events)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    async def run(self, sql: str, seconds: float = ANSWER_WITHIN) -> None:
        """A simple query."""
        self._inside = True
        try:
            if self.lost is not None:
                raise WireLost(self.lost)
            self._conn.send_query(sql.encode())
            self._results = []
            self._flush()
        except OperationalError as error:
            raise self._trouble(error) from error
        finally:
            self._leave()
        await self._answered(seconds)

    async def prepare(self, statements: Sequence[Statement], seconds: float) -> None:
        """All in one message."""
        await self.run("; ".join(f"PREPARE {one.name} AS {one.sql}" for one in statements), seconds)
        self._prepared.update(one.name for one in statements)

    async def listen(self, channel: str, seconds: float = ANSWER_WITHIN) -> None:
        """LISTEN."""
        await self.run(f'LISTEN "{channel}"', seconds)

    async def hear(self, seconds: float) -> list[tuple[str, str]]:
        """Poll the socket and the bell."""
        self._inside = True
        try:
            if self.lost is not None:
                raise WireLost(self.lost)
            heard = self._heard()
            if heard:
                return heard
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            poll.register(self._bell, select.POLLIN)
            for fd, _ in poll.poll(max(0.0, seconds) * 1000):
                if fd == self._bell:
                    os.eventfd_read(self._bell)
                else:
                    self._conn.consume_input()
            return self._heard()
        except OperationalError as error:
            raise self._trouble(error) from error
        finally:
            self._leave()

    def _heard(self) -> list[tuple[str, str]]:
        heard = []
        while (note := self._conn.notifies()) is not None:
            heard.append((note.relname.decode(), note.extra.decode()))
        return heard

    def nudge(self) -> None:
        """Ring the bell."""
        with self._ringing:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def watch(self, lost: Callable[[str], None]) -> None:
        """One thread watches all sockets of the process."""

        def hung_up() -> None:
            if self.lost is None:
                self.lost = "the server closed the connection"
                lost(self.lost)

        hangups.watch(self._fd, hung_up)

    def _trouble(self, error: OperationalError) -> WireLost:
        """What an error of libpq means: the wire is gone."""
        self._fail(str(error).strip())
        return WireLost(self.lost)

    def _fail(self, reason: str | None) -> None:
        if self.lost is None:
            self.lost = reason or "the connection was lost"
        self._hang_up()

    def close(self) -> None:
        """Say goodbye and hang up."""
        if self.lost is None:
            self.lost = "closed"
        self._hang_up()

    def _hang_up(self) -> None:
        """Close it; under the hands of another thread only its socket, which wakes that thread to do the rest.

        Whoever calls has set `lost` before; whoever is inside looks at `lost` after saying so. One sees the other.
        """
        with self._ringing:
            if self._fd < 0:
                return
            hangups.forget(self._fd)
            if self._inside:
                _shut_down(self._fd)
                return
            self._conn.finish()
            os.close(self._fd)
            os.close(self._bell)
            self._fd = self._bell = -1

    def after_fork(self) -> None:
        """Put the null device where the socket was: libpq's goodbye then goes nowhere."""
        if self._fd >= 0:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, self._fd, inheritable=False)
            with suppress(OperationalError):  # libpq has closed it
                os.dup2(null, self._conn.socket, inheritable=False)
            os.close(null)
            self.lost = self.lost or "forked"
            self._ringing = threading.RLock()
            self._inside = False

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0 and not sys.is_finalizing():
            self._hang_up()


def _shut_down(fd: int) -> None:
    """End a connection without closing its descriptor."""
    with socket.socket(fileno=os.dup(fd)) as other, suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _message(conn: pq.abc.PGconn) -> str:
    return conn.error_message.decode(errors="replace").strip()


def _encoded(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, list):
        return ("{" + ",".join(map(_item, value)) + "}").encode()
    return str(value).encode()


def _item(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _rows_of(results: list[pq.abc.PGresult | None]) -> list[Row]:
    """All rows of an answer; `ServerError` when it is one."""
    first = results[0]
    if len(results) == 2 and first is not None and first.ntuples == 1 and first.nfields == 1:
        return [(_decoded(first.get_value(0, 0), first.ftype(0)),)]  # a lock, or its release
    rows: list[Row] = []
    for result in results:
        if result is None:
            break
        if result.status not in _FINE:
            raise _error_of(result)
        kinds = [result.ftype(column) for column in range(result.nfields)]
        rows += [
            tuple(_decoded(result.get_value(row, column), kind) for column, kind in enumerate(kinds))
            for row in range(result.ntuples)
        ]
    return rows


def _is_fatal(result: pq.abc.PGresult) -> bool:
    """The server's last word: it hangs up after that, and a pooler in between perhaps does not."""
    return result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")


def _error_of(result: pq.abc.PGresult) -> ServerError:
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"08006").decode()
    # Without a field it is libpq that speaks.
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return ServerError(code, text.decode(errors="replace").strip())


def _decoded(value: bytes | None, kind: int) -> Any:
    if value is None:
        return None
    if kind in _INTEGERS:
        return int(value)
    if kind == _BOOL:
        return value == b"t"
    if kind in _FLOATS:
        return float(value)
    if kind == _INT8S:
        inner = value[1:-1]
        return [None if item == b"NULL" else int(item) for item in inner.split(b",")] if inner else []
    if kind == _BOOLS:
        inner = value[1:-1]
        return [item == b"t" for item in inner.split(b",")] if inner else []
    return value.decode()
