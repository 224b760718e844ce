"""A client that sends exactly what a test says, and what tables look like in requests."""

from __future__ import annotations

import http.client
import json
import secrets
import time
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}

VIEW: dict[str, Any] = {
    "name": "v",
    "schema": SCHEMA,
    "view-version": {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "default-namespace": ["n"],
        "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "spark"}],
    },
    "properties": {},
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and type of an error, whose body has exactly the specified form."""
        value = self.json
        assert list(value) == ["error"]
        assert set(value["error"]) == {"message", "type", "code"}
        assert value["error"]["code"] == self.status
        return self.status, value["error"]["type"]


class Http:
    """One connection; paths are sent as they are given."""

    def __init__(self, uri: str, **headers: str) -> None:
        parts = urlsplit(uri)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self.headers = headers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send it; a body that is not bytes goes as JSON. Underscores in header names are dashes."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): text for name, text in {**self.headers, **headers}.items()}
        self.connection.request(method, path, body=data, headers=sent)
        answer = self.connection.getresponse()
        read = answer.read()
        return Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, read)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: object, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def namespace(self, name: str | None = None) -> str:
        """A new namespace."""
        name = name or f"n{secrets.token_hex(4)}"
        assert self.post("/v1/main/namespaces", {"namespace": [name]}).status == 200
        return name

    def table(self, namespace: str, name: str = "t", **more: object) -> dict[str, Any]:
        """A new table: what loading it answers."""
        made = self.post(f"/v1/main/namespaces/{namespace}/tables", {"name": name, "schema": SCHEMA, **more})
        assert made.status == 200, made.body
        return made.json  # type: ignore[no-any-return]

    def set(self, namespace: str, name: str, **properties: str) -> Answer:
        """A commit that sets properties."""
        updates = [{"action": "set-properties", "updates": properties}]
        return self.post(f"/v1/main/namespaces/{namespace}/tables/{name}", {"requirements": [], "updates": updates})

    def properties(self, namespace: str, name: str) -> dict[str, str]:
        found = self.get(f"/v1/main/namespaces/{namespace}/tables/{name}")
        assert found.status == 200, found.body
        return found.json["metadata"]["properties"]  # type: ignore[no-any-return]


def change(namespace: str, name: str, **properties: str) -> dict[str, Any]:
    """One table's part of a transaction."""
    return {
        "identifier": {"namespace": [namespace], "name": name},
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": properties}],
    }


def key() -> str:
    """A fresh idempotency key: a UUID of version 7."""
    value = (int(time.time() * 1000) << 80) | (0x7 << 76) | (secrets.randbits(12) << 64) | (0b10 << 62)
    return str(uuid.UUID(int=value | secrets.randbits(62)))
