"""What the sessions that answer over a wire have in common: what only instant ones do, and what few need to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from takehold.core.backend import Ask, Board, Grant, Granted, Releasable
from takehold.core.seat import Seat
from takehold.core.want import Want
from takehold.runtime import Runtime

if TYPE_CHECKING:
    from takehold.core.combine import Combiner

__all__ = ["Trip"]

_NOT_INSTANT: Final = "a trip session answers in batches"
_NOT_QUICK: Final = "this session is not quick"


class Trip:
    """A base for implementations of `TripSession`, which says what each of these means."""

    rt: Runtime
    lost: str | None

    instant = False
    usable = True
    quick = False
    room = 2**62
    board: Board | None = None
    combiner: Combiner | None = None

    def attend(self) -> None:
        """It is looked after from the start."""

    def doubt(self, seat: Seat) -> str | None:
        """What is known of the session."""
        return self.lost

    def descriptors(self, seat: Seat) -> tuple[int, ...]:
        """What a server keeps cannot be inherited."""
        return ()

    def refence(self, grant: Grant) -> tuple[int | None, int]:
        """A server leaves room between two numbers."""
        if grant.fence is not None:
            grant.fence += 1
        return grant.fence, self.rt.now_ns()

    def admit(self, count: int) -> None:
        """There is room for all."""

    def overdue(self, seconds: float) -> None:
        """It ends in another way than by one answer that does not come."""

    # -- a shorter way, where there is one -----------------------------------------------------------

    def carries(self, releases: Sequence[Releasable], ask: Ask) -> bool:
        """Never asked."""
        return False

    async def fetch_quickly(self, releases: Sequence[Releasable], ask: Ask) -> Granted:
        """Never."""
        raise AssertionError(_NOT_QUICK)

    def apply_quickly(self, releases: Sequence[Releasable], ask: Ask, seconds: float) -> None:
        """Never."""
        raise AssertionError(_NOT_QUICK)

    # -- what instant sessions do --------------------------------------------------------------------

    def take_alone(self, seat: Seat) -> bool:
        """Never: nothing is instant over a wire."""
        raise AssertionError(_NOT_INSTANT)

    def give_alone(self, seat: Seat) -> None:
        """Never."""
        raise AssertionError(_NOT_INSTANT)

    def take(self, want: Want, beside: bool) -> Grant | None:
        """Never."""
        raise AssertionError(_NOT_INSTANT)

    def give(self, grant: Grant) -> None:
        """Never."""
        raise AssertionError(_NOT_INSTANT)

    def forget(self, want: Want) -> None:
        """Never."""
        raise AssertionError(_NOT_INSTANT)
