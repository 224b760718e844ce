"""One request, as an operation sees it: names decoded, body parsed and checked as far as every operation needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, unquote_plus

import orjson

from takehold import UsageError
from takehold.iceberg import Identifier

if TYPE_CHECKING:
    from takehold.iceberg.words import Namespace
    from takehold.server.service import Service

__all__ = ["Call", "decoded", "levels", "member", "object_of", "parents_of", "strings", "texts"]

SEPARATOR: Final = "\x1f"
DEEPEST: Final = 128
"""Levels of nested JSON. A schema needs three for each level of nested structs."""


@dataclass(slots=True)
class Call:
    """A request on its way through an operation."""

    service: Service
    operation: str
    names: Mapping[str, str]
    """What stood in the path's places, decoded once, as text."""
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    warehouse: str = ""
    key: str | None = None
    """The idempotency key."""
    _json: Any = field(default=None, repr=False)

    @property
    def namespace(self) -> Namespace:
        """The namespace of the path."""
        return levels(self.names["namespace"])

    @property
    def table(self) -> Identifier:
        """The table of the path."""
        return Identifier(self.namespace, self.names["table"])

    @property
    def view(self) -> Identifier:
        """The view of the path."""
        return Identifier(self.namespace, self.names["view"])

    @property
    def json(self) -> dict[str, Any]:
        """The body, which must be one JSON object."""
        if self._json is None:
            self._json = object_of(parsed(self.body), "the request body")
        return self._json  # type: ignore[no-any-return]

    def flag(self, name: str) -> bool:
        """A query parameter that is true or false."""
        text = self.query.get(name, "false").lower()
        if text not in ("true", "false"):
            raise UsageError(f"{name} is true or false, not {text!r:.100}")
        return text == "true"


def parsed(body: bytes) -> Any:
    """JSON of bounded depth."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"Malformed request: {error}") from error
    # Counting brackets is an upper bound of the depth, and nearly every request is below it.
    if body.count(b"{") + body.count(b"[") > DEEPEST:
        _bounded(value)
    return value


def _bounded(value: Any) -> None:
    layer = [value]
    for _ in range(DEEPEST):
        layer = [
            child
            for one in layer
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return
    raise UsageError(f"Malformed request: JSON nested deeper than {DEEPEST} levels")


# -- names ---------------------------------------------------------------------------------------------------


def decoded(segment: str) -> str:
    """A path segment as text. Java writes a space as `+`, all others as `%20`; a plus sign is `%2B` everywhere."""
    try:
        return unquote_plus(segment, errors="strict")
    except UnicodeDecodeError as error:
        raise UsageError(f"{segment!r:.200} is not UTF-8") from error


def levels(text: str) -> Namespace:
    """A namespace from its decoded path segment."""
    return tuple(text.split(SEPARATOR))


def parents_of(text: str) -> list[Namespace]:
    """What a namespace in a query parameter may mean: Java sends the levels as they are, others encode them again."""
    once = levels(text)
    parts = text.replace("%1f", "%1F").replace("%1F", SEPARATOR).split(SEPARATOR)
    try:
        twice = tuple(unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError:
        return [once]
    return [once] if twice == once else [once, twice]


def query_of(raw: bytes) -> dict[str, str]:
    """The query parameters; of one that is given twice the last counts."""
    try:
        return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100))
    except ValueError as error:
        raise UsageError("the query is not UTF-8 in percent encoding, or too long") from error


# -- the shapes of a body ------------------------------------------------------------------------------------


def object_of(value: Any, what: str) -> dict[str, Any]:
    """A JSON object, or 400."""
    if not isinstance(value, dict):
        raise UsageError(f"Malformed request: {what} is not a JSON object")
    return value


def member(value: Mapping[str, Any], name: str, what: str = "the request") -> str:
    """A text that must be there."""
    found = value.get(name)
    if not isinstance(found, str):
        raise UsageError(f"Malformed request: {what} has no text {name!r}")
    return found


def strings(value: Any, what: str) -> dict[str, str]:
    """An object from texts to texts; missing or null is an empty one."""
    found = object_of({} if value is None else value, what)
    if odd := [key for key, one in found.items() if not isinstance(one, str)]:
        raise UsageError(f"Malformed request: {what}: {odd[0]!r:.100} is not a text")
    return found


def texts(value: Any, what: str) -> list[str]:
    """A list of texts; missing or null is an empty one."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UsageError(f"Malformed request: {what} is not a list of texts")
    return found


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of objects; missing or null is an empty one: not every client sends what it has none of."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UsageError(f"Malformed request: {what} is not a list of objects")
    return found


def identifier_of(value: Any, what: str) -> Identifier:
    """A TableIdentifier."""
    found = object_of(value, what)
    namespace = texts(found.get("namespace"), f"the namespace of {what}")
    return Identifier(tuple(namespace), member(found, "name", what))
