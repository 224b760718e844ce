"""What both faces share: options, requests, and a hold's facts. Nothing here waits."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from takehold.backends import backend_for
from takehold.core.backend import Backend, Capabilities
from takehold.core.deadline import AdaptiveTimeout, Default, Timeout, seconds_of
from takehold.core.desk import Desk
from takehold.core.events import LockEvent, Tally
from takehold.core.key import TEXT, AnyKey, checked, checked_namespace, encode
from takehold.core.owner import Owner, Site, site_text
from takehold.core.record import HoldRecord, Statistics, since
from takehold.core.seat import HELD, QUEUED, Caller, OrderPolicy, Seat
from takehold.core.waits import hold_id, reentry_sentence
from takehold.core.want import EXCLUSIVE, SHARED, Mode, Shared, Want, mode_of, want_for_text, wants_for
from takehold.errors import HoldLost, LockOrderWarning, UsageError, WouldDeadlock

__all__ = [
    "BaseHold",
    "BaseLock",
    "BaseLocks",
    "HoldFacts",
    "adapt",
    "in_transactions",
    "refuse_own_transaction",
    "shown",
]

MAX_KNOWN: Final = 4096
MAX_KNOWN_MANY: Final = 64
in_transactions: Final[dict[object, dict[tuple[Hashable, Hashable], Seat]]] = {}
"""What the transactions of a task have at a server, by backend and id: the desk knows nothing of it."""


class BaseLocks:
    """Options and requests of a `Locks` object."""

    def __init__(
        self,
        url: str | Backend | None = None,
        *,
        namespace: str = "",
        label: str | None = None,
        timeout: Timeout = 30,
        check_order: OrderPolicy = "warn",
        coalesce: bool = True,
    ) -> None:
        if check_order not in ("raise", "warn", "off"):
            raise UsageError(f"check_order is 'raise', 'warn' or 'off', not {check_order!r}")
        if label is not None:
            checked(label, "a label", 128)
        seconds_of(timeout)
        self._backend = backend_for(url)
        self._caller = Caller(checked_namespace(namespace), label, check_order, coalesce)
        self._timeout = timeout
        self._desk: Desk | None = None
        self._known: dict[str, tuple[Want]] = {}
        self._known_shared: dict[str, tuple[Want]] = {}
        self._known_many: dict[tuple[Any, ...], tuple[Want, ...]] = {}
        self._prefix = encode(TEXT, self._caller.namespace)

    def __repr__(self) -> str:
        state = "closed" if self._caller.closed else "open" if self._desk is not None else "lazy"
        return f"<{type(self).__name__} {self._backend.identity!r} namespace={self._caller.namespace!r} {state}>"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._caller.closed

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do, as it declares it."""
        return self._backend.capabilities

    def listen(self, listener: Callable[[LockEvent], None]) -> Callable[[], None]:
        """Hear of every event of this object's locks; returns a function that stops it."""
        self._caller.listeners = (*self._caller.listeners, listener)

        def stop() -> None:
            self._caller.listeners = tuple(other for other in self._caller.listeners if other is not listener)

        return stop

    def statistics(self) -> Statistics:
        """What is held and waited for, and counts per key template. Counting begins with the first call."""
        if self._caller.tally is None:
            self._caller.tally = Tally()
            self.listen(self._caller.tally)
        tally = self._caller.tally
        seats = self._desk.busy() if self._desk is not None else []
        mine = [seat for seat in seats if seat.caller is self._caller and not seat.in_passing]
        waiting = [seat.want.template for seat in mine if seat.state != HELD]
        return Statistics(len(mine) - len(waiting), len(waiting), tally.since, tally.templates(waiting))

    def _wants(self, keys: tuple[AnyKey | Shared, ...], mode: object, subtree: bool) -> tuple[Want, ...]:
        """Validated, merged, sorted; remembered."""
        if len(keys) == 1 and not subtree:
            key = keys[0]
            if type(key) is Shared:
                key, mode = key.key, SHARED
            if type(key) is str:
                how = mode if isinstance(mode, Mode) else mode_of(mode)
                known = self._known if how is EXCLUSIVE else self._known_shared
                return known.get(key) or self._want_for(key, how)
        try:
            wants = self._known_many.get((keys, mode, subtree))
        except TypeError:  # something that cannot be hashed is no key either: the check below says so
            wants = None
        if wants is None:
            wants = self._wants_anew(keys, mode, subtree)
            if len(self._known_many) >= MAX_KNOWN_MANY:
                self._known_many.clear()
            self._known_many[keys, mode, subtree] = wants
        return wants

    def _wants_anew(self, keys: tuple[AnyKey | Shared, ...], mode: object, subtree: bool) -> tuple[Want, ...]:
        how = mode_of(mode)
        if how is not EXCLUSIVE and not self._backend.capabilities.shared:
            raise UsageError(f"this backend has no shared mode: {self._backend.capabilities}")
        return wants_for(keys, namespace=self._caller.namespace, mode=how, subtree=subtree, place=self._backend.place)

    def _want_for(self, text: str, mode: Mode = EXCLUSIVE) -> tuple[Want]:
        """One plain key, remembered."""
        if mode is SHARED and not self._backend.capabilities.shared:
            raise UsageError(f"this backend has no shared mode: {self._backend.capabilities}")
        namespace = self._caller.namespace
        want = want_for_text(text, mode, prefix=self._prefix, namespace=namespace, place=self._backend.place)
        known = self._known if mode is EXCLUSIVE else self._known_shared
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[text] = wants = (want,)
        return wants

    def _timeout_of(self, timeout: Timeout | Default) -> Timeout:
        return self._timeout if isinstance(timeout, Default) else timeout

    def _check_order(self, desk: Desk, held: dict[Seat, None], seats: list[Seat], depth: int) -> None:
        policy = self._caller.check_order
        if policy == "off":
            return
        outer = _innermost(held)
        sentence = desk.order.check_request(seats) if len(seats) > 1 else None
        if outer is not None:
            sentence = desk.order.check(outer, seats) or sentence
        if sentence is None:
            return
        if policy == "raise":
            raise WouldDeadlock(sentence, key=seats[-1].want.text)
        warnings.warn(sentence, LockOrderWarning, stacklevel=depth + 1)

    def _tell_acquired(self, seats: list[Seat], waited: float = 0.0) -> None:
        for seat in seats:
            self._caller.tell("acquired", seat, waited)

    def _matching(self, pattern: str, records: list[HoldRecord], stuck_after: float | None) -> list[HoldRecord]:
        """Filter by key text, `fnmatch` style, oldest first."""
        records = [self._named(record, pattern) if record.silent else record for record in records]
        chosen = [record for record in records if fnmatch.fnmatchcase(record.key, pattern)]
        if stuck_after is not None:
            chosen = [record for record in chosen if record.stuck(stuck_after)]
        return sorted(chosen, key=lambda record: (record.key, record.state, -record.age))

    def _named(self, record: HoldRecord, pattern: str) -> HoldRecord:
        """A server knows only the number of a silent owner's key: name it if it is one that we know."""
        if record.key.startswith("#") and pattern and not set(pattern) & set("*?["):
            self._want_for(pattern)
        for known in (self._known, self._known_shared):
            for wants in known.values():
                if record.key == f"#{wants[0].place}":
                    return replace(record, key=wants[0].text, namespace=wants[0].namespace)
        return record

    def _own_records(self, desk: Desk) -> list[HoldRecord]:
        return [desk.record(seat) for seat in desk.busy() if not seat.in_passing]

    def _own_hold(self, desk: Desk, held: str) -> Seat | None:
        return next((s for s in desk.busy() if s.state == HELD and held == hold_id(s)), None)


def refuse_own_transaction(desk: Desk, seats: list[Seat]) -> None:
    """`WouldDeadlock` for a wait that only the end of this task's own transaction could end."""
    for seat in seats:
        mine = in_transactions.get(seat.me) or {}
        own = mine.get((desk.backend.identity, seat.want.id))
        if own is not None and not (seat.want.implied and not own.conflicts(seat)):
            seat.caller.tell("deadlock", seat, 0.0)
            raise WouldDeadlock(reentry_sentence(seat, own), key=seat.want.text)


def _innermost(held: dict[Seat, None]) -> Seat | None:
    try:
        return next(reversed(held), None)
    except RuntimeError:  # one of them was lost this very moment, in another thread
        return None


class BaseLock:
    """A request: keys, modes and a timeout. It holds nothing, and can be used again."""

    _locks: Any = None
    _used = False

    def __init__(self, locks: BaseLocks, wants: tuple[Want, ...], timeout: Timeout | Default, site: Site) -> None:
        self._locks = locks
        self._wants = wants
        self._timeout = timeout
        self._site = site
        self._used = False
        self._open: dict[object, Any] = {}
        """Holds of running blocks, by who entered: one request may be in use by several threads or tasks."""

    def _entered(self, me: object, hold: Any) -> None:
        """Remember the hold of a block; slots can be entered twice by one thread or task."""
        self._open[me] = (self._open[me], hold) if me in self._open else hold

    def _leaving(self, me: object, entered: Any = None) -> Any:
        """The hold that this thread or task entered its block with."""
        entered = entered or self._open.pop(me, None)
        if entered is None:
            if len(self._open) != 1:
                raise UsageError(f"{self!r}: a block is left in another task or thread than it was entered in")
            # A generator may leave on another thread than it entered; here it can only be this one.
            me, entered = self._open.popitem()
        if type(entered) is tuple:  # entered twice, as slots can be
            self._open[me], entered = entered
        return entered

    def __del__(self) -> None:
        if not self._used and self._locks is not None and not self._locks.closed:
            warnings.warn(
                f"{self!r} was made at {site_text(self._site)} and dropped without being acquired; "
                "use it in a with statement or call acquire()",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        keys = ", ".join(shown(want) for want in self._wants if not want.implied)
        return f"<{type(self).__name__} {keys}>"

    @property
    def keys(self) -> tuple[AnyKey, ...]:
        """What it asks for, in the order it will be taken."""
        return tuple(want.key for want in self._wants if not want.implied)


def shown(want: Want) -> str:
    """A key and its mode, for people."""
    return repr(want.text) + (" shared" if want.mode is Mode.SHARED else "")


class HoldFacts:
    """Keys, modes and fences of what was granted."""

    _seats: list[Seat] = []  # noqa: RUF012 - never changed; a Ctrl-C inside __init__ leaves this one

    @property
    def _shown_seats(self) -> list[Seat]:
        return [seat for seat in self._seats if not seat.want.implied]

    @property
    def keys(self) -> tuple[AnyKey, ...]:
        """The keys, in the order they were taken."""
        return tuple(seat.want.key for seat in self._shown_seats)

    @property
    def mode(self) -> Mode:
        """The mode of all keys; `UsageError` when they were taken in different ones."""
        modes = {seat.want.mode for seat in self._shown_seats}
        if len(modes) > 1:
            raise UsageError("this hold has keys in both modes: look at hold.grants")
        return modes.pop()

    @property
    def grants(self) -> tuple[tuple[AnyKey, Mode, int | None], ...]:
        """Key, mode and fence of each key."""
        return tuple((seat.want.key, seat.want.mode, seat.fence) for seat in self._shown_seats)

    @property
    def fence(self) -> int:
        """The fencing token: it only grows per key. Send it with your write. The newest exclusive key's."""
        seats = self._shown_seats
        fences = [s.fence for s in seats if s.want.mode is EXCLUSIVE] or [s.fence for s in seats]
        if any(fence is None for fence in fences):
            raise UsageError("this backend has no fences yet; run: takehold init URL")
        return max(fence for fence in fences if fence is not None)


class BaseHold(HoldFacts):
    """A granted lock in your hands: all state lives here."""

    _done = False
    """Released, or not ours to release: the finalizer has nothing to do."""
    _slot: int | None = None

    def __init__(self, desk: Desk, seats: list[Seat]) -> None:
        self._desk = desk
        self._seats = seats

    def __del__(self) -> None:
        # Only a deque and a warning: a mutex here would deadlock when the collector runs inside one.
        if self._done:
            return
        states = {seat.state for seat in self._seats}
        if QUEUED in states or HELD in states:
            # In line without anybody who waits: its acquire was interrupted twice.
            self._desk.abandoned.extend(self._seats)
            self._desk.nudge(self._seats)
        if HELD in states:
            warnings.warn(
                f"{self!r} was dropped while held and is released late; use a with statement or release()",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        keys = ", ".join(shown(seat.want) for seat in self._seats if not seat.want.implied)
        state = "held" if self._seats[0].state == HELD else "released"
        return f"<{type(self).__name__} {keys} {'lost' if self._reason() else state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseHold) and other._seats == self._seats

    def __hash__(self) -> int:
        return hash(self._seats[0])

    @property
    def since(self) -> datetime:
        """When it was granted."""
        rt = self._desk.rt
        return since((rt.now_ns() - max(seat.at for seat in self._seats)) / 1e9, rt.wall())

    @property
    def owner(self) -> Owner:
        """Who took it, and at which line."""
        return self._seats[0].owner

    @property
    def id(self) -> str:
        """What `takehold evict` takes."""
        return hold_id(self._shown_seats[-1])

    @property
    def slot(self) -> int:
        """Which of the `locks.slots(...)` this is."""
        if self._slot is None:
            raise UsageError("only a hold from locks.slots(...) has a slot")
        return self._slot

    @property
    def released(self) -> bool:
        """Whether it was given back, or lost."""
        return all(seat.state != HELD for seat in self._seats)

    @property
    def lost(self) -> bool:
        """Whether the hold ended without our doing. Costs no I/O."""
        return self._reason() is not None

    def check(self) -> None:
        """Raise `HoldLost` unless the backend still vouches for this hold; `UsageError` after a release."""
        if (reason := self._reason()) is not None:
            raise self._lost_error(reason)
        if self.released:
            raise UsageError(f"{self!r}: check() after release()")

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call back once, from any thread, when the hold is lost; at once when it already is.

        After a release nothing can be lost any more, and nobody is called.
        """
        if self._reason() is not None or not self._desk.watch(self._seats[-1], callback):
            callback()

    def give(self, task: object) -> None:
        """Make another task, or thread party, the owner: it may then not wait for these keys, and we may."""
        self._desk.give_to(self._seats, task)

    def _reason(self) -> str | None:
        """Why it is lost, from what is known without I/O; None while it is not."""
        for seat in self._seats:
            if seat.state != HELD:
                if seat.lost is not None:
                    return seat.lost
            elif (session := seat.session) is not None and (reason := session.doubt(seat)) is not None:
                self._desk.lose(seat, reason)
                return reason
        return None

    def _lost_error(self, reason: str) -> HoldLost:
        text = ", ".join(repr(seat.want.text) for seat in self._shown_seats)
        taken = site_text(self._seats[0].site)
        lost = next((seat for seat in self._seats if seat.lost is not None), self._seats[-1])
        return HoldLost(f"{text} taken at {taken} was lost: {reason}", key=lost.want.text, reason=reason)


def adapt(timeout: Timeout, waited: float | None) -> None:
    """Teach an adaptive timeout: seconds of a wait that succeeded, None for one that did not."""
    if isinstance(timeout, AdaptiveTimeout):
        if waited is None:
            timeout.timed_out()
        else:
            timeout.succeeded(waited)
