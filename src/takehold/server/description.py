"""The server's OpenAPI description, made from the operations themselves."""

from __future__ import annotations

import re
from typing import Any, Final

import takehold
from takehold.server.routing import OPERATIONS, Operation

__all__ = ["description"]

ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "integer", "minimum": 400, "maximum": 600},
            },
        }
    },
}


def description() -> dict[str, Any]:
    """The document; what bodies look like is in the Iceberg specification."""
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Takehold's Iceberg REST catalog",
            "version": takehold.__version__,
            "description": "Bodies are those of the Apache Iceberg REST specification.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(one: Operation) -> dict[str, Any]:
    text: dict[str, Any] = {"schema": {"type": "string"}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, **text} for name in re.findall(r"\{([^}]+)\}", one.path)
    ]
    if one.replays:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "format": "uuid"}})
    made: dict[str, Any] = {
        "operationId": one.name,
        "summary": (one.work.__doc__ or "").strip().splitlines()[0],
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "Done."},
            "default": {
                "description": "Refused.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
        "x-scope": one.scope,
    }
    if one.method == "POST":
        made["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return made
