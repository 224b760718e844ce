"""The ear: one connection per process that listens, so that owners can be asked who they are.

Every session hears two channels: `takehold` for everybody, and one with its token. Questions and answers are
small JSON texts; long answers come in parts. Nothing of this touches the connections that hold.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from takehold.backends._drivers.wire import ServerError, Statement, Wire, WireLost
from takehold.backends.postgres import seen
from takehold.backends.postgres.seen import Held, PostgresLine
from takehold.core.cycle import Picture, sentence, youngest
from takehold.core.deadline import Backoff
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.waits import hold_id
from takehold.core.want import Want
from takehold.runtime import Runtime

if TYPE_CHECKING:
    from takehold.backends.postgres.session import PostgresSession

__all__ = ["EVERYBODY", "NOTIFY", "Ear", "Question", "channel", "records_of"]

log = logging.getLogger(__name__)
EVERYBODY: Final = "takehold"
TICK: Final = 1.0
OWNER_ANSWERS_WITHIN: Final = 0.05
CHASE_WITHIN: Final = 0.2
LEARN_WITHIN: Final = 0.5
MAX_HEARD_OF: Final = 1000
MAX_PART: Final = 7_500
"""Bytes of one notification; the server takes 8 000."""
WATCH_FROM: Final = 500
"""Locks of our own from which the whole server is counted, once a second."""
MAX_HOPS: Final = 16
EVICTED: Final = "evicted by an operator"
CANCEL: Final = Statement("takehold_cancel", "SELECT pg_cancel_backend($1::int)")
NOTIFY: Final = Statement("takehold_notify", "SELECT pg_notify($1::text, part) FROM unnest($2::text[]) AS p(part)")


def channel(token: str) -> str:
    """Where one session listens."""
    return f"{EVERYBODY}_{token}"


def parts_of(message: dict[str, Any], lines: list[list[Any]]) -> list[str]:
    """An answer in texts that fit into notifications; each can be read alone."""
    parts: list[list[list[Any]]] = [[]]
    size = 0
    for line in map(_fitting, lines):
        length = len(_text(line).encode()) + 2
        if size + length > MAX_PART - 400 and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(line)
        size += length
    return [_text({**message, "of": len(parts), "lines": part}) for part in parts]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _fitting(line: list[Any]) -> list[Any]:
    """A line that fits into one notification: control characters take six letters each."""
    if len(_text(line).encode()) <= MAX_PART - 400:
        return line
    return [item[:200] + "..." if isinstance(item, str) and len(item) > 200 else item for item in line]


@dataclass(eq=False)
class Question:
    """Something to find out."""

    message: dict[str, Any]
    expected: int
    """Answers after which there is nothing to wait for."""
    lines: list[PostgresLine] = field(default_factory=list)
    answered: dict[str, int] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)

    def take(self, answer: dict[str, Any]) -> None:
        """One part of one answer."""
        self.lines += [PostgresLine.read(answer["from"], line) for line in answer["lines"]]
        left = self.answered.get(answer["from"], answer["of"]) - 1
        self.answered[answer["from"]] = left
        if left <= 0:
            self.pids.update(answer["pids"])

    def unsaid(self, rows: list[Held]) -> list[Held]:
        """Of what the server knows, what no owner has told: of an answer that came in part the rest, too."""
        told = {(line.process, line.key_id) for line in self.lines}
        return [one for one in rows if one.pid not in self.pids and (one.token, one.key) not in told]

    @property
    def done(self) -> bool:
        """Whether everybody has answered, to the last part."""
        return sum(left <= 0 for left in self.answered.values()) >= self.expected


class Ear:
    """Listens, answers, asks; its own thread or task."""

    def __init__(self, session: PostgresSession, wire: Wire) -> None:
        self.rt: Runtime = session.rt
        self.token = session.line.token
        self._line = session.line
        self._weakly = weakref.ref(session)
        self._wire = wire
        self._jobs: list[Any] = []
        """Coroutines to be run where the wire is used: one at a time, between what is heard."""
        self._questions: dict[int, Question] = {}
        self._number = 0
        self._heard_of: dict[int, list[HoldRecord]] = {}
        """Who had a key when a wait for it began."""
        self._chasing: set[Seat] = set()
        self._verdicts: weakref.WeakKeyDictionary[Seat, str] = weakref.WeakKeyDictionary()
        self.closed = False

    async def open(self, seconds: float) -> None:
        """Begin to listen."""
        await self._listen(seconds)
        self.rt.spawn(_listen(self), "takehold-ear")

    async def _listen(self, seconds: float) -> None:
        await self._wire.listen(EVERYBODY, seconds)
        await self._wire.listen(channel(self.token), seconds)

    def close(self) -> None:
        """Stop, from any thread. Hang up at once: a loop that is about to end may not run the listener again."""
        self.closed = True
        self._wire.close()

    def after_fork(self) -> None:
        """The child's copy of the socket."""
        self.closed = True
        self._wire.after_fork()

    # -- asking --------------------------------------------------------------------------------------

    async def _run(self, job: Any, seconds: float) -> Any:
        """Have a job done by the listener, and wait for its result at most so long."""
        if self.closed:
            job.close()
            return None
        done = self.rt.event()
        box: list[Any] = []
        self._jobs.append((job, box, done))
        self._wire.nudge()
        await done.wait(seconds)
        return box[0] if box else None

    async def _ask(
        self, message: dict[str, Any], to: list[str], seconds: float, expected: int | None = None
    ) -> Question:
        """In the listener: send a question, and go on listening until it is answered. Nobody named: everybody."""
        self._number += 1
        number = self._number
        expected = len(to) if expected is None else expected
        question = Question({**message, "n": number, "to": channel(self.token)}, expected)
        self._questions[number] = question
        try:
            for where in [EVERYBODY] if not to and expected else map(channel, to):
                await self._wire.fetch(NOTIFY, where, [json.dumps(question.message)], seconds=1.0)
            until = self.rt.now() + seconds
            while not question.done:
                left = until - self.rt.now()
                if left <= 0:
                    break
                await self._hear(left)
        finally:
            del self._questions[number]
        return question

    async def holders(self, want: Want) -> list[HoldRecord]:
        """Who has this key, for an error message: what the server knows, and what owners say in time."""
        found: list[HoldRecord] | None = await self._run(self._holders(want), OWNER_ANSWERS_WITHIN)
        if found and not all(record.silent for record in found):
            return found
        return self._heard_of.get(want.place) or found or []

    def inquire(self, want: Want) -> None:
        """Ask now who has this key, for an error message that may come: its owner may be slow then."""
        self._jobs.append((self._learn(want), [], self.rt.event()))
        self._wire.nudge()

    async def _learn(self, want: Want) -> None:
        if len(self._heard_of) >= MAX_HEARD_OF:
            self._heard_of.clear()
        self._heard_of[want.place] = await self._holders(want, LEARN_WITHIN)

    async def _holders(self, want: Want, seconds: float = OWNER_ANSWERS_WITHIN * 0.8) -> list[HoldRecord]:
        held = [one for one in await seen.held(self._wire, [want.place]) if one.granted]
        tokens = sorted({one.token for one in held if one.token and one.token != self.token})
        question = await self._ask({"q": "chain", "keys": [want.place]}, tokens, seconds)
        lines = [line for line in question.lines if line.held and line.key_id == want.place]
        known = [line.record(self.rt) for line in lines]
        return known + [one.record(self.rt, want) for one in question.unsaid(held)]

    async def who(self, seconds: float) -> list[HoldRecord] | None:
        """Everybody, by their own account or the server's; None when we cannot ask."""
        found: list[HoldRecord] | None = await self._run(self._who(seconds), seconds + 1.0)
        return found

    async def _who(self, seconds: float) -> list[HoldRecord]:
        question = await self._ask({"q": "who"}, [], seconds, await seen.ears(self._wire))
        return records_of(question.lines, question.unsaid(await seen.everything(self._wire)), self.rt)

    async def cancel(self, pid: int) -> bool:
        """Cancel what a server process of ours is doing; False when the server could not be asked in time."""
        return await self._run(self._wire.fetch(CANCEL, pid, seconds=1.0), 1.0) is not None

    # -- deadlocks -----------------------------------------------------------------------------------

    def deadlock(self, seat: Seat) -> str | None:
        """What the last chase found for this waiter; begins another one."""
        if seat in self._chasing or self.closed:
            return None
        verdict = self._verdicts.pop(seat, None)
        if verdict is None:
            self._chasing.add(seat)
            self._jobs.append((self._chase(seat), [], self.rt.event()))
            self._wire.nudge()
        return verdict

    async def _chase(self, seat: Seat) -> None:
        """Follow who waits for whom from this waiter on, twice: a cycle counts when nothing of it has moved."""
        try:
            first = await self._cycle(seat)
            second = await self._cycle(seat) if first else None
            stands = first and second and [line.id for line in first] == [line.id for line in second]
            if second and stands and youngest(second).id == hold_id(seat):
                self._verdicts[seat] = sentence(second)
                if seat.event is not None:
                    seat.event.set()
        finally:
            self._chasing.discard(seat)

    async def _cycle(self, seat: Seat) -> list[Any] | None:
        lines: dict[str, PostgresLine] = {}
        todo, done = {seat.want.place}, set[int]()
        for _ in range(MAX_HOPS):
            if not todo:
                break
            tokens = {one.token for one in await seen.held(self._wire, sorted(todo)) if one.token}
            keys = sorted(todo)
            for line in self._chain(keys):
                lines[line.id] = line
            tokens.discard(self.token)
            question = await self._ask({"q": "chain", "keys": keys}, sorted(tokens), CHASE_WITHIN)
            for line in question.lines:
                lines[line.id] = line
            done |= todo
            todo = {line.key_id for line in lines.values() if not line.held} - done
        return Picture(list(lines.values())).cycle(hold_id(seat))

    # -- answering -----------------------------------------------------------------------------------

    async def _hear(self, seconds: float) -> None:
        """Wait for notifications, and deal with each. Anybody may send one: what makes no sense costs nothing."""
        for _, text in await self._wire.hear(seconds):
            try:
                message = json.loads(text)
                if "a" in message:
                    question = self._questions.get(message["a"])
                    if question is not None:
                        question.take(message)
                elif "q" in message:
                    await self._answer(message)
            except WireLost:
                raise
            except (ServerError, ValueError, TypeError, LookupError, AttributeError) as error:
                log.warning("cannot make sense of %.200r: %s", text, error, extra={"event": "ear.puzzled"})

    async def _answer(self, message: dict[str, Any]) -> None:
        session = self._weakly()
        if session is None or session.lost is not None:
            return
        lines: Iterable[PostgresLine] = ()
        if message["q"] == "who":
            lines = self._lines()
        elif message["q"] == "chain":
            lines = self._chain(message["keys"])
        elif message["q"] == "evict":
            lines = self._evict(message.get("hold"), message.get("key"))
        pids = [session.keeper.pid, self._wire.pid, *(wire.pid for wire in session.waiters.wires)]
        reply = {"a": message["n"], "from": self.token, "pids": pids}
        await self._wire.fetch(NOTIFY, message["to"], parts_of(reply, [line.text() for line in lines]), seconds=5.0)

    def _seats(self) -> list[Seat]:
        session = self._weakly()
        try:
            seats: list[Seat] = [] if session is None else session.losses.busy()
        except ReferenceError:
            return []
        return seats

    def _lines(self) -> list[PostgresLine]:
        """Every holder and waiter of this session."""
        return [PostgresLine.of(self.token, seat, self.rt) for seat in self._seats() if not seat.in_passing]

    def _chain(self, keys: list[int]) -> list[PostgresLine]:
        """Who holds or waits for these keys, and what those tasks or threads hold and wait for."""
        wanted = set(keys)
        seats = self._seats()
        parties = {id(seat.me) for seat in seats if seat.want.place in wanted}
        chosen = [
            seat for seat in seats if seat.want.place in wanted or (id(seat.me) in parties and seat.state != seen.HELD)
        ]
        return [PostgresLine.of(self.token, seat, self.rt) for seat in chosen]

    def _evict(self, hold: str | None, key: int | None) -> list[PostgresLine]:
        """Give up exactly this hold, or whoever holds this key; the lines of what was given up are the answer."""
        session = self._weakly()
        chosen = [seat for seat in self._seats() if seat.state == seen.HELD]
        chosen = [seat for seat in chosen if (seat.want.place == key if hold is None else hold_id(seat) == hold)]
        lines = [PostgresLine.of(self.token, seat, self.rt) for seat in chosen]
        for seat in chosen:
            if session is not None:
                session.losses.lose(seat, EVICTED)
        return lines

    # -- the listener --------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One round: what is heard, what was asked for, and once in a while a look at the lock table."""
        if self._wire.lost is not None:
            await self._reconnect()
        await self._hear(0.0 if self._jobs else TICK)
        while self._jobs and not self.closed:
            job, box, done = self._jobs.pop(0)
            try:
                box.append(await job)
            except ServerError as error:
                log.warning("a question to the server failed: %s", error, extra={"event": "ear.failed"})
            finally:
                done.set()
        session = self._weakly()
        if session is not None and session.lost is None:
            with_many = session.held > min(WATCH_FROM, session.max_held // 2)
            session.elsewhere = await seen.count(self._wire) if with_many else 0

    async def _reconnect(self) -> None:
        backoff = Backoff(0.05, 5.0, self.rt.random)
        while True:
            await self.rt.sleep(backoff.next())
            with suppress(WireLost, ServerError):
                self._wire = await self._line.connect(self.rt, self._line.options.connect, "-ear")
                if not self.closed:
                    await self._listen(self._line.options.connect)
                    return
            # Also one that is fine: if the session ended meanwhile, it has hung up the wire before this one.
            self._wire.close()
            if self.closed:
                return

    def end_session(self) -> None:
        """Nobody can listen any more."""
        if (session := self._weakly()) is not None:
            session.close()

    def hang_up(self) -> None:
        """The end of the listener."""
        self.closed = True
        for job, _, done in self._jobs:
            job.close()
            done.set()
        self._jobs.clear()
        self._wire.close()


async def _listen(ear: Ear) -> None:
    try:
        while not ear.closed:
            try:
                await ear.tick()
            except WireLost:
                continue
            except ServerError as error:
                log.warning("a look at the server failed: %s", error, extra={"event": "ear.failed"})
                await ear.rt.sleep(TICK)
    except BaseException:
        # The loop is being closed around us: what else is open on it must be closed now, too.
        ear.end_session()
        raise
    finally:
        ear.hang_up()


def records_of(lines: list[PostgresLine], silent: list[Held], rt: Runtime) -> list[HoldRecord]:
    """Holders and waiters as `who` shows them, with who is in whose way."""
    holders = [(line.id, line.key_id, line.shared) for line in lines if line.held]
    holders += [(one.id, one.key, one.shared) for one in silent if one.granted]

    def ahead(key: int, shared: bool) -> tuple[str, ...]:
        return tuple(id for id, held, together in holders if held == key and not (together and shared))

    return [line.record(rt, () if line.held else ahead(line.key_id, line.shared)) for line in lines] + [
        replace(one.record(rt, None), blocked_by=() if one.granted else ahead(one.key, one.shared)) for one in silent
    ]
