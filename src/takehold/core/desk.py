"""The process desk: one queue per key in front of every backend, for all threads or tasks of a process.

The desk decides in its `Register`, under a mutex, and acts after: it wakes, tells, talks to the backend. At
most one seat per key, the *agent*, talks to the backend on behalf of everybody who stands in line here.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from takehold.core.asking import ask, ask_alone, ask_together
from takehold.core.backend import Backend, Releasable, Session
from takehold.core.combine import ANSWER_WITHIN, Combiner
from takehold.core.deadline import Deadline
from takehold.core.giving import give_alone, give_quickly
from takehold.core.opening import Opening
from takehold.core.order import OrderBook
from takehold.core.record import HoldRecord
from takehold.core.register import Aftermath, Register
from takehold.core.seat import GONE, HELD, QUEUED, Caller, Seat
from takehold.core.standing import stand_in_line, woken
from takehold.core.waits import cycle_sentence, reentry_sentence, seat_record, timeout_error
from takehold.core.want import SHARED
from takehold.errors import BackendUnavailable, WouldDeadlock
from takehold.runtime import Runtime, run

__all__ = ["Desk"]

log = logging.getLogger(__name__)
OPEN_WITHIN: Final = 10.0  # seconds for a server to let us in
FORKED: Final = "this process was forked; the parent still holds it"


class Desk:
    """Holders and waiters of this process on one backend, for one face."""

    def __init__(self, backend: Backend, rt: Runtime) -> None:
        self.backend = backend
        self.rt = rt
        self.closed = False  # set after a fork and at the end: whoever finds it so asks for a new desk
        self.callers: weakref.WeakSet[Caller] = weakref.WeakSet()
        """The open `Locks` objects that stand behind it."""
        self.order = OrderBook()
        self.abandoned: deque[Seat] = deque()
        """Filled by finalizers, which must not lock anything; emptied by whoever comes next."""
        self.at_once = backend.capabilities.many == "one by one"
        self._mutex = rt.mutex()
        self._register = Register(rt, backend.solo)
        self.held = self._register.held
        self._combiner: Combiner | None = None
        self._opening = Opening(rt)
        self._unfinished: list[Aftermath] = []
        _desks.add(self)

    def ready_now(self) -> Session:
        """The live session of an instant backend; opened when there is none, checked when nobody watches it."""
        while True:
            session = self._register.session
            if session is not None and session.lost is None and not session.usable:
                session.attend()
            if session is not None and session.lost is not None:
                self.session_lost(session, session.lost)
            elif session is not None:
                return session
            with self._mutex:
                if self._register.session is session:
                    self._register.session = self.backend.open_now(self.rt, self)

    async def ready(self, seconds: float = OPEN_WITHIN) -> Session:
        """The live session of any backend."""
        if self.at_once:
            return self.ready_now()
        session = self._register.session
        if session is not None and session.lost is None:
            return session
        within = min(max(seconds, ANSWER_WITHIN), OPEN_WITHIN)
        return await self._opening.once(self._live, lambda: self._open(within), within)

    def _live(self) -> Session | None:
        session = self._register.session
        return session if session is not None and session.lost is None else None

    async def _open(self, seconds: float) -> Session:
        session = self._register.session
        if session is not None and session.lost is not None:
            self.session_lost(session, session.lost)
        opened: Any = await self.backend.open(self.rt, self, seconds)
        with self._mutex:
            self._register.session = opened
            self._combiner = Combiner(opened, self.rt)
        return opened  # type: ignore[no-any-return]

    def session_lost(self, session: Session, reason: str) -> None:
        """The session died: every hold on it is lost."""
        for seat in self.busy():
            if seat.state == HELD and seat.session is session:
                self.lose(seat, reason)
        with self._mutex:
            # What it still has in the kernel or on a server must not outlive the last Hold that refers to it.
            session.close()

    def grab(self, seats: list[Seat]) -> int:
        """Take as many as can be had at once, in order, without waiting; how many that were."""
        if self.abandoned:
            self.sweep()
        if not self.at_once:
            return 0
        register = self._register
        session = register.session
        if session is None or not session.usable:
            session = self.ready_now()
        grab = register.grab
        taken = 0
        after: Aftermath | None = None
        with self._mutex:
            try:
                for seat in seats:
                    if not grab(seat, session):
                        break
                    taken += 1
            except BaseException:
                self._undo(seats, after := Aftermath())
                raise
            finally:
                if after is not None:
                    self._finish_later(after)
        return taken

    async def acquire(self, seats: list[Seat], taken: int, deadline: Deadline, rt: Runtime) -> None:
        """Wait for the seats after the first `taken`, in order. All or nothing: it raises with none held."""
        if deadline.at <= deadline.started:
            if (blocked := await self.take_now(seats, taken, rt)) is not None:
                blocked.caller.tell("timeout", blocked, 0.0)
                raise timeout_error(blocked, 0.0, await self.in_the_way(blocked))
            return
        try:
            session = await self.ready(deadline.left())
            if len(seats) == 1 and not self.at_once:
                answer = await ask_alone(self, seats[0], session, deadline, rt)
                if answer is not None:
                    if not answer:
                        await self._wait_for(seats[0], deadline, rt)
                    return
            elif taken == 0 and not self.at_once:
                taken = await ask_together(self, seats, session, deadline, rt) or 0
            while taken < len(seats):
                taken += await self._obtain(seats[taken:], deadline, rt)
            if reason := next((seat.lost for seat in seats if seat.lost is not None), None):
                # All or nothing: the first keys died with their session while we waited for the last.
                raise BackendUnavailable(f"the lock session died while waiting: {reason}")
        except BaseException:
            await self._abandon(seats, rt)
            raise

    async def acquire_refused(self, seat: Seat, deadline: Deadline, rt: Runtime) -> None:
        """Wait for one seat that was asked for and refused, and stands first in line. It raises with nothing held."""
        try:
            await self._wait_for(seat, deadline, rt)
        except BaseException:
            await self._abandon([seat], rt)
            raise

    async def take_now(self, seats: list[Seat], taken: int, rt: Runtime) -> Seat | None:
        """The rest of an attempt that may not wait: all seats, or none and the one that is busy."""
        try:
            while not self.at_once and taken < len(seats):
                session = await self.ready(0.0)
                granted = await self._attempt(seats[taken:], session, rt)
                if not granted:
                    break
                taken += granted
        except BaseException:
            await self._abandon(seats, rt)
            raise
        if taken == len(seats):
            return None
        await self._abandon(seats, rt)
        return seats[taken]

    async def _abandon(self, seats: list[Seat], rt: Runtime) -> None:
        if pending := self.undo(seats):
            await rt.shield(self.given_back(pending))

    async def _attempt(self, seats: list[Seat], session: Session, rt: Runtime) -> int:
        """One question over the wire, without standing in line for more than its answer."""
        seat = seats[0]
        if len(seats) == 1:
            if (answer := await ask_alone(self, seat, session, None, rt)) is not None:
                return int(answer)
        elif (granted := await ask_together(self, seats, session, None, rt)) is not None:
            return granted
        try:
            self._line_up(seat, rt)
        except WouldDeadlock:
            return 0
        if seat.state == QUEUED and seat.entry is not None and seat.entry.agent is seat:
            return await ask(self, seats, None, rt)
        # Readers that came together get one answer: the one that is on its way to the first of them.
        while seat.state == QUEUED and seat.want.mode is SHARED and seat.entry is not None and seat.entry.asking:
            await woken(self, seat, rt, None)
        return int(seat.state == HELD)

    async def _obtain(self, seats: list[Seat], deadline: Deadline, rt: Runtime) -> int:
        """Get the first seat, and with it whatever a trip session grants in the same statement."""
        seat = seats[0]
        self._line_up(seat, rt)
        if seat.state == HELD:
            return 1
        asks = not self.at_once and seat.entry is not None and seat.entry.agent is seat
        if asks and (granted := await ask(self, seats, deadline, rt)):
            return granted
        await self._wait_for(seat, deadline, rt)
        return 1

    async def _wait_for(self, seat: Seat, deadline: Deadline, rt: Runtime) -> None:
        rt.may_wait()
        try:
            await stand_in_line(self, seat, deadline, rt)
        finally:
            seat.caller.tell("waited", seat, deadline.waited())

    def _line_up(self, seat: Seat, rt: Runtime) -> None:
        """Take the key if it is free after all, else stand in line; refuse a wait that could never end."""
        register = self._register
        after = Aftermath()
        with self._mutex:
            session = register.session
            assert session is not None
            own = register.own(seat)
            sentence = reentry_sentence(seat, own) if own is not None else None
            if sentence is None:
                if self.at_once and register.grab(seat, session):
                    return
                entry = register.queue_up(seat, rt)
                if register.held.get(seat.me):
                    sentence = cycle_sentence(seat, register.held, register.waits)
                if sentence is None:
                    register.advance(entry, after)
                else:
                    register.drop_out(seat, after)
        self._finish(after)
        if sentence is not None:
            seat.caller.tell("deadlock", seat, 0.0)
            raise WouldDeadlock(sentence, key=seat.want.text)

    def _decide(self, decision: Callable[..., None], *facts: Any) -> None:
        """Under the mutex: a decision that was interrupted is made again, to its end, before anybody can look."""
        try:
            decision(*facts)
        except BaseException:
            decision(*facts)
            raise

    def leave(self, seats: list[Seat]) -> None:
        """At the end of a thread's block, over a wire: release, and see that all goes back, now or by who is at it."""
        if seats[0].caller.listeners:
            seats[0].caller.tell_released(seats, self.rt.now_ns())
        if len(seats) > 1 or not give_quickly(self, seats[0]):
            pending = self._given(seats)
            # One that does not answer: it is noted, or its session ends; either way nothing is ours any more.
            with suppress(BackendUnavailable):
                if pending and self._combiner is not None:
                    run(self._combiner.given_back(pending, surely=False))

    def release(self, seats: list[Seat]) -> list[Releasable] | None:
        """Let go, in reverse. What a trip session must still give back is returned."""
        if seats[0].caller.listeners:
            seats[0].caller.tell_released(seats, self.rt.now_ns())
        if not self.at_once:
            return self._given(seats)
        if len(seats) == 1:
            seat = seats[0]
            with self._mutex:
                try:
                    if seat.state != HELD or self._register.release_alone(seat):
                        return None
                except BaseException:
                    self._register.release_alone(seat)
                    raise
        return self.undo(seats)

    def _given(self, seats: list[Seat]) -> list[Releasable] | None:
        pending = give_alone(self, seats)
        return self.undo(seats) if pending is None else pending or None

    def undo(self, seats: Iterable[Seat]) -> list[Releasable] | None:
        """Let go of held seats and take the others out of the line, in reverse: leaves nothing behind."""
        after = Aftermath()
        try:
            with self._mutex:
                self._undo(seats, after)
            return self._finish(after)
        except BaseException:
            # Interrupted between what was decided and what is to be done about it: nobody else knows.
            self._finish_later(after)
            raise

    def _undo(self, seats: Iterable[Seat], after: Aftermath) -> None:
        self._decide(self._let_out, list(seats)[::-1], after)

    def _let_out(self, seats: list[Seat], after: Aftermath) -> None:
        for seat in seats:
            if seat.state == HELD:
                self._register.release(seat, after)
            else:
                self._register.drop_out(seat, after)

    def _finish_later(self, after: Aftermath) -> None:
        """Have the aftermath of an interrupted decision done by whoever comes next, or by a timer."""
        self._unfinished.append(after)
        self.rt.later(0, self._catch_up)

    def _catch_up(self) -> None:
        while self._unfinished:
            after = self._unfinished[-1]
            self._finish(after)
            # Only now: an interrupt in between must not lose it, and twice is a no-op.
            if after in self._unfinished:
                self._unfinished.remove(after)
        if self._combiner is not None:
            self._send_off(self._combiner.unsent)

    def _finish(self, after: Aftermath) -> list[Releasable] | None:
        """Do what a decision left to be done. Twice is a no-op, so whoever was interrupted can have it done again."""
        while after.wake:
            try:
                dead = self._call_up(after)
            except BaseException:
                # A wake-up that is lost hangs somebody else: once more, all of them.
                self._call_up(after)
                raise
            # Their loops are closed: they can never run, and their keys go to the next ones.
            after.wake = []
            with self._mutex:
                self._undo(dead, after)
        while after.handed:
            seat = after.handed.pop(0)
            seat.caller.tell("handed over", seat, 0.0)
        pending = after.pending[:]
        if pending and self._combiner is not None:
            self._combiner.give(after.pending)
        return pending or None

    def _call_up(self, after: Aftermath) -> list[Seat]:
        """Wake everybody; who cannot be woken."""
        return [seat for seat in after.wake if seat.event is not None and not seat.event.set()]

    def _send_off(self, pending: list[Releasable] | None) -> None:
        """Nobody waits for these to go back: see that they do."""
        if pending and self.rt.face == "threads":
            self.rt.spawn(self.given_back(pending), "takehold-releases")

    async def given_back(self, grants: list[Releasable]) -> None:
        """Wait until the backend has these back."""
        if self._combiner is not None:
            await self._combiner.given_back(grants)

    def sweep(self) -> None:
        """Release what finalizers found: holds dropped without a release."""
        while self.abandoned:
            try:
                seat = self.abandoned[0]
                self._send_off(self.undo([seat]))
                # Only now: an interrupt in between must not lose it, and twice is a no-op.
                self.abandoned.remove(seat)
            except (IndexError, ValueError):  # another thread was quicker
                return

    def watch(self, seat: Seat, callback: Callable[[], object]) -> bool:
        """Call back when the hold of this seat is lost; False when it already is."""
        with self._mutex:
            if seat.state == HELD:
                seat.watch = [*(seat.watch or ()), callback]
            return seat.lost is None

    def unwatch(self, seat: Seat, callback: Callable[[], object]) -> None:
        """Forget a callback."""
        with self._mutex:
            seat.watch = [other for other in seat.watch or () if other is not callback] or None

    def nudge(self, seats: list[Seat]) -> None:
        """Called by a finalizer, so it may lock nothing: let whoever waits for these keys sweep them up."""
        for seat in seats:
            first = next(iter(seat.entry.queue or ()), None) if seat.entry is not None else None
            if first is not None and first.event is not None:
                first.event.set()

    def lose(self, seat: Seat, reason: str) -> None:
        """End one hold without its owner's doing, and say so."""
        if seat.before_loss is not None and seat.state == HELD:
            seat.before_loss(reason)
        after = Aftermath()
        with self._mutex:
            if seat.state != HELD:
                return
            seat.lost = reason
            together = seat.together()
            self._decide(self._register.release, seat, after)
            watchers = [call for other in together for call in other.watch or ()]
            watchers += [other.body._lost_in_body for other in together if other.body is not None]
            for other in together:
                other.watch = other.body = None
        self._send_off(self._finish(after))
        seat.caller.tell("lost", seat, (self.rt.now_ns() - seat.at) / 1e9)
        for call in watchers:
            try:
                call()
            except (Exception, SystemExit):  # an exit() in a callback would end the thread that watches for all
                log.exception("an on_lost callback failed", extra={"event": "callback.failed"})

    def give_to(self, seats: list[Seat], me: object) -> None:
        """Another task or thread is the owner from now on."""
        with self._mutex:
            for seat in seats:
                self._register.transfer(seat, me)

    def release_all(self, caller: Caller, me: object) -> list[Releasable] | None:
        """Let go of everything one `Locks` object holds, and wake its waiters to find it closed.

        A block that still runs in another task or thread is told: its key is somebody else's from now on.
        """
        seats = [seat for seat in self.busy() if seat.caller is caller]
        for seat in seats:
            if seat.state == QUEUED and seat.event is not None:
                seat.event.set()
            elif seat.state == HELD and seat.me is not me:
                self.lose(seat, "its Locks object was closed")
        mine = [seat for seat in seats if seat.state == HELD]
        return self.release(mine) if mine else None

    def close(self) -> None:
        """End the session; whatever is still held is released with it."""
        self.closed = True
        if self._register.session is not None:
            self._register.session.close()

    def busy(self) -> list[Seat]:
        """Every seat that holds or waits in this process."""
        with self._mutex:
            held = [seat for seats in self.held.values() for seat in seats]
            return held + list(self._register.waits.values())

    async def in_the_way(self, seat: Seat) -> list[HoldRecord]:
        """Who keeps this seat waiting: of this process, or whom the backend can name."""
        with self._mutex:
            holders = self._register.holders(seat.want)
        if holders:
            return [self.record(other) for other in holders]
        session = self._register.session
        return await session.blockers(seat.want) if session is not None else []

    def record(self, seat: Seat) -> HoldRecord:
        """One seat as `who` shows it."""
        return seat_record(seat, self.rt)

    def descriptors(self, seats: list[Seat]) -> set[int]:
        """File descriptors that keep these seats alive in a child process that inherits them."""
        return {fd for seat in seats if seat.session is not None for fd in seat.session.descriptors(seat)}

    def after_fork(self) -> None:
        """In the child: nothing here is ours. Inherited holds are lost, and the next call opens anew."""
        self.closed = True
        self._mutex = self.rt.mutex()
        self.abandoned.clear()
        for seats in self.held.values():
            for seat in seats:
                seat.lost, seat.state = FORKED, GONE
        session = self._register.session
        if session is not None:
            session.lost, session.usable = FORKED, False
            session.after_fork()
        self._register = Register(self.rt, self.backend.solo)
        self._opening = Opening(self.rt)
        self.held = self._register.held


_desks: weakref.WeakSet[Desk] = weakref.WeakSet()


def _after_fork() -> None:
    for desk in list(_desks):
        desk.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
