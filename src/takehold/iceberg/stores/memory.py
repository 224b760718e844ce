"""Objects in memory: the verified fake, and the store of tests and demonstrations."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

from takehold.iceberg.stores.store import AlreadyThere, Changed, Stored, below, checked

__all__ = ["MemoryStore"]

_named: dict[str, MemoryStore] = {}


class MemoryStore:
    """A store that lives as long as its process. It needs no event loop: `takehold.runtime.run` is enough.

    `pause` is awaited before each call takes effect and again before it answers: the two places where others can
    come between. A simulation passes its `sleep`, a benchmark its latency.
    """

    def __init__(self, *, name: str = "", pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self.location = f"memory://{name}"
        self._objects: dict[str, Stored] = {}
        self._writes = itertools.count(1)
        self._pause = pause or _nothing

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The one store of this process that has this name."""
        return _named.setdefault(name, cls(name=name))

    async def get(self, path: str) -> Stored | None:
        """What is stored there, or None."""
        checked(path)
        await self._pause()
        found = self._objects.get(path)
        await self._pause()
        return found

    async def put_new(self, path: str, data: bytes) -> str:
        """Store it unless something is there."""
        checked(path)
        await self._pause()
        if path in self._objects:
            raise AlreadyThere(f"{path} is there already", path=path)
        return await self._set(path, data)

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        """Replace what has this tag."""
        checked(path)
        await self._pause()
        self._expect(path, tag)
        return await self._set(path, data)

    async def delete_if(self, path: str, tag: str | None) -> None:
        """Delete what has this tag; with None whatever is there."""
        checked(path)
        await self._pause()
        if tag is not None:
            self._expect(path, tag)
        self._objects.pop(path, None)
        await self._pause()

    async def list(self, prefix: str) -> list[str]:
        """Every path below a directory, sorted."""
        start = below(prefix)
        await self._pause()
        found = sorted(path for path in self._objects if path.startswith(start))
        await self._pause()
        return found

    async def put(self, path: str, data: bytes) -> None:
        """Store an immutable file."""
        checked(path)
        await self._pause()
        await self._set(path, data)

    async def prepare(self, prefix: str) -> None:
        """There are no directories to make."""

    async def close(self) -> None:
        """Nothing to let go of: what is stored stays for the next one who opens this name."""

    async def _set(self, path: str, data: bytes) -> str:
        tag = str(next(self._writes))
        self._objects[path] = Stored(bytes(data), tag)
        await self._pause()
        return tag

    def _expect(self, path: str, tag: str) -> None:
        found = self._objects.get(path)
        if found is None or found.tag != tag:
            raise Changed(f"{path} {'is gone' if found is None else 'was changed meanwhile'}", path=path)


async def _nothing() -> None:
    """No pause."""
