"""Sentences about waiting: who is in the way, what re-entered what, which cycle could never end."""

from __future__ import annotations

import os
from typing import TypeAlias

from takehold.core.owner import site_text
from takehold.core.record import HoldRecord, since
from takehold.core.seat import HELD, Seat
from takehold.errors import LockTimeout
from takehold.runtime import Runtime

Held: TypeAlias = dict[object, dict[Seat, None]]

__all__ = ["cycle_sentence", "hold_id", "reentry_sentence", "seat_record", "timeout_error"]


def timeout_error(seat: Seat, waited: float, records: list[HoldRecord]) -> LockTimeout:
    """`LockTimeout` that names the key, the wait, and whoever is known to be in the way."""
    text = seat.want.text
    holder = next((record for record in records if record.state == "held"), None)
    if holder is None:
        message = f"{text!r} not acquired after {waited:.1f} s; its holder is not known"
        return LockTimeout(message, key=text, waited=waited, owner=None, held_for=None)
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    message = f"{text!r} not acquired after {waited:.1f} s, held by {holder.owner} for {holder.age:.1f} s{more}"
    return LockTimeout(message, key=text, waited=waited, owner=holder.owner, held_for=holder.age)


def reentry_sentence(seat: Seat, own: Seat) -> str:
    """This task or thread already has the key."""
    return (
        f"{seat.want.text!r} is already held by this very task or thread, taken at {site_text(own.site)} "
        f"and asked for again at {site_text(seat.site)}: locks are not re-entrant"
    )


def cycle_sentence(seat: Seat, held: Held, waits: dict[object, Seat]) -> str | None:
    """A sentence when waiting for this seat closes a cycle among the tasks of this process.

    Looked for backwards, from those who wait for us: mostly nobody does, and then there is nothing to look for,
    however many wait ahead of us.
    """
    reached = _waiting_for(seat.me, held, waits)
    if not reached or seat.entry is None:
        return None
    for blocker in seat.entry.blockers(seat):
        if blocker.me in reached:
            steps = [(seat, blocker)]
            party = blocker.me
            while party is not seat.me:
                waiter, its_blocker = reached[party]
                steps.append((waiter, its_blocker))
                party = its_blocker.me
            chain = "; ".join(
                f"{site_text(waiter.site)} waits for {waiter.want.text!r}, {_how(blocking)} {site_text(blocking.site)}"
                for waiter, blocking in steps
            )
            return f"waiting for {seat.want.text!r} would deadlock: {chain}"
    return None


def _how(blocking: Seat) -> str:
    return "taken at" if blocking.state == HELD else "behind"


def _waiting_for(me: object, held: Held, waits: dict[object, Seat]) -> dict[object, tuple[Seat, Seat]]:
    """Everybody who waits for us, directly or not: party -> (what it waits for, the seat that blocks it)."""
    reached: dict[object, tuple[Seat, Seat]] = {}
    todo = [me]
    while todo:
        party = todo.pop()
        blocking = list(held.get(party, ()))
        if party is not me and party in waits:
            blocking.append(waits[party])
        for blocker in blocking:
            for waiter in blocker.entry.behind(blocker) if blocker.entry is not None else ():
                if waiter.me is not me and waiter.me not in reached and waiter.conflicts(blocker):
                    reached[waiter.me] = (waiter, blocker)
                    todo.append(waiter.me)
    return reached


def hold_id(seat: Seat) -> str:
    """A name for one hold that an operator can type; unique on the host while it lasts."""
    session = seat.session
    if session is not None and session.board is not None and seat.slot >= 0:
        return session.board.id_of(seat)
    # With its time: the address alone would name the next seat that is made there.
    return f"{os.getpid() if session is None else session.name}-{id(seat):x}-{seat.at}"


def seat_record(seat: Seat, rt: Runtime) -> HoldRecord:
    """One seat of this process as `who` shows it."""
    age = max(0.0, (rt.now_ns() - seat.at) / 1e9)
    want = seat.want
    state = "held" if seat.state == HELD else "waiting"
    entry = seat.entry if state == "waiting" else None
    blocked_by = tuple(hold_id(other) for other in entry.holders()) if entry is not None else ()
    return HoldRecord(
        hold_id(seat), want.text, want.namespace, want.mode.value, state, seat.owner,
        since(age, rt.wall()), age, seat.fence, blocked_by=blocked_by,
    )  # fmt: skip
