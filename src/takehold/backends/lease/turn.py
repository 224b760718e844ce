"""Waiting for a key that another process holds: asking again and again, with a place in line at the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from takehold.core.backend import Ask, Grant, Releasable
from takehold.core.combine import ANSWER_WITHIN
from takehold.core.deadline import Backoff, Deadline
from takehold.core.seat import Seat
from takehold.core.want import Want
from takehold.errors import BackendUnavailable

if TYPE_CHECKING:
    from takehold.backends.lease.session import LeaseSession

__all__ = ["MARK_OF", "LeaseTurn", "Poll"]

MARK_OF: Final = "mark"
"""The handle of something to give back that is no grant: the place in line."""
FIRST_PAUSE: Final = 0.002
NEXT_PAUSE: Final = 0.02
"""The longest pause of who is next in line, for a while."""
LONGEST_PAUSE: Final = 0.1
"""And of everybody else: a tenth of what a place lasts."""
A_WHILE: Final = 2.0


class Poll(Ask):
    """The question of a waiter: refused, it stands in line with everybody else."""

    ahead = 0
    """How many wait before it."""

    def __init__(self, want: Want, seat: Seat, until: float) -> None:
        super().__init__((want,), until)
        self.seat = seat


class LeaseTurn:
    """A waiter's place. At the table it lasts a second longer than the last question."""

    def __init__(self, session: LeaseSession, want: Want, beside: bool, seat: Seat) -> None:
        self._session = session
        self._want = want
        self._beside = beside
        self._seat = seat
        self._poll: Poll | None = None
        self._marked = False
        self._next_since: float | None = None
        self._backoff = Backoff(NEXT_PAUSE, LONGEST_PAUSE, session.rt.random)
        """For who is behind others, or has been next for long."""
        self._soon = Backoff(FIRST_PAUSE, NEXT_PAUSE, session.rt.random)

    async def take(self, deadline: Deadline, seconds: float) -> Grant | None:
        """Ask, pause, ask."""
        session, rt = self._session, self._session.rt
        until = min(deadline.at, rt.now() + seconds)
        while session.lost is None:
            poll = self._poll = Poll(self._want, self._seat, rt.now() + ANSWER_WITHIN)
            poll.beside = self._beside
            self._marked = True
            assert session.combiner is not None
            try:
                granted = await session.combiner.ask(poll)
            except BackendUnavailable:
                # A slow server: the session knows how long it can be trusted, and ends by itself.
                granted = ()
            if granted:
                fence = granted[0]
                assert isinstance(fence, int)
                return Grant(session, self._want, fence, rt.now_ns())
            left = until - rt.now()
            if left <= 0:
                break
            await rt.sleep(min(left, self._pause(poll.ahead)))
        return None

    def _pause(self, ahead: int) -> float:
        """Who is next asks often, so that a key does not lie idle; who is not, or has been for long, does not."""
        now = self._session.rt.now()
        if ahead:
            self._next_since = None
        elif self._next_since is None:
            self._next_since = now
        soon = self._next_since is not None and now - self._next_since < A_WHILE
        return (self._soon if soon else self._backoff).next()

    async def leave(self) -> None:
        """Give back the place, and what was granted while we left."""
        session = self._session
        if session.lost is not None or session.combiner is None or not self._marked:
            return
        given: list[Releasable] = [Grant(session, self._want, None, 0, MARK_OF)]
        poll = self._poll
        if poll is not None and poll.granted and not poll.given_up:
            fence = poll.granted[0]
            assert isinstance(fence, int)
            given.append(Grant(session, self._want, fence, 0))
        session.combiner.give([*given])
        await session.combiner.given_back(given)
