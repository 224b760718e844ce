"""One process's grip on a Postgres server: the keeper connection, the waiters, the ear.

The keeper holds everything that could be had at once. Statements on it are the session's, never a caller's:
sent by the combiner, one at a time.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from takehold.backends._drivers.wire import Row, ServerError, Statement, Wire, WireLost
from takehold.backends.postgres.line import Line
from takehold.backends.postgres.proving import Facts
from takehold.backends.postgres.statements import UNLOCK, UNLOCK_ALL, UNLOCK_SHARED, Statements, statements
from takehold.backends.postgres.waiters import OUT_OF_MEMORY, PostgresTurn, Waiters
from takehold.core.backend import Ask, Grant, Granted, Losses, Refused, Releasable, SessionLost, Unanswered
from takehold.core.combine import Combiner
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.want import EXCLUSIVE, Want
from takehold.errors import BackendRefused, BackendUnavailable
from takehold.runtime import Runtime

if TYPE_CHECKING:
    from takehold.backends.postgres.ear import Ear

__all__ = ["PostgresSession"]

ATTEMPTS: Final = 3
"""How often a statement is sent again that somebody else has cancelled."""
BUSY: Final[Granted] = ()


class _Plan:
    """One statement on its way: what it releases, what it asks for, and how to read its answer."""

    def __init__(self, releases: Sequence[Releasable], asks: Sequence[Ask]) -> None:
        self.freed: tuple[list[int], list[int]] = [], []
        self.tries: tuple[list[int], list[int]] = [], []
        self.walk: tuple[list[int], list[bool], list[bool]] = [], [], []
        self.asks = asks
        self.attempt = 1
        self.sent = UNLOCK
        freed, freed_shared = self.freed
        for grant in releases:
            want = grant.want
            (freed if want.mode is EXCLUSIVE else freed_shared).append(want.place)
        tries, tries_shared = self.tries
        for ask in asks:
            if len(ask.wants) == 1:
                want = ask.wants[0]
                (tries if want.mode is EXCLUSIVE else tries_shared).append(want.place)
            else:
                self._add_walk(ask)

    def _add_walk(self, ask: Ask) -> None:
        keys, shared, first = self.walk
        for want in ask.wants:
            keys.append(want.place)
            shared.append(want.mode is not EXCLUSIVE)
            first.append(want is ask.wants[0])

    def statement(self, known: Statements) -> tuple[Statement, tuple[Any, ...]] | None:
        """The smallest statement that carries it all; None when there is nothing to send."""
        freed, freed_shared = self.freed
        tries, tries_shared = self.tries
        if self.walk[0]:
            return known.walk, (*self.freed, *self.tries, *self.walk)
        if tries_shared or len(tries) > 1 or (tries and (freed_shared or len(freed) > 1)):
            return known.batch, (*self.freed, *self.tries)
        if tries:
            return (known.ride, (freed[0], tries[0])) if freed else (known.one, (tries[0],))
        if len(freed) + len(freed_shared) > 1:
            return UNLOCK_ALL, self.freed
        if freed or freed_shared:
            return (UNLOCK, (freed[0],)) if freed else (UNLOCK_SHARED, (freed_shared[0],))
        return None

    def read(self, statement: Statement, known: Statements, row: Row) -> list[Granted]:
        """What each ask was granted; `_Unknown` when a release was not known to the server."""
        if statement is known.one:
            return [BUSY if row[0] is None else (row[0],)]
        if statement is known.ride or statement is UNLOCK or statement is UNLOCK_SHARED:
            if row[0] is not True:
                raise _Unknown
            return [BUSY if row[1] is None else (row[1],)] if statement is known.ride else []
        if row[0] != 0:
            raise _Unknown
        if len(row) == 1:
            return []
        if len(row[1]) == len(self.asks):
            return [BUSY if fence is None else (fence,) for fence in row[1]]
        single, shared, walked = (iter(fences) for fences in (*row[1:], ())[:3])
        answers: list[Granted] = []
        for ask in self.asks:
            if len(ask.wants) > 1:
                answers.append([fence for fence in [next(walked) for _ in ask.wants] if fence is not None])
            else:
                fence = next(single if ask.wants[0].mode is EXCLUSIVE else shared)
                answers.append(BUSY if fence is None else (fence,))
        return answers

    @property
    def keys(self) -> tuple[list[int], list[int]]:
        """Everything that this statement may have locked, or not unlocked."""
        walked = list(zip(self.walk[0], self.walk[1], strict=True))
        return (
            [*self.freed[0], *self.tries[0], *(key for key, shared in walked if not shared)],
            [*self.freed[1], *self.tries[1], *(key for key, shared in walked if shared)],
        )


class _Unknown(Exception):
    """The server did not know a key that we gave back: it was not ours, who knows since when."""


class PostgresSession:
    """Keeper, waiters, ear."""

    instant = False
    board = None
    usable = True

    def __init__(self, line: Line, rt: Runtime, losses: Losses, keeper: Wire, facts: Facts) -> None:
        self.lost: str | None = None
        self.rt = rt
        self.pid = os.getpid()
        self.line = line
        self.name = line.name
        self.options = line.options
        self.max_held = line.options.max_held or facts.capacity // 5
        self.facts = facts
        self.fenced = facts.fenced
        self.statements = statements(facts.fenced)
        self.combiner: Combiner | None = None
        # Weakly: the desk has the session, and must be able to go without the collector.
        self.losses: Any = weakref.proxy(losses)
        self.keeper = keeper
        self.waiters = Waiters(self)
        self.ear: Ear | None = None
        self.kept: set[Wire] = set()
        """Waiting connections that keep what they waited for."""
        self.held = 0
        self.room = self.max_held
        """Locks that the keeper has at the server."""
        self.elsewhere = 0
        """Locks of everybody, as last seen by the ear."""
        self._blocking = rt.face == "threads"
        self._plan: _Plan | None = None
        self._beside: dict[int, Granted] = {}
        self._watch(keeper)

    def _watch(self, keeper: Wire) -> None:
        me = weakref.ref(self)

        def lost(reason: str) -> None:
            if (session := me()) is not None:
                session.die(reason)

        keeper.watch(lost)

    # -- statements ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        """Whether an answer is still to come."""
        return self._plan is not None

    def admit(self, count: int) -> None:
        """Stay away from the end of the server's lock table: beyond it nobody can even connect."""
        own = self.held + len(self.kept) + count
        if own > self.max_held:
            raise BackendRefused(
                f"this process would hold {own} locks, its limit is {self.max_held} of the "
                f"{self.facts.capacity} that the server's lock table is sure to hold; say ?max_held=N, or raise "
                "max_locks_per_transaction"
            )
        if self.elsewhere + count > self.facts.capacity // 2:
            raise BackendRefused(
                f"the server holds {self.elsewhere} locks, half of the {self.facts.capacity} that its table is sure "
                "to hold: beyond that it refuses everybody, also new connections. Raise max_locks_per_transaction"
            )

    async def apply(self, releases: Sequence[Releasable], asks: Sequence[Ask], seconds: float) -> list[Granted]:
        """One statement on the keeper; what waiting connections keep is given back first, on those."""
        if self.kept and (others := [grant for grant in releases if grant.handle is not None]):
            releases = [grant for grant in releases if grant.handle is None]
            await self.waiters.unlock(others)
        if self.lost is not None:
            raise SessionLost(self.lost)
        self._beside = {}
        for index, ask in enumerate(asks):
            if ask.beside:
                # On the keeper it would re-enter. Its further keys are asked for again, by themselves.
                grant = await self.waiters.try_now(ask.wants[0])
                self._beside[index] = BUSY if grant is None else (grant,)
        if self._beside:
            asks = [ask for ask in asks if not ask.beside]
        return await self._sent(_Plan(releases, asks), seconds)

    async def _sent(self, plan: _Plan, seconds: float) -> list[Granted]:
        found = plan.statement(self.statements)
        if found is None:
            return self._merged([])
        plan.sent, args = found
        if self._blocking:
            try:
                self.keeper.send(plan.sent, *args)
            except WireLost as error:
                self._gone(error)
            except ServerError as error:
                return await self._refused(plan, error)
            self._plan = plan
            return await self._received(plan, seconds)
        try:
            rows = await self.keeper.fetch(plan.sent, *args, seconds=self.options.reply)
        except ServerError as error:
            return await self._refused(plan, error)
        except WireLost as error:
            self._gone(error)
        return self._read(plan, rows[0])

    async def answer(self) -> list[Granted]:
        """Read on where somebody had to leave."""
        assert self._plan is not None
        try:
            return await self._received(self._plan, self.options.reply)
        except Unanswered:
            self.die(f"the server did not answer within {self.options.reply:g} s")
            raise SessionLost(self.lost) from None

    async def _received(self, plan: _Plan, seconds: float) -> list[Granted]:
        try:
            rows = await self.keeper.receive(min(seconds, self.options.reply))
        except ServerError as error:
            self._plan = None
            return await self._refused(plan, error)
        except WireLost as error:
            self._plan = None
            self._gone(error)
        if rows is None:
            raise Unanswered
        answers = self._read(plan, rows[0])
        self._plan = None
        return answers

    def _read(self, plan: _Plan, row: Row) -> list[Granted]:
        try:
            answers = plan.read(plan.sent, self.statements, row)
        except _Unknown:
            self.die("the server did not know a key that was given back: this session cannot be trusted")
            raise SessionLost(self.lost) from None
        self.held += sum(map(len, answers)) - len(plan.freed[0]) - len(plan.freed[1])
        self.room = min(self.max_held - self.held - len(self.kept), self.facts.capacity // 2 - self.elsewhere)
        if not self.fenced:
            answers = [(None,) * len(granted) for granted in answers]
        return self._merged(answers)

    def _merged(self, answers: list[Granted]) -> list[Granted]:
        """With what was asked for elsewhere, where it belongs."""
        for index, granted in self._beside.items():
            answers.insert(index, granted)
        return answers

    def _gone(self, error: WireLost) -> NoReturn:
        self.die(str(error))
        raise SessionLost(self.lost) from error

    async def _refused(self, plan: _Plan, error: ServerError) -> list[Granted]:
        """A failed statement has unlocked and locked who knows what: undo all of it, then try again or tell."""
        exclusive, shared = plan.keys
        try:
            for _ in range(2):
                # Twice: a cancel that came late may hit the first.
                with suppress(ServerError):
                    await self.keeper.fetch(UNLOCK_ALL, exclusive, shared, seconds=self.options.reply)
                    break
            else:
                self.die(f"a failed statement could not be undone: {error}")
                raise SessionLost(self.lost)
        except WireLost as lost:
            self._gone(lost)
        self.held -= len(plan.freed[0]) + len(plan.freed[1])
        plan.freed = [], []
        if error.code == "57014" and plan.attempt < ATTEMPTS:
            plan.attempt += 1
            return await self._sent(plan, self.options.reply)
        if error.code == OUT_OF_MEMORY:
            raise Refused(BackendRefused(f"the server's lock table is full: {error}"))
        raise Refused(BackendUnavailable(f"the server refused to lock: {error}"))

    def fence_of(self, fence: int | None) -> int | None:
        """Without the sequence there are none."""
        return fence if self.fenced else None

    def refence(self, grant: Grant) -> tuple[int | None, int]:
        """The sequence leaves room between two numbers."""
        if grant.fence is not None:
            grant.fence += 1
        return grant.fence, self.rt.now_ns()

    def turn(self, want: Want, beside: bool, seat: Seat) -> PostgresTurn:
        """A place in the server's queue."""
        return PostgresTurn(self, want, beside)

    async def cancel(self, wire: Wire) -> None:
        """End the wait that runs on this connection; its outcome is still to be received."""
        if self._blocking:
            await wire.cancel()
        elif self.ear is None or not await self.ear.cancel(wire.pid):
            raise WireLost("could not be cancelled")

    # -- losing and ending ---------------------------------------------------------------------------

    def attend(self) -> None:
        """It is looked after from the start."""

    def doubt(self, seat: Seat) -> str | None:
        """The connections tell by themselves."""
        return self.lost

    def die(self, reason: str) -> None:
        """A connection that keeps holds is gone: all holds of this session are lost."""
        if self.lost is None:
            self.lost, self.usable = reason, False
            self._hang_up()
            with suppress(ReferenceError):  # the desk is gone
                self.losses.session_lost(self, reason)

    def close(self) -> None:
        """Hang up."""
        self.usable = False
        if self.lost is None:
            self.lost = "closed"
        self._hang_up()

    def _hang_up(self) -> None:
        self.keeper.close()
        self.waiters.close()
        if self.ear is not None:
            self.ear.close()

    def after_fork(self) -> None:
        """The child's copies of the sockets; the parent's session goes on."""
        self.keeper.after_fork()
        self.waiters.after_fork()
        if self.ear is not None:
            self.ear.after_fork()

    def __del__(self) -> None:
        if hasattr(self, "waiters"):
            self.close()

    # -- seeing --------------------------------------------------------------------------------------

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Whom the server names, and what they say of themselves if they answer in time."""
        return [] if self.ear is None else await self.ear.holders(want)

    def deadlock(self, seat: Seat) -> str | None:
        """What the ear has found out, following who waits for whom; asks it to look again."""
        return None if self.ear is None else self.ear.deadlock(seat)

    def descriptors(self, seat: Seat) -> tuple[int, ...]:
        """A connection cannot be inherited."""
        return ()

    def take_alone(self, seat: Seat) -> bool:
        """Never: nothing is instant over a wire."""
        raise AssertionError("a trip session answers in batches")

    def give_alone(self, seat: Seat) -> None:
        """Never."""
        raise AssertionError("a trip session answers in batches")

    def take(self, want: Want, beside: bool) -> Grant | None:
        """Never."""
        raise AssertionError("a trip session answers in batches")

    def give(self, grant: Grant) -> None:
        """Never."""
        raise AssertionError("a trip session answers in batches")

    def forget(self, want: Want) -> None:
        """Never."""
        raise AssertionError("a trip session answers in batches")
