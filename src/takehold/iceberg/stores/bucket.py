"""Objects in a bucket: S3 and what speaks it, Azure Blob Storage; through `obstore`.

The server compares and sets (`If-Match`, `If-None-Match`). Its tags may be digests of the bytes, which come back
when the bytes do, so each object that changes has a line of its own write (`record`).
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError
from obstore.exceptions import UnauthenticatedError as Unauthenticated

from takehold import BackendRefused, BackendUnavailable, TakeholdError, UnknownOutcome
from takehold.iceberg.stores import deleting, record
from takehold.iceberg.stores.store import AlreadyThere, Changed, Stored, below, checked

__all__ = ["BucketStore"]

Paths = list[str]
BUSY_ATTEMPTS = 6


class BucketStore:
    """A store in a bucket or container, below a prefix. `writer` must not retry by itself: `address` sees to it."""

    def __init__(self, reader: Any, writer: Any, location: str, conditional: deleting.Request | None = None) -> None:
        self.location = location
        self._conditional = conditional or deleting.presigned(writer)
        self._reader = reader
        self._writer = writer

    async def get(self, path: str) -> Stored | None:
        """What is stored there."""
        checked(path)
        try:
            answer = await obstore.get_async(self._reader, path)
            blob = bytes(await answer.bytes_async())
        except FileNotFoundError as error:
            if _no_bucket(error):
                raise _told(path, error, wrote=False) from error
            return None
        except (BaseError, OSError) as error:
            raise _told(path, error, wrote=False) from error
        found = record.read(path, blob)
        return Stored(found.data, f"{found.version}-{answer.meta['e_tag']}")

    async def put_new(self, path: str, data: bytes) -> str:
        """Store it unless something is there."""
        return await self._put(checked(path), data, 1, "create")

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        """Replace what has this tag."""
        version, e_tag = _parts(tag)
        return await self._put(checked(path), data, version + 1, {"e_tag": e_tag})

    async def delete_if(self, path: str, tag: str | None) -> None:
        """Delete what has this tag; with None whatever is there."""
        checked(path)
        if tag is not None:
            await deleting.delete(self._conditional, path, _parts(tag)[1])
            return
        try:
            await obstore.delete_async(self._writer, path)
        except FileNotFoundError as error:
            if _no_bucket(error):
                raise _told(path, error, wrote=False) from error
        except (BaseError, OSError) as error:
            raise _told(path, error, wrote=True) from error

    async def list(self, prefix: str) -> Paths:
        """Every path below a directory, sorted."""
        start = below(prefix)
        try:
            pages = obstore.list(self._reader, start.removesuffix("/") or None)
            found = [entry["path"] async for page in pages for entry in page]
        except (BaseError, OSError) as error:
            raise _told(prefix or self.location, error, wrote=False) from error
        return sorted(path for path in found if path.startswith(start))

    async def put(self, path: str, data: bytes) -> None:
        """Store an immutable file, as it is: other programs read it."""
        checked(path)
        try:
            await obstore.put_async(self._writer, path, record.plain(data, secrets.token_hex(8)))
        except (BaseError, OSError) as error:
            raise _told(path, error, wrote=True) from error

    async def prepare(self, prefix: str) -> None:
        """A bucket has no directories to make."""

    async def close(self) -> None:
        """The connections go with the object."""

    async def _put(self, path: str, data: bytes, version: int, mode: Any) -> str:
        token = secrets.token_hex(8)
        blob = record.written(data, version, token)
        for attempt in range(BUSY_ATTEMPTS):
            try:
                # In one request: a condition on the last part of several would come too late.
                done = await obstore.put_async(self._writer, path, blob, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                if not deleting.busy(str(error)):
                    raise _refused(path, mode) from error
                # S3 says 409 while another conditional write is under way; nobody has won yet.
                await asyncio.sleep(0.02 * 2**attempt)
            except (BaseError, OSError) as error:
                told = _told(path, error, wrote=True)
                if isinstance(told, UnknownOutcome) and (landed := await self._landed(path, token)):
                    return landed
                raise told from error
            else:
                return f"{version}-{done['e_tag']}"
        raise BackendUnavailable(f"{path}: other conditional writes to it do not end")

    async def _landed(self, path: str, token: str) -> str | None:
        """The tag of our own write when it is what is there. If it is not, it may still be on its way."""
        try:
            answer = await obstore.get_async(self._reader, path)
            found = record.read(path, bytes(await answer.bytes_async()))
        except (BaseError, OSError, TakeholdError):
            return None
        return f"{found.version}-{answer.meta['e_tag']}" if found.token == token else None


def _refused(path: str, mode: Any) -> AlreadyThere | Changed:
    if mode == "create":
        return AlreadyThere(f"{path} is there already", path=path)
    return Changed(f"{path} was changed meanwhile, or is gone", path=path)


def _parts(tag: str) -> tuple[int, str]:
    version, _, e_tag = tag.partition("-")
    return (int(version), e_tag) if version.isdecimal() else (0, tag)


def _no_bucket(error: Exception) -> bool:
    return any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound"))


def _told(path: str, error: Exception, *, wrote: bool) -> TakeholdError:
    """What a failure means: a clear no, nobody there, or, for a write, that nobody can say."""
    text = str(error)
    sentence = f"{path}: {text.partition('Debug source')[0].strip()[:500]}"
    status = re.search(r"status code: (\d{3})", text)
    no = status is not None and status[1].startswith("4") and status[1] not in {"408", "409", "429"}
    if no or isinstance(error, FileNotFoundError | PermissionError | PermissionDeniedError | Unauthenticated):
        return BackendRefused(sentence)
    # With the comma: a connection that was reset is another matter, and its request may have been done.
    never_sent = "kind: Connect," in text
    return UnknownOutcome(sentence, path=path) if wrote and not never_sent else BackendUnavailable(sentence)
