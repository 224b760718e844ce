"""`postgresql:` - the processes of a fleet, through session advisory locks on a few connections of our own."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Hashable
from typing import Any, Final

from takehold.backends._drivers.wire import ServerError, Statement, Wire, WireLost
from takehold.backends.check import Check
from takehold.backends.postgres import seen
from takehold.backends.postgres.ear import EVERYBODY, NOTIFY, Ear, Question, channel, records_of
from takehold.backends.postgres.line import Line, parse
from takehold.backends.postgres.proving import Facts, facts_of, prove_exclusion, prove_pooler_keeps, refuse
from takehold.backends.postgres.session import PostgresSession
from takehold.backends.postgres.statements import FENCE_FROM, INIT
from takehold.core.backend import Capabilities, Losses, Session
from takehold.core.key import hashed
from takehold.core.record import HoldRecord
from takehold.errors import BackendRefused, BackendUnavailable
from takehold.runtime import Runtime

__all__ = ["PostgresBackend"]

ANSWERS_WITHIN: Final = 0.3
LOOK_AGAIN: Final = 0.1
_sessions: weakref.WeakKeyDictionary[PostgresSession, Hashable] = weakref.WeakKeyDictionary()
"""Open sessions of this process: whoever wants to look uses their ear instead of a new connection."""
_TERMINATE: Final = Statement(
    "takehold_terminate",
    """SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE pid = $1::int AND (EXTRACT(epoch FROM backend_start) * 1000000)::bigint = $2::bigint
        AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
            AND (classid::bigint << 32) | objid::bigint = $3::bigint)""",
)
_TOKEN: Final = Statement(
    "takehold_token",
    """SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'takehold ' || $1::text || ' %'""",
)
_TERMINATE_TOKEN: Final = Statement(
    "takehold_terminate_token",
    """SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'takehold ' || $1::text || ' %'""",
)


class PostgresBackend:
    """Keys as 64-bit advisory locks."""

    capabilities = Capabilities(
        across="server",
        fence="after init",
        many="one trip",
        waiting="queue",
        loss="passive",
        evict="terminate",
        raw_ids=True,
    )
    solo = False

    def __init__(self, url: str) -> None:
        self.url, self.options = parse(url)
        # With a hash of the whole: two passwords are two identities, and neither is shown.
        self.identity: Hashable = ("postgresql", self._masked(), hash(url))

    def place(self, encoded: bytes, number: int | None) -> tuple[Hashable, Any]:
        """64 bits, signed as Postgres wants them; a raw number is itself."""
        if number is None:
            number = hashed(encoded)
            if number >= 2**63:
                number -= 2**64
        return number, number

    def open_now(self, rt: Runtime, losses: Losses) -> Session:
        """Never: it takes a connection."""
        raise AssertionError("Postgres is not opened at once")

    async def open(self, rt: Runtime, losses: Losses, seconds: float) -> PostgresSession:
        """Connect twice, and prove the server with it."""
        until = rt.now() + seconds
        line = Line(self.url, self.options)
        wires: list[Wire] = []
        try:
            try:
                return await self._proved(rt, losses, line, wires, until)
            except BaseException:
                for wire in wires:
                    wire.close()
                raise
        except WireLost as error:
            raise BackendUnavailable(f"no lock session at {self._masked()}: {error}") from error
        except ServerError as error:
            raise BackendRefused(f"{self._masked()} refused a lock session: {error}") from error

    async def _proved(
        self, rt: Runtime, losses: Losses, line: Line, wires: list[Wire], until: float
    ) -> PostgresSession:
        def left() -> float:
            return max(0.1, until - rt.now())

        keeper = await line.raw(rt, left())
        wires.append(keeper)
        facts = await facts_of(keeper, left())
        refuse(keeper, facts, self._masked(), pooler=self.options.pooler)
        keeper.pid = facts.pid
        await keeper.run(line.settings(keeper), left())
        second = await line.connect(rt, left(), "-ear")
        wires.append(second)
        if self.options.pooler == "session":
            await prove_pooler_keeps(keeper, second, left())
        await prove_exclusion(keeper, second, left())
        session = PostgresSession(line, rt, losses, keeper, facts)
        session.ear = Ear(session, second)
        await keeper.prepare(session.statements.keeping, left())
        await session.ear.open(left())
        _sessions[session] = self.identity
        return session

    def _live(self, rt: Runtime) -> PostgresSession | None:
        """An open session of this identity that can be used here."""
        for session, identity in list(_sessions.items()):
            if identity == self.identity and session.lost is None and session.rt == rt and os.getpid() == session.pid:
                return session
        return None

    def _masked(self) -> str:
        from takehold.backends import masked

        return masked(self.url)

    async def _visit(self, rt: Runtime) -> Wire:
        """A short connection, to look or to change something."""
        try:
            return await Line(self.url, self.options).raw(rt, self.options.connect, "-visit")
        except WireLost as error:
            raise BackendUnavailable(f"no connection to {self._masked()}: {error}") from error

    async def _proved_visit(self, rt: Runtime, pooler: str | None = None) -> tuple[Wire, Facts]:
        """The same, but not where nothing, or only half, can be seen."""
        wire = await self._visit(rt)
        try:
            facts = await facts_of(wire, self.options.connect)
            refuse(wire, facts, self._masked(), pooler=pooler or self.options.pooler)
        except BaseException as error:
            wire.close()
            if isinstance(error, WireLost | ServerError):
                raise BackendUnavailable(f"{self._masked()}: {error}") from error
            raise
        return wire, facts

    async def who(self, rt: Runtime) -> list[HoldRecord]:
        """Ask everybody, and add from `pg_locks` those who do not answer."""
        if (session := self._live(rt)) is not None and session.ear is not None:
            answer = await session.ear.who(ANSWERS_WITHIN)
            if answer is not None:
                return answer
        wire, _ = await self._proved_visit(rt)
        try:
            question = await _ask(wire, rt, {"q": "who"}, None, ANSWERS_WITHIN)
            return records_of(question.lines, question.unsaid(await seen.everything(wire)), rt)
        except (WireLost, ServerError) as error:
            raise BackendUnavailable(f"{self._masked()}: {error}") from error
        finally:
            wire.close()

    async def evict(self, rt: Runtime, hold_id: str, *, terminate: bool, timeout: float) -> bool:
        """Ask the owner to give up exactly that hold; with `terminate`, end its session if it does not answer."""
        process, _, spot = hold_id.partition("-")
        pid, _, token = process.partition(".")
        wire, _ = await self._proved_visit(rt)
        try:
            if len(token) == 8:
                question = await _ask(wire, rt, {"q": "evict", "hold": hold_id}, token, min(timeout, LOOK_AGAIN))
                until = rt.now() + timeout - LOOK_AGAIN
                # Who stops a command first answers by going away.
                while not question.answered and await wire.fetch(_TOKEN, token, seconds=5.0) and rt.now() < until:
                    await _heard(wire, rt, question, min(LOOK_AGAIN, until - rt.now()))
                if question.answered or not await wire.fetch(_TOKEN, token, seconds=5.0):
                    return True
                if terminate:
                    await wire.fetch(_TERMINATE_TOKEN, token, seconds=5.0)
            else:
                # From `pg_locks`: the session must still be that one, and still hold that key.
                key = int(spot, 16)
                key = key - 2**64 if key >= 2**63 else key
                there = [one for one in await seen.held(wire, [key]) if one.id == hold_id]
                if not there:
                    return True
                owner = there[0].token
                if owner and (await _ask(wire, rt, {"q": "evict", "key": key}, owner, timeout)).answered:
                    return True
                if terminate:
                    [(ended,)] = await wire.fetch(_TERMINATE, int(pid), int(token, 16), key, seconds=5.0)
                    return bool(ended) or all(one.id != hold_id for one in await seen.held(wire, [key]))
            return terminate
        except (WireLost, ServerError) as error:
            raise BackendUnavailable(f"{self._masked()}: {error}") from error
        finally:
            wire.close()

    async def examine(self, rt: Runtime, long: float) -> list[Check]:
        """What `takehold doctor` shows."""
        from takehold.backends.postgres.doctor import examine

        return await examine(self.url, self.options, self._masked(), rt, long)

    async def init(self, rt: Runtime, *, fence_from: int | None) -> str:
        """Make the schema `takehold` with the sequence that fences come from."""
        wire, facts = await self._proved_visit(rt, pooler="session")
        try:
            if not (facts.fenced and facts.comment):  # made by another role, it would refuse to be made again
                await wire.run(f"BEGIN; SELECT pg_advisory_xact_lock(7166183340216041317); {INIT}; COMMIT")
            if fence_from is not None:
                await wire.run(FENCE_FROM.format(int(fence_from)))
        except (WireLost, ServerError) as error:
            raise BackendRefused(f"{self._masked()} was not prepared: {error}") from error
        finally:
            wire.close()
        return "the schema takehold and the sequence takehold.fence are there: holds have fences from now on"


async def _ask(wire: Wire, rt: Runtime, message: dict[str, Any], token: str | None, seconds: float) -> Question:
    """One question from a connection of its own."""
    me = Line("", None).token  # type: ignore[arg-type]
    await wire.listen(channel(me))
    expected = 1
    if token is None:
        expected = await seen.ears(wire)
    question = Question({**message, "n": 1, "to": channel(me)}, expected)
    where = EVERYBODY if token is None else channel(token)
    await wire.fetch(NOTIFY, where, [json.dumps(question.message)], seconds=5.0)
    await _heard(wire, rt, question, seconds)
    return question


async def _heard(wire: Wire, rt: Runtime, question: Question, seconds: float) -> None:
    until = rt.now() + seconds
    while not question.done and rt.now() < until:
        for _, text in await wire.hear(until - rt.now()):
            answer = json.loads(text)
            if answer.get("a") == 1:
                question.take(answer)
