"""Metadata files: immutable JSON where other engines read it too, and the last ones read, parsed."""

from __future__ import annotations

import gzip
import zlib
from collections import OrderedDict
from typing import Any, Final

import orjson

from takehold import UnknownOutcome, UsageError
from takehold.iceberg.locations import path_of
from takehold.iceberg.stores import Store

__all__ = ["Files"]


class Files:
    """The metadata files of one store."""

    KEPT: Final = 32 * 1024 * 1024
    """Bytes of JSON whose parsed form is kept."""
    LARGEST: Final = 512 * 1024 * 1024
    ATTEMPTS: Final = 3

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, tuple[dict[str, Any], int]] = OrderedDict()
        self._size = 0

    async def read(self, location: str) -> dict[str, Any] | None:
        """What is in the file, not to be changed; None when it is gone."""
        if (kept := self._kept.get(location)) is not None:
            self._kept.move_to_end(location)
            return kept[0]
        stored = await self._store.get(path_of(self._store, location))
        if stored is None:
            return None
        metadata = _parsed(location, stored.data)
        self._keep(location, metadata, len(stored.data))
        return metadata

    async def write(self, location: str, metadata: dict[str, Any]) -> None:
        """Store a file under a fresh name."""
        data = orjson.dumps(metadata)
        path = path_of(self._store, location)
        for attempt in range(self.ATTEMPTS):
            try:
                # The name is fresh and so are the bytes: twice is the same as once.
                await self._store.put(path, gzip.compress(data, mtime=0) if _zipped(location) else data)
                break
            except UnknownOutcome:
                if attempt + 1 == self.ATTEMPTS:
                    raise
        self._keep(location, metadata, len(data))

    async def remove(self, location: str) -> None:
        """Delete a file that nothing refers to."""
        self._forget(location)
        await self._store.delete_if(path_of(self._store, location), None)

    def _keep(self, location: str, metadata: dict[str, Any], size: int) -> None:
        self._forget(location)
        self._kept[location] = metadata, size
        self._size += size
        while self._size > self.KEPT:
            self._forget(next(iter(self._kept)))

    def _forget(self, location: str) -> None:
        if (kept := self._kept.pop(location, None)) is not None:
            self._size -= kept[1]


def _zipped(location: str) -> bool:
    return location.endswith((".gz.metadata.json", ".metadata.json.gz"))


def _parsed(location: str, data: bytes) -> dict[str, Any]:
    try:
        if _zipped(location):
            data = gzip.decompress(data)
        metadata = orjson.loads(data)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{location} is no metadata file: {error}") from error
    if not isinstance(metadata, dict):
        raise UsageError(f"{location} is no metadata file: it is a JSON {type(metadata).__name__}")
    return metadata
