"""Records on a store: read, added, swapped, removed. An answer in doubt is asked for again until it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from takehold import BackendUnavailable, Conflict, UnknownOutcome
from takehold.iceberg.records import RING, Record, advanced_ring, seal, unseal
from takehold.iceberg.stores import AlreadyThere, Changed, Store, Stored

if TYPE_CHECKING:
    from takehold.runtime import Runtime

__all__ = ["Pauses", "Shelf"]

R = TypeVar("R", bound=Record)


class Shelf:
    """The records of one store."""

    SETTLE_FOR: Final = 30.0
    """Seconds in which a store has to say what became of a write, before that is `UnknownOutcome`."""

    def __init__(self, store: Store, runtime: Callable[[], Runtime]) -> None:
        self.store = store
        self._runtime = runtime

    async def read(self, path: str, kind: type[R], name: str | None = None) -> tuple[R, str] | None:
        """The record that is there, and its tag; `name` where one class has several kinds."""
        stored = await self.store.get(path)
        if stored is None:
            return None
        fields = unseal(path, name or kind.kind, stored.data)
        if name is not None:
            fields["kind"] = name
        return kind.of(fields, fields["version"], tuple(fields["recent"])), stored.tag

    async def add(self, path: str, record: R, mark: str | None = None) -> str:
        """Store the first version; `AlreadyThere` when there is one."""
        record = advanced(record, mark)
        data = seal(path, record)
        return await self._settled(_Write(path, data, None, mark, record.version))

    async def swap(self, path: str, record: R, tag: str, mark: str | None = None) -> str:
        """Store the next version where this tag still is, else `Changed`; `mark` goes into the ring."""
        record = advanced(record, mark)
        data = seal(path, record)
        return await self._settled(_Write(path, data, tag, mark, record.version))

    async def keep(self, path: str, record: R, tag: str | None, mark: str | None = None) -> str:
        """`swap`, or `add` where there was nothing; `Changed` for both."""
        if tag is not None:
            return await self.swap(path, record, tag, mark)
        try:
            return await self.add(path, record, mark)
        except AlreadyThere as error:
            raise Changed(str(error), path=path) from None

    async def remove(self, path: str, tag: str) -> None:
        """Delete it where this tag still is; else, and when it is gone already, `Changed`."""
        pauses: Pauses | None = None
        while True:
            try:
                return await self.store.delete_if(path, tag)
            except UnknownOutcome:
                pauses = pauses or self.pauses()
            except BackendUnavailable:
                if pauses is None:
                    raise
            except Changed:
                if pauses is not None and await self.store.get(path) is None:
                    return None
                raise
            if pauses.over():
                raise UnknownOutcome(f"{path} may or may not have been deleted; the store does not say")
            await pauses.next()

    def pauses(self) -> Pauses:
        """As long as a store has for an answer."""
        return Pauses(self._runtime(), self.SETTLE_FOR)

    async def _settled(self, write: _Write) -> str:
        try:
            return await self._send(write)
        except UnknownOutcome:
            # It may have happened, and may happen still. That is over when it did, or when the tag it needs is gone.
            pauses = self.pauses()
        while True:
            await pauses.next()
            try:
                found = await self.store.get(write.path)
            except BackendUnavailable:
                write.check(pauses)
                continue
            if (tag := _verdict(write, found)) is not None:
                return tag
            try:
                return await self._send(write)
            except (UnknownOutcome, BackendUnavailable):
                write.check(pauses)
            except Conflict:
                continue  # it has just changed: what is there now decides

    async def _send(self, write: _Write) -> str:
        if write.tag is None:
            return await self.store.put_new(write.path, write.data)
        return await self.store.put_if(write.path, write.data, write.tag)


@dataclass(frozen=True, slots=True)
class _Write:
    """One write, and how to recognise it."""

    path: str
    data: bytes
    tag: str | None
    mark: str | None
    version: int

    def check(self, pauses: Pauses) -> None:
        """Go on asking, or say that nobody knows."""
        if pauses.over():
            raise UnknownOutcome(f"{self.path} may or may not have been written; the store does not say")


def _verdict(write: _Write, found: Stored | None) -> str | None:
    """The tag when the write happened, None when it has not yet; `Changed` when it never will."""
    if found is None:
        if write.tag is None:
            return None
        if write.mark is not None:
            raise UnknownOutcome(f"{write.path} is gone: deleted after our write, or instead of it")
        raise Changed(f"{write.path} is gone", path=write.path)
    if found.data == write.data:
        return found.tag
    if found.tag == write.tag:
        return None
    if write.mark is not None:
        fields = unseal(write.path, None, found.data)
        if write.mark in fields["recent"]:
            return found.tag
        if fields["version"] - write.version >= RING:
            raise UnknownOutcome(f"{write.path} was changed too often since for its ring to know of our write")
    if write.tag is None:
        raise AlreadyThere(f"{write.path} is there already", path=write.path)
    raise Changed(f"{write.path} was changed meanwhile", path=write.path)


def advanced(record: R, mark: str | None) -> R:
    """The next version of a record that was read."""
    made: R = replace(record, version=record.version + 1, recent=advanced_ring(record.recent, mark))  # type: ignore[type-var]
    return made


class Pauses:
    """Growing pauses with jitter, and an end."""

    def __init__(self, runtime: Runtime, seconds: float, first: float = 0.005, most: float = 1.0) -> None:
        self._runtime, self._pause, self._most = runtime, first, most
        self._end = runtime.now() + seconds

    def over(self) -> bool:
        """Whether its time has passed."""
        return self._runtime.now() >= self._end

    async def next(self) -> None:
        """Wait a little, longer each time."""
        pause, self._pause = self._pause, min(self._pause * 2, self._most)
        await self._runtime.sleep(pause * (0.5 + self._runtime.random() / 2))
