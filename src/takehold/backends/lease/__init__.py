"""`lease+postgresql:` and `lease+sqlite:` - a table of leases, for where no server session can be kept.

Behind a pooler in transaction mode a session lock excludes nobody. A lease does: it is a row that its owner
keeps alive by heartbeats, and that anybody may take once it has expired on the database's clock.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Final

from takehold.backends.check import Check
from takehold.backends.lease.address import Address, postgres_address, sqlite_address
from takehold.backends.lease.channel import Channel, ChannelLost, Reply, Side, Troubled, channel_to
from takehold.backends.lease.seen import LeaseLine, in_the_way, lines_of, row_of
from takehold.backends.lease.session import LeaseSession
from takehold.core.backend import Capabilities, Losses, Session
from takehold.core.key import hashed
from takehold.core.record import HoldRecord
from takehold.core.seat import HELD, Seat
from takehold.core.waits import hold_id
from takehold.core.want import SHARED
from takehold.errors import BackendRefused, BackendUnavailable
from takehold.runtime import Runtime

__all__ = ["LeaseBackend", "on_postgres", "on_sqlite"]

LOOK_WITHIN: Final = 5.0
ASK_AGAIN: Final = 0.05
EVICTED: Final = "evicted by an operator"
NOTHING: Final[Reply] = {"now": 0.0, "sessions": [], "leases": [], "waiters": []}

_sessions: weakref.WeakSet[LeaseSession] = weakref.WeakSet()
"""Of this process, both faces: what they know of themselves is newer than the table."""


def on_postgres(rest: str) -> LeaseBackend:
    """`lease+postgresql:` and what follows."""
    return LeaseBackend(postgres_address(rest))


def on_sqlite(rest: str) -> LeaseBackend:
    """`lease+sqlite:` and what follows."""
    return LeaseBackend(sqlite_address(rest))


class LeaseBackend:
    """Keys as rows that expire."""

    solo = False

    def __init__(self, address: Address) -> None:
        self._address = address
        self.capabilities = Capabilities(
            across="host" if address.kind == "sqlite" else "server",
            many="one trip",
            waiting="poll",
            loss="trust deadline",
            evict="ask",
        )
        # With a hash of the whole: two passwords are two identities, and neither is shown.
        self.identity: Hashable = ("lease", address.shown, address.ttl, hash(address.dsn))

    def place(self, encoded: bytes, number: int | None) -> tuple[Hashable, Any]:
        """64 bits, signed as databases want them."""
        id = hashed(encoded)
        id -= 2**64 if id >= 2**63 else 0
        return id, id

    def open_now(self, rt: Runtime, losses: Losses) -> Session:
        """Never: it takes a connection."""
        raise AssertionError("a lease table is not opened at once")

    async def open(self, rt: Runtime, losses: Losses, seconds: float) -> LeaseSession:
        """Look at the table, make it if it is not there, and put a session into it."""
        until = rt.now() + seconds
        main = channel_to(self._address, rt)
        session = LeaseSession(self._address, rt, losses)
        about = {"me": session.name, "host": socket.gethostname(), "pid": os.getpid(), "ttl": self._address.ttl}
        try:
            await main.prepare(seconds, make=True)
            # Before the first attempt: the lease cannot begin earlier than this.
            sent, asked, reply = rt.boot(), rt.now(), None
            while reply is None:
                asked = rt.now()
                reply = await main.ask("open", about, max(0.0, until - rt.now()))
                if reply is None and rt.now() >= until:
                    raise ChannelLost(f"no answer within {seconds:.1f} s")
        except ChannelLost as error:
            main.close()
            raise BackendUnavailable(f"no lock session at {self._address.shown}: {error}") from error
        except Troubled as error:
            main.close()
            raise BackendRefused(f"{self._address.shown} refused a lock session: {error}") from error
        except BaseException:
            main.close()
            raise
        session.pulse.ahead.heard(reply["now"], asked, rt.now())
        session.begin(main, sent)
        _sessions.add(session)
        try:
            # A task that is cancelled before it has begun would never hang up.
            await rt.sleep(0)
        except BaseException:
            session.close()
            raise
        return session

    # -- seeing --------------------------------------------------------------------------------------

    def _here(self) -> list[LeaseSession]:
        """The live sessions of this process at this table."""
        return [one for one in list(_sessions) if one.address.dsn == self._address.dsn and one.lost is None]

    async def _ask(self, rt: Runtime, what: str, request: dict[str, Any]) -> Reply:
        """On a connection that a session of this face has idle, or on a short one."""
        mine = next((one for one in self._here() if one.rt == rt or one.rt.face == rt.face == "threads"), None)
        if mine is None and not await self._prepared(rt, make=False):
            return NOTHING
        side = Side(self._address, rt) if mine is None else mine.side
        try:
            return await side.ask(what, request, LOOK_WITHIN)
        except (ChannelLost, Troubled) as error:
            raise BackendUnavailable(f"{self._address.shown}: {error}") from error
        finally:
            if mine is None:
                side.close()

    async def _prepared(self, rt: Runtime, *, make: bool, fence_from: int | None = None) -> bool:
        channel: Channel = channel_to(self._address, rt)
        try:
            return await channel.prepare(LOOK_WITHIN, make=make, fence_from=fence_from)
        except ChannelLost as error:
            raise BackendUnavailable(f"no connection to {self._address.shown}: {error}") from error
        finally:
            channel.close()

    async def who(self, rt: Runtime) -> list[HoldRecord]:
        """What the table says of others, and what the sessions of this process know of themselves."""
        reply = await self._ask(rt, "look", {"key": None})
        lines, here = lines_of(reply), self._here()
        names = {session.name for session in here}
        records = [
            line.record(reply["now"], rt.wall(), _blocking(lines, line))
            for line in lines
            if line.session not in names and not (line.held and line.implied)
        ]
        for session in here:
            records += [_own_record(session, seat, lines) for seat in _seats(session) if not seat.in_passing]
        return records

    async def evict(self, rt: Runtime, hold_id: str, *, terminate: bool, timeout: float) -> bool:
        """Ask the owner by a mark that its heartbeat finds; with `terminate`, take the row if it does not answer."""
        if _lose_here(self._here(), hold_id):
            return True
        line = await self._holder(rt, hold_id)
        if line is None:
            return True
        await self._ask(rt, "evict", {"session": line.session, "hold": hold_id})
        until = rt.now() + timeout
        while (line := await self._holder(rt, hold_id)) is not None:
            if rt.now() >= until:
                break
            await rt.sleep(ASK_AGAIN)
        if line is None or not terminate or line.fence is None:
            return line is None
        await self._ask(rt, "revoke", {"key": line.key_id, "fence": row_of(line.fence)})
        return True

    async def _holder(self, rt: Runtime, hold: str) -> LeaseLine | None:
        lines = lines_of(await self._ask(rt, "look", {"key": None}))
        return next((line for line in lines if line.id == hold and line.held), None)

    async def examine(self, rt: Runtime, long: float) -> list[Check]:
        """What `takehold doctor` shows."""
        from takehold.backends.lease.doctor import examine

        return await examine(self._address, lambda: self._prepared(rt, make=False), lambda: self.who(rt), long)

    async def init(self, rt: Runtime, *, fence_from: int | None) -> str:
        """Make the tables, where this user may."""
        await self._prepared(rt, make=True, fence_from=fence_from)
        more = f", fences start above {fence_from}" if fence_from is not None else ""
        return f"the lease table in {self._address.shown} is ready{more}"


def _seats(session: LeaseSession) -> list[Seat]:
    try:
        return session.losses.busy()  # type: ignore[no-any-return]
    except ReferenceError:
        return []


def _blocking(lines: list[LeaseLine], line: LeaseLine) -> tuple[str, ...]:
    return () if line.held else in_the_way(lines, line.key_id, line.shared)


def _own_record(session: LeaseSession, seat: Seat, lines: list[LeaseLine]) -> HoldRecord:
    record: HoldRecord = session.losses.record(seat)
    if seat.state == HELD or record.blocked_by:
        return record
    return replace(record, blocked_by=in_the_way(lines, seat.want.place, seat.want.mode is SHARED))


def _lose_here(sessions: list[LeaseSession], hold: str) -> bool:
    """A hold of the other face, or of another loop, of this very process."""
    for session in sessions:
        for seat in _seats(session):
            if seat.state == HELD and hold_id(seat) == hold:
                session.losses.lose(seat, EVICTED)
                return True
    return False
