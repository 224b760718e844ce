"""What every operation stands on: records, files, lockers, counters, and what this process remembers of names."""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from takehold import AdaptiveTimeout
from takehold.iceberg import paths
from takehold.iceberg.contention import Contention
from takehold.iceberg.directory import Directory, Target
from takehold.iceberg.files import Files
from takehold.iceberg.locking import Lockers, Patience, holding, level_of
from takehold.iceberg.pending import Pending
from takehold.iceberg.pointer import Pointer
from takehold.iceberg.shelf import Shelf
from takehold.iceberg.stores import Store
from takehold.iceberg.words import Identifier, Namespace

if TYPE_CHECKING:
    from takehold.runtime import Runtime

__all__ = ["Ground"]


class Ground:
    """One store, one lock backend, one runtime."""

    NAMES: Final = 10_000
    _LEVELS: Final = {"pointer": "pointer locked", "function": "all shards"}

    def __init__(self, store: Store, lockers: Lockers, runtime: Callable[[], Runtime], shards: int) -> None:
        self.store = store
        self.lockers = lockers
        self._runtime = runtime
        self.shards = shards
        self.shelf = Shelf(store, runtime)
        self.files = Files(store)
        self.patience = Patience()
        self.contention = Contention()
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        self._names: OrderedDict[tuple[str, Identifier], Target] = OrderedDict()

    @property
    def runtime(self) -> Runtime:
        """The clock and the order of whoever is running."""
        return self._runtime()

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as metadata has them."""
        return int(self.runtime.wall() * 1000)

    def fresh(self) -> str:
        """An id that nobody has used."""
        random = self.runtime.random
        return f"{int(random() * 2**32):08x}{int(random() * 2**32):08x}"

    def fresh_uuid(self) -> str:
        """A random uuid; a simulation's are those of its seed."""
        return str(UUID(int=int(f"{self.fresh()}{self.fresh()}", 16), version=4))

    def locked(
        self, by: str, *locked: str, timeout: AdaptiveTimeout | float | None = None, read: bool = False
    ) -> AbstractAsyncContextManager[Any]:
        """The lock on these paths for the operation `by`, sorted, with the timeout of its class."""
        level = level_of(locked)
        if timeout is None:
            timeout = self.patience.all_shards if level in ("all shards", "function") else self.patience.tables
        name = self._LEVELS.get(level, level)
        locker = self.lockers.at(*sorted(set(locked)), by=by)
        return holding(locker, name, timeout, self.contention, self.runtime, read=read)

    def shard_of(self, warehouse: str, identifier: Identifier) -> str:
        """The path of the shard that a name belongs to."""
        number = paths.shard_number(identifier.name, self.shards)
        return paths.shard(warehouse, identifier.namespace, number)

    def shards_of(self, warehouse: str, namespace: Namespace) -> list[str]:
        """The paths of all shards of a namespace."""
        return paths.shards(warehouse, namespace, self.shards)

    async def shard(self, path: str) -> tuple[Directory, str] | None:
        """A shard and its tag."""
        return await self.shelf.read(path, Directory, "shard")

    async def pointer(self, path: str) -> tuple[Pointer, str] | None:
        """A pointer and its tag."""
        return await self.shelf.read(path, Pointer)

    async def pending(self, path: str) -> tuple[Pending, str] | None:
        """A pending record and its tag."""
        return await self.shelf.read(path, Pending)

    # What a name stood for when it was last looked up. A pointer that names another table, or another
    # birth, or nothing, says that it is out of date; so a wrong guess costs one read, never an answer.

    def known(self, warehouse: str, identifier: Identifier) -> Target | None:
        """What this name stood for."""
        return self._names.get((warehouse, identifier))

    def remember(self, warehouse: str, identifier: Identifier, target: Target) -> None:
        """What this name stands for."""
        self._names[warehouse, identifier] = target
        self._names.move_to_end((warehouse, identifier))
        while len(self._names) > self.NAMES:
            self._names.popitem(last=False)

    def forget(self, warehouse: str, identifier: Identifier) -> None:
        """This name stands for something else now."""
        self._names.pop((warehouse, identifier), None)
