"""`Worker` and `AsyncWorker`: a replica. Start as many as you like, on as many hosts as reach the same URL."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from takehold import AsyncLocks, BackendRefused, Locks, LockTimeout, UsageError
from takehold.fragments.colour import Colour, Looping, Threaded, settled
from takehold.fragments.corpus import Corpus
from takehold.fragments.counts import Counts
from takehold.fragments.ledger import Ledger
from takehold.fragments.ledger.place import Place, place_of
from takehold.fragments.pipeline import Pipeline
from takehold.fragments.running import Limits, Run
from takehold.runtime import run

__all__ = ["AsyncWorker", "Worker"]

PREPARING: Final = "fragments: preparing"
EVERY: Final = 0.25
TURN: Final = 60.0
"""Seconds to wait for others who prepare."""
LOOK: Final = 1.0
"""Seconds after which one who waits for that looks whether to stop."""

Progress = Callable[[Counts], object]


@dataclass
class _Worker:
    """What both faces share."""

    pipeline: Pipeline[Any]
    corpus: Corpus
    url: Any
    """`sqlite:///FILE` or `postgresql://...`: locks and ledger, and the results too."""
    _: KW_ONLY
    concurrency: int = 4
    """Extractions at the same time."""
    attempts: int = 3
    """How often a fragment is tried, by all replicas and runs together, before it has failed."""
    patience: float = 300.0
    """Seconds after which a run ends although others hold the rest, when nothing has happened meanwhile."""
    stuck_after: float = 60.0
    """Seconds after which a claim is suspected to be stuck."""
    grace: float = 30.0
    """Seconds that `stop()` leaves for what has begun."""
    force: bool = False
    """Make everything due again first."""
    label: str | None = None
    """Shown as part of the owner."""
    _place: Place = field(init=False, repr=False)
    _run: Run | None = field(default=None, init=False, repr=False)
    _stop_by: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._place = place_of(self.url)
        for name in ("concurrency", "attempts"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is a whole number, 1 or more, not {value!r}")
        if isinstance(self, Worker) and self.pipeline.asynchronous:
            raise UsageError("this pipeline has coroutine functions: use an AsyncWorker")

    def stop(self) -> None:
        """Take no new fragment; what has begun may finish within `grace` seconds, then it is released."""
        self._stop_by = self._stop_by or time.monotonic() + self.grace
        if self._run is not None:
            self._run.stopping = True

    @property
    def counts(self) -> Counts:
        """What the run has come to so far."""
        return self._run.look() if self._run is not None else Counts()

    async def _go(self, locks: Any, colour: Colour, progress: Progress | None) -> Counts:
        """The whole run, in either colour."""
        ledger = Ledger(self._place, self.pipeline, self.label)
        left = False
        try:
            if not await self._prepare(locks, ledger, colour):
                return Counts(drained=True)
            limits = Limits(self.concurrency, self.attempts, self.patience, self.stuck_after)

            def made() -> Run:
                return Run(self.pipeline, self.corpus, ledger, locks, colour, limits)

            here: Run = await colour.call(made)
            self._run = here
            here.stopping = self._stop_by is not None
            due = 0.0

            def watch() -> bool:
                nonlocal due, left
                now = time.monotonic()
                if now >= due:
                    counts = here.look()
                    due = now + EVERY
                    if progress is not None:
                        progress(counts)
                left = self._stop_by is not None and now > self._stop_by
                return left

            await colour.together(here.serve, here.servers, watch)
            counts = here.look()
            if here.error is not None:
                raise here.error
            if progress is not None:
                progress(counts)
            return counts
        finally:
            self._stop_by = None
            # Before the locks: nobody else may have what is still to be written. What is stuck in a thread stays there.
            await colour.call(ledger.close, 1.0 if left else None)
            await settled(locks.close())
            colour.close()

    async def _prepare(self, locks: Any, ledger: Ledger, colour: Colour) -> bool:
        """Prove locks and fences, and make the tables, one replica at a time; False when told to stop meanwhile."""
        try:
            await settled(locks.init())
        except BackendRefused:
            # Perhaps this role may not make what an operator has made already: the locks themselves will tell.
            pass
        await settled(locks.open())
        hold = await self._turn(locks)
        if hold is None:
            return False
        try:
            _ = hold.fence  # UsageError says what to run where there are none
            if not await colour.call(ledger.prepared) or self.pipeline.prepare is not None:
                await colour.call(ledger.prepare)
            if self.force:
                await colour.call(ledger.force, self.corpus.name)
        finally:
            await settled(hold.release())
        return True

    async def _turn(self, locks: Any) -> Any:
        """Our turn to prepare; None when we are told to stop before it comes."""
        patience = time.monotonic() + TURN
        while self._stop_by is None:
            try:
                return await settled(locks.lock(PREPARING, timeout=LOOK).acquire())
            except LockTimeout:
                if time.monotonic() > patience:
                    raise
        return None


class Worker(_Worker):
    """A replica that works in threads."""

    def run(self, progress: Progress | None = None) -> Counts:
        """Work until everything is done, by us or by others; what came of it. `progress` is called now and then."""
        return run(
            self._go(Locks(self._place.locks, label=self.label or "fragments"), Threaded(self.concurrency), progress)
        )


class AsyncWorker(_Worker):
    """A replica that works in tasks of the running event loop; plain functions run in threads."""

    async def run(self, progress: Progress | None = None) -> Counts:
        """Work until everything is done, by us or by others; what came of it. `progress` is called now and then."""
        locks = AsyncLocks(self._place.locks, label=self.label or "fragments")
        return await self._go(locks, Looping(self.concurrency), progress)
