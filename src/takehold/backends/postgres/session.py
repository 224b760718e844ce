"""One process's grip on a Postgres server: the keeper connection, the waiters, the ear.

The keeper holds everything that could be had at once. Statements on it are the session's, never a caller's:
sent by the combiner, one at a time.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from takehold.backends._drivers.wire import Row, ServerError, Statement, Wire, WireLost
from takehold.backends.postgres.line import Line
from takehold.backends.postgres.plan import BUSY, NotHeldThere, Plan, array
from takehold.backends.postgres.proving import Facts
from takehold.backends.postgres.statements import UNLOCK, UNLOCK_ALL, UNLOCK_SHARED, statements
from takehold.backends.postgres.waiters import OUT_OF_MEMORY, PostgresTurn, Waiters
from takehold.core.backend import Ask, Granted, Losses, Refused, Releasable, SessionLost, Unanswered
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.trip import Trip
from takehold.core.want import EXCLUSIVE, Want
from takehold.errors import BackendRefused, BackendUnavailable
from takehold.runtime import Runtime, run

if TYPE_CHECKING:
    from takehold.backends.postgres.ear import Ear

__all__ = ["PostgresSession"]

ATTEMPTS: Final = 3
"""How often a statement is sent again that somebody else has cancelled."""


class PostgresSession(Trip):
    """Keeper, waiters, ear."""

    def __init__(self, line: Line, rt: Runtime, losses: Losses, keeper: Wire, facts: Facts) -> None:
        # Of its own, though the classes say the same: what every lock reads costs less there.
        self.lost: str | None = None
        self.instant, self.usable, self.quick, self.board = False, True, True, None
        self.rt = rt
        self.pid = os.getpid()
        self.line = line
        self.name = line.name
        self.options = line.options
        self.max_held = line.options.max_held or facts.capacity // 5
        self.facts = facts
        self.fenced = facts.fenced
        self.statements = statements(facts.fenced)
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
        self._plan: Plan | None = None
        self._quickly: tuple[Statement, Sequence[Releasable], Ask] | None = None
        self._elsewhere: dict[int, Granted] = {}
        """Answers of the running statement that do not come from the keeper, by their place."""
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
        return self._plan is not None or self._quickly is not None

    def admit(self, count: int) -> None:
        """Stay away from the end of the server's lock table: beyond it nobody can even connect."""
        own = self.held + len(self.kept) + count
        if own > self.max_held:
            raise self._too_many(own)
        if self.elsewhere + count > self.facts.capacity // 2:
            raise BackendRefused(
                f"the server holds {self.elsewhere} locks, half of the {self.facts.capacity} that its table is sure "
                "to hold: beyond that it refuses everybody, also new connections. Raise max_locks_per_transaction"
            )

    def _too_many(self, own: int) -> BackendRefused:
        return BackendRefused(
            f"this process would hold {own} locks, its limit is {self.max_held} of the "
            f"{self.facts.capacity} that the server's lock table is sure to hold; say ?max_held=N, or raise "
            "max_locks_per_transaction"
        )

    def _turn_away(self, asks: Sequence[Ask], freed: int) -> None:
        """Who was let in one by one may be too many together: those who do not fit are refused."""
        held = self.held + len(self.kept) - freed
        if held + sum([len(ask.wants) for ask in asks]) <= self.max_held:
            return
        for ask in asks:
            held += len(ask.wants)
            if held > self.max_held:
                ask.error = self._too_many(held)
                held -= len(ask.wants)

    async def apply(self, releases: Sequence[Releasable], asks: Sequence[Ask], seconds: float) -> list[Granted]:
        """One statement on the keeper; what waiting connections keep is given back first, on those."""
        if self.kept and (others := [grant for grant in releases if grant.handle is not None]):
            releases = [grant for grant in releases if grant.handle is None]
            await self.waiters.unlock(others)
        if self.lost is not None:
            raise SessionLost(self.lost)
        elsewhere: dict[int, Granted] = {}
        self._turn_away(asks, len(releases))
        for index, ask in enumerate(asks):
            if ask.error is not None:  # turned away, or told no while we waited above
                elsewhere[index] = BUSY
            elif ask.beside:
                # On the keeper it would re-enter. Its further keys are asked for again, by themselves.
                grant = await self.waiters.try_now(ask.wants[0])
                elsewhere[index] = BUSY if grant is None else (grant,)
        self._elsewhere = elsewhere
        if elsewhere:
            asks = [ask for index, ask in enumerate(asks) if index not in elsewhere]
        return await self._sent(Plan(releases, asks), seconds)

    async def _sent(self, plan: Plan, seconds: float) -> list[Granted]:
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
            rows = await self.keeper.fetch(plan.sent, *args)  # `overdue` sees to its end
        except ServerError as error:
            return await self._refused(plan, error)
        except WireLost as error:
            self._gone(error)
        return self._read(plan, rows[0])

    def carries(self, releases: Sequence[Releasable], ask: Ask) -> bool:
        """A release of the keeper and a key, both exclusive; or a key alone."""
        if ask.beside or len(ask.wants) != 1 or len(releases) > 1:
            return False
        if not releases:
            return True
        one = releases[0]
        return one.handle is None and one.want.mode is EXCLUSIVE and ask.wants[0].mode is EXCLUSIVE

    async def fetch_quickly(self, releases: Sequence[Releasable], ask: Ask) -> Granted:
        """One statement for one task that finds the keeper idle, and the release of the one before."""
        if self.lost is not None:
            raise SessionLost(self.lost)
        known, want = self.statements, ask.wants[0]
        statement = known.one if want.mode is EXCLUSIVE else known.one_shared
        try:
            if releases:
                statement = known.ride
                [row] = await self.keeper.fetch(statement, releases[0].want.place, want.place)
            else:
                [row] = await self.keeper.fetch(statement, want.place)
        except ServerError as error:
            return (await self._refused(self._planned(statement, releases, ask), error))[0]
        except WireLost as error:
            self._gone(error)
        if releases:
            if row[0] is not True:
                self._unknown()
            self.held -= 1
            self.room += 1
        fence = row[-1]
        if fence is None:
            return BUSY
        self.held += 1
        self.room -= 1
        return (fence if self.fenced else None,)

    def apply_quickly(self, releases: Sequence[Releasable], ask: Ask, seconds: float) -> None:
        """One release or one single key of a thread that has the keeper for itself."""
        if self.lost is not None:
            raise SessionLost(self.lost)
        if releases:
            want = releases[0].want
            statement = UNLOCK if want.mode is EXCLUSIVE else UNLOCK_SHARED
        else:
            want = ask.wants[0]
            statement = self.statements.one if want.mode is EXCLUSIVE else self.statements.one_shared
        keeper, reply = self.keeper, self.options.reply
        try:
            keeper.send(statement, want.place)
            self._quickly = statement, releases, ask
            rows = keeper.read(min(seconds, reply))
        except WireLost as error:
            self._quickly = None
            self._gone(error)
        except ServerError as error:
            self._quickly = None
            answers = run(self._refused(self._planned(statement, releases, ask), error))
            ask.granted = answers[0] if answers else ()
            return
        if rows is None:
            raise Unanswered
        [row] = rows
        granted: Granted = BUSY
        change = 0
        if releases:
            if row[0] is not True:
                self._unknown()
            change = -1
        elif row[0] is not None:
            granted = row if self.fenced else (None,)
            change = 1
        self.held += change
        self.room -= change
        # Together: an interrupt finds the answer here, or still to be read.
        ask.granted = granted
        self._quickly = None

    def _planned(self, statement: Statement, releases: Sequence[Releasable], ask: Ask) -> Plan:
        plan = Plan(releases, (ask,) if ask.wants else ())
        plan.sent = statement
        self._elsewhere = {}
        return plan

    def overdue(self, seconds: float) -> None:
        """No answer for too long: nothing that this session says later can be believed."""
        if seconds > self.options.reply:
            self.die(f"the server did not answer within {self.options.reply:g} s")

    async def answer(self) -> list[Granted]:
        """Read on where somebody had to leave."""
        if self._quickly is not None:
            self._plan, self._quickly = self._planned(*self._quickly), None
        assert self._plan is not None
        try:
            return await self._received(self._plan, self.options.reply)
        except Unanswered:
            self.die(f"the server did not answer within {self.options.reply:g} s")
            raise SessionLost(self.lost) from None

    async def _received(self, plan: Plan, seconds: float) -> list[Granted]:
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

    def _read(self, plan: Plan, row: Row) -> list[Granted]:
        try:
            answers = plan.read(plan.sent, self.statements, row)
        except NotHeldThere:
            self._unknown()
        self.held += sum(map(len, answers)) - len(plan.freed[0]) - len(plan.freed[1])
        self.room = min(self.max_held - self.held - len(self.kept), self.facts.capacity // 2 - self.elsewhere)
        if not self.fenced:
            answers = [(None,) * len(granted) for granted in answers]
        return self._merged(answers)

    def _unknown(self) -> NoReturn:
        self.die("the server did not know a key that was given back: this session cannot be trusted")
        raise SessionLost(self.lost)

    def _merged(self, answers: list[Granted]) -> list[Granted]:
        """With what was not asked of the keeper, where it belongs."""
        for index, granted in self._elsewhere.items():
            answers.insert(index, granted)
        return answers

    def _gone(self, error: WireLost) -> NoReturn:
        self.die(str(error))
        raise SessionLost(self.lost) from error

    async def _refused(self, plan: Plan, error: ServerError) -> list[Granted]:
        """A failed statement has unlocked and locked who knows what: undo all of it, then try again or tell."""
        exclusive, shared = plan.keys
        try:
            for _ in range(2):
                # Twice: a cancel that came late may hit the first.
                with suppress(ServerError):
                    await self.keeper.fetch(UNLOCK_ALL, array(exclusive), array(shared), seconds=self.options.reply)
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

    def turn(self, want: Want, beside: bool, seat: Seat) -> PostgresTurn:
        """A place in the server's queue."""
        return PostgresTurn(self, want, beside)

    async def cancel(self, wire: Wire) -> None:
        """End the wait that runs on this connection; its outcome is still to be received."""
        # Over the ear: a cancel request of libpq waits for ever where the server does not answer, and asyncpg's
        # forgets the outcome.
        if self.ear is None or not await self.ear.cancel(wire.pid):
            raise WireLost("could not be cancelled")

    # -- losing and ending ---------------------------------------------------------------------------

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
        # At the end of the interpreter a daemon thread may have stopped with a mutex in its hands; the kernel hangs up.
        if hasattr(self, "waiters") and not sys.is_finalizing():
            self.close()

    # -- seeing --------------------------------------------------------------------------------------

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Whom the server names, and what they say of themselves if they answer in time."""
        return [] if self.ear is None else await self.ear.holders(want)

    def deadlock(self, seat: Seat) -> str | None:
        """What the ear has found out, following who waits for whom; asks it to look again."""
        return None if self.ear is None else self.ear.deadlock(seat)
