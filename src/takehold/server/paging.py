"""Lists in pages. A token says which name came last, so that what is added or dropped meanwhile shifts nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from takehold import UsageError

__all__ = ["page"]

PAGE: Final = 1000
"""Names, where a client pages without saying how many."""


def page(names: Sequence[Sequence[str]], query: Mapping[str, str]) -> tuple[list[Sequence[str]], str | None]:
    """The names of one page and the token of the next; without a `pageToken` all of them, as is specified."""
    token = query.get("pageToken")
    size = _size(query.get("pageSize"))
    if token is None:
        return list(names), None
    last = _last(token) if token else []
    rest = [name for name in names if list(name) > last]
    shown = rest[:size]
    return shown, _token(shown[-1]) if len(rest) > size else None


def _size(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdigit() and int(text[:9]) >= 1 and len(text) <= 9):
        raise UsageError(f"pageSize is a number from 1, not {text!r:.100}")
    return int(text)


def _token(name: Sequence[str]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(list(name))).decode()


def _last(token: str) -> list[str]:
    try:
        found = orjson.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"pageToken {token!r:.100} is none of ours") from error
    if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
        raise UsageError(f"pageToken {token!r:.100} is none of ours")
    return found
