"""Standing in line at the desk, and at the head of it standing in the backend's own queue for everybody behind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from takehold.core.asking import vouch
from takehold.core.deadline import Deadline
from takehold.core.register import Aftermath
from takehold.core.seat import HELD, QUEUED, Seat
from takehold.core.waits import timeout_error
from takehold.errors import UsageError, WouldDeadlock
from takehold.runtime import Runtime

if TYPE_CHECKING:
    from takehold.core.desk import Desk

__all__ = ["stand_in_line", "woken"]

DEADLOCK_FIRST: Final = 1.0  # seconds of waiting before cycles across processes are looked for
DEADLOCK_AGAIN: Final = 0.25


async def stand_in_line(desk: Desk, seat: Seat, deadline: Deadline, rt: Runtime) -> None:
    """Wait until the seat is held, at the head of the line for everybody; or raise, still in line."""
    pause = _slice(desk, seat, DEADLOCK_FIRST)
    while seat.state == QUEUED:
        if seat.entry is not None and seat.entry.agent is seat:
            await _negotiate(desk, seat, deadline, rt)
        elif not await woken(desk, seat, rt, min(deadline.left(), pause)):
            pause = await _patience(desk, seat, deadline)


async def woken(desk: Desk, seat: Seat, rt: Runtime, seconds: float | None) -> bool:
    """Wait to be called up; True when this seat is in, or is the agent now."""
    assert seat.event is not None
    await seat.event.wait(None if seconds == math.inf else seconds)
    with desk._mutex:
        # Granted, and perhaps lost again before we ran: not waiting any more, in any case.
        called = seat.state != QUEUED or (seat.entry is not None and seat.entry.agent is seat)
        if not called:
            # Events are for one call. Under the mutex: whoever calls us up next sees the new one.
            seat.event = rt.event()
    return called


async def _negotiate(desk: Desk, seat: Seat, deadline: Deadline, rt: Runtime) -> None:
    """Stand in the backend's own queue for everybody who stands in ours."""
    session = await desk.ready(deadline.left())
    entry = seat.entry
    assert entry is not None
    turn = session.turn(seat.want, entry.occupied, seat)
    pause = _slice(desk, seat, DEADLOCK_FIRST)
    try:
        while (grant := await turn.take(deadline, min(pause, 1.0))) is None:
            if session.lost is not None:
                break
            pause = await _patience(desk, seat, deadline)
        if grant is not None:
            after = Aftermath()
            with desk._mutex:
                desk._decide(desk._register.settle, seat, grant, after)
            desk._finish(after)
            vouch(desk, [seat])
    except BaseException:
        if seat.state != HELD:
            await rt.shield(turn.leave())
        raise
    if grant is None:
        await rt.shield(turn.leave())


def _slice(desk: Desk, seat: Seat, seconds: float) -> float:
    """How long to wait before looking for a deadlock across processes: only who holds can be in one."""
    return seconds if not desk.backend.solo and desk.held.get(seat.me) else math.inf


async def _patience(desk: Desk, seat: Seat, deadline: Deadline) -> float:
    """Between two waits: raise when there is no point in another one."""
    if desk.abandoned:
        desk.sweep()
    if seat.caller.closed or desk.closed:
        raise UsageError(f"{seat.want.text!r}: this Locks object was closed while waiting")
    session = desk._register.session
    if session is not None and desk.held.get(seat.me) and (sentence := session.deadlock(seat)):
        seat.caller.tell("deadlock", seat, deadline.waited())
        raise WouldDeadlock(sentence, key=seat.want.text)
    if deadline.left() <= 0:
        seat.caller.tell("timeout", seat, deadline.waited())
        raise timeout_error(seat, deadline.waited(), await desk.in_the_way(seat))
    return _slice(desk, seat, DEADLOCK_AGAIN)
