"""A TCP proxy that breaks connections on command: reset, black hole, delay, a reply cut short.

It has a thread and an event loop of its own, so a blocking test and an async one use it the same way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit

from tests.servers.child import free_port

Side = Literal["server", "client"]
T = TypeVar("T")
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Listens on ``port`` and passes everything on to ``target_port``; close it, or use it as a context manager."""

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self.port = free_port()
        self.resets = 0  # connections reset so far: a test asserts that its fault happened
        self._target = (target_host, target_port)
        self._links: set[_Link] = set()
        self._listening: asyncio.Task[None] | None = None
        self._delay = 0.0
        self._cut: tuple[Side, int] | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def url(self, url: str) -> str:
        """The same URL with the proxy's host and port."""
        parts = urlsplit(url)
        account, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{account}{at}127.0.0.1:{self.port}").geturl()

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._links)

    # ------------------------------------------------------------------------------------------- the faults

    def reset(self) -> None:
        """Reset every connection on both sides, as a crashed router does; new ones are welcome."""
        self._do(self._reset())

    def hold(self) -> None:
        """Be a black hole: keep bytes and ends back, both ways, and leave new connections without an answer."""
        self._do(self._set_open(False))

    def resume(self) -> None:
        """Pass on what was held back."""
        self._do(self._set_open(True))

    def delay(self, seconds: float) -> None:
        """Keep every chunk for so long, each way."""
        self._delay = seconds

    def cut_after(self, n: int, direction: Side = "server") -> None:
        """Let ``n`` more bytes from that side pass, then reset the connection they came on. Once."""
        self._do(self._set_cut(direction, n))

    def drop_reply(self) -> None:
        """Let the next request through, swallow its reply and reset: the client cannot know whether it was done."""
        self.cut_after(0, "server")

    def refuse(self, refused: bool = True) -> None:
        """Stop listening, so that new connections are refused; ``False`` listens again. Old ones stay."""
        self._do(self._refuse() if refused else self._listen())

    def close(self) -> None:
        """Reset everything and end the thread."""
        if self._loop.is_closed():
            return
        self._do(self._refuse())
        self._do(self._reset())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -------------------------------------------------------------------------------------- on the own loop

    def _do(self, action: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(30)

    async def _listen(self) -> None:
        if self._listening:
            return
        listener = socket.create_server(("127.0.0.1", self.port), backlog=200)
        listener.setblocking(False)
        self._listening = self._loop.create_task(self._accept(listener))

    async def _refuse(self) -> None:
        if self._listening:
            await _cancelled(self._listening)
            self._listening = None

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await self._loop.sock_accept(listener)
                link = _Link(client)
                self._links.add(link)
                link.task = self._loop.create_task(self._carry(link))

    async def _set_open(self, value: bool) -> None:
        if value:
            self._open.set()
        else:
            self._open.clear()

    async def _set_cut(self, direction: Side, n: int) -> None:
        self._cut = (direction, n)

    async def _reset(self) -> None:
        for link in list(self._links):
            assert link.task
            link.hard = True
            await _cancelled(link.task)
            self._end(link)  # a task that never began ended nothing

    async def _carry(self, link: _Link) -> None:
        """One connection from its first byte to its end."""
        ways: set[asyncio.Task[bool]] = set()
        try:
            await self._open.wait()
            await self._loop.sock_connect(link.server, self._target)
            ways = {
                self._loop.create_task(self._pump(link.client, link.server, "client")),
                self._loop.create_task(self._pump(link.server, link.client, "server")),
            }
            going = ways
            while going and not link.hard:
                done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                link.hard = any(way.result() for way in done)
        except OSError:
            link.hard = True  # the server refuses: so do we
        finally:
            for way in ways:
                await _cancelled(way)
            self._end(link)

    def _end(self, link: _Link) -> None:
        if link in self._links:
            self._links.remove(link)
            self.resets += link.hard
            link.close()

    async def _pump(self, source: socket.socket, sink: socket.socket, side: Side) -> bool:
        """One direction, to its end; whether the connection is to be reset."""
        try:
            while True:
                data = await self._loop.sock_recv(source, 65_536)
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._open.wait()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return False
                passing = self._passing(side, len(data))
                await self._loop.sock_sendall(sink, data[:passing])
                if passing is not None:
                    return True
        except OSError:
            await self._open.wait()  # a black hole swallows resets too
            return True

    def _passing(self, side: Side, size: int) -> int | None:
        """How many of so many bytes may pass before the cut; None for all of them and no cut."""
        if self._cut is None or self._cut[0] != side:
            return None
        left = self._cut[1]
        if size < left:
            self._cut = (side, left - size)
            return None
        self._cut = None
        return left


class _Link:
    """The two sockets of one connection."""

    def __init__(self, client: socket.socket) -> None:
        self.client, self.server = client, socket.socket()
        self.hard = False
        self.task: asyncio.Task[None] | None = None
        for side in (self.client, self.server):
            side.setblocking(False)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        for side in (self.client, self.server):
            if self.hard:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            side.close()


async def _cancelled(task: asyncio.Task[T]) -> None:
    task.cancel()
    await asyncio.wait({task})
