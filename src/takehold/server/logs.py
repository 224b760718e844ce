"""The log: one line for each thing worth knowing, as text or as JSON. No header, query or body is ever in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from takehold.server.answers import Reply

__all__ = ["JsonLines", "TextLines", "log_answer", "log_failure", "log_notice"]

_server: Final = logging.getLogger("takehold.server")
_requests: Final = logging.getLogger("takehold.server.requests")


def log_answer(operation: str, scope: Mapping[str, Any], reply: Reply, seconds: float, *, replayed: bool) -> None:
    """One request: shown with `--log all`, or when it failed."""
    level = logging.WARNING if reply.status >= 500 else logging.INFO
    if not _requests.isEnabledFor(level):
        return
    path = (scope.get("raw_path") or b"").decode("latin-1")[:500]
    facts = {
        "event": "request",
        "operation": operation,
        "method": scope["method"],
        "path": path,
        "status": reply.status,
        "ms": round(seconds * 1000, 2),
        **({"replayed": True} if replayed else {}),
    }
    _requests.log(level, "%s %s %s", reply.status, scope["method"], path, extra={"facts": facts})


def log_failure(operation: str, error: BaseException, *, unforeseen: bool = False) -> None:
    """What went wrong inside; with a traceback where nobody foresaw it."""
    facts = {"event": "failure", "operation": operation, "error": type(error).__name__}
    _server.error("%s: %s", operation, error, extra={"facts": facts}, exc_info=error if unforeseen else None)


def log_notice(event: str, message: str, **facts: Any) -> None:
    """Something about the server itself: where it listens, that it stops."""
    _server.info(message, extra={"facts": {"event": event, **facts}})


class TextLines(logging.Formatter):
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")


class JsonLines(logging.Formatter):
    """For programs: one object in each line."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        value: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            value["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(value, default=str).decode()
