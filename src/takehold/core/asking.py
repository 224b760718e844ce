"""Asking a backend that answers over a wire: one statement for as many keys of a request as it can carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from takehold.core.backend import Ask, Grant
from takehold.core.register import Aftermath
from takehold.core.seat import Seat
from takehold.runtime import Runtime

if TYPE_CHECKING:
    from takehold.core.desk import Desk

__all__ = ["ask"]


async def ask(desk: Desk, seats: list[Seat], rt: Runtime) -> int:
    """Ask for the agent's seat and for every following one that nobody here has; how many were granted."""
    combiner, register = desk._combiner, desk._register
    assert combiner is not None
    with desk._mutex:
        asked = register.claim(seats, rt)
    beside = asked[0].entry is not None and asked[0].entry.occupied
    try:
        outcomes = await combiner.ask(Ask(tuple(seat.want for seat in asked), beside))
    finally:
        for seat in asked:
            if seat.entry is not None:
                seat.entry.asking = False
    granted = 0
    after = Aftermath()
    with desk._mutex:
        for seat, outcome in zip(asked, outcomes, strict=False):
            if not isinstance(outcome, Grant):
                break
            desk._decide(register.settle, seat, outcome, after)
            granted += 1
        for seat in asked[granted:]:
            if seat.entry is not None:
                # Readers that waited for this very answer look again.
                after.wake += [other for other in seat.entry.queue or () if other is not seat]
            if seat is not asked[0]:
                register.step_back(seat, after)
    desk._finish(after)
    return granted
