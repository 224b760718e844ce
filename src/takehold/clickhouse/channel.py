"""A channel: one ClickHouse, seen through the user's client, the same words for both faces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import Any
from uuid import uuid4

from takehold import UsageError
from takehold.clickhouse.colour import settled
from takehold.clickhouse.quoting import identifier, text

__all__ = ["Channel"]


class Body(bytes):
    """Rows for a statement.

    To see whether a lost request may be repeated clickhouse-connect decodes all of a body and looks through it for SQL.
    There is none in it; of ten megabytes that was half of the time of an append.
    """

    def decode(self, *_: Any, **__: Any) -> str:
        """Nothing to read here."""
        return ""


class Channel:
    """What appends and reads ask of a client of clickhouse-connect, blocking or asyncio, of a server or of chdb."""

    def __init__(self, client: Any, cluster: str | None) -> None:
        if not callable(getattr(client, "command", None)):
            raise UsageError(f"a client of clickhouse-connect is needed, not {client!r}")
        self.client = client
        self.cluster = cluster
        self.embedded = str(getattr(client, "uri", "")).startswith("chdb:")
        """Whether the engine lives in this process: then nobody else has it open, and no insert outlives its writer."""
        self.on_cluster = f" ON CLUSTER {identifier(cluster)}" if cluster else ""
        everywhere = f"clusterAllReplicas({text(cluster)}, system.processes)" if cluster else "system.processes"
        self.processes = everywhere
        """Where running queries are listed, of every replica that could run one of ours."""

    async def command(self, sql: str, data: bytes | None = None, **settings: Any) -> Any:
        """Run a statement. clickhouse-connect repeats a lost one only when it reads."""
        body = None if data is None else Body(data)
        return await settled(self.client.command(sql, data=body, settings=settings))

    async def rows(self, sql: str, **settings: Any) -> list[tuple[Any, ...]]:
        """The rows of a small answer."""
        result = await settled(self.client.query(sql, settings=settings))
        return list(result.result_rows)

    async def arrow(self, sql: str) -> Any:
        """A large answer, as an Arrow table."""
        return await settled(self.client.query_arrow(sql, use_strings=True))

    @contextmanager
    def source(self, data: bytes, structure: str) -> Iterator[tuple[str, str, bytes | None]]:
        """An Arrow stream as something to SELECT from, what ends the statement, and the body to send with it."""
        if not self.embedded:
            yield f"input({text(structure)})", " FORMAT ArrowStream", data
            return
        with NamedTemporaryFile(suffix=".arrow") as file:  # chdb takes no body
            file.write(data)
            file.flush()
            yield f"file({text(file.name)}, 'ArrowStream', {text(structure)})", "", None

    def apart(self) -> Mapping[str, Any]:
        """Settings for a question beside a statement that may still be running in the client's own session."""
        return {} if self.embedded else {"session_id": f"takehold-{uuid4().hex}"}
