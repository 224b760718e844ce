"""One process's session at a lease table: what it was granted there, and for how long that can be trusted.

Every statement carries a number, and the table remembers the last answer that changed something. So a statement
whose answer was lost with its connection is simply sent again: it is done exactly once.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from takehold.backends.lease.address import Address
from takehold.backends.lease.channel import PATIENCE, Channel, ChannelLost, Reply, Request, Side, Troubled
from takehold.backends.lease.pulse import Pulse
from takehold.backends.lease.seen import described, in_the_way, lines_of, row_of
from takehold.backends.lease.trust import Trust
from takehold.backends.lease.turn import MARK_OF, LeaseTurn, Poll
from takehold.core.backend import Ask, Granted, Losses, Releasable, SessionLost, Unanswered
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.trip import Trip
from takehold.core.want import SHARED, Want
from takehold.runtime import Runtime

__all__ = ["LeaseSession"]

log = logging.getLogger(__name__)
SLICE: Final = 0.25
"""Seconds of waiting for an answer before looking up whether it still matters."""
HITCH: Final = 0.02
MOST_TURNS: Final = 1000
BLOCKERS_WITHIN: Final = 0.05


class Names:
    """Ids for holds: a number that is never used again, behind the name of the session."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._numbers = itertools.count()

    def id_of(self, seat: Seat) -> str:
        """`session-number`."""
        return f"{self._session}-{seat.slot:x}"

    def hold(self, seat: Seat) -> None:
        """Give it a number, if it has none."""
        if seat.slot < 0:
            seat.slot = next(self._numbers)

    wait = hold

    def erase(self, seat: Seat) -> None:
        """It keeps its number."""


class LeaseSession(Trip):
    """A row of the session table, the rows that were granted to it, and its heartbeat."""

    board: Names
    in_flight = False

    def __init__(self, address: Address, rt: Runtime, losses: Losses) -> None:
        self.rt = rt
        self.address = address
        # Unique wherever the table can be reached from, so more than a pid.
        self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
        self.board = Names(self.name)
        self.rows: dict[int, str] = {}
        """What the table has granted: the hold that each row names, by fence."""
        self.marks: dict[int, str] = {}
        """Where we stand in line at the table: the waiter that each mark names, by key."""
        self.changes = 0
        """Grows with every statement."""
        self.trust: Trust
        # Weakly: the desk has the session, and must be able to go without the collector.
        self.losses: Any = weakref.proxy(losses)
        self._lost: str | None = None
        self._main: Channel
        self.side = Side(address, rt)
        self.pulse = Pulse(self)
        self._batch = 0
        self._turns: dict[int, float] = {}
        self._request: Request = {}
        self._releases: Sequence[Releasable] = ()
        self._asks: Sequence[Ask] = ()

    def begin(self, main: Channel, sent: float) -> None:
        """The table knows us since a question that was sent at that moment: beat from now on."""
        self._main = main
        self.trust = Trust(self.rt, self.address.ttl, sent)
        self.pulse.begin()

    # -- life ----------------------------------------------------------------------------------------

    @property
    def lost(self) -> str | None:
        """Why it died; a look at the clock, no I/O."""
        if self._lost is None and self.trust.over():
            self._lost = f"no heartbeat was answered for {self.address.ttl:g} s, less a margin: others may have the key"
        return self._lost

    @lost.setter
    def lost(self, reason: str | None) -> None:
        self._lost = reason

    def die(self, reason: str) -> None:
        """Every hold is lost. Told once; the desk then closes us."""
        self._lost = self._lost or reason
        self.usable = False
        with suppress(ReferenceError):  # the desk is gone
            self.losses.session_lost(self, self._lost)
        self.close()

    def close(self) -> None:
        """The pulse says goodbye for us, if it still runs; else the lease runs out."""
        self.usable = False
        self._lost = self._lost or "closed"
        self.pulse.end()

    def hang_up(self) -> None:
        """Called by the pulse, last."""
        self.side.close()
        self._main.close()

    def after_fork(self) -> None:
        """In the child: nothing of this is ours."""
        self.pulse.forget()
        self.side.after_fork()
        self._main.after_fork()

    # -- statements ----------------------------------------------------------------------------------

    async def apply(self, releases: Sequence[Releasable], asks: Sequence[Ask], seconds: float) -> list[Granted]:
        """One statement with a new number."""
        self._batch += 1
        self._releases, self._asks = releases, asks
        self._request = self._written(releases, asks)
        self.changes += 1
        self.in_flight = True
        return await self._answered(seconds)

    async def answer(self) -> list[Granted]:
        """Wait on, as long as the session can be trusted."""
        return await self._answered(float("inf"))

    async def _answered(self, seconds: float) -> list[Granted]:
        until = self.rt.now() + seconds
        while True:
            if (reason := self.lost) is not None:
                self.in_flight = False
                raise SessionLost(reason)
            reply = await self._asked(min(SLICE, max(0.0, until - self.rt.now())))
            if reply is not None:
                return self._read(reply)
            if self.rt.now() >= until:
                raise Unanswered

    async def _asked(self, seconds: float) -> Reply | None:
        """One attempt. After a failure nobody knows whether the table has heard it: the next one says so."""
        try:
            return await self._main.ask("apply", self._request, seconds)
        except ChannelLost as error:
            self._request["again"] = True
            log.info("a lock statement is sent again: %s", error, extra={"event": "lease.again"})
            await self.rt.sleep(HITCH * (0.5 + self.rt.random()))
            return None
        except Troubled as error:
            self.in_flight = False
            self.die(f"the lease table refused a statement: {error}")
            raise SessionLost(self.lost) from error
        except BaseException:
            self._request["again"] = True
            raise

    def _written(self, releases: Sequence[Releasable], asks: Sequence[Ask]) -> Request:
        give: list[list[int]] = []
        leave: list[int] = []
        for grant in releases:
            if grant.handle == MARK_OF:
                leave.append(grant.want.place)
            else:
                assert grant.fence is not None
                # One that is known to be gone already was told as lost.
                if (row := row_of(grant.fence)) in self.rows:
                    give.append([grant.want.place, row])
        questions = [
            {"wait": isinstance(ask, Poll), "wants": [self._described(ask, want) for want in ask.wants]} for ask in asks
        ]
        return {"me": self.name, "n": self._batch, "again": False, "give": give, "leave": leave, "asks": questions}

    def _described(self, ask: Ask, want: Want) -> dict[str, Any]:
        seat = ask.seat if isinstance(ask, Poll) else self._seat_of(want)
        turn = self._turns.get(want.place, 0.0) > self.rt.now()
        if seat is not None:
            self.board.hold(seat)
            return {"turn": turn, **described(seat)}
        unknown = {"hold": f"{self.name}-{id(ask):x}", "label": None, "site": "?", "party": 0}
        text = {"text": want.text, "namespace": want.namespace, "implied": want.implied}
        return {"turn": turn, "key": want.place, "shared": want.mode is SHARED, **text, **unknown}

    def _seat_of(self, want: Want) -> Seat | None:
        """Who asks for this id. The desk knows: alone with its key, or the agent of those who want it."""
        try:
            entry = self.losses._register.entries.get(want.id)
        except (AttributeError, ReferenceError):
            return None
        seat = entry if isinstance(entry, Seat) else getattr(entry, "agent", None)
        return seat if seat is not None and seat.want.id == want.id else None

    def _read(self, reply: Reply) -> list[Granted]:
        """Twice does no harm: interrupted in here, the same answer is asked for and read again."""
        request = self._request
        if "granted" not in reply:
            self.in_flight = False
            self.die("the lease table does not know this session any more: it was taken for dead")
            raise SessionLost(self.lost)
        for _, fence in request["give"]:
            self.rows.pop(fence, None)
        for key in request["leave"]:
            self.marks.pop(key, None)
        answers: list[Granted] = []
        for ask, question, fences, ahead in zip(
            self._asks, request["asks"], reply["granted"], reply["ahead"], strict=True
        ):
            for want, fence in zip(question["wants"], fences, strict=False):
                self.rows[fence] = want["hold"]
                self.marks.pop(want["key"], None)
            if isinstance(ask, Poll):
                ask.ahead = ahead
                want = question["wants"][0]
                if fences:
                    self._begin_turn(want["key"])
                else:
                    self.marks[want["key"]] = want["hold"]
            answers.append(fences)
        if reply["missing"]:
            self.in_flight = False
            self.die(f"{len(reply['missing'])} of our rows were not in the lease table when they were given back")
            raise SessionLost(self.lost)
        self.in_flight = False
        return answers

    def _begin_turn(self, key: int) -> None:
        """It was our turn: for a moment we may take this key again before others who wait for it."""
        now = self.rt.now()
        if len(self._turns) > MOST_TURNS:
            self._turns = {other: until for other, until in self._turns.items() if until > now}
        self._turns[key] = now + PATIENCE

    def turn(self, want: Want, beside: bool, seat: Seat) -> LeaseTurn:
        """A place in line at the table."""
        return LeaseTurn(self, want, beside, seat)

    # -- seeing --------------------------------------------------------------------------------------

    def deadlock(self, seat: Seat) -> str | None:
        """What the pulse has found, following who waits for whom in the table."""
        return self.pulse.verdicts.pop(seat, None)

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Who has it, if the table answers in time."""
        try:
            reply = await self.side.ask("look", {"key": want.place}, BLOCKERS_WITHIN)
        except (ChannelLost, Troubled):
            return []
        lines = lines_of(reply)
        ids = in_the_way(lines, want.place, want.mode is SHARED)
        return [line.record(reply["now"], self.rt.wall(), ()) for line in lines if line.id in ids]
