"""Idempotency keys: a request that is sent again is answered again, and done once.

A commit, a create and a transaction carry the key into the catalog, where it becomes part of what is committed: the
record of a table remembers its last 32, so a crash between the commit and this module's own record changes nothing.
Everything else gets a record *before* it starts. After a crash in between, a retry takes the effect it finds (the
dropped table is gone) for its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from takehold import TakeholdError, UsageError
from takehold.iceberg import NoSuchTable, NoSuchView
from takehold.iceberg.stores import AlreadyThere, Changed
from takehold.server.answers import NO_CONTENT, Refused, Reply, refusal
from takehold.server.call import identifier_of
from takehold.server.routing import OPERATIONS, Operation

if TYPE_CHECKING:
    from takehold.iceberg.stores import Store
    from takehold.server.call import Call

__all__ = ["Replays", "checked_key"]

DIRECTORY: Final = "catalog/.replays"
"""Beside the warehouses, whose names are encoded and so never begin with a dot."""
IN_THE_COMMIT: Final = frozenset({"createTable", "updateTable", "commitTransaction", "createView", "replaceView"})
RELOADED: Final = {"createTable": "loadTable", "updateTable": "loadTable", "registerTable": "loadTable",
                   "createView": "loadView", "replaceView": "loadView", "registerView": "loadView"}  # fmt: skip
"""What a replay asks for where the first answer was too long to keep; it may show a newer state, as specified."""
LONGEST_KEPT: Final = 64 * 1024
TAKEN_OVER: Final = 3.0
"""Seconds after which a started operation of another process is thought dead. If it is not, both do it, and what the
second one finds done it takes for its own."""
DROPS: Final = frozenset({"dropTable", "dropView", "dropNamespace", "deleteWarehouse"})


@dataclass(frozen=True, slots=True)
class _Record:
    """What the store knows about a key."""

    state: str
    request: str
    at: float
    status: int
    headers: dict[str, str]
    body: str | None
    tag: str


class Replays:
    """The keys of one store: all servers on it remember the same."""

    def __init__(self, store: Store, remembers: float) -> None:
        self._store, self._remembers = store, remembers
        self._running: dict[str, tuple[str, asyncio.Task[Reply]]] = {}

    async def once(self, call: Call, operation: Operation) -> tuple[Reply, bool]:
        """The answer, and whether it is a replay. Duplicates that come meanwhile wait for the same one."""
        assert call.key is not None
        request = _fingerprint(call)
        known, task = self._running.get(call.key, ("", None))
        joined = task is not None
        if task is None:
            task = asyncio.create_task(self._run(call, operation, request))
            self._running[call.key] = request, task
            task.add_done_callback(lambda _, key=call.key: self._running.pop(key, None))  # type: ignore[misc]
        elif known != request:
            raise _misused(call.key)
        # The one who asked first may hang up; those who joined still want the answer.
        reply = await asyncio.shield(task)
        return reply, joined

    async def _run(self, call: Call, operation: Operation, request: str) -> Reply:
        record = await self._find(call.key or "", request)
        if record is not None and record.state == "finished":
            call.service.meters.replayed.inc()
            return await _replay(call, record)
        resumed = record is not None
        tag = record.tag if record else None
        if operation.name not in IN_THE_COMMIT and tag is None:
            tag = await self._start(call, request)
        reply = await _answer(call, operation)
        if resumed and reply.status in (404, 409):
            reply = await _own_effect(call, operation, reply)
        # Whatever happens to the record now, what was done was done.
        with suppress(TakeholdError):
            if reply.status < 500:
                await self._finish(call, request, reply, tag)
            elif reply.status == 503 and tag is not None:
                await self._store.delete_if(_path(call.key), tag)
        return reply

    async def _find(self, key: str, request: str) -> _Record | None:
        record = await self._read(key)
        if record is None:
            return None
        if record.request != request:
            raise _misused(key)
        if record.state == "started" and time.time() - record.at < TAKEN_OVER:
            raise Refused(
                "the same request is under way in another server",
                type="ServiceUnavailableException", code=503, headers={"Retry-After": "1"},
            )  # fmt: skip
        return record

    async def _start(self, call: Call, request: str) -> str:
        value = {"state": "started", "request": request, "at": time.time()}
        try:
            return await self._store.put_new(_path(call.key), orjson.dumps(value))
        except AlreadyThere:
            await self._find(call.key or "", request)
            raise Refused(
                "the same request is under way in another server",
                type="ServiceUnavailableException", code=503, headers={"Retry-After": "1"},
            ) from None  # fmt: skip

    async def _finish(self, call: Call, request: str, reply: Reply, tag: str | None) -> None:
        kept = len(reply.body) <= LONGEST_KEPT or call.operation not in RELOADED
        value = {
            "state": "finished",
            "request": request,
            "at": time.time(),
            "status": reply.status,
            "headers": {name.decode(): text.decode("latin-1") for name, text in reply.headers.items()},
            "body": reply.body.decode() if kept else None,
        }
        path = _path(call.key)
        with suppress(AlreadyThere, Changed):
            if tag is None:
                await self._store.put_new(path, orjson.dumps(value))
            else:
                await self._store.put_if(path, orjson.dumps(value), tag)

    async def _read(self, key: str) -> _Record | None:
        found = await self._store.get(_path(key))
        if found is None:
            return None
        try:
            value: dict[str, Any] = orjson.loads(found.data)
            return _Record(
                value["state"], value["request"], value["at"], value.get("status", 0),
                value.get("headers", {}), value.get("body"), found.tag,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError):
            # Damaged: as if it were not there would be doing it twice.
            raise Refused(
                f"the record of idempotency key {key} is damaged", type="ServiceFailureException", code=500
            ) from None

    async def sweep(self) -> int:
        """Delete the records that nobody may use any more; how many."""
        gone = 0
        for path in await self._store.list(DIRECTORY):
            key = path.rpartition("/")[2]
            if not _older(key, self._remembers):
                continue  # by the client's clock, which saves reading nearly all of them
            with suppress(Refused):
                record = await self._read(key)
                if record is None or time.time() - record.at < 2 * self._remembers:
                    continue
                await self._store.delete_if(path, None)
                gone += 1
        return gone


def checked_key(text: bytes) -> str:
    """An idempotency key, or 400: a UUID of version 7, as is specified."""
    try:
        key = uuid.UUID(text.decode("ascii")) if len(text) == 36 else None
    except ValueError:
        key = None
    if key is None or key.version != 7:
        raise UsageError(f"Idempotency-Key is a UUID of version 7 in 36 characters, not {text[:100]!r}")
    return str(key)


def _path(key: str | None) -> str:
    return f"{DIRECTORY}/{key}"


def _older(key: str, seconds: float) -> bool:
    try:
        return time.time() - (uuid.UUID(key).int >> 80) / 1000 > seconds
    except ValueError:
        return False


def _fingerprint(call: Call) -> str:
    parts = [call.operation, call.warehouse, *call.names.values(), *(f"{k}={v}" for k, v in sorted(call.query.items()))]
    return hashlib.blake2b(orjson.dumps(parts) + call.body, digest_size=16).hexdigest()


def _misused(key: str) -> Refused:
    return Refused(f"idempotency key {key} was used for another request", type="UnprocessableEntityException", code=422)


async def _answer(call: Call, operation: Operation) -> Reply:
    try:
        return await operation.work(call)
    except TakeholdError as error:
        return refusal(error)


async def _replay(call: Call, record: _Record) -> Reply:
    headers = {name.encode(): text.encode("latin-1") for name, text in record.headers.items()}
    if record.body is not None:
        return Reply(record.status, record.body.encode(), headers)
    kind = "view" if "View" in call.operation else "table"
    call.names = {kind: _name_of(call, kind), **call.names}
    call.query = {}
    call.headers = {}
    loader = next(one for one in OPERATIONS if one.name == RELOADED[call.operation])
    return await loader.work(call)


def _name_of(call: Call, kind: str) -> str:
    return call.names.get(kind) or str(call.json["name"])


async def _own_effect(call: Call, operation: Operation, reply: Reply) -> Reply:
    """An operation that was started and interrupted says no now: because it had been done?"""
    if operation.name in DROPS and reply.status == 404:
        return NO_CONTENT
    with suppress(TakeholdError):
        if operation.name == "createNamespace" and reply.status == 409:
            namespace = tuple(call.json["namespace"])
            properties = await call.service.catalog.load_namespace(call.warehouse, namespace)
            return Reply(200, orjson.dumps({"namespace": list(namespace), "properties": properties}), reply.headers)
        if operation.name in ("renameTable", "renameView") and reply.status == 404:
            target = identifier_of(call.json["destination"], "'destination'")
            view = operation.name == "renameView"
            exists = call.service.catalog.view_exists if view else call.service.catalog.table_exists
            if await exists(call.warehouse, target):
                return NO_CONTENT
            raise (NoSuchView if view else NoSuchTable)(str(target))
    return reply
