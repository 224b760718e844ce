"""The asyncio face: the same words with `await`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from takehold import locks as faces
from takehold.core.asking import collect, post, take_back
from takehold.core.deadline import DEFAULT, AdaptiveTimeout, Backoff, Deadline, Default, Timeout, seconds_of
from takehold.core.desk import Desk
from takehold.core.key import AnyKey
from takehold.core.owner import Site
from takehold.core.record import HoldRecord
from takehold.core.seat import HELD, Seat
from takehold.core.want import EXCLUSIVE, SHARED, Mode, Shared, Want
from takehold.errors import HoldLost, LockTimeout, UsageError
from takehold.locks import _recipes
from takehold.locks._base import BaseHold, BaseLock, BaseLocks, adapt, in_transactions, refuse_own_transaction
from takehold.locks._desks import desk_for, leave
from takehold.runtime.aio import Aio

if TYPE_CHECKING:
    from takehold.locks._within_async import AsyncAnySession, AsyncWithin

__all__ = ["AsyncHold", "AsyncLock", "AsyncLocks", "AsyncSlots"]

P = ParamSpec("P")
R = TypeVar("R")
_current = asyncio.current_task


class AsyncLocks(BaseLocks):
    """Named locks for asyncio tasks and processes. Making one does no I/O, and needs no running loop."""

    _place: tuple[Any, Desk | None] = (None, None)
    """The runtime and the desk of the loop it was last used on."""

    def lock(
        self,
        *keys: AnyKey | Shared,
        timeout: Timeout | Default = DEFAULT,
        mode: Mode | str = EXCLUSIVE,
        subtree: bool = False,
        on_lost: Literal["cancel", "tell"] = "cancel",
    ) -> AsyncLock:
        """A request for these keys: sorted, all or nothing, one deadline. Use it in an `async with` statement.

        When the hold is lost the body is cancelled and `HoldLost` raised; `on_lost="tell"` only tells.
        """
        if len(keys) == 1 and type(key := keys[0]) is str and mode is EXCLUSIVE and not subtree:
            wants: tuple[Want, ...] = self._known.get(key) or self._want_for(key)
        elif len(keys) == 1 and type(key) is Shared and type(text := key.key) is str and not subtree:
            wants = self._known_shared.get(text) or self._want_for(text, SHARED)
        else:
            wants = self._wants(keys, mode, subtree)
        if timeout is not DEFAULT:
            seconds_of(timeout)
        frame = sys._getframe(1)
        lock = AsyncLock(self, wants, timeout, (frame.f_code, frame.f_lasti))
        if on_lost != "cancel":
            lock._on_lost = _checked_on_lost(on_lost, lock)
        return lock

    def _here(self) -> tuple[Aio, Desk]:
        if self._caller.closed:
            raise UsageError("this AsyncLocks object is closed; make another one")
        rt, desk = self._place
        loop = asyncio.get_running_loop()
        if desk is None or desk.closed or rt.loop is not loop:
            rt = Aio(loop)
            desk = self._desk = desk_for(self._backend, rt, id(loop), self._caller)
            self._place = rt, desk
        return rt, desk

    async def open(self) -> Self:
        """Prove now that the backend can be used, instead of at the first acquire."""
        await self._here()[1].ready()
        return self

    async def init(self) -> str:
        """Make what the backend needs, as `takehold init URL` does, and say what was done; before the first hold."""
        return await self._backend.init(Aio(asyncio.get_running_loop()), fence_from=None)

    async def close(self) -> None:
        """Give back everything this object holds; later use is a `UsageError`."""
        if not self._caller.closed:
            self._caller.closed = True
            if self._desk is not None:
                # Also what blocks have let go of a moment ago, and is still on its way.
                await self._desk.given_back(self._desk.release_all(self._caller, _current()) or [])
                leave(self._desk, self._caller)
                # Transports that were told to close do it in a later turn of the loop; there may be none after us.
                for _ in range(5):
                    await asyncio.sleep(0)
            self._desk, self._place = None, (None, None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def held(self, key: AnyKey) -> AsyncHold | None:
        """This task's own hold on the key, or None."""
        wants = self._wants((key,), EXCLUSIVE, subtree=False)
        _, desk = self._here()
        for seat in desk.held.get(_current(), ()):
            if seat.want.id == wants[-1].id:
                return AsyncHold._view(desk, seat)
        return None

    async def who(self, pattern: str = "*", *, stuck_after: float | None = None) -> list[HoldRecord]:
        """Holders and waiters whose key matches, of every process that can be seen."""
        rt, desk = self._here()
        records = self._own_records(desk) if self._backend.solo else await self._backend.who(rt)
        return self._matching(pattern, records, stuck_after)

    async def busy(self, prefix: str = "") -> set[str]:
        """The keys of this namespace that are held right now, by anybody, and start with the prefix."""
        own = self._caller.namespace
        return {
            r.key for r in await self.who() if r.state == "held" and r.namespace == own and r.key.startswith(prefix)
        }

    async def evict(self, hold: str, *, terminate: bool = False, timeout: float = 2.0) -> bool:
        """Ask the owner to give up exactly that hold (an id from `who`); True when it is gone.

        With `terminate`, an owner that does not answer in time is ended, with everything else it holds.
        """
        rt, desk = self._here()
        _recipes.check_hold_id(hold)
        own = self._own_hold(desk, hold)
        if own is not None:
            desk.lose(own, "evicted by an operator")
            return True
        return await self._backend.evict(rt, hold, terminate=terminate, timeout=timeout)

    def within(self, session: AsyncAnySession) -> AsyncWithin:
        """Keys that are held until the transaction of a SQLAlchemy session ends, wherever that is done.

        `await locks.within(session).acquire("orders/42")`; others get them when its changes can be seen.
        """
        try:
            from takehold.locks._within_async import AsyncWithin, async_session_of
        except ImportError as error:
            raise UsageError(
                "SQLAlchemy is not installed; it comes with: pip install 'takehold[sqlalchemy]'"
            ) from error
        return AsyncWithin(self, async_session_of(session))

    def slots(self, key: str, count: int, *, timeout: Timeout | Default = DEFAULT) -> AsyncSlots:
        """A semaphore: one of `count` slots of the key. `hold.slot` says which."""
        if timeout is not DEFAULT:
            seconds_of(timeout)
        frame = sys._getframe(1)
        names, line = _recipes.slot_keys(key, count)
        wants = tuple(self._wants((name,), EXCLUSIVE, subtree=False)[0] for name in names)
        return AsyncSlots(self, wants, timeout, (frame.f_code, frame.f_lasti), line)

    def guard(
        self,
        template: str,
        *,
        busy: Literal["wait", "skip", "raise"] | Callable[..., R] = "wait",
        timeout: Timeout | Default = DEFAULT,
        mode: Mode | str = EXCLUSIVE,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R | None]]]:
        """Run a function under a key made from its arguments: `@locks.guard("invoice/{customer_id}")`."""
        return _recipes.guarded_async(self, template, busy, timeout, mode)

    async def once(
        self, key: AnyKey, run: Callable[[], Awaitable[object]], *, done: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Run it unless it is done, in one process only; True when we ran it."""
        if await done():
            return False
        async with self.lock(key, timeout=None):
            if await done():
                return False
            await run()
            return True

    async def lead(self, key: AnyKey, work: Callable[[AsyncHold], Awaitable[R]], *, settle: float = 0.0) -> R:
        """Wait to be the leader, then run `work(hold)`; on loss it is cancelled, and then we campaign again.

        `settle` waits after winning, so that a former leader notices first.
        """
        while True:
            hold = await self.lock(key, timeout=None).acquire()
            try:
                async with hold:
                    if settle:
                        await asyncio.sleep(settle)
                    return await work(hold)
            except HoldLost:
                if not hold.lost:
                    raise


def _checked_on_lost(on_lost: object, lock: AsyncLock) -> Literal["tell"]:
    if on_lost == "tell":
        return "tell"
    lock._used = True
    raise UsageError(f"on_lost is 'cancel' or 'tell', not {on_lost!r}")


class AsyncLock(BaseLock):
    """A request for one or more keys; `async with` or `acquire()` turns it into an `AsyncHold`."""

    _on_lost: Literal["cancel", "tell"] = "cancel"

    async def acquire(self) -> AsyncHold:
        """Wait for the keys; `LockTimeout` names who is in the way."""
        hold, taken, rt = self._begin(2)
        if taken < len(hold._seats):
            await self._wait(hold, taken, self._timeout, rt)
        return hold

    async def try_acquire(self) -> AsyncHold | None:
        """Take the keys if nobody has them; never wait."""
        hold, taken, rt = self._begin(2, waits=False)
        if taken < len(hold._seats):
            if await hold._desk.take_now(hold._seats, taken, rt) is not None:
                return None
            self._locks._tell_acquired(hold._seats)
        return hold

    def _begin(self, depth: int, waits: bool = True) -> tuple[AsyncHold, int, Aio]:
        """The hold first, so that a lost caller has a finalizer; then one grab."""
        locks = self._locks
        if self._used:
            frame = sys._getframe(depth)
            self._site = (frame.f_code, frame.f_lasti)
        self._used = True
        me = _current()
        if me is None:
            raise UsageError("AsyncLocks are for tasks; there is none running here")
        # One pair, read at once: the same object may be in use on another loop in another thread.
        rt, desk = locks._place
        if desk is None or desk.closed or rt.loop is not me.get_loop():
            rt, desk = locks._here()
        site, caller = self._site, locks._caller
        wants = self._wants
        if len(wants) == 1:
            seats = [Seat(wants[0], me, site, caller)]
        else:
            seats = [Seat(want, me, site, caller) for want in wants]
            for seat in seats:
                seat.group = seats
        hold = AsyncHold(desk, seats)
        if waits and (len(seats) > 1 or me in desk.held):
            locks._check_order(desk, desk.held.get(me) or {}, seats, depth + 1)
        taken = desk.grab(seats) if desk.at_once or desk.abandoned else 0
        if caller.listeners and taken == len(seats):
            locks._tell_acquired(seats)
        return hold, taken, rt

    async def _wait(self, hold: AsyncHold, taken: int, timeout: Timeout | Default, rt: Aio) -> None:
        locks, desk, seats = self._locks, hold._desk, hold._seats
        patience: Timeout = locks._timeout if isinstance(timeout, Default) else timeout
        seconds = seconds_of(patience)
        if in_transactions and seconds != 0:
            refuse_own_transaction(desk, seats[taken:])
        began = rt.now()
        asked = post(desk, seats[0], seconds, began, rt) if len(seats) == 1 and seconds != 0 else None
        if asked is None:
            deadline = Deadline(rt.now, seconds)
            await self._patiently(desk.acquire(seats, taken, deadline, rt), patience)
        else:
            # The plain case of a backend with round trips, without the detours: one question, one answer.
            try:
                await asked.event  # type: ignore[misc]
                granted = collect(desk, seats[0], asked, rt, True)
            except BaseException:
                await take_back(desk, seats, asked, rt)
                raise
            if granted and not locks._caller.listeners and type(patience) is not AdaptiveTimeout:
                return
            deadline = Deadline(rt.now, seconds, began)
            if not granted:
                await self._patiently(desk.acquire_refused(seats[0], deadline, rt), patience)
        if locks._caller.listeners or type(patience) is AdaptiveTimeout:
            waited = deadline.waited()
            adapt(patience, waited)
            locks._tell_acquired(seats, waited)

    @staticmethod
    async def _patiently(acquiring: Coroutine[Any, Any, None], patience: Timeout) -> None:
        try:
            await acquiring
        except LockTimeout:
            adapt(patience, None)
            raise

    async def __aenter__(self) -> AsyncHold:
        hold, taken, rt = self._begin(2)
        if taken < len(self._wants):
            await self._wait(hold, taken, self._timeout, rt)
        me = hold._seats[0].me
        if self._open:
            self._entered(me, hold)
        else:
            self._open[me] = hold
        if self._on_lost == "cancel":
            hold._cancel_on_loss(me)
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._open
        # When there is one, it is ours: nobody else can have taken it out, and who comes now stands behind it.
        hold: AsyncHold | None = opened.pop(list(opened)[0]) if len(opened) == 1 else None  # noqa: RUF015 - one call, atomic
        if type(hold) is not AsyncHold:
            hold = self._leaving(_current(), hold)
        if (reason := hold._let_go(kind)) is not None or hold._cancelled is not None:
            await hold._explain(reason, kind, error)


class AsyncSlots(AsyncLock):
    """A request for any one of several keys."""

    def __init__(
        self, locks: AsyncLocks, wants: tuple[Want, ...], timeout: Timeout | Default, site: Site, line: str
    ) -> None:
        super().__init__(locks, wants, timeout, site)
        self._line = line

    async def acquire(self) -> AsyncHold:
        """Wait for a slot."""
        if (hold := await self.try_acquire()) is not None:
            return hold
        rt, _ = self._locks._here()
        deadline = Deadline(rt.now, seconds_of(self._locks._timeout_of(self._timeout)))
        if deadline.left() <= 0:
            raise await self._full(deadline)
        # One at a time looks for a free slot, first come first served: cheap for everybody else.
        async with self._locks.lock(self._line, timeout=_recipes.left(deadline)):
            backoff = Backoff(0.0005, 0.02, rt.random)
            while (hold := await self.try_acquire()) is None:
                if deadline.left() <= 0:
                    raise await self._full(deadline)
                await rt.sleep(min(backoff.next(), deadline.left()))
        return hold

    async def try_acquire(self) -> AsyncHold | None:
        """Take a slot if one is free; never wait."""
        self._used = True
        for slot, want in enumerate(self._wants):
            one = AsyncLock(self._locks, (want,), 0, self._site)
            if (hold := await one.try_acquire()) is not None:
                hold._slot = slot
                return hold
        return None

    async def __aenter__(self) -> AsyncHold:
        hold = await self.acquire()
        me = hold._seats[0].me
        self._entered(me, hold)
        hold._cancel_on_loss(me)
        return hold

    async def _full(self, deadline: Deadline) -> LockTimeout:
        return _recipes.slots_full(self._wants, deadline.waited(), await self._locks.who())


class AsyncHold(BaseHold):
    """A granted lock. Leave the `async with` block, or call `release()`, to give it back."""

    _task: asyncio.Task[Any] | None = None
    """Whom a loss cancels: the task inside the block."""
    _cancelled: asyncio.Task[Any] | None = None
    """Whom a loss did cancel."""
    _cancelling = 0

    @classmethod
    def _view(cls, desk: Desk, seat: Seat) -> AsyncHold:
        hold = cls(desk, seat.together())
        hold._done = True
        return hold

    async def release(self) -> None:
        """Give it back and wait until it is; once more is a no-op."""
        seat = self._seats[0]
        # Who fails is on the way to a rollback.
        told = faces.on_release if seat.state == HELD and sys.exception() is None else None
        self._done = True
        if pending := self._desk.release(self._seats):
            await self._desk.given_back(pending)
        if told is not None:
            told(self, seat.at)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the hold is lost; False when `timeout` seconds passed without that."""
        event = Aio(asyncio.get_running_loop()).event()
        ring = event.set
        self.on_lost(ring)
        try:
            return await event.wait(timeout) or self.lost
        finally:
            self._desk.unwatch(self._seats[-1], ring)

    async def __aenter__(self) -> Self:
        self._cancel_on_loss(_current())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (reason := self._let_go(kind)) is not None or self._cancelled is not None:
            await self._explain(reason, kind, error)

    def _cancel_on_loss(self, task: Any) -> None:
        """From here to the end of the block, a loss cancels this task, as `asyncio.timeout` would."""
        seat = self._seats[-1]
        self._cancelling = task.cancelling()
        self._task = task
        seat.body = self
        if seat.lost is not None:
            self._lost_in_body()

    def _lost_in_body(self) -> None:
        """Called by the desk, from any thread, when the hold is lost while its block runs."""
        if (task := self._task) is not None:
            task.get_loop().call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        # The body may have ended between the loss and this turn of the loop.
        if (task := self._task) is not None and self._cancelled is None:
            self._cancelled = task
            task.cancel()

    def _let_go(self, kind: type[BaseException] | None) -> str | None:
        """Release, and say why the hold was lost, if it was. Synchronous: no cancel can come in between."""
        seats = self._seats
        seat = seats[-1]
        told = faces.on_release if seat.state == HELD else None
        if len(seats) == 1 and seat.state == HELD and seat.session is not None and seat.session.doubt(seat) is None:
            reason = None
        else:
            reason = self._reason()
        self._task = None
        seat.body = None  # it refers to us: no cycle for the collector
        self._desk.release(seats)
        self._done = True
        if told is not None and reason is None and kind is None:
            told(self, seat.at)
        return reason

    async def _explain(self, reason: str | None, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Leave the block of a hold that was lost: turn our own cancel into `HoldLost`, let others through."""
        if (task := self._cancelled) is not None:
            if kind is None:
                await _swallow_own_cancel()
            ours = task.uncancel() <= self._cancelling
            if kind is asyncio.CancelledError and not ours:
                return
        if reason is not None and (kind is None or (self._cancelled is not None and kind is asyncio.CancelledError)):
            raise self._lost_error(reason) from error


async def _swallow_own_cancel() -> None:
    """The body ended before our cancel reached it; let it arrive here instead of somewhere later."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return
