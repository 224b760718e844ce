"""Combining: requests that arrive while the wire is busy leave together in the next statement.

Leader and followers, the same for threads and tasks. Whoever finds the wire idle leads: it sends everything
that is pending, itself included, and hands the lead on. Under asyncio the lead is a task of the session, so
that cancelling a caller cancels no statement; a thread leads on its own stack, and when it must leave before
the answer is there, another thread reads on. Releases ride along.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from takehold.core.backend import Ask, Grant, Granted, Refused, Releasable, SessionLost, TripSession, Unanswered
from takehold.errors import BackendError, BackendUnavailable
from takehold.runtime import Runtime, run

__all__ = ["ANSWER_WITHIN", "Combiner"]

ANSWER_WITHIN: Final = 1.0
"""Seconds a caller gives the server for one answer, however short its own timeout is."""
LOOK_AGAIN: Final = 0.25
"""How often a slow statement is looked at for callers that have waited long enough."""
MAX_BATCH: Final = 256
"""Asks of one statement: while the server works on some, the others' callers can run."""
NAME: Final = "takehold-statements"


class _Load:
    """What one statement carries; `begun` once the session has it."""

    begun = False
    alone = False
    """One key of one task, and what the session carries with it on its shorter way."""

    def __init__(self) -> None:
        self.batch: list[Ask] = []
        self.releases: list[Releasable] = []


class Combiner:
    """The one place where statements of a trip session are sent."""

    def __init__(self, session: TripSession, rt: Runtime) -> None:
        self.session = session
        self._rt = rt
        self._now = rt.now
        self.threads = rt.face == "threads"
        self._mutex = rt.mutex()
        self._busy = False
        self._watched = False
        self._kicked = False
        """Busy only in so far as releases leave at the end of this turn of the loop."""
        self._sent_at = 0.0
        self._pending: list[Ask] = []
        self._sent: list[Ask] = []
        self._releases: list[Releasable] = []
        self.statements = 0
        """How many were sent: fewer than requests when combining works."""
        # Weakly: session and combiner must go with the desk, not wait for the collector.
        session.combiner = weakref.proxy(self)

    async def ask(self, ask: Ask) -> Granted:
        """Send one ask with whatever else is pending; what was granted, up to its first busy id."""
        await self.through(ask)
        if ask.error is not None:
            raise ask.error
        assert ask.granted is not None
        return ask.granted

    def post(self, ask: Ask) -> None:
        """Send one ask with whatever else is pending, and do not wait; for tasks."""
        with self._mutex:
            self._pending.append(ask)
            if self._busy and not self._kicked:
                return
            self._busy, self._kicked = True, False
        # At once, with the releases of this turn of the loop; those who come while it is on its way go together.
        self._rt.start(self._serve(None), NAME)

    @property
    def unsent(self) -> list[Releasable]:
        """What is noted and has not left yet."""
        return self._releases[:]

    def give(self, given: list[Releasable]) -> None:
        """Note releases; they leave with the next statement, or in this turn of the loop when the wire is idle.

        The list is emptied: whoever was interrupted sees by it what is noted.
        """
        if given[0].session is not self.session or (len(given) > 1 and given[-1].session is not self.session):
            # A late one of the session before: it went with it, and the key may be somebody else's by now.
            given[:] = [one for one in given if one.session is self.session]
        with self._mutex:
            self._releases += given
            del given[:]
            kick = not self._busy and self._to_be_kicked()
        if kick:
            self._rt.soon(self._kick)

    def _to_be_kicked(self) -> bool:
        kick = not self._busy and not self.threads
        if kick:
            self._busy = self._kicked = True
        return kick

    def _kick(self) -> None:
        """Nobody came with a question for these releases to ride with."""
        with self._mutex:
            kicked, self._kicked = self._kicked, False
        if kicked:
            self._rt.start(self._serve(None), NAME)

    async def given_back(self, given: list[Releasable], *, surely: bool = True) -> None:
        """Return when these are back at the backend; they may be on their way already.

        Unless `surely`, it is enough that another thread is at work on the wire: whoever leads sends them next.
        """
        with self._mutex:
            idle = not self._busy and not any(one in self._releases for one in given)
            if self._busy and not surely:
                return
        if not idle:
            # A session that died meanwhile has given back everything.
            with suppress(BackendUnavailable):
                await self.through(Ask((), self._now() + ANSWER_WITHIN))

    async def through(self, ask: Ask) -> None:
        """Wait for the answer, leading if nobody does. On the way out nothing that was granted is left behind."""
        try:
            if not self.threads:
                ask.event = signal = self._rt.signal()
                self.post(ask)
                await signal  # `_look_again` sees to its end
            else:
                # Inside: a Ctrl-C between these lines must not leave a request that nobody waits for.
                with self._mutex:
                    self._pending.append(ask)
                    ask.lead = not self._busy
                    if self._busy:
                        ask.event = self._rt.event()
                    self._busy = True
                while ask.granted is None and ask.error is None:
                    if ask.lead:
                        await self._serve(ask)
                    elif not await self._called(ask):
                        raise _unanswered()
        except BaseException:
            if (late := self.give_up(ask)) and self.threads:
                await self.given_back(late)
            raise

    async def _called(self, ask: Ask) -> bool:
        """A thread sleeps until it is answered, or has the lead; False when it has waited long enough."""
        event: Any = ask.event
        return await event.wait(max(0.0, ask.until - self._now()))  # type: ignore[no-any-return]

    def give_up(self, ask: Ask) -> list[Releasable]:
        """The caller was cancelled: what it was granted already is given back. Its lead goes to the next."""
        with self._mutex:
            ask.given_up = True
            if not ask.sent and ask in self._pending:
                self._pending.remove(ask)
            # Under the mutex: what is answered after this goes back by itself. And once only.
            late = [] if ask.lost else self._grants(ask)
            if late:
                self._releases += late
                ask.lost = True
            kick = bool(late) and self._to_be_kicked()
        self._lead_on(ask)
        if kick:
            self._rt.soon(self._kick)
        return late

    def _grants(self, ask: Ask) -> list[Releasable]:
        """An answer that nobody takes, as something to give back."""
        return [
            got if isinstance(got, Grant) else Grant(self.session, want, got, 0)
            for want, got in zip(ask.wants, ask.granted or (), strict=False)
        ]

    async def _serve(self, mine: Ask | None) -> None:
        """Send what is pending, again and again: a thread until its own is answered, a task until nothing is left."""
        while True:
            # Its own: another thread may read this answer and serve the next before an interrupted leader is out.
            load = _Load()
            try:
                with self._mutex:
                    load.batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
                    load.releases, self._releases = self._releases, []
                    if not load.batch and not load.releases:
                        self._busy = False
                        if mine is not None:
                            mine.lead = False
                        return
                    for ask in load.batch:
                        ask.sent = True
                    self._sent = load.batch
                    if len(load.batch) == 1 and not self.threads and self.session.quick:
                        load.alone = self.session.carries(load.releases, load.batch[0])
                if load.alone:
                    await self._send_alone(load)
                else:
                    await self._send(load, mine)
            except BaseException:
                if not load.begun:
                    self._put_back(load)
                raise
            if mine is not None and (mine.granted is not None or mine.error is not None) and not self._late_releases():
                self._lead_on(mine)
                return

    def _put_back(self, load: _Load) -> None:
        """Interrupted before anything was sent: as it was, and somebody else sends the releases."""
        with self._mutex:
            self._pending[:0] = load.batch
            self._releases[:0] = load.releases
            self._sent = []
            for ask in load.batch:
                ask.sent = False
        if load.releases and self.threads:
            self._rt.spawn(self.given_back(load.releases), NAME)

    def _late_releases(self) -> bool:
        """Whether a grant came back for somebody who had left, with nobody behind us who would give it back."""
        if not self._releases:
            return False
        with self._mutex:
            return bool(self._releases) and not self._pending

    def _lead_on(self, mine: Ask) -> None:
        """Give the lead to the next, if it is ours; twice is a no-op, so an interrupted leader can do it again."""
        heir = None
        with self._mutex:
            if mine.lead:
                if self._pending:
                    heir = self._pending[0]
                    heir.lead = True
                else:
                    self._busy = False
                mine.lead = False
        if heir is not None:
            _ring([heir])

    async def _send(self, load: _Load, mine: Ask | None) -> None:
        """One statement and its answer; when we must leave before it is there, somebody else waits for it."""
        batch = load.batch
        asks = [ask for ask in batch if ask.wants]
        if not asks and not load.releases:
            load.begun = True
            self._deliver(batch, [], None)
            return
        self.statements += 1
        seconds = math.inf
        if self.threads:
            if mine is not None:
                seconds = max(0.0, mine.until - self._now())
        else:
            self._watch()
        try:
            try:
                load.begun = True
                answers = await self.session.apply(load.releases, asks, seconds)
                # Inside: an interrupt on the way to it finds a session that cannot be trusted, and not a lost answer.
                self._deliver(batch, list(zip(asks, answers, strict=True)), None)
            except (SessionLost, Refused) as failure:
                self._deliver(batch, [], _error_of(failure))
        except BaseException as failure:
            self._leave(batch, asks, mine, failure)
            if isinstance(failure, Unanswered):
                raise _unanswered() from None
            raise

    async def _send_alone(self, load: _Load) -> None:
        """The same for one key of one task: what most of a program sends that is not busy."""
        self.statements += 1
        self._watch()
        [ask] = load.batch
        try:
            try:
                load.begun = True
                granted = await self.session.fetch_quickly(load.releases, ask)
                self._deliver(load.batch, [(ask, granted)], None)
            except (SessionLost, Refused) as failure:
                self._deliver(load.batch, [], _error_of(failure))
        except BaseException as failure:
            self._leave(load.batch, load.batch, None, failure)
            raise

    def _leave(self, batch: list[Ask], asks: list[Ask], mine: Ask | None, failure: BaseException) -> None:
        """The leader must go before the answer is there: another thread reads it, or the session ends."""
        if mine is not None and self.session.in_flight:
            mine.lead = False
            self._rt.spawn(self._read_on(batch, asks), NAME)
        else:
            # What the statement did is unknown, so nothing that this session says can be believed any more.
            self.session.die(f"a lock statement was interrupted: {failure!r}")
            self._deliver(batch, [], BackendUnavailable(f"a lock statement was interrupted: {failure!r}"))

    async def _read_on(self, batch: list[Ask], asks: list[Ask]) -> None:
        """In a thread of its own: the answer that its leader could not wait for, then whatever is pending."""
        try:
            try:
                answers = await self.session.answer()
                self._deliver(batch, list(zip(asks, answers, strict=True)), None)
            except (SessionLost, Refused) as failure:
                self._deliver(batch, [], _error_of(failure))
        except BaseException as failure:
            self._leave(batch, asks, None, failure)
            raise
        finally:
            await self._serve(None)

    def _watch(self) -> None:
        self._sent_at = self._now()
        if not self._watched:
            self._watched = True
            self._rt.later(LOOK_AGAIN, self._look_again)

    # -- a thread that has the wire for itself -------------------------------------------------------

    def ask_quickly(self, ask: Ask) -> bool:
        """One question on the caller's own stack, with nothing around it; False when the wire is not idle."""
        try:
            # Inside: a Ctrl-C between these lines must not leave a lead that nobody has.
            with self._mutex:
                if self._busy or self._releases or self._pending:
                    return False
                ask.lead = ask.sent = self._busy = True
            self._statement((), ask, ask)
        except BaseException:
            if late := self.give_up(ask):
                run(self.given_back(late))
            raise
        return True

    def give_quickly(self, given: list[Releasable]) -> None:
        """Note one release, and send it at once when the wire is idle; else who is at work there sends it next."""
        mine = Ask((), self._now() + ANSWER_WITHIN)
        try:
            with self._mutex:
                self._releases += given
                del given[:]
                if self._busy or self._pending or len(self._releases) > 1 or not self.session.quick:
                    alone = False
                else:
                    alone = mine.lead = self._busy = True
            if not alone:
                run(self.given_back(self._releases[:], surely=False))
                return
            # It stays noted until it is done, or surely on its way.
            self._statement(self._releases[:1], None, mine)
        except BaseException as failure:
            self._lead_on(mine)
            # It does not answer: it is noted, or its session ends; either way nothing is ours any more.
            if not isinstance(failure, BackendUnavailable):
                raise

    def _statement(self, releases: Sequence[Releasable], ask: Ask | None, mine: Ask) -> None:
        self.statements += 1
        mine.sent = True
        try:
            try:
                self.session.apply_quickly(releases, mine, mine.until - self._now())
            except (SessionLost, Refused) as failure:
                self._deliver([] if ask is None else [ask], [], _error_of(failure))
            if ask is None:
                del self._releases[:1]
        except BaseException as failure:
            if ask is None:
                del self._releases[:1]
            if mine.granted is None:
                batch = [] if ask is None else [ask]
                self._leave(batch, batch, mine, failure)
            if isinstance(failure, Unanswered):
                raise _unanswered() from None
            raise
        if self._releases and self._late_releases():
            run(self._serve(mine))
        self._lead_on(mine)

    def _look_again(self) -> None:
        """While statements are on their way: let go of tasks that have waited for their answer long enough."""
        now = self._now()
        with self._mutex:
            late = [ask for ask in (*self._sent, *self._pending) if ask.until <= now and not ask.given_up]
            late = [ask for ask in late if ask.granted is None and ask.error is None]
            for ask in late:
                ask.given_up = True
                ask.error = _unanswered()
                if not ask.sent:
                    self._pending.remove(ask)
            self._watched = self._busy
            unanswered = now - self._sent_at if self._sent else 0.0
        _ring(late)
        if unanswered > LOOK_AGAIN:
            self.session.overdue(unanswered)
        if self._watched:
            self._rt.later(LOOK_AGAIN, self._look_again)

    def _deliver(self, batch: list[Ask], answers: list[tuple[Ask, Granted]], error: Exception | None) -> None:
        try:
            self._hand_out(batch, answers, error)
        except BaseException:
            # Interrupted half-way: to the end, before anybody can miss an answer. Each step can be done twice.
            self._hand_out(batch, answers, error)
            raise

    def _hand_out(self, batch: list[Ask], answers: list[tuple[Ask, Granted]], error: Exception | None) -> None:
        with self._mutex:
            for ask, granted in answers:
                ask.granted = granted
                if ask.given_up and not ask.lost:
                    late = self._grants(ask)
                    # Together, with no call between: an interrupt finds both done, or neither.
                    self._releases += late
                    ask.lost = True
            if len(answers) < len(batch):
                for ask in batch:
                    if error is not None:
                        ask.error = error
                    elif ask.granted is None:
                        ask.granted = ()
            self._sent = []
            # Tasks run while they are woken: a large statement that could leave now does so first.
            first = not self.threads and len(self._pending) * 2 > len(batch)
        if first:
            self._rt.soon(partial(_ring, batch))
        else:
            _ring(batch)


def _error_of(failure: SessionLost | Refused) -> BackendError:
    if isinstance(failure, Refused):
        return failure.error
    return BackendUnavailable(f"the lock session died while asking: {failure}")


def _unanswered() -> BackendUnavailable:
    return BackendUnavailable("the lock server did not answer in time; nothing is held for this call")


def _ring(asks: list[Ask]) -> None:
    """Wake them all; an interrupt half-way must not leave one asleep for ever."""
    try:
        for ask in asks:
            if ask.event is not None:
                ask.event.set()
    except BaseException:
        for ask in asks:
            if ask.event is not None:
                ask.event.set()
        raise
