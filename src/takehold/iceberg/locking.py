"""How the catalog locks: only through `RWLocker`, in the orders of one table.

Locks keep operations from meeting; that every change is a compare-and-set is what keeps them right
(docs/protocol.md). So a hold that is lost in the middle of an operation stops it before its commit point, and undoes
nothing after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from takehold import AdaptiveTimeout, LockTimeout, NotHeld, WouldDeadlock, shared
from takehold.iceberg.contention import Contention
from takehold.iceberg.paths import WAREHOUSES

if TYPE_CHECKING:
    from takehold import AsyncLocks
    from takehold.runtime import Runtime

__all__ = ["ORDERS", "KeyLockers", "Lockers", "Ordered", "Patience", "RWLocker", "holding", "level_of"]

Timeout: TypeAlias = float | AdaptiveTimeout


class RWLocker(Protocol):
    """The lock on one or more paths. A hold is the lock's context: `lost`, `check()`, and a block that loss cancels."""

    async def get_lock(self, timeout: Timeout) -> Any:
        """Wait for all of them, alone; `LockTimeout`. 0 is one attempt."""

    async def unlock(self, hold: Any) -> None:
        """Give them back; `NotHeld` for what is not held."""

    async def get_rlock(self, timeout: Timeout) -> Any:
        """Wait for all of them, together with other readers."""

    async def runlock(self, hold: Any) -> None:
        """Give them back; `NotHeld` for what is not held."""


class Lockers(Protocol):
    """Makes lockers. `KeyLockers` is over `AsyncLocks`; `Ordered` and the recorder of tests are around another."""

    def at(self, *paths: str, by: str) -> RWLocker:
        """The locker of these paths, for an operation by that name."""


class Patience:
    """How long operations wait for a lock. Each is learned from what waits really take."""

    NONE: Final = 0.0
    """One attempt: transactions and recovery."""

    def __init__(self) -> None:
        self.tables = adaptive(30, 5)
        self.all_shards = adaptive(45, 30)
        self.reads = 2.0
        """Seconds that a load waits for a pointer; then it reads without the lock."""
        self.recovery = 300.0
        """Seconds after which background recovery leaves a record to the next who meets it."""


def adaptive(start: float, minimum: float) -> AdaptiveTimeout:
    """An adaptive timeout; a minimum above the start is lowered to it."""
    return AdaptiveTimeout(start, min(minimum, start))


class KeyLockers:
    """Paths are the keys of `AsyncLocks`: sorted, all or nothing, one deadline, reads coalesced where those do it."""

    def __init__(self, locks: AsyncLocks) -> None:
        self.locks = locks

    def at(self, *paths: str, by: str) -> RWLocker:
        """The locker of these paths."""
        return _KeyLocker(self.locks, paths)


class _KeyLocker:
    def __init__(self, locks: AsyncLocks, paths: tuple[str, ...]) -> None:
        self._locks, self._paths = locks, paths

    async def get_lock(self, timeout: Timeout) -> Any:
        return await self._locks.lock(*self._paths, timeout=timeout).acquire()

    async def unlock(self, hold: Any) -> None:
        if hold.released and not hold.lost:
            raise NotHeld(f"{hold!r} was given back before")
        await hold.release()

    async def get_rlock(self, timeout: Timeout) -> Any:
        return await self._locks.lock(*map(shared, self._paths), timeout=timeout).acquire()

    async def runlock(self, hold: Any) -> None:
        await self.unlock(hold)


ORDERS: Final[dict[str, tuple[str, ...]]] = {
    "ListWarehouses": ("warehouse registry R",),
    "GetWarehouse": ("warehouse registry R",),
    "CreateWarehouse": ("warehouse registry W",),
    "DeleteWarehouse": ("namespace registry W", "warehouse registry W"),
    "ListNamespaces": ("namespace registry R",),
    "LoadNamespace": ("namespace registry R",),
    "CreateNamespace": ("namespace registry W",),
    "UpdateNamespace": ("namespace registry W",),
    "DeleteNamespace": ("function W", "all shards W", "namespace registry W"),
    "ListTables": ("all shards R",),
    "ListViews": ("all shards R",),
    "CreateTable": ("shard W",),
    "DeleteTable": ("shard W",),
    "RegisterTable": ("shard W",),
    "UnregisterTable": ("shard W",),
    "CreateView": ("shard W",),
    "DropView": ("shard W",),
    "RegisterView": ("shard W",),
    "RenameTable": ("shard W", "pointer W"),
    "RenameView": ("shard W", "pointer W"),
    "CommitStaged": ("pointer W", "shard W"),
    "Transaction": ("pointer W", "shard W"),
    "LoadTable": ("pointer R",),
    "LoadTables": ("pointer R",),
    "LoadView": ("pointer R",),
    "TableExists": ("pointer R",),
    "ViewExists": ("pointer R",),
}
"""What each operation locks, in order. Pointer before shard is for staged tables only, which cannot be renamed:
a rename, shard before pointer, never waits for one that waits for it. A commit that goes live takes no other lock."""


def level_of(paths: tuple[str, ...]) -> str:
    """Which class of resource these are."""
    first = paths[0]
    if first == WAREHOUSES:
        return "warehouse registry"
    if not first.endswith(".bin"):
        return "function"
    if first.endswith("/namespace.bin"):
        return "namespace registry"
    if "/table-registry-shard-" in first:
        return "shard" if len(paths) <= 2 else "all shards"
    return "pointer"


class Ordered:
    """Lockers that raise `WouldDeadlock` on an order that `ORDERS` does not have. For tests and debugging."""

    def __init__(self, lockers: Lockers, current: Callable[[], object]) -> None:
        self._lockers, self._current = lockers, current
        self._held: dict[object, list[tuple[str, str]]] = {}

    def at(self, *paths: str, by: str) -> RWLocker:
        """The locker of these paths, checked."""
        return _OrderedLocker(self, self._lockers.at(*paths, by=by), by, level_of(paths))

    def enter(self, by: str, step: str, *, waits: bool) -> tuple[object, tuple[str, str]]:
        """Note one more lock of whoever is running."""
        me = self._current()
        held = self._held.setdefault(me, [])
        # What never waits cannot deadlock: recovery is at home inside every operation.
        if waits and (
            any(other != by for other, _ in held) or tuple(s for _, s in (*held, (by, step))) != _up_to(by, len(held))
        ):
            raise WouldDeadlock(f"{by} takes {step} after {held or 'nothing'}; what is registered is {ORDERS.get(by)}")
        if waits:
            held.append((by, step))
        return me, (by, step)

    def leave(self, me: object, what: tuple[str, str]) -> None:
        """Note that it was given back, or not granted."""
        held = self._held.get(me, [])
        if what in held:
            held.remove(what)
        if not held:
            self._held.pop(me, None)


def _up_to(by: str, count: int) -> tuple[str, ...]:
    return ORDERS.get(by, ())[: count + 1]


class _OrderedLocker:
    def __init__(self, book: Ordered, locker: RWLocker, by: str, level: str) -> None:
        self._book, self._locker, self._by, self._level = book, locker, by, level
        self._entered: tuple[object, tuple[str, str]] = None, ("", "")

    async def get_lock(self, timeout: Timeout) -> Any:
        return await self._get(self._locker.get_lock, "W", timeout)

    async def get_rlock(self, timeout: Timeout) -> Any:
        return await self._get(self._locker.get_rlock, "R", timeout)

    async def unlock(self, hold: Any) -> None:
        self._book.leave(*self._entered)
        await self._locker.unlock(hold)

    async def runlock(self, hold: Any) -> None:
        self._book.leave(*self._entered)
        await self._locker.runlock(hold)

    async def _get(self, get: Callable[[Timeout], Any], mode: str, timeout: Timeout) -> Any:
        self._entered = self._book.enter(self._by, f"{self._level} {mode}", waits=timeout != Patience.NONE)
        try:
            return await get(timeout)
        except BaseException:
            self._book.leave(*self._entered)
            raise


@asynccontextmanager
async def holding(
    locker: RWLocker, level: str, timeout: Timeout, contention: Contention, runtime: Runtime, *, read: bool = False
) -> AsyncIterator[Any]:
    """The body runs with the lock; waits and timeouts are counted."""
    began = runtime.now()
    try:
        hold = await (locker.get_rlock if read else locker.get_lock)(timeout)
    except LockTimeout:
        contention[level].timeouts += 1
        raise
    contention.waited(level, runtime.now() - began)
    try:
        yield hold
    finally:
        await (locker.runlock if read else locker.unlock)(hold)
