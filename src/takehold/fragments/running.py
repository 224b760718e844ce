"""One run: claim, re-check, extract, validate, write, release; for every fragment, until none is left.

Written once for both faces, as coroutines that await only their colour and the locks.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from takehold import BackendRefused, BackendUnavailable, HoldLost
from takehold.fragments.backlog import Backlog, Work
from takehold.fragments.colour import Block, Colour, settled
from takehold.fragments.corpus import Corpus
from takehold.fragments.counts import Counts, Failure
from takehold.fragments.fragment import Fragment, locks_of
from takehold.fragments.ledger import Claim, Ledger
from takehold.fragments.ledger.trouble import Theirs
from takehold.fragments.pipeline import Pipeline
from takehold.fragments.reading import Reader

__all__ = ["Limits", "Run"]

log = logging.getLogger(__name__)

READ_AHEAD: Final = 64
AFTER_A_FAILURE: Final = 0.2
AFTER_TROUBLE: Final = 0.5
MOST_TROUBLE: Final = 30.0
"""Seconds without any success after which what the locks or the ledger complain of ends the run."""
REFUSALS: Final = 3
QUICK: Final = 0.05
"""Seconds of an extraction below which further fragments are claimed while all places are taken, and written in larger
groups. Above, a claim that waits for its extraction would only keep the fragment from an idle replica."""
AHEAD: Final = 4
"""Claimed fragments for each place, then: those that are being claimed, extracted and written."""
GATHER: Final = 0.003
"""Seconds that the ledger then waits for larger batches: a quarter of the work of client and server is saved."""
SLACK: Final = 0.1


class Limits:
    """How often, how long."""

    def __init__(self, concurrency: int, attempts: int, patience: float, stuck_after: float) -> None:
        self.concurrency = concurrency
        self.attempts = attempts
        self.patience = patience
        self.stuck_after = stuck_after


class Run:
    """The state of one run of one replica."""

    def __init__(
        self, pipeline: Pipeline[Any], corpus: Corpus, ledger: Ledger, locks: Any, colour: Colour, limits: Limits
    ) -> None:
        self._pipeline = pipeline
        self._ledger = ledger
        self._locks = locks
        self._colour = colour
        self._limits = limits
        self.counts = Counts()
        self._reader = Reader(corpus, ledger, self.counts, limits.attempts)
        self._backlog = Backlog(READ_AHEAD, limits.patience)
        self._mutex = threading.Lock()
        self._working: dict[str, float] = {}
        self._flagged: set[str] = set()
        self._trouble: float | None = None
        self._pace = math.inf
        self._over = False
        self.servers = limits.concurrency * AHEAD
        self._began = time.monotonic()
        self.stopping = False
        self.error: BaseException | None = None

    # -- what a replica does -----------------------------------------------------------------------------------

    async def serve(self, number: int) -> None:
        """One fragment after the other, until there is none, or until we are to stop."""
        try:
            while (work := await self._next(number >= self._limits.concurrency)) is not None:
                await self._handle(work)
        except BaseException as error:
            if self._colour.ends(error):
                raise
            # `Worker.run` raises it when the others have stopped.
            self.error = self.error or error
            self.stopping = True

    async def _next(self, ahead: bool) -> Work | None:
        while not self.stopping and not self._over:
            if ahead and self._pace > QUICK:
                await self._colour.sleep(SLACK)
                continue
            step = self._backlog.step(time.monotonic())
            if step is None:
                self._over = True
            elif isinstance(step, Work):
                return step
            elif step == "read":
                await self._ask(self._read)
            elif step == "sift":
                await self._ask(self._sift)
            else:
                await self._colour.sleep(step)
        return None

    async def _ask(self, question: Callable[[], None]) -> None:
        """The ledger; who asks next asks again when it does not answer."""
        try:
            await self._colour.call(question)
        except BackendUnavailable as error:
            self._bear(error)
            await self._colour.sleep(AFTER_TROUBLE)
        else:
            self._trouble = None

    def _read(self) -> None:
        try:
            works, exhausted = self._reader.read()
        except BaseException:
            self._backlog.not_read()
            raise
        self._backlog.read(works, exhausted=exhausted, now=time.monotonic())

    def _sift(self) -> None:
        """Ask for everything at once what others have done since."""
        waiting = [work for work in self._backlog.waiting() if work.fragment is not None]
        done: set[str] = set()
        try:
            for first in range(0, len(waiting), 500):
                known = self._ledger.find(work.identity for work in waiting[first : first + 500])
                done.update(
                    work.identity
                    for work in waiting[first : first + 500]
                    if (past := known.get(work.identity, {}).get(work.hash)) is not None and past.done
                )
        finally:
            out = self._backlog.sifted(done, time.monotonic())
            with self._mutex:
                self.counts.elsewhere += len(out)

    async def _handle(self, work: Work) -> None:
        """Whatever comes of it, the backlog hears of it exactly once."""
        try:
            outcome = await self._attempt(work)
        except HoldLost as error:
            log.warning("%s", error, extra={"event": "fragments.lost", "key": work.identity})
            self._add("lost")
            self._backlog.again(work, time.monotonic(), AFTER_A_FAILURE)
        except BackendUnavailable as error:
            self._again_after(work, error)
        except Exception:
            self._backlog.finished(time.monotonic())
            raise
        except BaseException:  # cancelled: what we had is free again
            self._backlog.again(work, time.monotonic(), 0.0)
            raise
        else:
            self._trouble = None
            outcome()

    def _again_after(self, work: Work, error: BackendUnavailable) -> None:
        """The locks or the ledger do not answer: that says nothing about the fragment."""
        self._backlog.again(work, time.monotonic(), AFTER_TROUBLE)
        self._bear(error)

    def _bear(self, error: BackendUnavailable) -> None:
        """Say it, and go on; raise when it has gone on for too long."""
        now = time.monotonic()
        self._trouble = began = self._trouble or now
        if now - began > MOST_TROUBLE:
            raise BackendUnavailable(f"nothing went well for {MOST_TROUBLE:g} s, at last: {error}") from error
        log.warning("%s: %s", type(error).__name__, error, extra={"event": "fragments.trouble"})

    async def _attempt(self, work: Work) -> Callable[[], None]:
        """Take the locks and work under them; what to tell the backlog when they are free again."""
        keys = locks_of(work.identity, work.hash)
        hold = await settled(self._locks.lock(*keys).try_acquire())
        if hold is None:
            self._add("skipped")
            return lambda: self._backlog.again(work, time.monotonic())
        with _Listed(self._working, work.identity):
            async with Block(hold):
                return await self._under_lock(work, hold)

    async def _under_lock(self, work: Work, hold: Any) -> Callable[[], None]:
        try:
            now = self._reader.current(work)
        except BaseException as error:
            if self._colour.ends(error):
                raise
            self._reader.unreadable(work.document, error)
            return lambda: self._backlog.finished(time.monotonic())
        if now is not work:
            # Others keys, perhaps another content: from the beginning.
            return lambda: self._replaced(now)
        claim = Claim(work.identity, work.corpus, work.document, work.hash, _fence(hold))
        hold.on_lost(claim.lose)
        if not await self._colour.answer(self._ledger.claim(claim)):
            return self._refused(work, claim)
        past = claim.past.get(work.hash)
        fragment = work.fragment
        if fragment is None:
            return await self._remove(work, claim)
        if past is not None and past.done:
            return lambda: self._settled("elsewhere", by_others=True)
        if past is not None and past.failed(self._limits.attempts):
            failure = Failure(work.identity, past.error or "", past.attempts)
            return lambda: self._given_up(failure)
        return await self._work_on(work, claim, fragment)

    async def _work_on(self, work: Work, claim: Claim, fragment: Fragment) -> Callable[[], None]:
        """Extract, validate, write: the claim is ours, and nothing is open."""
        await self._colour.enter()
        try:
            if self.stopping:
                return lambda: self._backlog.again(work, time.monotonic(), 0.0)
            result = await self._extracted(fragment)
        except BaseException as error:
            # SystemExit too: whatever an extractor raises is recorded.
            if self._colour.ends(error):
                raise
            claim.check()
            return await self._failed(work, claim, error)
        finally:
            self._colour.leave()
        try:
            claim.check()
            await self._colour.answer(self._ledger.write(claim, fragment, result))
        except (HoldLost, BackendUnavailable):
            raise
        except BaseException as error:
            if self._colour.ends(error):
                raise
            claim.check()
            return await self._failed(work, claim, error.error if isinstance(error, Theirs) else error)
        return lambda: self._settled("done")

    async def _remove(self, work: Work, claim: Claim) -> Callable[[], None]:
        try:
            await self._colour.answer(self._ledger.remove(claim))
        except Theirs as error:
            # Its run stays as it is, so the next run tries again.
            failure = Failure(work.identity, f"{type(error.error).__name__}: {error.error}", 1)
            return lambda: self._given_up(failure)
        return lambda: self._settled("removed")

    async def _extracted(self, fragment: Fragment) -> Any:
        self._add("extracted")
        began = time.monotonic()
        result = await self._colour.call(self._pipeline.extract, fragment)
        if self._pipeline.validate is not None:
            await self._colour.call(self._pipeline.validate, fragment, result)
        took = time.monotonic() - began
        self._pace = took if self._pace == math.inf else 0.9 * self._pace + 0.1 * took
        self._ledger.gather(GATHER if self._pace <= QUICK else 0.0)
        return result

    async def _failed(self, work: Work, claim: Claim, error: BaseException) -> Callable[[], None]:
        await self._colour.answer(self._ledger.fail(claim, error))
        attempts = claim.attempts + 1
        log.info("%s failed: %s", work.identity, error, extra={"event": "fragments.failed", "key": work.identity})
        if attempts < self._limits.attempts:
            return lambda: self._backlog.again(work, time.monotonic(), AFTER_A_FAILURE * 2 ** (attempts - 1))
        failure = Failure(work.identity, f"{type(error).__name__}: {error}", attempts)
        return lambda: self._given_up(failure)

    def _refused(self, work: Work, claim: Claim) -> Callable[[], None]:
        claim.check()
        work.refused += 1
        if work.refused >= REFUSALS:
            raise BackendRefused(
                f"the ledger has a newer fence for {work.identity!r} than {claim.fence}: these locks count from "
                "elsewhere; run: takehold init URL --fence-from N, with N above the fences of the former locks"
            )
        return lambda: self._backlog.again(work, time.monotonic(), AFTER_A_FAILURE)

    # -- what came of it ---------------------------------------------------------------------------------------

    def _replaced(self, now: Work | None) -> None:
        if now is None:
            self._backlog.finished(time.monotonic())
        else:
            self._backlog.again(now, time.monotonic(), 0.0)

    def _settled(self, what: str, *, by_others: bool = False) -> None:
        self._add(what)
        self._backlog.finished(time.monotonic(), by_others=by_others)

    def _given_up(self, failure: Failure) -> None:
        with self._mutex:
            self.counts.failed += 1
            self.counts.failures.append(failure)
        self._backlog.finished(time.monotonic())

    def _add(self, what: str) -> None:
        with self._mutex:
            setattr(self.counts, what, getattr(self.counts, what) + 1)

    # -- what can be seen --------------------------------------------------------------------------------------

    def look(self) -> Counts:
        """The counts as they are now; flags fragments that take suspiciously long."""
        now = time.monotonic()
        with self._mutex:
            late = {name for name, began in list(self._working.items()) if now - began > self._limits.stuck_after}
            new = late - self._flagged
            self._flagged = late
            self.counts.stuck = len(late)
            self.counts.pending, self.counts.held = self._backlog.count()
            self.counts.seconds = now - self._began
            self.counts.drained = self.stopping
        for name in new:
            seconds = self._limits.stuck_after
            log.warning(
                "%s is held here for over %g s: stuck?", name, seconds, extra={"event": "fragments.stuck", "key": name}
            )
        return self.counts


class _Listed:
    """What is worked on, and since when."""

    def __init__(self, working: dict[str, float], name: str) -> None:
        self._working = working
        self._name = name

    def __enter__(self) -> None:
        self._working[self._name] = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._working.pop(self._name, None)


def _fence(hold: Any) -> int:
    """That of the identity: two keys have two, and only those of one key grow."""
    fence: int | None = next(fence for key, _, fence in hold.grants if isinstance(key, str))
    return hold.fence if fence is None else fence
