"""The pulse of a session: its heartbeat, and what the table has to say to it.

A thread or task of its own. A heartbeat that fails once puts the session in jeopardy and is tried again at
once, on a new connection; only when trust has ended is everything lost. A timer sees to that even while the
heartbeat itself is stuck.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Final

from takehold.backends.lease.channel import ChannelLost, Reply, Troubled
from takehold.backends.lease.offset import Offset
from takehold.backends.lease.seen import board_text, lines_of, row_of
from takehold.core.cycle import Picture, sentence, youngest
from takehold.core.seat import HELD, Seat
from takehold.core.waits import hold_id
from takehold.runtime import Event, Timer

if TYPE_CHECKING:
    from takehold.backends.lease.session import LeaseSession

__all__ = ["Pulse"]

log = logging.getLogger(__name__)
EVICTED: Final = "evicted by an operator"
REVOKED: Final = "evicted by an operator, who did not wait for us"
MISSING: Final = "its row in the lease table is gone"
SLOWEST: Final = 1.0
IN_JEOPARDY: Final = 0.1
SUSPICIOUS: Final = 0.5
"""Seconds of waiting, while holding something else, after which cycles are looked for."""
CHASE: Final = 0.25
CLEAN_EVERY: Final = 30
GOODBYE_WITHIN: Final = 1.0
BEAT_WITHIN: Final = 1.0


class Pulse:
    """Beats until the session ends."""

    def __init__(self, session: LeaseSession) -> None:
        self._session = session
        self._rt = session.rt
        self._interval = min(session.address.ttl / 3, SLOWEST)
        self._ending = False
        self._running = False
        self._bell: Event | None = None
        self._timer: Timer | None = None
        self._beats = 0
        self._failed = 0
        self._next = 0.0
        self._done: list[str] = []
        """Evictions that were honoured, for the table to forget."""
        self.ahead = Offset()
        self.verdicts: weakref.WeakKeyDictionary[Seat, str] = weakref.WeakKeyDictionary()

    def begin(self) -> None:
        """The first beat comes after an interval: opening was one."""
        self._next = self._rt.now() + self._interval
        self._timer = self._rt.later(self._session.trust.left(), self._watch)
        self._running = True
        self._rt.spawn(self._run(), "takehold-heartbeat")

    def end(self) -> None:
        """Say goodbye and hang up, soon. From any thread, also under the desk's mutex: nothing here waits."""
        if self._ending:
            return
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._running or self._bell is None or not self._bell.set():
            self._session.hang_up()  # nobody is left to say goodbye
        elif self._rt.face != "threads":
            self._end_task()

    def _end_task(self) -> None:
        """The loop may be closed in a moment: what must be said is said without waiting for an answer."""
        session = self._session
        if not (session.rows or session.marks) or session.side.last_words("bye", {"me": session.name}):
            session.rows.clear()
            session.marks.clear()
            session.hang_up()

    def forget(self) -> None:
        """In a forked child: our thread is not here."""
        self._ending = True

    def _watch(self) -> None:
        """When trust may have ended: it has, or there is more of it by now."""
        session = self._session
        if self._ending:
            return
        if session.lost is not None:
            session.die(session.lost)
        else:
            self._timer = self._rt.later(session.trust.left() + 0.001, self._watch)

    # -- the loop ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        session = self._session
        try:
            while True:
                # A new bell first: whoever ends us after this line rings it, who did before is seen.
                self._bell = bell = self._rt.event()
                if self._ending:
                    break
                await self._tick()
                await bell.wait(self._pause())
        except ReferenceError:  # the desk is gone
            self._ending = True
        finally:
            self._running = False
            if not self._ending:
                # Cancelled, or a mistake of ours: without a heartbeat nothing can be vouched for.
                self._ending = True
                session.die("its heartbeat was ended")
            session.close()
            try:
                # A loop that ends cancels us, and waits: the goodbye is worth that much.
                await self._rt.shield(self._goodbye())
            finally:
                session.hang_up()

    def _pause(self) -> float:
        if self._failed:
            return IN_JEOPARDY
        left = max(0.0, self._next - self._rt.now())
        return min(left, CHASE) if self._suspects() else left

    async def _tick(self) -> None:
        self._session.losses.sweep()
        suspects = self._suspects()
        if self._failed or suspects or self._rt.now() >= self._next:
            await self._beat()
        if suspects and not self._failed:
            await self._chase(suspects)

    async def _goodbye(self) -> None:
        """Free everybody who waits for us, if the table can be reached; else the lease runs out by itself."""
        session = self._session
        if session.rows or session.marks or self._rt.face == "threads":
            try:
                await session.side.ask("bye", {"me": session.name}, GOODBYE_WITHIN)
            except (ChannelLost, Troubled) as error:
                log.info("no goodbye: %s", error, extra={"event": "lease.goodbye"})

    # -- beating -------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        session = self._session
        seats = session.losses.busy()
        written = {*session.rows.values(), *session.marks.values()}
        board = board_text([seat for seat in seats if seat.session is session], written, self._rt, self.ahead.seconds)
        clean = self._beats % CLEAN_EVERY == CLEAN_EVERY - 1
        request = {"me": session.name, "board": board, "done": list(self._done), "clean": clean}
        changes, idle = session.changes, not session.in_flight
        sent, asked = self._rt.boot(), self._rt.now()
        self._next = asked + self._interval
        try:
            reply = await session.side.ask("beat", request, min(BEAT_WITHIN, session.trust.left()))
        except ChannelLost as error:
            self._jeopardy(error, seats)
            return
        except Troubled as error:
            session.die(f"the lease table refused a heartbeat: {error}")
            return
        if reply.get("gone"):
            session.die("the lease table does not know this session any more: it was taken for dead")
            return
        if not session.trust.renewed(sent):
            session.die(session.lost or "a heartbeat was answered too late")
            return
        self._beats += 1
        if self._failed:
            log.info("heartbeats are answered again", extra={"event": "lease.recovered"})
            self._failed = 0
        self.ahead.heard(reply["now"], asked, self._rt.now())
        self._done = []
        self._obey(reply)
        if idle and changes == session.changes and not session.in_flight and reply["held"] < len(session.rows):
            await self._missing(reply)

    def _jeopardy(self, error: Exception, seats: list[Seat]) -> None:
        self._failed += 1
        if self._failed > 1:
            return
        left = self._session.trust.left()
        log.warning(
            "a heartbeat failed (%s); holds are in jeopardy and will be lost in %.1f s", error, left,
            extra={"event": "lease.jeopardy"},
        )  # fmt: skip
        for seat in seats:
            if seat.state == HELD:
                seat.caller.tell("in jeopardy", seat, left)

    def _obey(self, reply: Reply) -> None:
        """Give up what an operator has asked for, or taken."""
        session = self._session
        revoked = {fence for _, fence in reply["revoked"]}
        evicted = set(reply["evict"])
        self._done = list(evicted)
        for seat in session.losses.busy() if evicted or revoked else ():
            if seat.state != HELD or seat.session is not session:
                continue
            if hold_id(seat) in evicted:
                self._lose(seat, EVICTED)
            elif seat.fence is not None and row_of(seat.fence) in revoked:
                self._lose(seat, REVOKED)

    def _lose(self, seat: Seat, reason: str) -> None:
        """Beside the heartbeat: what is told may take its time."""
        self._rt.spawn(_lose(self._session.losses, seat, reason), "takehold-loss")

    async def _missing(self, reply: Reply) -> None:
        """Fewer rows than were granted: somebody has deleted some. Find out which."""
        session = self._session
        changes = session.changes
        try:
            look = await session.side.ask("look", {"key": None}, BEAT_WITHIN)
        except (ChannelLost, Troubled):
            return
        there = {row[2] for row in look["leases"] if row[1] == session.name}
        there |= {fence for _, fence in reply["revoked"]}
        if changes != session.changes or session.in_flight:
            return
        for fence in [fence for fence in session.rows if fence not in there]:
            del session.rows[fence]
            for seat in session.losses.busy():
                if seat.state == HELD and seat.fence is not None and row_of(seat.fence) == fence:
                    self._lose(seat, MISSING)

    # -- deadlocks -----------------------------------------------------------------------------------

    def _suspects(self) -> list[Seat]:
        """Only who holds while it waits can be in a cycle."""
        session, now = self._session, self._rt.now_ns()
        seats = session.losses.busy()
        holding = {id(seat.me) for seat in seats if seat.state == HELD}
        return [
            seat
            for seat in seats
            if seat.state != HELD and id(seat.me) in holding and now - seat.at > SUSPICIOUS * 1_000_000_000
        ]

    async def _chase(self, suspects: list[Seat]) -> None:
        """A cycle counts when a second look finds it unchanged; the youngest waiter of it gives up."""
        first = await self._picture()
        found = {seat: first.cycle(hold_id(seat)) for seat in suspects} if first is not None else {}
        if not any(found.values()) or (second := await self._picture()) is None:
            return
        for seat, cycle in found.items():
            again = second.cycle(hold_id(seat)) if cycle else None
            if not cycle or not again or [line.id for line in cycle] != [line.id for line in again]:
                continue
            if youngest(again).id == hold_id(seat):
                self.verdicts[seat] = sentence(again)

    async def _picture(self) -> Picture | None:
        try:
            return Picture(lines_of(await self._session.side.ask("look", {"key": None}, BEAT_WITHIN)))
        except (ChannelLost, Troubled):
            return None


async def _lose(losses: Any, seat: Seat, reason: str) -> None:
    try:
        losses.lose(seat, reason)
    except ReferenceError:  # the desk is gone
        pass
