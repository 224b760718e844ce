"""The proof of a store at start-up: that it compares before it sets. Some servers take the condition and ignore it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from contextlib import suppress

from takehold import BackendRefused, Conflict, TakeholdError
from takehold.iceberg.stores.store import Store

__all__ = ["prove"]

RIVALS = 4


async def prove(store: Store) -> None:
    """Raise `BackendRefused` unless the store refuses what it must; nothing of the proof is left behind.

    Needs an asyncio loop: several writes are sent at once, of which one may win.
    """
    path = f"proof/{uuid.uuid4().hex}"
    try:
        await _alone(store, path)
        await _at_once(store, f"{path}-at-once")
    finally:
        for used in (path, f"{path}-at-once"):
            with suppress(TakeholdError):  # what went wrong first is what counts
                await store.delete_if(used, None)


async def _alone(store: Store, path: str) -> None:
    old = await store.put_new(path, b"1")
    await _no(store, store.put_new(path, b"2"), "made an object that was there already (If-None-Match)")
    tag = await store.put_if(path, b"3", old)
    await _no(store, store.put_if(path, b"4", old), "replaced an object by a tag it no longer had (If-Match)")
    await _no(store, store.delete_if(path, old), "deleted an object by a tag it no longer had (DELETE with If-Match)")
    found = await store.get(path)
    if found is None or (found.data, found.tag) != (b"3", tag):
        raise BackendRefused(f"{store.location} does not give back what was written: {found!r:.200}")
    await store.delete_if(path, tag)
    if await store.get(path) is not None:
        raise BackendRefused(f"{store.location} still shows what was deleted")
    await _no(store, store.put_if(path, b"5", tag), "replaced an object that was gone (If-Match)")
    await _no(store, store.delete_if(path, tag), "deleted an object that was gone (DELETE with If-Match)")


async def _at_once(store: Store, path: str) -> None:
    await _one_wins(store, [store.put_new(path, b"%d" % number) for number in range(RIVALS)], "If-None-Match")
    found = await store.get(path)
    tag = found.tag if found else ""
    await _one_wins(store, [store.put_if(path, b"+%d" % number, tag) for number in range(RIVALS)], "If-Match")


async def _one_wins(store: Store, writes: list[Awaitable[str]], condition: str) -> None:
    answers = await asyncio.gather(*writes, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, Conflict):
            raise answer
    if (winners := sum(isinstance(answer, str) for answer in answers)) != 1:
        raise BackendRefused(
            f"{store.location} let {winners} of {RIVALS} simultaneous writes win where one must ({condition}); "
            "commits would be lost on it, so it cannot be used"
        )


async def _no(store: Store, write: Awaitable[object], what: str) -> None:
    try:
        await write
    except Conflict:
        return
    raise BackendRefused(f"{store.location} {what}; commits would be lost on it, so it cannot be used")
