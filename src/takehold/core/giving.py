"""Giving back over a wire, in the plain case: seats that stand for their entries, with nobody in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from takehold.core.backend import Releasable
from takehold.core.seat import GONE, HELD, Seat

if TYPE_CHECKING:
    from takehold.core.desk import Desk

__all__ = ["give_alone"]


def give_alone(desk: Desk, seats: list[Seat]) -> list[Releasable] | None:
    """Let go of these: what must still go back, which is noted. None when it is not the plain case."""
    if len(seats) == 1 and seats[0].state != HELD:
        return []
    pending: list[Releasable] = [*reversed(seats)]
    try:
        return _give_alone(desk, seats, pending)
    except BaseException:
        # Emptied when they are noted. Gone, and not noted: nobody else would give them back.
        if loose := [seat for seat in seats if seat.state == GONE and seat in pending]:
            _note(desk, [*loose])
        desk._send_off(desk._combiner.unsent if desk._combiner is not None else None)
        raise


def _give_alone(desk: Desk, seats: list[Seat], pending: list[Releasable]) -> list[Releasable] | None:
    register = desk._register
    with desk._mutex:
        if len(seats) == 1:
            seat = seats[0]
            try:
                if not register.release_alone(seat):
                    return None
            except BaseException:
                register.release_alone(seat)
                raise
        else:
            if not all(register.entries.get(seat.want.id) is seat and seat.state == HELD for seat in seats):
                return None
            desk._decide(register.release_all_alone, seats)
    return _note(desk, pending)


def _note(desk: Desk, pending: list[Releasable]) -> list[Releasable]:
    """The session must still give back what these stood for, unless it is gone and has given back everything."""
    session, combiner = pending[0].session, desk._combiner
    if session is None or session.lost is not None or combiner is None:
        return []
    noted = pending[:]
    combiner.give(pending)
    return noted
