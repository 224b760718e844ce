"""A lock server in memory, with sessions, a queue, round trips and faults: what a server backend looks like.

It awaits nothing but its runtime, so it runs under threads, asyncio and simulation, and passes the same
conformance suite as the real ones. Several backends on one server are several processes.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from takehold.core.backend import Ask, Capabilities, Grant, Granted, Losses, Releasable, Session, SessionLost
from takehold.core.deadline import Deadline
from takehold.core.key import hashed
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.trip import Trip
from takehold.core.want import EXCLUSIVE, Mode, Want
from takehold.runtime import Event, Runtime

__all__ = ["FakeBackend", "FakeServer"]


class _Waiter:
    def __init__(self, holder: int, mode: Mode, event: Event) -> None:
        self.holder, self.mode, self.event = holder, mode, event
        self.granted = False


class FakeServer:
    """Who holds what, and who waits, as a server knows it: by connection."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self.holders: dict[Hashable, dict[int, Mode]] = {}
        self.waiters: dict[Hashable, deque[_Waiter]] = {}
        self.sessions: list[FakeSession] = []
        self._fence = itertools.count(1024, 1024)
        self._connections = itertools.count(1)
        self.statements = 0

    def connect(self) -> int:
        """A new connection."""
        return next(self._connections)

    def fence(self) -> int:
        """The next number of the sequence."""
        return next(self._fence)

    def try_lock(self, id: Hashable, connection: int, mode: Mode) -> bool:
        """Now or not: also not past conflicting waiters."""
        with self._mutex:
            waiting = [w for w in self.waiters.get(id, ()) if _conflict(w.mode, mode)]
            if waiting or not self._free(id, mode):
                return False
            self.holders.setdefault(id, {})[connection] = mode
            return True

    def _free(self, id: Hashable, mode: Mode) -> bool:
        return not any(_conflict(held, mode) for held in self.holders.get(id, {}).values())

    def enqueue(self, id: Hashable, connection: int, mode: Mode, event: Event) -> _Waiter:
        """Stand in the server's queue."""
        with self._mutex:
            waiter = _Waiter(connection, mode, event)
            self.waiters.setdefault(id, deque()).append(waiter)
        self._grant(id)
        return waiter

    def dequeue(self, id: Hashable, waiter: _Waiter) -> bool:
        """Leave the queue; True when the lock had been granted meanwhile."""
        with self._mutex:
            if waiter.granted:
                return True
            queue = self.waiters.get(id)
            if queue and waiter in queue:
                queue.remove(waiter)
                if not queue:
                    del self.waiters[id]
        self._grant(id)
        return False

    def unlock(self, id: Hashable, connection: int) -> bool:
        """False when this connection does not hold it."""
        with self._mutex:
            held = self.holders.get(id, {})
            if held.pop(connection, None) is None:
                return False
            if not held:
                self.holders.pop(id, None)
        self._grant(id)
        return True

    def hang_up(self, connections: set[int]) -> None:
        """These connections are gone, with all they held and waited for."""
        with self._mutex:
            ids = [id for id, held in self.holders.items() if connections & held.keys()]
            for id in ids:
                self.holders[id] = {c: m for c, m in self.holders[id].items() if c not in connections}
                if not self.holders[id]:
                    del self.holders[id]
            for id, queue in list(self.waiters.items()):
                kept = deque(w for w in queue if w.holder not in connections)
                if kept:
                    self.waiters[id] = kept
                else:
                    del self.waiters[id]
                ids.append(id)
        for id in ids:
            self._grant(id)

    def _grant(self, id: Hashable) -> None:
        woken: list[_Waiter] = []
        with self._mutex:
            queue = self.waiters.get(id)
            while queue and self._free(id, queue[0].mode):
                waiter = queue.popleft()
                self.holders.setdefault(id, {})[waiter.holder] = waiter.mode
                waiter.granted = True
                woken.append(waiter)
            if queue is not None and not queue:
                self.waiters.pop(id, None)
        for waiter in woken:
            waiter.event.set()

    def kill(self, reason: str = "terminated by an administrator") -> None:
        """End every session, as a server restart does."""
        for session in list(self.sessions):
            session.die(reason)


def _conflict(one: Mode, other: Mode) -> bool:
    return one is EXCLUSIVE or other is EXCLUSIVE


class FakeBackend:
    """One process's way to a `FakeServer`."""

    solo = False

    def __init__(self, server: FakeServer, process: str = "p1", latency: float = 0.0, *, instant: bool = False) -> None:
        self.server = server
        self.latency = latency
        self.capabilities = Capabilities(across="process", many="one by one" if instant else "one trip", loss="passive")
        self.identity: Hashable = ("fake", id(server), process)

    def place(self, encoded: bytes, number: int | None) -> tuple[Hashable, Any]:
        """64 bits, like a server's advisory key."""
        id = hashed(encoded)
        return id, id

    async def open(self, rt: Runtime, losses: Losses, seconds: float) -> Session:
        """A connection."""
        await rt.sleep(self.latency)
        return FakeSession(self, rt, losses)

    def open_now(self, rt: Runtime, losses: Losses) -> Session:
        """Without the wire."""
        return FakeInstantSession(self, rt, losses)

    async def who(self, rt: Runtime) -> list[HoldRecord]:
        """What the desks of all sessions say."""
        desks: dict[int, Any] = {id(session.losses): session.losses for session in self.server.sessions}
        return [desk.record(seat) for desk in desks.values() for seat in desk.busy() if not seat.in_passing]

    async def evict(self, rt: Runtime, hold_id: str, *, terminate: bool, timeout: float) -> bool:
        """Not known here."""
        return False

    async def init(self, rt: Runtime, *, fence_from: int | None) -> str:
        """Nothing to make."""
        return "nothing to prepare"


class FakeSession(Trip):
    """A keeper connection, and one more for each wait."""

    in_flight = False

    def __init__(self, backend: FakeBackend, rt: Runtime, losses: Losses) -> None:
        self.lost: str | None = None
        self.rt = rt
        self.losses = losses
        self.server = backend.server
        self.latency = backend.latency
        self.name = f"{os.getpid()}"
        self.connections = {backend.server.connect()}
        self._keeper = next(iter(self.connections))
        backend.server.sessions.append(self)

    def connect(self) -> int:
        """A further connection of this session."""
        connection = self.server.connect()
        self.connections.add(connection)
        return connection

    async def apply(self, releases: Sequence[Releasable], asks: Sequence[Ask], seconds: float) -> list[Granted]:
        """One round trip: there, the work, and back; the session may die on any of the three."""
        await self._travel()
        self.server.statements += 1
        for grant in releases:
            connection = self._keeper if grant.handle is None else grant.handle
            assert self.server.unlock(grant.want.id, connection), "gave back what was not held"
        answers = [self._answer(ask) for ask in asks]
        await self._travel()
        return answers

    async def answer(self) -> list[Granted]:
        """Never: nobody leaves a statement behind."""
        raise AssertionError("no statement is in flight")

    async def _travel(self) -> None:
        if self.lost is None:
            await self.rt.sleep(self.latency * self.rt.random())
        if self.lost is not None:
            raise SessionLost(self.lost)

    def _answer(self, ask: Ask) -> Granted:
        granted: list[int | Grant | None] = []
        for want in ask.wants:
            connection = self.connect() if ask.beside else self._keeper
            if not self.server.try_lock(want.id, connection, want.mode):
                return granted
            granted.append(self.granted(want, connection) if ask.beside else self.server.fence())
        return granted

    def granted(self, want: Want, connection: int) -> Grant:
        """A grant with its fence."""
        return Grant(self, want, self.server.fence(), self.rt.now_ns(), connection)

    def turn(self, want: Want, beside: bool, seat: Seat) -> FakeTurn:
        """A place in the server's queue, on a connection of its own."""
        return FakeTurn(self, want)

    def deadlock(self, seat: Seat) -> str | None:
        """Not looked for."""
        return None

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Seats of any session that hold it."""
        desks: dict[int, Any] = {id(other.losses): other.losses for other in self.server.sessions}
        records = [desk.record(seat) for desk in desks.values() for seat in desk.busy() if seat.want.id == want.id]
        return [record for record in records if record.state == "held"]

    def die(self, reason: str) -> None:
        """The server ends this session."""
        if self.lost is None:
            self.usable = False
            self.close()
            self.lost = reason
            self.losses.session_lost(self, reason)

    def close(self) -> None:
        """Hang up."""
        self.usable = False
        if self.lost is None:
            self.lost = "closed"
        self.server.hang_up(self.connections)
        if self in self.server.sessions:
            self.server.sessions.remove(self)

    def after_fork(self) -> None:
        """Memory was copied; nothing to do."""


class FakeInstantSession(FakeSession):
    """The same server without the wire: it answers at once, like a kernel."""

    instant = True

    def take_alone(self, seat: Seat) -> bool:
        """Ask the server under the mutex."""
        if not self.server.try_lock(seat.want.id, self._keeper, seat.want.mode):
            return False
        seat.fence, seat.at = self.server.fence(), self.rt.now_ns()
        return True

    def give_alone(self, seat: Seat) -> None:
        """Unlock."""
        self.server.unlock(seat.want.id, self._keeper)

    def take(self, want: Want, beside: bool) -> Grant | None:
        """Ask the server under the mutex, on another connection when one of ours is in already."""
        connection = self.connect() if beside else self._keeper
        if not self.server.try_lock(want.id, connection, want.mode):
            return None
        return self.granted(want, connection)

    def give(self, grant: Grant) -> None:
        """Unlock; without a handle it was taken alone."""
        connection = self._keeper if grant.handle is None else grant.handle
        assert self.server.unlock(grant.want.id, connection), "gave back what was not held"

    def forget(self, want: Want) -> None:
        """Unlock what may be locked."""
        self.server.unlock(want.id, self._keeper)


class FakeTurn:
    """A blocking wait on a connection of its own."""

    def __init__(self, session: FakeSession, want: Want) -> None:
        self._session = session
        self._want = want
        self._connection = session.connect()
        self._waiter: _Waiter | None = None

    async def take(self, deadline: Deadline, seconds: float) -> Grant | None:
        """Wait for the server."""
        session, want = self._session, self._want
        if self._waiter is None:
            await session.rt.sleep(session.latency * session.rt.random())
            if session.lost is not None:
                return None
            event = session.rt.event()
            self._waiter = session.server.enqueue(want.id, self._connection, want.mode, event)
        until = min(deadline.left(), seconds)
        await self._waiter.event.wait(until)
        if session.lost is not None or not self._waiter.granted:
            return None
        return session.granted(want, self._connection)

    async def leave(self) -> None:
        """Cancel the wait; what was granted meanwhile goes back."""
        session = self._session
        if self._waiter is not None and session.server.dequeue(self._want.id, self._waiter):
            session.server.unlock(self._want.id, self._connection)
        session.connections.discard(self._connection)
