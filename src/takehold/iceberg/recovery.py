"""Recovery: whoever meets an intent finds out what was decided, or decides, and finishes it.

An owner that is at work has one of its locks; one that is dead or cut off has lost them. That is only a reason to wait:
that a change is committed or aborted, once, rests on the compare-and-set of its record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from takehold import BackendError, LockTimeout, OperationConflict, UnknownOutcome, WouldDeadlock
from takehold.iceberg import paths
from takehold.iceberg.ground import Ground
from takehold.iceberg.pending import Pending
from takehold.iceberg.settling import settle
from takehold.iceberg.shelf import Pauses
from takehold.iceberg.stores import Changed

if TYPE_CHECKING:
    from takehold.runtime import Event, Task

__all__ = ["Recovery"]


class Recovery:
    """Finishes and undoes the changes of owners that died."""

    ATTEMPTS: Final = 50
    PATIENCE: Final = 5.0
    """Seconds after which an owner that still has its locks is not waited for any more: it may be paused for ever."""
    SOON: Final = 0.05
    """Seconds that an owner gets before anybody asks for its locks."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._cared: dict[str, tuple[Event, Task]] = {}
        self.closed = False

    def notice(self, warehouse: str, tx: str, met: str | None = None) -> None:
        """Look in the background after a change whose intent was met at this path."""
        path = paths.pending(warehouse, tx)
        if self.closed or path in self._cared:
            return
        runtime = self._ground.runtime
        wake = runtime.event()
        self._cared[path] = wake, runtime.spawn(self._look_after(path, wake, tx, met), f"recover {tx}")

    async def close(self) -> None:
        """End the background; what is left is for the next who meets it."""
        self.closed = True
        for wake, task in list(self._cared.values()):
            wake.set()
            await task.join()

    async def resolve(
        self, warehouse: str, tx: str, met: str, *, held: Collection[str] = (), wait: bool = True
    ) -> None:
        """Return when the record at `met` has no intent of `tx` any more.

        `held` are locks of the caller: whose locks these are cannot be at work. Without `wait`, an owner that is at
        work is an `OperationConflict`.
        """
        ground = self._ground
        path = paths.pending(warehouse, tx)
        pauses = Pauses(ground.runtime, self.PATIENCE, 0.002, 0.25)
        began = ground.runtime.now()
        while True:
            found = await ground.pending(path)
            if found is None:
                # Aborted; or committed, and then what we met has moved on.
                return await settle(ground, met, tx, tx, committed=False)
            record, tag = found
            if record.state != "pending":
                return await self._finish(path, record, tag)
            if not set(held).isdisjoint(record.locks) or pauses.over():
                await self._abort(path, record, tag)
                continue
            asks = not wait or ground.runtime.now() - began >= self.SOON
            if asks and await self._if_dead(record, lambda record=record, tag=tag: self._abort(path, record, tag)):  # type: ignore[misc]
                continue
            if not wait:
                raise OperationConflict(
                    f"{record.what} {tx} by {record.owner} is at work on {', '.join(record.tables)}"
                )
            await pauses.next()

    async def attend(self, path: str) -> Literal["finished", "undone", "busy"]:
        """Finish or undo one pending record, unless its owner is at work."""
        ground = self._ground
        while True:
            found = await ground.pending(path)
            if found is None:
                return "finished"
            record, tag = found
            if record.state != "pending":
                await self._finish(path, record, tag)
                return "finished" if record.state == "committed" else "undone"
            if not await self._if_dead(record, lambda record=record, tag=tag: self._abort(path, record, tag)):  # type: ignore[misc]
                return "busy"

    async def _abort(self, path: str, record: Pending, tag: str) -> None:
        try:
            await self._ground.shelf.swap(path, replace(record, state="aborted"), tag)
        except Changed:
            pass  # it was decided, by its owner or by another one

    async def _finish(self, path: str, record: Pending, tag: str) -> None:
        for participant in (*record.pointers, *record.shards):
            await settle(self._ground, participant, record.tx, record.mark, committed=record.state == "committed")
        try:
            await self._ground.shelf.remove(path, tag)
        except Changed:
            pass

    async def _if_dead(self, record: Pending, decide: Callable[[], Awaitable[Any]]) -> bool:
        """Decide while holding the owner's locks, when they can be had at once."""
        locker = self._ground.lockers.at(*record.locks, by="Recovery")
        try:
            hold = await locker.get_lock(self._ground.patience.NONE)
        except WouldDeadlock:
            pass  # this very task has one of them: the owner has not
        except LockTimeout:
            return False
        else:
            try:
                await decide()
            finally:
                await locker.unlock(hold)
            return True
        await decide()
        return True

    async def _look_after(self, path: str, wake: Event, tx: str, met: str | None) -> None:
        runtime = self._ground.runtime
        until = runtime.now() + self._ground.patience.recovery
        pause = self.SOON
        try:
            for _ in range(self.ATTEMPTS):
                await wake.wait(pause * (0.5 + runtime.random() / 2))
                if self.closed or runtime.now() > until:
                    return
                try:
                    if await self.attend(path) != "busy":
                        if met is not None:
                            # Also an intent of an owner that was aborted before it placed it.
                            await settle(self._ground, met, tx, tx, committed=False)
                        return
                except (BackendError, UnknownOutcome, LockTimeout):
                    pass  # the store or the lock server is away; it may come back
                pause = min(pause * 2, 1.0)
        finally:
            self._cared.pop(path, None)
