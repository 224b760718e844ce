"""What the server answers: JSON, and errors as the REST specification has them. Nothing here knows HTTP's wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from takehold import TakeholdError
from takehold.iceberg import answer_of

__all__ = ["NO_CONTENT", "Refused", "Reply", "error_reply", "json_reply", "refusal"]

JSON: Final = b"application/json"
LONGEST_MESSAGE: Final = 2000
"""A message may quote what was sent; nobody needs all of it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer: it leaves in one write."""

    status: int
    body: bytes = b""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    closes: bool = False
    """The connection ends with it: the rest of the request is not read."""


NO_CONTENT: Final = Reply(204)


class Refused(TakeholdError):
    """The server's own no, before the catalog is asked: with the exception type Java expects, and the status."""

    def __init__(self, message: str, *, type: str, code: int, headers: Mapping[str, str] | None = None) -> None:  # noqa: A002
        super().__init__(message, type=type, code=code, headers=dict(headers or {}))

    type: str
    code: int
    headers: dict[str, str]


def json_reply(value: Any, *, status: int = 200, headers: Mapping[bytes, bytes] | None = None) -> Reply:
    """An answer with a JSON body."""
    return Reply(status, orjson.dumps(value), {b"content-type": JSON, **(headers or {})})


def error_reply(
    status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None, closes: bool = False
) -> Reply:
    """An error's answer."""
    # What was sent may hold lone surrogates, which no JSON can: they are shown escaped.
    shown = message[:LONGEST_MESSAGE].encode(errors="backslashreplace").decode()
    body = orjson.dumps({"error": {"message": shown, "type": kind, "code": status}})
    extra = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
    return Reply(status, body, {b"content-type": JSON, **extra}, closes)


def refusal(error: BaseException) -> Reply:
    """The answer to an exception; what nobody foresaw is a 500 that says nothing about the inside."""
    if isinstance(error, Refused):
        return error_reply(error.code, error.type, str(error), headers=error.headers, closes=error.code == 413)
    code, kind, retry_after = answer_of(error)
    if not isinstance(error, TakeholdError):
        return error_reply(code, kind, "the server failed; its log says how")
    headers = {"Retry-After": f"{max(1, round(retry_after))}"} if retry_after is not None else None
    return error_reply(code, kind, str(error), headers=headers)
