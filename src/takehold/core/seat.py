"""What the desk keeps: callers, seats (one id of one request) and, per id, who is in and who stands in line.

Only the desk changes these, and only under its mutex. Class-level defaults are the empty state: making an
entry or a seat on the hot path sets nothing that it does not need.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from takehold.core.backend import Grant, Session
from takehold.core.events import Listener, LockEvent, Tally, deliver
from takehold.core.owner import Owner, Site, here, site_text
from takehold.core.want import EXCLUSIVE, Want
from takehold.runtime import Event

__all__ = ["Caller", "Entry", "OrderPolicy", "Seat"]

OrderPolicy: TypeAlias = Literal["raise", "warn", "off"]

NEW: Final = 0
QUEUED: Final = 1
HELD: Final = 2
GONE: Final = 3
ASKED: Final = 4
"""Alone with its key here, and the backend is being asked for it."""


class Caller:
    """The application as the desk sees it: one per `Locks` object."""

    def __init__(self, namespace: str, label: str | None, check_order: OrderPolicy, coalesce: bool) -> None:
        self.namespace = namespace
        self.label = label
        self.check_order = check_order
        self.coalesce = coalesce
        self.closed = False
        self.listeners: tuple[Listener, ...] = ()
        self.tally: Tally | None = None

    def tell(self, kind: str, seat: Seat, seconds: float) -> None:
        """Deliver one event to whoever listens. Call it outside the mutex."""
        want = seat.want
        if self.listeners and not want.implied:
            event = LockEvent(
                kind, want.text, want.template, want.mode.value, seat.fence, site_text(seat.site), seconds
            )
            deliver(self.listeners, event)

    def tell_released(self, seats: list[Seat], now_ns: int) -> None:
        """Say how long these were held."""
        for seat in seats:
            if seat.state == HELD:
                self.tell("released", seat, (now_ns - seat.at) / 1e9)


class Body(Protocol):
    """A block of code that runs under a hold."""

    def _lost_in_body(self) -> None:
        """The hold is lost: end the block. May be called from any thread."""


class Seat:
    """One id of one request: new, asked for, in line, held or gone."""

    state = NEW
    grant: Grant | None = None
    handle = None
    """A seat alone stands for its grant: this is that grant's."""
    session: Session | None = None
    """What vouches for it."""
    fence: int | None = None
    at = 0
    """Nanoseconds on the monotonic clock: when the wait began, then when it was granted."""
    entry: Entry | None = None
    event: Event | None = None
    slot = -1
    generation = 0
    lost: str | None = None
    watch: list[Callable[[], object]] | None = None
    before_loss: Callable[[str], None] | None = None
    """Called with the reason, outside the mutex, before a loss lets the key go: `takehold run` stops its command."""
    body: Body | None = None
    """A running block that a loss must end."""
    group: list[Seat] | None = None
    """All seats of a request with several; None for one alone, and once it is gone (no cycle for the collector)."""

    def __init__(self, want: Want, me: object, site: Site, caller: Caller) -> None:
        self.want = want
        self.me = me
        self.site = site
        self.caller = caller
        self.entry = self.lost = None

    @property
    def owner(self) -> Owner:
        """Who this is, for people."""
        return here(self.caller.label, self.site)

    @property
    def in_passing(self) -> bool:
        """Held only on behalf of a key below: nothing to show. Waiting for it is."""
        return self.state == HELD and self.want.implied

    def together(self) -> list[Seat]:
        """All seats of the request this one belongs to."""
        return self.group or [self]

    def conflicts(self, other: Seat) -> bool:
        """Whether the two cannot be in at the same time."""
        return self.want.mode is EXCLUSIVE or other.want.mode is EXCLUSIVE


class Entry:
    """One id at the desk, while somebody holds or wants it."""

    writer: Seat | None = None
    readers: dict[Seat, None] | None = None
    queue: OrderedDict[Seat, None] | None = None
    """Who waits, first come first; a cancelled waiter leaves from the middle at no cost."""
    agent: Seat | None = None
    """The one that is talking to the backend for this id; it stays at the head of the queue."""
    asking = False
    """The agent's first question is on its way."""
    grant: Grant | None = None
    """The newest grant: the one that readers may join."""

    @property
    def occupied(self) -> bool:
        """Whether a grant of ours is in use: a further one must not re-enter it."""
        return self.writer is not None or bool(self.readers)

    def idle(self) -> bool:
        """Whether it can be forgotten."""
        return self.writer is None and not self.readers and not self.queue and self.agent is None

    def holders(self) -> list[Seat]:
        """Who is in."""
        if self.writer is not None:
            return [self.writer]
        return list(self.readers) if self.readers else []

    def behind(self, seat: Seat) -> list[Seat]:
        """Who waits behind this seat: everybody in line for a holder, the later ones for a waiter."""
        line = list(self.queue or ())
        return line[line.index(seat) + 1 :] if self.queue and seat in self.queue else line

    def blockers(self, seat: Seat) -> list[Seat]:
        """Who must go before this seat can: conflicting holders, and conflicting seats ahead in line."""
        ahead: list[Seat] = []
        for other in self.queue or ():
            if other is seat:
                break
            ahead.append(other)
        return [other for other in [*self.holders(), *ahead] if other.conflicts(seat)]
