"""Asking a lease table in Postgres: one statement without a name, so that a pooler may send it anywhere."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Final

from takehold.backends._drivers.wire import ServerError, Statement, Target, Wire, WireLost, connect
from takehold.backends.lease.address import Address
from takehold.backends.lease.channel import FENCE_STEP, LEASE_FORMAT, REVISION, ChannelLost, Reply, Request, Troubled
from takehold.backends.lease.postgres_schema import ADVISORY_CLASS, FACTS, FUNCTIONS, QUESTIONS, SCHEMA, STRIPES
from takehold.backends.lease.sqlite_table import foreign_format
from takehold.errors import BackendRefused
from takehold.runtime import Runtime

__all__ = ["PostgresChannel"]

CONNECT_WITHIN: Final = 3.0
_QUESTIONS: Final = {
    name: Statement(f"takehold_lease_{name}", f"SELECT takehold.lease_{name}_{REVISION}($1::text)")
    for name in QUESTIONS
}
_FACTS: Final = Statement("takehold_lease_facts", FACTS)
_FORMAT: Final = Statement("takehold_lease_format", "SELECT number FROM takehold.lease_format")
_PASSING: Final = ("08", "40", "53", "55", "57", "58", "25006")
"""Beginnings of SQLSTATEs that say nothing about the next attempt."""


class PostgresChannel:
    """One connection, made anew when it breaks."""

    def __init__(self, address: Address, rt: Runtime) -> None:
        self._address = address
        self._rt = rt
        self._target = Target(
            address.dsn, f"takehold-lease {socket.gethostname()[:30]}:{os.getpid()}", min(5.0, address.ttl), False
        )
        self._wire: Wire | None = None
        self._sent = False
        """A question is on its way, and its answer can still be read."""
        self._mutex = threading.Lock()
        self._busy = False
        self._closed = False

    async def ask(self, what: str, request: Request, seconds: float) -> Reply | None:
        """Send it, unless it was sent already; wait for the answer."""
        with self._mutex:
            if self._closed:
                raise ChannelLost("closed")
            self._busy = True
        try:
            return await self._asked(_QUESTIONS[what], json.dumps(request), seconds)
        except WireLost as error:
            self._drop()
            raise ChannelLost(str(error)) from error
        except ServerError as error:
            self._sent = False
            if error.code.startswith(_PASSING):
                self._drop()
                raise ChannelLost(str(error)) from error
            raise Troubled(str(error)) from error
        except BaseException:
            # Interrupted: nobody knows what of it was sent, or what of the answer was read.
            self._drop()
            raise
        finally:
            self._leave()

    async def _asked(self, question: Statement, text: str, seconds: float) -> Reply | None:
        wire = await self._connected(seconds)
        if not self._sent:
            wire.send(question, text)
            self._sent = True
        rows = await wire.receive(seconds)
        if rows is None:
            return None
        self._sent = False
        reply: Reply = json.loads(rows[0][0])
        return reply

    async def _connected(self, seconds: float) -> Wire:
        wire = self._wire
        if wire is None or wire.lost is not None:
            self._drop()
            wire = self._wire = await connect(self._rt, self._target, max(seconds, CONNECT_WITHIN))
        return wire

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        self._sent = False
        if wire is not None:
            wire.close()

    def _leave(self) -> None:
        with self._mutex:
            self._busy = False
            closed = self._closed
        if closed:
            self._drop()

    # -- the tables ----------------------------------------------------------------------------------

    async def prepare(self, seconds: float, *, make: bool, fence_from: int | None = None) -> bool:
        """Look whether all is there; make it where it is not."""
        try:
            wire = await self._connected(seconds)
            standby, there, missing, isolation = (await wire.fetch(_FACTS, seconds=seconds))[0]
            self._refuse(standby, isolation)
            if there:
                self._check([row[0] for row in await wire.fetch(_FORMAT, seconds=seconds)])
            if not there or missing:
                if not make:
                    return False
                await self._make(wire, "" if there else SCHEMA)
            if fence_from is not None:
                least = (fence_from // FENCE_STEP + 1) * FENCE_STEP
                await wire.run(
                    f"SELECT setval('takehold.lease_fence', greatest(nextval('takehold.lease_fence'), {least}))"
                )
            return True
        except WireLost as error:
            self._drop()
            raise ChannelLost(str(error)) from error
        except ServerError as error:
            raise BackendRefused(f"{self._address.shown} refused: {error}") from error

    def _refuse(self, standby: bool, isolation: str) -> None:
        if standby:
            raise BackendRefused(f"{self._address.shown} is a standby, which takes no writes: connect to the primary")
        if isolation != "read committed":
            raise BackendRefused(
                f"leases need transactions that are READ COMMITTED, and {self._address.shown} begins them as "
                f"{isolation.upper()}: ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
            )

    def _check(self, numbers: list[int]) -> None:
        if numbers != [LEASE_FORMAT]:
            raise foreign_format(" and ".join(map(str, numbers)) or "no number", self._address.shown)

    async def _make(self, wire: Wire, schema: str) -> None:
        """In one transaction, one process after the other: who comes second finds it made."""
        lock = f"SELECT pg_advisory_xact_lock({ADVISORY_CLASS}, {STRIPES})"
        try:
            await wire.run(f"{lock}; {schema}{FUNCTIONS}")
        except ServerError as error:
            if error.code in ("42P07", "42710"):  # somebody was first
                return
            raise BackendRefused(
                f"the lease table is not there, and this user may not make it ({error}); as one who may, run: "
                f"takehold init lease+{self._address.shown}"
            ) from error

    # -- ending --------------------------------------------------------------------------------------

    def last_words(self, what: str, request: Request) -> None:
        """As one message, so that it is on its way when we hang up in the next turn of the loop."""
        wire, self._wire, self._closed = self._wire, None, True
        if wire is not None and wire.lost is None:
            text = json.dumps(request).replace("'", "''")
            sql = f"SELECT takehold.lease_{what}_{REVISION}('{text}')"
            self._rt.spawn(_said(self._rt, wire, sql), "takehold-goodbye")

    def close(self) -> None:
        """Hang up, or let whoever waits for an answer do it: nobody else may touch its connection."""
        with self._mutex:
            self._closed = True
            busy = self._busy and self._rt.face == "threads"
        if not busy:
            self._drop()

    def after_fork(self) -> None:
        """The child's copy of the socket."""
        self._closed = True
        if self._wire is not None:
            self._wire.after_fork()


async def _said(rt: Runtime, wire: Wire, sql: str) -> None:
    rt.spawn(_run(wire, sql), "takehold-last-words")
    await rt.sleep(0)
    wire.close()


async def _run(wire: Wire, sql: str) -> None:
    try:
        await wire.run(sql)
    except (WireLost, ServerError):  # we hung up: the server has heard it all the same
        pass
