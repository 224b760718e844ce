"""The desk's register: who is in and who stands in line, per key, and every rule about who goes next.

All of it is synchronous and is called under the desk's mutex: no await, no callback, no user code. What must
happen outside - waking, telling, giving back over a wire - is collected in an `Aftermath`.

A signal handler may raise after any call, Ctrl-C for one. So every step can be done twice: updates that
belong together have no call between them, a seat leaves the line only after it sits, and whoever was
interrupted runs the whole decision again before the mutex is let go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from takehold.core.backend import Grant, Releasable, Session
from takehold.core.seat import ASKED, GONE, HELD, NEW, QUEUED, Entry, Seat
from takehold.core.want import EXCLUSIVE, SHARED, Want
from takehold.runtime import Runtime

__all__ = ["Aftermath", "Register"]

MAX_HAND_OVERS: Final = 1000
"""Local hand-overs of one grant before other processes get a chance; fences leave room for as many."""
HAND_OVER_NS: Final = 50_000_000
MAX_JOINS: Final = 64
"""Local readers that join one shared grant before readers queue with everybody else again."""
JOIN_NS: Final = 50_000_000


class Aftermath:
    """What a decision leaves to be done outside the mutex."""

    def __init__(self) -> None:
        self.wake: list[Seat] = []
        self.handed: list[Seat] = []
        self.pending: list[Releasable] = []
        """What a trip session must still give back."""


class Register:
    """The state of one desk."""

    def __init__(self, rt: Runtime, solo: bool) -> None:
        self.entries: dict[Hashable, Entry | Seat] = {}
        self.held: dict[object, dict[Seat, None]] = {}
        """What each task or thread holds, oldest first."""
        self.waits: dict[object, Seat] = {}
        self.session: Session | None = None
        self._now_ns = rt.now_ns
        self._solo = solo

    # -- in ------------------------------------------------------------------------------------------

    def grab(self, seat: Seat, session: Session) -> bool:
        """Take the key from an instant session, or join its readers, if nobody is in the way."""
        want = seat.want
        id = want.id
        entry = self.entries.get(id)
        if entry is not None:
            return self._grab_among(entry, seat, session)
        # The plain case: a key that nobody here has. The seat itself stands for the entry.
        # Noted before the call: an interrupt between the system call and the next line must leave a trace.
        seat.session = session
        self.entries[id] = seat
        if not session.take_alone(seat):
            del self.entries[id]
            return False
        mine = self.held.get(seat.me)
        if mine is None:
            self.held[seat.me] = {seat: None}
        else:
            mine[seat] = None
        if session.board is not None:
            session.board.hold(seat)
        seat.state = HELD
        return True

    def _grab_among(self, found: Entry | Seat, seat: Seat, session: Session) -> bool:
        want = seat.want
        if want.mode is EXCLUSIVE and (isinstance(found, Seat) or found.readers):
            return False
        entry = self._entry(want.id)
        if entry is None or entry.writer is not None or entry.queue or entry.agent is not None:
            return False
        if entry.readers:
            if self.own(seat) is not None:
                return False
            if self._may_join(entry, seat):
                self._join(entry, seat)
                return True
        seat.entry = entry
        grant = session.take(want, entry.occupied)
        if grant is None:
            seat.entry = None
            self._forget(entry, seat)
            return False
        grant.shareable = seat.caller.coalesce
        self._sit(entry, seat, grant, grant.fence, grant.at)
        return True

    def ask_alone(self, seat: Seat, session: Session) -> bool:
        """Note that the backend is asked for a key that nobody here has; False when somebody has it."""
        id = seat.want.id
        if id in self.entries:
            return False
        seat.session = session
        seat.state = ASKED
        self.entries[id] = seat
        return True

    def ask_all(self, seats: list[Seat], session: Session) -> bool:
        """`ask_alone` for several; False, and nothing noted, when somebody here has one of them."""
        if any(seat.want.id in self.entries for seat in seats):
            return False
        for seat in seats:
            seat.session = session
            seat.state = ASKED
            self.entries[seat.want.id] = seat
        return True

    def sit_alone(self, seat: Seat, fence: int | None) -> None:
        """The backend has granted what `ask_alone` noted, and nobody came to stand behind it meanwhile."""
        seat.fence = fence
        seat.at = self._now_ns()
        mine = self.held.get(seat.me)
        if mine is None:
            self.held[seat.me] = {seat: None}
        else:
            mine[seat] = None
        seat.state = HELD

    def into_line(self, seat: Seat, rt: Runtime) -> Entry:
        """The backend has refused what `ask_alone` noted: stand in line, first, to wait for it."""
        entry = self._entry(seat.want.id)
        assert entry is not None
        entry.asking = False  # a real entry only now: nobody waited for the answer
        seat.at = self._now_ns()
        seat.event = rt.event()
        self.waits[seat.me] = seat
        return entry

    def _entry(self, id: Hashable) -> Entry | None:
        """The entry of an id; a seat that stood for it alone gets a real one."""
        seat = self.entries.get(id)
        if not isinstance(seat, Seat):
            return seat
        if seat.state == ASKED:
            return self._asked_entry(seat)
        assert seat.session is not None
        grant = Grant(seat.session, seat.want, seat.fence, seat.at)
        entry = Entry()
        grant.users = 1
        if seat.want.mode is EXCLUSIVE:
            entry.writer = seat
        else:
            entry.readers = {seat: None}
            grant.shareable = seat.caller.coalesce
        seat.grant = entry.grant = grant
        seat.entry = self.entries[id] = entry
        return entry

    def _asked_entry(self, seat: Seat) -> Entry:
        entry = Entry()
        entry.queue = OrderedDict([(seat, None)])
        entry.agent = seat
        entry.asking = True
        seat.state = QUEUED
        seat.entry = self.entries[seat.want.id] = entry
        return entry

    def _sit(self, entry: Entry, seat: Seat, grant: Grant, fence: int | None, at: int) -> None:
        """Let the seat in on this grant."""
        seat.session = grant.session
        seat.grant = entry.grant = grant
        seat.entry = entry
        seat.fence = fence
        seat.at = at
        if seat.want.mode is EXCLUSIVE:
            if entry.writer is not seat:
                entry.writer = seat
                grant.users += 1
        else:
            if entry.readers is None:
                entry.readers = {}
            if seat not in entry.readers:
                entry.readers[seat] = None
                grant.users += 1
        mine = self.held.get(seat.me)
        if mine is None:
            mine = self.held[seat.me] = {}
        mine[seat] = None
        board = grant.session.board
        if board is not None:
            board.hold(seat)
        seat.state = HELD

    def _may_join(self, entry: Entry, seat: Seat) -> bool:
        grant = entry.grant
        if grant is None or grant.want.mode is not SHARED or grant.session.lost is not None:
            return False
        if self._solo:
            return True
        if not seat.caller.coalesce or not grant.shareable or grant.joined >= MAX_JOINS:
            return False
        if grant.handed + grant.joined >= MAX_HAND_OVERS:
            return False
        return self._now_ns() - grant.at < JOIN_NS

    def _join(self, entry: Entry, seat: Seat) -> None:
        grant = entry.grant
        assert grant is not None
        grant.joined += 1
        fence, at = grant.session.refence(grant)
        self._sit(entry, seat, grant, fence, at)

    def own(self, seat: Seat) -> Seat | None:
        """What this task or thread already holds of the same key.

        Two keys below one ancestor each hold it in shared mode on their own account: that is no re-entry.
        """
        for other in self.held.get(seat.me, ()):
            if other.want.id == seat.want.id and not (seat.want.implied and not other.conflicts(seat)):
                return other
        return None

    def holders(self, want: Want) -> list[Seat]:
        """Who of this process is in."""
        entry = self._entry(want.id)
        return entry.holders() if entry is not None else []

    # -- in line -------------------------------------------------------------------------------------

    def queue_up(self, seat: Seat, rt: Runtime) -> Entry:
        """Stand in line."""
        entry = self._entry(seat.want.id)
        if entry is None:
            entry = self.entries[seat.want.id] = Entry()
        seat.entry = entry
        seat.event = rt.event()
        seat.state = QUEUED
        seat.at = self._now_ns()
        if entry.queue is None:
            entry.queue = OrderedDict()
        entry.queue[seat] = None
        self.waits[seat.me] = seat
        if self.session is not None:
            seat.session = self.session
            if self.session.board is not None:
                self.session.board.wait(seat)
        return entry

    def claim(self, seats: list[Seat], rt: Runtime) -> list[Seat]:
        """The agent's seat, and those right behind it in the same request whose keys nobody here has."""
        asked = seats[:1]
        for seat in seats[1:]:
            if seat.want.id in self.entries:
                break
            self.queue_up(seat, rt).agent = seat
            asked.append(seat)
        # The first is what its party waits for: the others only ride along.
        self.waits[seats[0].me] = seats[0]
        for seat in asked:
            assert seat.entry is not None
            seat.entry.asking = True
        return asked

    def settle(self, seat: Seat, grant: Grant, after: Aftermath) -> None:
        """The agent came back with a grant: it sits down, and those behind it may join."""
        entry = seat.entry
        assert entry is not None
        grant.shareable = seat.caller.coalesce
        self._sit(entry, seat, grant, grant.fence, grant.at)
        self._out_of_line(entry, seat)
        if entry.agent is seat:
            entry.agent = None
        self.advance(entry, after)

    def advance(self, entry: Entry, after: Aftermath) -> None:
        """Let whoever is first in line go on: in, or to the backend on behalf of everybody."""
        while entry.queue and entry.agent is None:
            seat = next(iter(entry.queue))
            if seat.state != HELD:
                if entry.writer is not None or (entry.readers and seat.want.mode is EXCLUSIVE):
                    return
                if entry.readers and self._may_join(entry, seat):
                    self._join(entry, seat)
                elif self._solo and self.session is not None:
                    grant = self.session.take(seat.want, beside=False)
                    assert grant is not None
                    self._sit(entry, seat, grant, grant.fence, grant.at)
                else:
                    entry.agent = seat
            if seat not in after.wake:
                after.wake.append(seat)
            if seat.state == HELD:
                self._out_of_line(entry, seat)

    def _out_of_line(self, entry: Entry, seat: Seat) -> None:
        if entry.queue and seat in entry.queue:
            del entry.queue[seat]
        if self.waits.get(seat.me) is seat:
            del self.waits[seat.me]

    # -- out -----------------------------------------------------------------------------------------

    def release_alone(self, seat: Seat) -> bool:
        """Release in the plain case, with nobody in line. False when it is not that."""
        id = seat.want.id
        if self.entries.get(id) is not seat:
            return False
        session = seat.session
        assert session is not None
        if session.instant:
            if session.lost is None:
                session.give_alone(seat)
            if session.board is not None:
                session.board.erase(seat)
        mine = self.held.get(seat.me)
        if mine is not None and seat in mine:
            if len(mine) > 1:
                del mine[seat]
            else:
                del self.held[seat.me]
        del self.entries[id]
        seat.state = GONE
        return True

    def release_all_alone(self, seats: list[Seat]) -> None:
        """The same for several, in reverse; all of them must be that case."""
        for seat in reversed(seats):
            self.release_alone(seat)

    def release(self, seat: Seat, after: Aftermath) -> None:
        """Let the seat out; its grant goes to the next in line, or back."""
        entry, grant = self._entry(seat.want.id), seat.grant
        assert grant is not None
        self._disown(seat)
        if seat.entry is not None and seat.entry is entry:
            if entry.writer is seat:
                entry.writer = None
                grant.users -= 1
            elif entry.readers and seat in entry.readers:
                del entry.readers[seat]
                grant.users -= 1
            if entry.agent is seat:
                entry.agent = None
            if grant.users == 0 and not grant.given and not self._hand_over(entry, grant, after):
                self._give_back(entry, grant, after)
            self.advance(entry, after)
            self._forget(entry, seat)
        seat.entry = seat.group = None
        seat.state = GONE

    def _disown(self, seat: Seat) -> None:
        mine = self.held.get(seat.me)
        if mine is not None and seat in mine:
            del mine[seat]
            if not mine:
                del self.held[seat.me]
        if seat.session is not None and seat.session.board is not None:
            seat.session.board.erase(seat)

    def _give_back(self, entry: Entry, grant: Grant, after: Aftermath) -> None:
        if grant.session.lost is not None:
            pass
        elif grant.session.instant:
            grant.session.give(grant)
        elif grant not in after.pending:
            after.pending.append(grant)
        grant.given = True
        if entry.grant is grant:
            entry.grant = None

    def _hand_over(self, entry: Entry, grant: Grant, after: Aftermath) -> bool:
        """Give a grant to the next in line without a round trip; bounded, so that other processes get a turn.

        The heir sits down, still in line; `advance` calls it out.
        """
        if not entry.queue or entry.agent is not None or grant.session.lost is not None:
            return False
        heir = next(iter(entry.queue))
        if heir.want.mode is not grant.want.mode:
            return False
        fence, at = grant.session.refence(grant)
        if not self._solo and (grant.handed + grant.joined >= MAX_HAND_OVERS or at - grant.at > HAND_OVER_NS):
            return False
        self._sit(entry, heir, grant, fence, at)
        grant.handed += 1
        after.handed.append(heir)
        return True

    def drop_out(self, seat: Seat, after: Aftermath) -> None:
        """Take out a seat that was never granted, wherever it was interrupted."""
        if seat.state in (HELD, GONE):
            return
        if seat.grant is not None:
            # It was sitting down: half a seat is let out like a whole one.
            self.release(seat, after)
            return
        entry, session = seat.entry, seat.session or self.session
        if entry is None:
            if self.entries.get(seat.want.id) is seat and session is not None:
                if session.instant:
                    # Interrupted inside `take_alone`: whether the system call was made is unknown, so undo it.
                    session.forget(seat.want)
                self._disown(seat)
                del self.entries[seat.want.id]
        else:
            if seat.state == NEW and session is not None and session.instant and not entry.occupied:
                session.forget(seat.want)
            seat.session = session
            self._disown(seat)
            self._out_of_line(entry, seat)
            if entry.agent is seat:
                entry.agent = None
            self.advance(entry, after)
            self._forget(entry, seat)
        seat.entry = seat.group = None
        seat.state = GONE

    def step_back(self, seat: Seat, after: Aftermath) -> None:
        """Undo a claim that was not answered with a grant; the seat can be asked for again."""
        group = seat.group
        self.drop_out(seat, after)
        seat.state, seat.group = NEW, group

    def _forget(self, entry: Entry, seat: Seat) -> None:
        if entry.idle() and self.entries.get(seat.want.id) is entry:
            del self.entries[seat.want.id]

    def transfer(self, seat: Seat, me: object) -> None:
        """Another task or thread is the owner from now on."""
        if seat.state == HELD:
            mine = self.held[seat.me]
            del mine[seat]
            if not mine:
                del self.held[seat.me]
            self.held.setdefault(me, {})[seat] = None
        seat.me = me
