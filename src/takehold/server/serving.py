"""Running it: a socket, uvicorn, and an end that lets requests finish."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Final, Literal, Self

import uvicorn

from takehold import BackendUnavailable, UsageError
from takehold.server.access import Access, is_loopback
from takehold.server.app import create_app, create_service
from takehold.server.logs import JsonLines, TextLines, log_notice
from takehold.server.opening import Opened, open_all, table_config, vended
from takehold.server.service import Settings
from takehold.server.wire import OneWriteProtocol

__all__ = ["Plan", "Serving", "serve"]

GRACE: Final = 10
"""Seconds for requests that are under way when the server is told to stop."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator wants served, and how."""

    store: str
    locks: str | None = None
    host: str = "127.0.0.1"
    port: int = 8181
    token_file: str | None = None
    warehouse: str = "main"
    vend: bool = False
    log: Literal["errors", "all"] = "errors"
    json: bool = False


def checked(plan: Plan) -> tuple[Settings, Access]:
    """What can be said before anything is opened."""
    access = Access.of_file(plan.token_file) if plan.token_file else Access()
    if access.open and not is_loopback(plan.host):
        raise UsageError(
            f"--host {plan.host} can be reached by other machines; that takes --token-file FILE "
            "(lines like `write TOKEN`)"
        )
    config = table_config(plan.store)
    return Settings(
        warehouse=plan.warehouse, table_config=config, vended=vended(plan.store) if plan.vend else {}
    ), access


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that its port is known before anything is served."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host.strip("[]"), port))
    except OSError as error:
        made.close()
        raise BackendUnavailable(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return made


def uri_of(sock: socket.socket) -> str:
    """What clients call it."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(plan: Plan, ready: Callable[[str, Opened], None] = lambda *_: None) -> None:
    """Serve until SIGTERM or SIGINT; requests that are under way are finished."""
    _configure_logs(plan)
    settings, access = checked(plan)
    sock = listening(plan.host, plan.port)
    # uvicorn raises the signal that stopped it once more; the catalog is to be closed after that.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _already_stopping)
    asyncio.run(_serve(plan, settings, access, sock, ready))


def _already_stopping(number: int, frame: FrameType | None) -> None:
    """Nothing more to do."""


async def _serve(
    plan: Plan, settings: Settings, access: Access, sock: socket.socket, ready: Callable[[str, Opened], None]
) -> None:
    opened = await open_all(plan.store, plan.locks, warehouse=plan.warehouse)
    try:
        server = _server(opened, settings, access)
        running = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready(uri_of(sock), opened)
            log_notice("started", f"listening on {uri_of(sock)}", uri=uri_of(sock), locks=opened.locks)
        await running
        log_notice("stopped", "stopped")
    finally:
        await opened.catalog.close()


def _server(opened: Opened, settings: Settings, access: Access) -> uvicorn.Server:
    settings = replace(settings, locks=opened.locks)
    service = create_service(opened.catalog, opened.store, settings=settings, access=access)
    config = uvicorn.Config(
        create_app(service),
        http=OneWriteProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=75,
    )
    return uvicorn.Server(config)


def _configure_logs(plan: Plan) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if plan.json else TextLines())
    for name, level in (
        ("takehold", logging.INFO),
        ("takehold.server.requests", logging.INFO if plan.log == "all" else logging.WARNING),
        ("uvicorn", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if "." not in name:
            logger.handlers = [handler]
            logger.propagate = False


class Serving:
    """A server in a thread of this process, for tests and notebooks: `with Serving("./lake") as server: server.uri`."""

    def __init__(
        self,
        store: str,
        *,
        locks: str | None = None,
        warehouse: str = "main",
        port: int = 0,
        token_file: str | None = None,
    ) -> None:
        self._plan = Plan(store, locks, port=port, warehouse=warehouse, token_file=token_file)
        self._sock = listening(self._plan.host, port)
        self.uri = uri_of(self._sock)
        """Where it listens."""
        self._started: Future[None] = Future()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="takehold-serving", daemon=True)

    @property
    def properties(self) -> dict[str, str]:
        """What `pyiceberg.catalog.load_catalog` needs."""
        return {"type": "rest", "uri": self.uri, "warehouse": self._plan.warehouse}

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(timeout=30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(timeout=30)
        self._sock.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001
            with suppress(Exception):
                self._started.set_exception(error)

    async def _main(self) -> None:
        opened = await open_all(self._plan.store, self._plan.locks, warehouse=self._plan.warehouse)
        try:
            self._server = _server(opened, *checked(self._plan))
            running = asyncio.create_task(self._server.serve(sockets=[self._sock]))
            while not self._server.started and not running.done():
                await asyncio.sleep(0.005)
            self._started.set_result(None)
            await running
        finally:
            await opened.catalog.close()
