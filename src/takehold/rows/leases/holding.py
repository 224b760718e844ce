"""What both faces of a lease share: its state, and who is to be extended. No I/O, and no waiting."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from takehold import Conflict, HoldLost, UsageError
from takehold.rows.identity import Identity, identity_of
from takehold.rows.leases.steps import Extended, Grips, Pairs, Plan, Taken, name_of
from takehold.rows.leases.term import Term, now

__all__ = ["BaseLease", "BaseLeases"]

log = logging.getLogger(__name__)
M = TypeVar("M")
L = TypeVar("L", bound="BaseLease[Any]")
State: TypeAlias = Literal["held", "writing", "lost", "ended"]
LATE: Final = "it was not extended in time"


class BaseLease(Generic[M]):
    """One row that is ours for a while. Use it in a `with` statement."""

    def __init__(self, leases: BaseLeases[Any], row: M, token: str, sent: float) -> None:
        self.row = row
        """A copy as of the claim, detached from any session."""
        self.token = token
        """What a guarded statement of your own compares `lock_token` with."""
        self._leases: Any = leases
        self._grips: Grips = [(leases.plan.model, [identity_of(row)])]
        self._sent = sent
        self._state: State = "held"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {name_of(self._grips)}: {'lost' if self.lost else self._state}>"

    @property
    def owner(self) -> str:
        """The kind of worker it was claimed for."""
        return self._leases.plan.owner  # type: ignore[no-any-return]

    @property
    def lost(self) -> bool:
        """Whether somebody else may have the row by now. It never turns back to False."""
        if self._state == "held" and self._leases.term.is_over(self._sent, now()):
            self._lose()
        return self._state == "lost"

    def check(self) -> None:
        """Raise `HoldLost` when it is lost; for the steps of a long work, and before an effect outside the database."""
        if self.lost:
            name = name_of(self._grips)
            raise HoldLost(f"the lease on {name} is lost: {LATE}, or taken over", key=name, reason=LATE)

    def _lose(self) -> None:
        self._state = "lost"
        self._leases._forget(self)

    def _end(self) -> None:
        if self._state != "lost":
            self._state = "ended"
        self._leases._forget(self)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """While we change the row ourselves nobody extends it: that would only wait for us, or find it gone."""
        if self._state in ("ended", "writing"):
            said = "has ended" if self._state == "ended" else "is being written by another thread or task"
            raise UsageError(f"the lease on {name_of(self._grips)} {said}")
        self.check()
        self._state = "writing"
        try:
            yield
        except HoldLost:
            self._lose()
            raise
        except BaseException:
            self._state = "held"
            raise

    def _written(self, sent: float, *, keep: bool) -> None:
        if keep:
            self._sent, self._state = sent, "held"
        else:
            self._end()

    def _add(self, taken: Taken | None, model: Any) -> list[Any]:
        """Hold the related rows too; `Conflict` when they were not to be had, and the lease has ended."""
        if taken is None:
            self._end()
            raise Conflict(
                f"a row that belongs to {name_of(self._grips)} is leased or locked by somebody else; the lease was "
                "given back, and its owner kept, so that it is soon claimed again"
            )
        if taken.rows:
            self._grips = [*self._grips, (model, [identity_of(row) for row in taken.rows])]
        self._written(taken.sent, keep=True)
        return list(taken.rows)


class BaseLeases(Generic[L]):
    """The leases that one worker holds. They are extended for as long as somebody refers to them."""

    def __init__(self, maker: Any, plan: Plan, heartbeat: float | None) -> None:
        self.maker = maker
        self.plan = plan
        self.term = Term(plan.seconds, heartbeat)
        self._held: weakref.WeakSet[L] = weakref.WeakSet()
        self._mutex = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.plan.model.__name__} for {self.plan.owner!r}: {len(self._held)} held>"

    def _hold(self, leases: Iterable[L]) -> list[L]:
        with self._mutex:
            self._held.update(held := list(leases))
        return held

    def _forget(self, lease: L) -> None:
        with self._mutex:
            self._held.discard(lease)

    def _all(self) -> list[L]:
        with self._mutex:
            return list(self._held)

    def _refuse(self, limit: int) -> None:
        if self._closed:
            raise UsageError("these leases are closed; make others with rows.lease()")
        if limit < 1:
            raise UsageError(f"limit= is how many rows to claim, 1 or more; got {limit}")

    def _due(self) -> list[L]:
        """Those close to their expiry. What is over is lost, not extended: somebody else may have it."""
        at = now()
        held = [lease for lease in self._all() if not lease.lost and lease._state == "held"]
        return [lease for lease in held if self.term.is_due(lease._sent, at)]

    def _pairs(self, due: Iterable[L]) -> Pairs:
        pairs: dict[Any, list[tuple[Identity, str]]] = defaultdict(list)
        for lease in due:
            for model, ids in lease._grips:
                pairs[model] += [(one, lease.token) for one in ids]
        return pairs

    def _heard(self, due: Iterable[L], told: Extended) -> None:
        """What is not live is lost. Of a row that was locked by somebody we know nothing new."""
        for lease in due:
            if lease._state != "held" or lease.lost:
                continue
            rows = [(model, one) for model, ids in lease._grips for one in ids]
            if any((*row, lease.token) not in told.live for row in rows if row in told.reached):
                lease._lose()
            elif told.reached.issuperset(rows):
                lease._sent = told.sent

    def _missed(self, error: Exception) -> None:
        """The next beat tries again; whoever is not extended in time counts as lost."""
        log.warning("%r could not be extended", self, exc_info=error, extra={"event": "rows.lease"})
