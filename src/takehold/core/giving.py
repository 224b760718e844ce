"""Giving back over a wire, in the plain case: seats that stand for their entries, with nobody in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from takehold.core.backend import Releasable
from takehold.core.seat import GONE, HELD, Seat

if TYPE_CHECKING:
    from takehold.core.desk import Desk

__all__ = ["give_alone", "give_quickly"]


def give_alone(desk: Desk, seats: list[Seat]) -> list[Releasable] | None:
    """Let go of these: what must still go back, which is noted. None when it is not the plain case."""
    if len(seats) == 1 and seats[0].state != HELD:
        return []
    pending: list[Releasable] = [*reversed(seats)]
    try:
        if not _let_go(desk, seats):
            return None
        noted = pending[:]
        return noted if _note(desk, pending) else []
    except BaseException:
        _make_good(desk, seats, pending)
        raise


def give_quickly(desk: Desk, seat: Seat) -> bool:
    """The same for one seat of a thread, and when the wire is idle its statement at once. False when it is not that.

    When another thread is at work on the wire, that one sends it next.
    """
    session, combiner = seat.session, desk._combiner
    if combiner is None or session is not combiner.session or session.lost is not None or seat.state != HELD:
        return False
    seats = [seat]
    pending: list[Releasable] = [seat]
    try:
        if not _let_go(desk, seats):
            return False
        combiner.give_quickly(pending)
    except BaseException:
        _make_good(desk, seats, pending)
        raise
    return True


def _let_go(desk: Desk, seats: list[Seat]) -> bool:
    register = desk._register
    with desk._mutex:
        if len(seats) == 1:
            try:
                return register.release_alone(seats[0])
            except BaseException:
                register.release_alone(seats[0])
                raise
        if not all(register.entries.get(seat.want.id) is seat and seat.state == HELD for seat in seats):
            return False
        desk._decide(register.release_all_alone, seats)
        return True


def _note(desk: Desk, pending: list[Releasable]) -> bool:
    """The session must still give back what these stood for, unless it is gone and has given back everything."""
    session, combiner = pending[0].session, desk._combiner
    if session is None or session.lost is not None or combiner is None:
        return False
    combiner.give(pending)
    return True


def _make_good(desk: Desk, seats: list[Seat], pending: list[Releasable]) -> None:
    """Interrupted: what was pending is emptied when it is noted. Gone, and not noted, nobody else would give back."""
    if loose := [seat for seat in seats if seat.state == GONE and seat in pending]:
        _note(desk, [*loose])
    desk._send_off(desk._combiner.unsent if desk._combiner is not None else None)
