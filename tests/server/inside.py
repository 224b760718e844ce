"""The application without a socket, on a store that a test can spoil."""

from __future__ import annotations

from typing import Any

import orjson

from takehold import AsyncLocks
from takehold.iceberg import Catalog
from takehold.iceberg.stores import MemoryStore
from takehold.server import Settings, create_service
from takehold.server.answers import Reply
from takehold.server.app import Rest


class Inside:
    """The application without a socket."""

    def __init__(self, store: MemoryStore, *, locks: str = "memory:", settings: Settings | None = None) -> None:
        self.catalog = Catalog(store, AsyncLocks(locks, check_order="off"), owns_locks=True)
        self.service = create_service(self.catalog, store, settings=settings)
        self.rest = Rest(self.service)

    async def ask(self, method: str, path: str, body: object = None, sent: str = "") -> Reply:
        received: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"" if body is None else orjson.dumps(body)}

        async def send(message: Any) -> None:
            received.append(message)

        headers = [(b"host", b"localhost")] + ([(b"idempotency-key", sent.encode())] if sent else [])
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers,
        }  # fmt: skip
        await self.rest(scope, receive, send)
        return Reply(received[0]["status"], received[1]["body"])
