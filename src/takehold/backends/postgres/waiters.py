"""Standing in the server's queue: a few connections that wait, one key each, for everybody of this process.

A connection that waits cannot release, so a wait never happens on one that holds. After any wait that did not
end with a clean grant the key may be held all the same: unlock it, or hang up.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from takehold.backends._drivers.wire import ServerError, Wire, WireLost
from takehold.backends.postgres.statements import UNLOCK, UNLOCK_SHARED
from takehold.core.backend import Ask, Grant, Releasable
from takehold.core.combine import ANSWER_WITHIN
from takehold.core.deadline import Backoff, Deadline
from takehold.core.want import EXCLUSIVE, Want
from takehold.errors import BackendRefused, BackendUnavailable

if TYPE_CHECKING:
    from takehold.backends.postgres.session import PostgresSession

__all__ = ["MAX_WAITERS", "OUT_OF_MEMORY", "PostgresTurn", "Waiters"]

MAX_WAITERS: Final = 4
ROTATE: Final = 0.5
"""Seconds after which a waiting connection goes to a key that has none, when there are more keys than those."""
GRACE: Final = 0.1
"""The server ends a wait itself, a little after the deadline: cheaper than a cancel over a new connection."""
INQUIRE_AFTER: Final = 0.1
"""Seconds of waiting after which the owner is asked who it is: an error message must not wait for a slow answer."""
OUT_OF_MEMORY: Final = "53200"


class Waiters:
    """The connections of one session that wait, or that keep what they waited for."""

    def __init__(self, session: PostgresSession) -> None:
        # Weakly: the session has us.
        self._weakly = weakref.ref(session)
        self._mutex = session.rt.mutex()
        self.wires: list[Wire] = []
        self._users: dict[Wire, object] = {}
        """Who has which connection. Taking and leaving one is one step each: Ctrl-C finds it with its user, or free."""
        self._opening: set[object] = set()
        self._wanting: deque[PostgresTurn] = deque()
        """Keys without a connection, longest waiting first."""

    @property
    def _session(self) -> PostgresSession:
        session = self._weakly()
        assert session is not None
        return session

    async def get(self, user: object) -> Wire | None:
        """A connection that holds nothing, or None when all are in use; then a turn is next in line for one."""
        turn = user if isinstance(user, PostgresTurn) else None
        session = self._session
        try:
            with self._mutex:
                self._bury()
                first = not self._wanting or turn is None or self._wanting[0] is turn
                free = [wire for wire in self.wires if wire not in self._users]
                if first and free:
                    self._users[free[0]] = user
                    self._served(turn)
                    return free[0]
                if not first or len(self.wires) + len(self._opening) >= MAX_WAITERS:
                    if turn is not None and turn not in self._wanting:
                        self._wanting.append(turn)
                    return None
                self._opening.add(user)
            wire = await session.line.connect(session.rt, session.options.connect)
            try:
                await wire.prepare(session.statements.waiting, session.options.connect)
                self._watch(wire)
            except BaseException:
                wire.close()
                raise
            with self._mutex:
                self._users[wire] = user
                self.wires.append(wire)
                self._served(turn)
        except (WireLost, ServerError):
            # Too many connections, perhaps: attempts on the keeper need none.
            return None
        finally:
            self._opening.discard(user)
        if session.lost is not None:
            self.drop(wire)
            return None
        return wire

    def _bury(self) -> None:
        """Forget those that ended while nobody used them: others may be opened in their place."""
        for wire in [wire for wire in self.wires if wire.lost is not None]:
            self.wires.remove(wire)
            self._users.pop(wire, None)

    def wire_of(self, user: object) -> Wire | None:
        """The connection that this one has."""
        with self._mutex:
            return next((wire for wire, one in self._users.items() if one is user), None)

    def _served(self, turn: PostgresTurn | None) -> None:
        if turn is not None and turn in self._wanting:
            self._wanting.remove(turn)

    def forget(self, turn: PostgresTurn) -> None:
        """It does not want a connection any more."""
        with self._mutex:
            self._served(turn)

    @property
    def wanted(self) -> bool:
        """Whether some key has no connection to wait on."""
        return bool(self._wanting)

    def put(self, wire: Wire) -> None:
        """Back, holding nothing and waiting for nothing."""
        with self._mutex:
            self._users.pop(wire, None)

    def drop(self, wire: Wire) -> None:
        """Hang up: whatever it held or waited for ends with it."""
        wire.close()
        with self._mutex:
            self._bury()

    def _watch(self, wire: Wire) -> None:
        weakly, line = self._weakly, weakref.ref(wire)

        def lost(reason: str) -> None:
            session, one = weakly(), line()
            # One that only waited is missed by nobody else: its turn finds out and gets another.
            if session is not None and one in session.kept:
                session.die(reason)

        wire.watch(lost)

    async def unlock(self, releases: Sequence[Releasable]) -> None:
        """Give back what these connections keep, one round trip each."""
        for grant in releases:
            wire: Wire = grant.handle  # type: ignore[assignment]
            self._session.kept.discard(wire)
            if not await self.clean(wire, grant.want):
                self._session.die(f"the server did not know {grant.want.text!r} when it was given back")
                raise WireLost(self._session.lost)

    async def clean(self, wire: Wire, want: Want) -> bool:
        """Unlock a key that may be held, and put the connection back; False when it was not held."""
        statement = UNLOCK if want.mode is EXCLUSIVE else UNLOCK_SHARED
        try:
            try:
                [row] = await wire.fetch(statement, want.place, seconds=ANSWER_WITHIN)
            except ServerError:  # a cancel that came late hit this statement instead
                [row] = await wire.fetch(statement, want.place, seconds=ANSWER_WITHIN)
        except ServerError:
            self.drop(wire)
            return True
        except WireLost:
            self.drop(wire)
            return True  # the server let go of it with the connection
        except BaseException:
            self.drop(wire)
            raise
        self.put(wire)
        return bool(row[0])

    async def try_now(self, want: Want) -> Grant | None:
        """One attempt on a connection that does not hold the key already."""
        session, user = self._session, object()
        one = session.statements.one if want.mode is EXCLUSIVE else session.statements.one_shared
        try:
            wire = await self.get(user)
            if wire is None:
                return None
            [row] = await wire.fetch(one, want.place, seconds=session.options.reply)
        except BaseException as error:
            if (taken := self.wire_of(user)) is not None:
                self.drop(taken)
            if isinstance(error, WireLost | ServerError):
                return None
            raise
        if row[0] is None:
            self.put(wire)
            return None
        return self.granted(wire, want, row[0])

    def granted(self, wire: Wire, want: Want, fence: int) -> Grant:
        """A grant that this connection keeps."""
        grant = Grant(self._session, want, self._session.fence_of(fence), self._session.rt.now_ns(), wire)
        self._session.kept.add(wire)
        if wire.lost is not None:
            # Cut between the answer and this line: its watcher did not know that it keeps something.
            self._session.die(wire.lost)
        return grant

    def close(self) -> None:
        """Hang up all."""
        with self._mutex:
            wires, self.wires = self.wires, []
            self._users.clear()
        for wire in wires:
            wire.close()

    def after_fork(self) -> None:
        """The child's copies."""
        self._mutex = self._session.rt.mutex()
        for wire in self.wires:
            wire.after_fork()


class PostgresTurn:
    """A place in the server's queue for one key; without a free connection, attempts from time to time."""

    def __init__(self, session: PostgresSession, want: Want, beside: bool) -> None:
        self._session = session
        self._want = want
        self._beside = beside
        self._since = 0.0
        self._asked: Ask | None = None
        self._inquired = False
        self._backoff = Backoff(0.005, 0.1, session.rt.random)

    async def take(self, deadline: Deadline, seconds: float) -> Grant | None:
        """Wait for the server."""
        session = self._session
        session.admit(1)
        waiters = session.waiters
        if (grant := await self._ask_first(deadline)) is not None:
            return grant
        wire = waiters.wire_of(self) or await self._begin(deadline)
        if wire is None:
            return await self._poll(deadline, seconds)
        rotates = waiters.wanted
        patience = min(seconds, deadline.left() + GRACE, ROTATE if rotates else math.inf)
        if not self._inquired:
            patience = min(patience, INQUIRE_AFTER)
        try:
            rows = await wire.receive(None if patience == math.inf else patience)
        except WireLost:
            waiters.drop(wire)
            return None
        except ServerError as error:
            await waiters.clean(wire, self._want)
            if error.code == OUT_OF_MEMORY:
                raise BackendRefused(f"the server's lock table is full: {error}") from error
            return None
        if rows is None:
            if not self._inquired and session.ear is not None:
                self._inquired = True
                session.ear.inquire(self._want)
            if rotates and session.rt.now() - self._since > ROTATE:
                await self.leave()
            return None
        return waiters.granted(wire, self._want, rows[0][0])

    async def _ask_first(self, deadline: Deadline) -> Grant | None:
        """Another connection keeps something, this key perhaps until a moment ago: ask before one more is opened."""
        if self._asked is not None or not self._session.kept or self._session.waiters.wire_of(self) is not None:
            return None
        return await self._poll(deadline, 0.0)

    async def _begin(self, deadline: Deadline) -> Wire | None:
        """Ask the server to wait, if there is a connection for it."""
        session = self._session
        wire = await session.waiters.get(self)
        if wire is None:
            return None
        left = deadline.left()
        limit = "0" if left == math.inf else f"{max(1, math.ceil(left * 1000))}ms"
        statement = session.statements.wait if self._want.mode is EXCLUSIVE else session.statements.wait_shared
        self._since = session.rt.now()
        try:
            wire.send(statement, self._want.place, limit)
        except (WireLost, ServerError):
            # Cut while nobody used it, and not told yet; the next one may be better.
            session.waiters.drop(wire)
            return None
        except BaseException:
            session.waiters.drop(wire)
            raise
        return wire

    async def _poll(self, deadline: Deadline, seconds: float) -> Grant | None:
        """All connections are in use: ask with everybody else's questions, less and less often."""
        session = self._session
        combiner = session.combiner
        assert combiner is not None
        until = session.rt.now() + min(seconds, ROTATE)
        while session.lost is None:
            ask = Ask((self._want,), session.rt.now() + ANSWER_WITHIN)
            ask.beside = self._beside
            self._asked = ask
            try:
                granted = await combiner.ask(ask)
            except (BackendUnavailable, ReferenceError):  # the combiner goes with its session
                if not session.usable:
                    return None  # who only waits goes on, on the next session
                raise
            for got in granted:
                session.waiters.forget(self)
                return got if isinstance(got, Grant) else Grant(session, self._want, got, session.rt.now_ns())
            left = min(until - session.rt.now(), deadline.left())
            if left <= 0:
                break
            await session.rt.sleep(min(self._backoff.next(), left))
        return None

    async def leave(self) -> None:
        """Stop waiting; whether it was granted on the way is unknown, so unlock it."""
        session, waiters = self._session, self._session.waiters
        waiters.forget(self)
        await self._take_back()
        if (wire := waiters.wire_of(self)) is None:
            return
        session.kept.discard(wire)
        try:
            await session.cancel(wire)
            if await wire.receive(ANSWER_WITHIN) is None:
                waiters.drop(wire)
                return
        except ServerError:
            pass
        except WireLost:
            waiters.drop(wire)
            return
        except BaseException:
            waiters.drop(wire)
            raise
        if session.lost is None:
            await waiters.clean(wire, self._want)

    async def _take_back(self) -> None:
        """An attempt that was granted to somebody who did not live to see it."""
        asked, combiner = self._asked, self._session.combiner
        if asked is not None and not asked.given_up and combiner is not None and self._session.lost is None:
            self._asked = None
            with suppress(ReferenceError):
                if late := combiner.give_up(asked):
                    await combiner.given_back(late)
