"""Two things that uvicorn does not do: one write for each answer, and an end to a request's head."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["OneWriteProtocol"]

LONGEST_HEAD: Final = 64 * 1024
TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class OneWriteProtocol(HttpToolsProtocol):
    """uvicorn's protocol on a transport that keeps an answer's head back until its body comes."""

    _head: int | None = 0
    """Bytes of a head that is not complete; None after it."""

    def connection_made(self, transport: Any) -> None:
        """A client came."""
        super().connection_made(_OneWrite(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Something came; a head without end is not kept in memory."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > LONGEST_HEAD and not self.transport.is_closing():
                self.transport.write(TOO_LONG)
                self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """It is complete."""
        self._head = None
        super().on_headers_complete()


class _OneWrite:
    """A transport; everything but writing goes straight through."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep a head until the next write; an answer without a body leaves when the loop comes round."""
        if not self._head and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data if head else data)

    def close(self) -> None:
        """What was kept leaves first."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)
