"""Combining: requests that arrive while the wire is busy leave together in the next statement.

Leader and followers, the same for threads and tasks. Whoever finds the wire idle leads: it sends everything
that is pending, itself included, and hands the lead on. Under asyncio the lead is a task of the session, so
that cancelling a caller cancels no statement; a thread leads on its own stack. Releases ride along.
"""

from __future__ import annotations

from contextlib import suppress

from takehold.core.backend import Ask, Grant, Outcome, SessionLost, TripSession
from takehold.errors import BackendUnavailable
from takehold.runtime import Event, Runtime

__all__ = ["Combiner"]


class _Slot:
    """One caller's ask on its way: pending, sent, answered; or given up by its caller."""

    lead = False
    sent = False
    given_up = False
    outcomes: list[Outcome] | None = None
    error: Exception | None = None

    def __init__(self, ask: Ask | None, event: Event) -> None:
        self.ask = ask
        self.event = event

    @property
    def answered(self) -> bool:
        return self.outcomes is not None or self.error is not None


class Combiner:
    """The one place where statements of a trip session are sent."""

    def __init__(self, session: TripSession, rt: Runtime) -> None:
        self._session = session
        self._rt = rt
        self._mutex = rt.mutex()
        self._busy = False
        self._pending: list[_Slot] = []
        self._releases: list[Grant] = []
        self.statements = 0
        """How many were sent: fewer than requests when combining works."""

    async def ask(self, ask: Ask) -> list[Outcome]:
        """Send one ask with whatever else is pending; the outcomes up to its first busy id."""
        slot = _Slot(ask, self._rt.event())
        return await self._through(slot) or []

    def give(self, grants: list[Grant]) -> None:
        """Note releases; they leave with the next statement, or at once when the wire is idle (asyncio)."""
        with self._mutex:
            self._releases += grants
            kick = not self._busy and self._rt.face != "threads"
            self._busy = self._busy or kick
        if kick:
            self._rt.spawn(self._serve(None), "takehold-statements")

    async def given_back(self, grants: list[Grant]) -> None:
        """Return when these are back at the backend; they may be on their way already."""
        with self._mutex:
            idle = not self._busy and not any(grant in self._releases for grant in grants)
        if not idle:
            # A session that died meanwhile has given back everything.
            with suppress(BackendUnavailable):
                await self._through(_Slot(None, self._rt.event()))

    async def _through(self, slot: _Slot) -> list[Outcome] | None:
        try:
            # Inside: a Ctrl-C between these lines must not leave a request that nobody waits for.
            with self._mutex:
                self._pending.append(slot)
                slot.lead = not self._busy
                self._busy = True
            while not slot.answered:
                if slot.lead:
                    await self._lead(slot)
                if not slot.answered:
                    await slot.event.wait(None)
        except BaseException:
            if late := self._give_up(slot):
                self.give(late)
                if self._rt.face == "threads":
                    await self.given_back(late)
            raise
        if slot.error is not None:
            raise slot.error
        return slot.outcomes

    async def _lead(self, slot: _Slot) -> None:
        if self._rt.face == "threads":
            await self._serve(slot)
        else:
            slot.lead = False
            self._rt.spawn(self._serve(None), "takehold-statements")

    def _give_up(self, slot: _Slot) -> list[Grant]:
        """The caller was cancelled: what it was granted already, to be given back. Its lead goes to the next."""
        with self._mutex:
            slot.given_up = True
            if not slot.sent and slot in self._pending:
                self._pending.remove(slot)
        self._lead_on(slot)
        return _grants(slot.outcomes or [])

    def _pass_lead(self) -> _Slot | None:
        """Under the mutex: name the next leader, or say that the wire is idle."""
        if self._pending:
            self._pending[0].lead = True
            return self._pending[0]
        self._busy = False
        return None

    async def _serve(self, mine: _Slot | None) -> None:
        """Send what is pending, again and again: a thread until its own is answered, a task until nothing is left."""
        while True:
            with self._mutex:
                batch, self._pending = self._pending, []
                releases, self._releases = self._releases, []
                if not batch and not releases:
                    self._busy = False
                    if mine is not None:
                        mine.lead = False
                    return
                for slot in batch:
                    slot.sent = True
            await self._send(releases, batch)
            if mine is not None and mine.answered and not self._late_releases():
                self._lead_on(mine)
                return

    def _late_releases(self) -> bool:
        """Whether a grant came back for somebody who had left, with nobody behind us who would give it back."""
        with self._mutex:
            return bool(self._releases) and not self._pending

    def _lead_on(self, mine: _Slot) -> None:
        """Give the lead to the next, if it is ours; twice is a no-op, so an interrupted leader can do it again."""
        heir = None
        with self._mutex:
            if mine.lead:
                heir = self._pass_lead()
                mine.lead = False
        if heir is not None:
            _ring([heir])

    async def _send(self, releases: list[Grant], batch: list[_Slot]) -> None:
        asking = [slot for slot in batch if slot.ask is not None]
        try:
            answers: list[list[Outcome]] = []
            if asking or releases:
                self.statements += 1
                answers = await self._session.apply(releases, [slot.ask for slot in asking if slot.ask is not None])
        except SessionLost as lost:
            self._deliver(batch, {}, BackendUnavailable(f"the lock session died while asking: {lost}"))
        except BaseException as failure:
            # What the statement did is unknown, so nothing that this session says can be believed any more.
            self._session.close()
            self._deliver(batch, {}, BackendUnavailable(f"a lock statement was interrupted: {failure!r}"))
            raise
        else:
            self._deliver(batch, dict(zip(asking, answers, strict=True)), None)

    def _deliver(self, batch: list[_Slot], answers: dict[_Slot, list[Outcome]], error: Exception | None) -> None:
        with self._mutex:
            for slot in batch:
                slot.error = error
                if error is None:
                    slot.outcomes = answers.get(slot, [])
                    if slot.given_up:
                        self._releases += _grants(slot.outcomes)
        _ring(batch)


def _ring(slots: list[_Slot]) -> None:
    """Wake them all; an interrupt half-way must not leave one asleep for ever."""
    try:
        for slot in slots:
            slot.event.set()
    except BaseException:
        for slot in slots:
            slot.event.set()
        raise


def _grants(outcomes: list[Outcome]) -> list[Grant]:
    return [outcome for outcome in outcomes if isinstance(outcome, Grant)]
