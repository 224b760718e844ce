"""The blocking face."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, ParamSpec, Self, TypeVar

from takehold import locks as faces
from takehold.core.asking import ask_quickly
from takehold.core.deadline import DEFAULT, AdaptiveTimeout, Backoff, Deadline, Default, Timeout, seconds_of
from takehold.core.desk import Desk
from takehold.core.key import AnyKey
from takehold.core.owner import Site
from takehold.core.record import HoldRecord
from takehold.core.seat import HELD, Seat
from takehold.core.want import EXCLUSIVE, SHARED, Mode, Shared, Want
from takehold.errors import HoldLost, LockTimeout, UsageError
from takehold.locks import _recipes
from takehold.locks._base import BaseHold, BaseLock, BaseLocks, adapt
from takehold.locks._desks import desk_for, leave
from takehold.runtime import Threads, run
from takehold.runtime.threads import here

if TYPE_CHECKING:
    from takehold.locks._within import AnySession, Within

__all__ = ["Hold", "Lock", "Locks"]

P = ParamSpec("P")
R = TypeVar("R")
_rt = Threads()


class Locks(BaseLocks):
    """Named locks for threads and processes. Making one does no I/O.

    `Locks("file:/run/app")`, `Locks("memory:")`, or `Locks()` with `TAKEHOLD_URL` set.
    """

    def lock(
        self,
        *keys: AnyKey | Shared,
        timeout: Timeout | Default = DEFAULT,
        mode: Mode | str = EXCLUSIVE,
        subtree: bool = False,
    ) -> Lock:
        """A request for these keys: sorted, all or nothing, one deadline. Use it in a `with` statement."""
        if len(keys) == 1 and type(key := keys[0]) is str and mode is EXCLUSIVE and not subtree:
            wants: tuple[Want, ...] = self._known.get(key) or self._want_for(key)
        elif len(keys) == 1 and type(key) is Shared and type(text := key.key) is str and not subtree:
            wants = self._known_shared.get(text) or self._want_for(text, SHARED)
        else:
            wants = self._wants(keys, mode, subtree)
        if timeout is not DEFAULT:
            seconds_of(timeout)
        frame = sys._getframe(1)
        return Lock(self, wants, timeout, (frame.f_code, frame.f_lasti))

    def _here(self) -> Desk:
        if self._caller.closed:
            raise UsageError("this Locks object is closed; make another one")
        desk = self._desk = desk_for(self._backend, _rt, 0, self._caller)
        return desk

    def open(self) -> Self:
        """Prove now that the backend can be used, instead of at the first acquire."""
        run(self._here().ready())
        return self

    def init(self) -> str:
        """Make what the backend needs, as `takehold init URL` does, and say what was done; before the first hold."""
        return run(self._backend.init(_rt, fence_from=None))

    def close(self) -> None:
        """Give back everything this object holds; later use is a `UsageError`."""
        if not self._caller.closed:
            self._caller.closed = True
            if self._desk is not None and (pending := self._desk.release_all(self._caller, here.party)):
                run(self._desk.given_back(pending))
            if self._desk is not None:
                leave(self._desk, self._caller)
            self._desk = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def held(self, key: AnyKey) -> Hold | None:
        """This thread's own hold on the key, or None."""
        wants = self._wants((key,), EXCLUSIVE, subtree=False)
        desk = self._here()
        for seat in desk.held.get(here.party, ()):
            if seat.want.id == wants[-1].id:
                return Hold._view(desk, seat)
        return None

    def who(self, pattern: str = "*", *, stuck_after: float | None = None) -> list[HoldRecord]:
        """Holders and waiters whose key matches, of every process that can be seen."""
        desk = self._here()
        records = self._own_records(desk) if self._backend.solo else run(self._backend.who(_rt))
        return self._matching(pattern, records, stuck_after)

    def busy(self, prefix: str = "") -> set[str]:
        """The keys of this namespace that are held right now, by anybody, and start with the prefix."""
        own = self._caller.namespace
        held = [record for record in self.who() if record.state == "held" and record.namespace == own]
        return {record.key for record in held if record.key.startswith(prefix)}

    def evict(self, hold: str, *, terminate: bool = False, timeout: float = 2.0) -> bool:
        """Ask the owner to give up exactly that hold (an id from `who`); True when it is gone.

        With `terminate`, an owner that does not answer in time is ended, with everything else it holds.
        """
        desk = self._here()
        _recipes.check_hold_id(hold)
        own = self._own_hold(desk, hold)
        if own is not None:
            desk.lose(own, "evicted by an operator")
            return True
        return run(self._backend.evict(_rt, hold, terminate=terminate, timeout=timeout))

    def within(self, session: AnySession) -> Within:
        """Keys that are held until the transaction of a SQLAlchemy session ends, wherever that is done.

        `locks.within(session).acquire("orders/42")`; others get them when its changes can be seen.
        """
        try:
            from takehold.locks._within import Within, session_of
        except ImportError as error:
            raise UsageError(
                "SQLAlchemy is not installed; it comes with: pip install 'takehold[sqlalchemy]'"
            ) from error
        return Within(self, session_of(session))

    def slots(self, key: str, count: int, *, timeout: Timeout | Default = DEFAULT) -> Slots:
        """A semaphore: one of `count` slots of the key. `hold.slot` says which."""
        if timeout is not DEFAULT:
            seconds_of(timeout)
        frame = sys._getframe(1)
        lines, line = _recipes.slot_keys(key, count)
        wants = tuple(self._wants((name,), EXCLUSIVE, subtree=False)[0] for name in lines)
        return Slots(self, wants, timeout, (frame.f_code, frame.f_lasti), line)

    def guard(
        self,
        template: str,
        *,
        busy: Literal["wait", "skip", "raise"] | Callable[..., R] = "wait",
        timeout: Timeout | Default = DEFAULT,
        mode: Mode | str = EXCLUSIVE,
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Run a function under a key made from its arguments: `@locks.guard("invoice/{customer_id}")`."""
        return _recipes.guarded(self, template, busy, timeout, mode)

    def once(self, key: AnyKey, run: Callable[[], object], *, done: Callable[[], bool]) -> bool:
        """Run it unless it is done, in one process only; True when we ran it."""
        if done():
            return False
        with self.lock(key, timeout=None):
            if done():
                return False
            run()
            return True

    def lead(self, key: AnyKey, work: Callable[[Hold], R], *, settle: float = 0.0) -> R:
        """Wait to be the leader, then run `work(hold)`; on loss campaign again, after the work has ended.

        A thread cannot be stopped from outside: the work must look at `hold.lost` or call `hold.check()`.
        `settle` waits after winning, so that a former leader notices first.
        """
        while True:
            hold = self.lock(key, timeout=None).acquire()
            try:
                if not hold.wait_lost(settle):
                    result = work(hold)
                    if not hold.lost:
                        return result
            except HoldLost:
                if not hold.lost:
                    raise
            finally:
                hold.release()


class Lock(BaseLock):
    """A request for one or more keys; `with` or `acquire()` turns it into a `Hold`."""

    def acquire(self) -> Hold:
        """Wait for the keys; `LockTimeout` names who is in the way."""
        return self._acquire(self._timeout)

    def try_acquire(self) -> Hold | None:
        """Take the keys if nobody has them; never wait."""
        hold, desk, taken = self._begin(3, waits=False)
        if taken < len(hold._seats):
            if run(desk.take_now(hold._seats, taken, _rt)) is not None:
                return None
            self._locks._tell_acquired(hold._seats)
        return hold

    def _acquire(self, timeout: Timeout | Default) -> Hold:
        hold, desk, taken = self._begin(4)
        if taken < len(hold._seats):
            self._wait(desk, hold._seats, taken, timeout)
        return hold

    def _begin(self, depth: int, waits: bool = True) -> tuple[Hold, Desk, int]:
        """The hold first, so that an interrupted caller has a finalizer; then one grab."""
        locks = self._locks
        if self._used:
            frame = sys._getframe(depth - 1)
            self._site = (frame.f_code, frame.f_lasti)
        self._used = True
        desk = locks._desk
        if desk is None or desk.closed:
            desk = locks._here()
        me = here.party
        site, caller = self._site, locks._caller
        wants = self._wants
        if len(wants) == 1:
            seats = [Seat(wants[0], me, site, caller)]
        else:
            seats = [Seat(want, me, site, caller) for want in wants]
            for seat in seats:
                seat.group = seats
        hold = Hold(desk, seats)
        if waits and (len(seats) > 1 or me in desk.held):
            locks._check_order(desk, desk.held.get(me) or {}, seats, depth)
        taken = desk.grab(seats) if desk.at_once or desk.abandoned else 0
        if caller.listeners and taken == len(seats):
            locks._tell_acquired(seats)
        return hold, desk, taken

    def _wait(self, desk: Desk, seats: list[Seat], taken: int, timeout: Timeout | Default) -> None:
        locks = self._locks
        patience: Timeout = locks._timeout if isinstance(timeout, Default) else timeout
        seconds = seconds_of(patience)
        began = _rt.now()
        plain = len(seats) == 1 and not desk.at_once and seconds != 0
        granted = ask_quickly(desk, seats[0], seconds, began, _rt) if plain else None
        if granted and not locks._caller.listeners and type(patience) is not AdaptiveTimeout:
            return
        deadline = Deadline(_rt.now, seconds, began)
        if not granted:
            try:
                if granted is None:
                    run(desk.acquire(seats, taken, deadline, _rt))
                else:
                    run(desk.acquire_refused(seats[0], deadline, _rt))
            except LockTimeout:
                adapt(patience, None)
                raise
        if locks._caller.listeners or type(patience) is AdaptiveTimeout:
            waited = deadline.waited()
            adapt(patience, waited)
            locks._tell_acquired(seats, waited)

    def __enter__(self) -> Hold:
        hold, desk, taken = self._begin(3)
        if taken < len(self._wants):
            self._wait(desk, hold._seats, taken, self._timeout)
        me = hold._seats[0].me
        if self._open:
            self._entered(me, hold)
        else:
            self._open[me] = hold
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving(here.party)._leave(kind)


class Slots(Lock):
    """A request for any one of several keys."""

    def __init__(
        self, locks: Locks, wants: tuple[Want, ...], timeout: Timeout | Default, site: Site, line: str
    ) -> None:
        super().__init__(locks, wants, timeout, site)
        self._line = line

    def _acquire(self, timeout: Timeout | Default) -> Hold:
        if (hold := self.try_acquire()) is not None:
            return hold
        deadline = Deadline(_rt.now, seconds_of(self._locks._timeout_of(timeout)))
        if deadline.left() <= 0:
            raise self._full(deadline)
        _rt.may_wait()
        # One at a time looks for a free slot, first come first served: cheap for everybody else.
        with self._locks.lock(self._line, timeout=_recipes.left(deadline)):
            backoff = Backoff(0.0005, 0.02, _rt.random)
            while (hold := self.try_acquire()) is None:
                if deadline.left() <= 0:
                    raise self._full(deadline)
                run(_rt.sleep(min(backoff.next(), deadline.left())))
        return hold

    def try_acquire(self) -> Hold | None:
        """Take a slot if one is free; never wait."""
        self._used = True
        for slot, want in enumerate(self._wants):
            one = Lock(self._locks, (want,), 0, self._site)
            if (hold := one.try_acquire()) is not None:
                hold._slot = slot
                return hold
        return None

    def __enter__(self) -> Hold:
        hold = self._acquire(self._timeout)
        self._entered(hold._seats[0].me, hold)
        return hold

    def _full(self, deadline: Deadline) -> LockTimeout:
        return _recipes.slots_full(self._wants, deadline.waited(), self._locks.who())


class Hold(BaseHold):
    """A granted lock. Leave the `with` block, or call `release()`, to give it back."""

    @classmethod
    def _view(cls, desk: Desk, seat: Seat) -> Hold:
        hold = cls(desk, seat.together())
        hold._done = True
        return hold

    def release(self) -> None:
        """Give it back; once more is a no-op."""
        seat = self._seats[0]
        # Who fails is on the way to a rollback.
        told = faces.on_release if seat.state == HELD and sys.exception() is None else None
        if pending := self._desk.release(self._seats):
            run(self._desk.given_back(pending))
        # Last: until here an interrupted release is the finalizer's.
        self._done = True
        if told is not None:
            told(self, seat.at)

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the hold is lost; False when `timeout` seconds passed without that."""
        if timeout != 0:
            _rt.may_wait()
        event = _rt.event()
        ring = event.set
        self.on_lost(ring)
        try:
            return run(event.wait(timeout)) or self.lost
        finally:
            self._desk.unwatch(self._seats[-1], ring)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        seats = self._seats
        seat = seats[0]
        told = faces.on_release if seat.state == HELD else None
        if len(seats) == 1 and seat.state == HELD and seat.session is not None:
            reason = seat.session.doubt(seat)
            if reason is not None:
                self._desk.lose(seat, reason)
        else:
            reason = self._reason()
        if self._desk.at_once:
            self._desk.release(seats)
        else:
            self._desk.leave(seats)
        self._done = True
        if reason is not None and kind is None:
            raise self._lost_error(reason)
        if told is not None and kind is None:
            told(self, seat.at)
