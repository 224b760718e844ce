"""The ledger: who may write, what is done, what failed. `claim` and `write` are the two halves of decision 0012."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event

from takehold import Conflict
from takehold.fragments.fragment import Fragment
from takehold.fragments.ledger.claim import DONE, FAILED, Claim, Past
from takehold.fragments.ledger.lane import Job, Lane
from takehold.fragments.ledger.link import Link
from takehold.fragments.ledger.place import Place
from takehold.fragments.ledger.schema import check_format, make_tables, tables_are_there
from takehold.fragments.ledger.statements import batch, facts_of, statements_for
from takehold.fragments.ledger.trouble import Trouble, hear, ours, theirs
from takehold.fragments.pipeline import Pipeline

__all__ = ["Claim", "Ledger", "Past"]

T = TypeVar("T")
MOST_OF_AN_ERROR: Final = 2_000
PAUSES: Final = (0.05, 0.2, 1.0)
"""Seconds before a write is tried again that the database did not take for a reason of its own."""


class Ledger:
    """The ledger of one pipeline in one process. On Postgres it has two connections, on SQLite one."""

    def __init__(self, place: Place, pipeline: Pipeline[Any], label: str | None = None) -> None:
        self.place = place
        self._pipeline = pipeline
        self._sql = statements_for(place.kind)
        self._facts = facts_of(pipeline.profile)
        self._owner = f"{socket.gethostname()}:{os.getpid()}" + (f" ({label})" if label else "")
        self._writing = place.engine()
        event.listen(self._writing, "handle_error", hear)
        # Two writers of one SQLite file would only wait for each other.
        self._stamping = place.engine(stamps=True) if place.kind == "postgresql" else self._writing
        self._writes = Lane("takehold-ledger", partial(self._do, self._writing))
        apart = self._stamping is not self._writing
        self._stamps = Lane("takehold-ledger-stamps", partial(self._do, self._stamping)) if apart else self._writes

    def gather(self, seconds: float) -> None:
        """Let the lanes wait so long for larger batches: for workers that have enough other work meanwhile."""
        self._stamps.gather = self._writes.gather = seconds

    # -- what workers ask for --------------------------------------------------------------------------------

    def claim(self, claim: Claim) -> Future[bool]:
        """Stamp it and look what is known of it; False when a newer claim has been there."""
        return self._stamps.post("claim", claim)

    def write(self, claim: Claim, fragment: Fragment, result: Any) -> Future[None]:
        """Replace the results of a fragment and note that it is done; `HoldLost` when it is not ours any more."""
        return self._writes.post("write", _Write(claim, fragment, result))

    def remove(self, claim: Claim) -> Future[None]:
        """Remove the results of a fragment that is gone, and forget it."""
        return self._writes.post("write", _Write(claim, None, None))

    def fail(self, claim: Claim, error: BaseException) -> Future[None]:
        """Note one more attempt that failed."""
        return self._writes.post("fail", (claim, _shown(error)))

    def find(self, identities: Iterable[str]) -> dict[str, dict[str, Past]]:
        """What is known of each of these, by hash."""
        facts = {**self._facts, "batch": batch({"identity": identity} for identity in identities)}
        found: dict[str, dict[str, Past]] = defaultdict(dict)
        for identity, digest, *past in self._call(lambda connection: Link(connection).send(self._sql.find, facts)):
            found[identity][digest] = Past(*past)
        return found

    def known(self, corpus: str) -> list[tuple[str, str, str]]:
        """Identity, document and newest hash of all that has a run in this corpus, in any version of the profile."""
        facts = {**self._facts, "corpus": corpus}
        return self._call(lambda connection: Link(connection).send(self._sql.known, facts))

    def force(self, corpus: str) -> int:
        """Make all of this corpus due again; how much that is."""
        facts = {**self._facts, "corpus": corpus}
        return self._call(lambda connection: Link(connection).change(self._sql.force, facts))

    def prepare(self) -> None:
        """Make the tables, ours and those of the results; the caller holds a lock."""

        def make(connection: Connection) -> None:
            make_tables(connection)
            if self._pipeline.prepare is not None:
                self._pipeline.prepare(connection)

        self._call_on(self._writes, make)

    def prepared(self) -> bool:
        """Whether our tables are there, in our format."""

        def look(connection: Connection) -> bool:
            there = tables_are_there(connection)
            if there:
                check_format(connection)
            return there

        return self._call_on(self._writes, look)

    def close(self, seconds: float | None = None) -> None:
        """Do what was asked for, and hang up; what comes later is refused."""
        ended = [lane.close(seconds) for lane in {self._stamps, self._writes}]
        if all(ended):
            self._stamping.dispose()
            self._writing.dispose()

    # -- what the lanes do -----------------------------------------------------------------------------------

    def _call(self, function: Callable[[Connection], T]) -> T:
        return self._call_on(self._stamps, function)

    @staticmethod
    def _call_on(lane: Lane, function: Callable[[Connection], T]) -> T:
        answer: T = lane.post("call", function).result()
        return answer

    def _do(self, engine: Engine, kind: str, jobs: Sequence[Job]) -> None:
        if kind == "claim":
            self._claim(jobs)
        elif kind == "call":
            for job in jobs:
                _one_call(engine, job)
        else:
            self._together(self._write_all if kind == "write" else self._fail_all, jobs)

    def _claim(self, jobs: Sequence[Job]) -> None:
        """Two statements: the second must see what the first has waited for."""
        # Of one identity there may be two, when the older one was lost a moment ago: no statement writes a row twice.
        newest = {one.what.identity: one.what for one in sorted(jobs, key=lambda job: job.what.fence)}
        claims: list[Claim] = list(newest.values())
        rows = [
            {
                "identity": one.identity,
                "corpus": one.corpus,
                "document": one.document,
                "fence": one.fence,
                "hash": one.hash,
            }
            for one in claims
        ]
        with ours(), self._stamping.begin() as connection:
            statement = Link(connection)
            answer = statement.send(self._sql.stamp, {"batch": batch(rows), "owner": self._owner})
            stamped = {identity: row for row, identity, _ in answer}
            found: dict[int, dict[str, Past]] = defaultdict(dict)
            outdated = set()
            # A row that was not there has no runs, and nobody to wait for.
            if before := [{"id": row} for row, _, there in answer if there]:
                for row, own, digest, *past in statement.send(self._sql.look, {**self._facts, "batch": batch(before)}):
                    if own:
                        found[row][digest] = Past(*past)
                    else:
                        outdated.add(row)
        for claim in claims:
            claim.row = stamped.get(claim.identity, 0)
            claim.past = found.get(claim.row, {})
            claim.outdated = claim.row in outdated
        for job in jobs:
            job.answer(job.what.row != 0)

    def _together(self, do: Callable[[Sequence[Any]], None], jobs: Sequence[Job]) -> None:
        """All in one transaction; if that fails, each in its own, so that one that is wrong fails alone."""
        unsure = False
        if len(jobs) > 1:
            try:
                do([job.what for job in jobs])
            except BaseException as error:  # noqa: BLE001 - each of them will meet its own
                unsure = isinstance(error, Trouble)
            else:
                for job in jobs:
                    job.answer(None)
                return
        for job in jobs:
            _alone(do, job, unsure=unsure)

    def _write_all(self, writes: Sequence[_Write]) -> None:
        pipeline = self._pipeline
        # In one order everywhere: results of two fragments may share rows.
        writes = sorted(writes, key=lambda one: one.claim.identity)
        old = [one.claim.identity for one in writes if one.claim.past or one.claim.outdated]
        new = [(one.fragment, one.result) for one in writes if one.fragment is not None]
        with ours(), self._writing.begin() as connection:
            with theirs(connection):
                if old:
                    pipeline.remove(connection, old)
                if new:
                    pipeline.write(connection, new)
            statement = Link(connection)
            if len(new) < len(writes):
                self._forget(statement, [one.claim for one in writes if one.fragment is None])
            if new:
                self._record(statement, [(one.claim, DONE, None) for one in writes if one.fragment is not None])

    def _fail_all(self, failures: Sequence[tuple[Claim, str]]) -> None:
        with ours(), self._writing.begin() as connection:
            self._record(Link(connection), [(claim, FAILED, error) for claim, error in failures])

    def _record(self, statement: Link, runs: Sequence[tuple[Claim, str, str | None]]) -> None:
        """Check the fences and write the ledger's rows, in one statement: last, so that nothing comes in between."""
        rows = batch(
            {
                "id": claim.row,
                "fence": claim.fence,
                "hash": claim.hash,
                "status": status,
                "attempts": claim.attempts + 1,
                "error": error,
            }
            for claim, status, error in runs
        )
        facts = {**self._facts, "batch": rows}
        if any(status == DONE and (claim.outdated or set(claim.past) - {claim.hash}) for claim, status, _ in runs):
            statement.send(self._sql.supersede, facts)
        recorded = statement.send(self._sql.record, {**facts, "owner": self._owner})
        claims = [claim for claim, _, _ in runs]
        if len(recorded) < len(runs):
            self._check(statement, claims)
            raise Conflict("a fragment of this batch is done already, with the same content and profile")
        for claim in claims:
            claim.check()

    def _forget(self, statement: Link, claims: Sequence[Claim]) -> None:
        self._check(statement, claims)
        rows = batch({"id": claim.row} for claim in claims)
        statement.send(self._sql.forget, {**self._facts, "batch": rows})
        statement.send(self._sql.drop, {"batch": rows})

    def _check(self, statement: Link, claims: Sequence[Claim]) -> None:
        """Nobody has claimed these since we did, and nobody can until we have committed."""
        rows = statement.send(self._sql.lock, {"batch": batch({"id": claim.row} for claim in claims)})
        fences: Mapping[int, int] = dict(rows)
        for claim in claims:
            claim.check()
            fence = fences.get(claim.row)
            if fence != claim.fence:
                newer = (
                    "its row is gone" if fence is None else f"a claim with fence {fence} came after ours, {claim.fence}"
                )
                raise claim.lost(newer)


def _one_call(engine: Engine, job: Job) -> None:
    try:
        with ours(), engine.begin() as connection:
            answer = job.what(connection)
    except Exception as error:  # noqa: BLE001 - it is the caller's
        job.fail(error)
    else:
        job.answer(answer)


def _alone(do: Callable[[Sequence[Any]], None], job: Job, *, unsure: bool) -> None:
    """One job in its own transaction, again after trouble that has nothing to do with it."""
    for pause in (*PAUSES, None):
        try:
            do([job.what])
        except Conflict as error:
            # A commit whose answer was lost has been done after all: this claim is still ours, so it was us.
            return job.answer(None) if unsure else job.fail(error)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            if pause is None or not isinstance(error, Trouble):
                return job.fail(error)
            unsure = True
            time.sleep(pause)
        else:
            return job.answer(None)
    return None


class _Write:
    """Results of a fragment that is claimed, or that it has none any more."""

    __slots__ = ("claim", "fragment", "result")

    def __init__(self, claim: Claim, fragment: Fragment | None, result: Any) -> None:
        self.claim = claim
        self.fragment = fragment
        self.result = result


def _shown(error: BaseException) -> str:
    """An error as a text that every database takes."""
    text = f"{type(error).__name__}: {error}"[:MOST_OF_AN_ERROR].replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()
