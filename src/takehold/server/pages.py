"""What operators ask: is it well, what does it count, what can it be asked."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response

import takehold
from takehold import TakeholdError
from takehold.server.description import description

if TYPE_CHECKING:
    from takehold.server.service import Service

__all__ = ["contention", "health", "metrics", "openapi"]

ANSWERS_WITHIN: Final = 2.0


async def health(service: Service) -> Response:
    """Whether the store answers, and which kind of locks is in use. Open to all: there is no name in it."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            await service.store.get("catalog/.health")
        found = "ok"
    except (TakeholdError, TimeoutError):
        found = "the store does not answer"
    value = {"status": found, "locks": service.settings.locks, "version": takehold.__version__}
    return _json(value, 200 if found == "ok" else 503)


async def metrics(service: Service) -> Response:
    """Counts, for Prometheus."""
    return Response(service.meters.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def contention(service: Service) -> Response:
    """Where the catalog's operations met, for `takehold iceberg contention`."""
    return _json({name: asdict(counts) for name, counts in service.catalog.contention})


async def openapi(_: Service) -> Response:
    """Every path and method, as OpenAPI."""
    return _json(description())


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
