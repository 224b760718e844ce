"""Asking a backend that answers over a wire: one statement for as many keys of a request as it can carry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from takehold.core.backend import Ask, Grant, Granted, Session
from takehold.core.combine import ANSWER_WITHIN
from takehold.core.deadline import Deadline
from takehold.core.register import Aftermath
from takehold.core.seat import HELD, NEW, Seat
from takehold.core.waits import cycle_sentence
from takehold.errors import WouldDeadlock
from takehold.runtime import Runtime, run

if TYPE_CHECKING:
    from takehold.core.desk import Desk

__all__ = ["ask", "ask_alone", "ask_quickly", "ask_together", "collect", "post", "take_back", "vouch"]


def _until(deadline: Deadline | None, rt: Runtime) -> float:
    """How long to wait for an answer: one attempt always gets a moment, a long wait no longer than it has."""
    soon = rt.now() + ANSWER_WITHIN
    return soon if deadline is None else max(soon, deadline.at)


def _question(seat: Seat, seconds: float | None, now: float) -> Ask:
    """The same for one key and a time in seconds, without a deadline object: for ever when there is none."""
    return Ask((seat.want,), math.inf if seconds is None else now + max(seconds, ANSWER_WITHIN))


def post(desk: Desk, seat: Seat, seconds: float | None, now: float, rt: Runtime) -> Ask | None:
    """Begin the plain case without waiting: one key that nobody here has, on a live session. None when it is not that.

    Then await its event, which is a signal, and `collect`; or `take_back`. For tasks: threads lead, and do not post.
    """
    register, combiner = desk._register, desk._combiner
    session = register.session
    if combiner is None or session is None or session.lost is not None or combiner.threads:
        return None
    if combiner.session.room < 1:
        combiner.session.admit(1)
    with desk._mutex:
        if not register.ask_alone(seat, session):
            return None
    question = _question(seat, seconds, now)
    question.event = rt.signal()
    combiner.post(question)
    return question


def ask_quickly(desk: Desk, seat: Seat, seconds: float | None, now: float, rt: Runtime) -> bool | None:
    """The plain case for a thread that finds the wire idle: no coroutine, one statement.

    True when granted, False when busy: then it is first in line. None when it is not that case.
    """
    register, combiner = desk._register, desk._combiner
    session = register.session
    if combiner is None or session is None or session.lost is not None or not combiner.session.quick:
        return None
    if combiner.session.room < 1:
        combiner.session.admit(1)
    question = _question(seat, seconds, now)
    try:
        with desk._mutex:
            if not register.ask_alone(seat, session):
                return None
        if not combiner.ask_quickly(question):
            run(combiner.through(question))
        return collect(desk, seat, question, rt, True)
    except BaseException:
        run(take_back(desk, [seat], question, rt))
        raise


def collect(desk: Desk, seat: Seat, question: Ask, rt: Runtime, waits: bool) -> bool:
    """The answer is there: sit down and say True. Or False: first in line if it waits, else nothing is left."""
    register = desk._register
    if question.granted:
        fence: Any = question.granted[0]
        session = seat.session
        assert session is not None
        after = None
        with desk._mutex:
            if seat.entry is None:
                try:
                    register.sit_alone(seat, fence)
                except BaseException:
                    register.sit_alone(seat, fence)
                    raise
            else:
                # Somebody came to stand behind it meanwhile.
                after = Aftermath()
                seat.entry.asking = False
                desk._decide(register.settle, seat, Grant(session, seat.want, fence, rt.now_ns()), after)
        if after is not None:
            desk._finish(after)
        if session.lost is not None:
            vouch(desk, [seat])
        return True
    if question.error is not None:
        raise question.error
    _refused(desk, seat, rt, waits=waits)
    return False


def vouch(desk: Desk, seats: list[Seat]) -> None:
    """Tell those whose session died between its answer and their sitting down: nobody else knew of them."""
    for seat in seats:
        if seat.state == HELD and seat.session is not None and seat.session.lost is not None:
            desk.lose(seat, seat.session.lost)


async def take_back(desk: Desk, seats: list[Seat], question: Ask, rt: Runtime) -> None:
    """Leave a question before its answer, or after it: nothing is held or in line afterwards."""
    combiner = desk._combiner
    assert combiner is not None
    # Seats that sit already give back what they sit on, themselves.
    late = [] if seats[0].state == HELD else combiner.give_up(question)
    for seat in seats:
        if seat.entry is not None:
            seat.entry.asking = False
    await desk._abandon(seats, rt)
    if late:
        await rt.shield(combiner.given_back(late))


async def ask_alone(desk: Desk, seat: Seat, session: Session, deadline: Deadline | None, rt: Runtime) -> bool | None:
    """The plain case: one key that nobody here has. True when granted; None when somebody here has it.

    False leaves the seat first in line for its key, unless there is no deadline: then nothing is left.
    """
    combiner, register = desk._combiner, desk._register
    assert combiner is not None
    combiner.session.admit(1)
    with desk._mutex:
        if register.session is not session or not register.ask_alone(seat, session):
            return None
    question = Ask((seat.want,), _until(deadline, rt))
    try:
        await combiner.through(question)
        return collect(desk, seat, question, rt, waits=deadline is not None)
    except BaseException:
        await take_back(desk, [seat], question, rt)
        raise


async def ask_together(
    desk: Desk, seats: list[Seat], session: Session, deadline: Deadline | None, rt: Runtime
) -> int | None:
    """Several keys that nobody here has: one question, no queue. How many were granted, from the front.

    None when that is not so, and nothing was asked.
    """
    register = desk._register
    with desk._mutex:
        if register.session is not session or not register.ask_all(seats, session):
            return None
    return await _answered(desk, seats, Ask(tuple([seat.want for seat in seats]), _until(deadline, rt)), rt, None)


async def _answered(desk: Desk, seats: list[Seat], question: Ask, rt: Runtime, agent: Seat | None) -> int:
    """Wait for the answer and let sit down what was granted, from the front; how many that were."""
    combiner = desk._combiner
    assert combiner is not None
    after = Aftermath()
    try:
        combiner.session.admit(len(seats))
        answer = await combiner.ask(question)
        with desk._mutex:
            desk._decide(_sit_together, desk, seats, answer, after, rt, agent)
    except BaseException:
        await take_back(desk, seats, question, rt)
        raise
    desk._finish(after)
    vouch(desk, seats)
    return len(answer)


def _sit_together(
    desk: Desk, seats: list[Seat], answer: Granted, after: Aftermath, rt: Runtime, agent: Seat | None
) -> None:
    """Under the mutex: those that were granted sit down, the others are as if they had not been asked for.

    Not the agent: it stays at the head of its line, to wait for everybody.
    """
    register = desk._register
    for seat, got in zip(seats, answer, strict=False):
        if seat.entry is None and not isinstance(got, Grant):
            register.sit_alone(seat, got)
        elif seat.session is not None:
            # Also one that is held: when this was interrupted in the middle, it may sit and still stand in line.
            assert seat.entry is not None
            seat.entry.asking = False
            grant = got if isinstance(got, Grant) else Grant(seat.session, seat.want, got, rt.now_ns())
            register.settle(seat, seat.grant or grant, after)
    for seat in seats[len(answer) :]:
        if seat.entry is not None:
            # Readers that waited for this very answer look again.
            seat.entry.asking = False
            after.wake += [other for other in seat.entry.queue or () if other is not seat]
        if seat is not agent and seat.state != NEW:
            register.step_back(seat, after)


def _refused(desk: Desk, seat: Seat, rt: Runtime, *, waits: bool) -> None:
    """Busy elsewhere: this seat waits for everybody who comes; refuse a wait that could never end."""
    register = desk._register
    sentence = None
    after = Aftermath()
    with desk._mutex:
        if waits:
            register.into_line(seat, rt)
            if register.held.get(seat.me):
                sentence = cycle_sentence(seat, register.held, register.waits)
        if seat.entry is not None:
            # Readers that waited for this very answer look again.
            seat.entry.asking = False
            after.wake = [other for other in seat.entry.queue or () if other is not seat]
    desk._finish(after)
    if sentence is not None:
        seat.caller.tell("deadlock", seat, 0.0)
        raise WouldDeadlock(sentence, key=seat.want.text)


async def ask(desk: Desk, seats: list[Seat], deadline: Deadline | None, rt: Runtime) -> int:
    """Ask for the agent's seat and for every following one that nobody here has; how many were granted."""
    with desk._mutex:
        asked = desk._register.claim(seats, rt)
    first = asked[0].entry
    question = Ask(tuple([seat.want for seat in asked]), _until(deadline, rt))
    question.beside = first is not None and first.occupied
    return await _answered(desk, asked, question, rt, asked[0])
