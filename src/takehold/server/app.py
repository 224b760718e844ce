"""The ASGI application: from a request's bytes to an answer's, in one write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from takehold import TakeholdError
from takehold.server import operations as operations  # noqa: PLC0414  registers all of them
from takehold.server import pages
from takehold.server.access import Access
from takehold.server.answers import Refused, Reply, refusal
from takehold.server.call import Call, query_of
from takehold.server.logs import log_answer, log_failure
from takehold.server.meters import Meters
from takehold.server.replays import Replays, checked_key
from takehold.server.routing import OPERATIONS, Operation, Routes
from takehold.server.routing import Scope as Needed
from takehold.server.service import Service, Settings

if TYPE_CHECKING:
    from takehold.iceberg import Catalog
    from takehold.iceberg.stores import Store

__all__ = ["Rest", "create_app", "create_service"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SWEEP: Final = 600.0


def create_service(
    catalog: Catalog, store: Store, *, settings: Settings | None = None, access: Access | None = None
) -> Service:
    """A server's parts around a catalog that is open."""
    settings = settings or Settings()
    return Service(
        catalog=catalog,
        store=store,
        settings=settings,
        access=access or Access(),
        routes=Routes(OPERATIONS),
        replays=Replays(store, settings.remembers),
        meters=Meters(catalog.contention),
    )


def create_app(service: Service) -> Starlette:
    """The application: the catalog below `/v1`, and the pages for operators beside it."""

    def route(path: str, page: Callable[[Service], Awaitable[Response]], needs: Needed = "read") -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                service.access.check(needs, dict(request.headers.raw))
            except TakeholdError as error:
                reply = refusal(error)
                shown = {name.decode(): text.decode() for name, text in reply.headers.items()}
                return Response(reply.body, reply.status, shown)
            return await page(service)

        return Route(path, endpoint, methods=["GET"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(service))
        yield
        sweeping.cancel()

    app = Starlette(
        routes=[
            _Below(b"/v1/", Rest(service)),
            route("/healthz", pages.health, "none"),
            route("/metrics", pages.metrics),
            route("/contention", pages.contention),
            route("/openapi.json", pages.openapi, "none"),
        ],
        lifespan=lifespan,
        exception_handlers={404: _nothing_there, 405: _nothing_there},
    )
    # A redirect would send a client to whatever host its request named.
    app.router.redirect_slashes = False
    return app


async def _sweep(service: Service) -> None:
    while True:
        try:
            await service.replays.sweep()
        except TakeholdError as error:
            log_failure("sweep", error)
        await asyncio.sleep(SWEEP)


async def _nothing_there(_: Request, __: Exception) -> Response:
    reply = refusal(Refused("there is no such path", type="NoSuchEndpointException", code=404))
    return Response(reply.body, reply.status, media_type="application/json")


class _Below(BaseRoute):
    """What is below a path, as it was sent: Starlette's own `Mount` looks at it decoded, and not past a line break."""

    def __init__(self, prefix: bytes, app: Rest) -> None:
        self._prefix, self._app = prefix, app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is below."""
        here = scope["type"] == "http" and _raw_path(scope).startswith(self._prefix)
        return (Match.FULL if here else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it."""
        await self._app(scope, receive, send)


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


class Rest:
    """The REST catalog as an ASGI application of its own: it matches paths before they are decoded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        meters = self._service.meters
        meters.running.inc()
        name = "none"
        replayed = False
        try:
            operation, call = await self._read(scope, receive)
            name = operation.name
            if call.key is None:
                reply = await operation.work(call)
            else:
                reply, replayed = await self._service.replays.once(call, operation)
        except TakeholdError as error:
            reply = refusal(error)
            if reply.status >= 500:
                log_failure(name, error)
        except Exception as error:  # noqa: BLE001
            reply = refusal(error)
            log_failure(name, error, unforeseen=True)
        finally:
            meters.running.dec()
        seconds = time.perf_counter() - began
        meters.answered(name, reply.status, seconds)
        log_answer(name, scope, reply, seconds, replayed=replayed)
        await _send(send, reply)

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Operation, Call]:
        service = self._service
        operation, names = service.routes.find(scope["method"], _raw_path(scope).decode("latin-1"))
        headers = dict(scope["headers"])
        service.access.check(operation.scope, headers)
        body = await _body(receive, headers, service.settings.most_body)
        call = Call(service, operation.name, names, query_of(scope["query_string"]), headers, body)
        call.warehouse = names.get("prefix") or service.settings.warehouse
        if operation.replays and (key := headers.get(b"idempotency-key")):
            call.key = checked_key(key)
        return operation, call


async def _body(receive: Receive, headers: dict[bytes, bytes], most: int) -> bytes:
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) > most:
        raise _too_long(most)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        return body
    parts, length = [body], len(body)
    while message["type"] == "http.request" and message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > most:
            raise _too_long(most)
    if message["type"] == "http.disconnect":
        raise Refused("the request broke off", type="BadRequestException", code=400)
    return b"".join(parts)


def _too_long(most: int) -> Refused:
    return Refused(f"the request is longer than {most} bytes", type="PayloadTooLargeException", code=413)


async def _send(send: Send, reply: Reply) -> None:
    headers = [*reply.headers.items()]
    if reply.status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(reply.body)))
    if reply.closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
