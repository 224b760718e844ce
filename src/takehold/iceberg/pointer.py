"""The pointer of a table or view: its name, its metadata, and the intent of whoever is changing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from takehold.iceberg.records import Record, advanced_ring
from takehold.iceberg.words import Identifier, Kind

__all__ = ["Body", "Intent", "Pointer"]


class Body(NamedTuple):
    """What a pointer says."""

    identifier: Identifier
    metadata: str
    """The location of the metadata file."""


class Intent(NamedTuple):
    """What a pending change would make of it; `next` None deletes it."""

    tx: str
    next: Body | None
    mark: str
    """The id under which the ring remembers it."""


@dataclass(frozen=True, slots=True)
class Pointer(Record):
    """One table or view."""

    uuid: str
    what: Kind
    birth: str
    """Differs each time a table of this uuid is made. An entry that names another birth names nothing."""
    now: Body | None
    intent: Intent | None = None
    version: int = 0
    recent: tuple[str, ...] = ()

    kind = "pointer"

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        fields = {"uuid": self.uuid, "what": self.what, "birth": self.birth, "now": self.now}
        return fields if self.intent is None else {**fields, "intent": self.intent}

    @classmethod
    def of(cls, body: dict[str, Any], version: int, recent: tuple[str, ...]) -> Self:
        """The pointer that this body was made from."""
        intent = body.get("intent")
        return cls(
            body["uuid"],
            body["what"],
            body["birth"],
            _body(body["now"]),
            Intent(intent[0], _body(intent[1]), intent[2]) if intent else None,
            version,
            recent,
        )

    def value(self, *, committed: bool) -> Body | None:
        """What it says, when its intent is decided like that."""
        return self.intent.next if self.intent is not None and committed else self.now

    def settled(self, *, committed: bool) -> Self:
        """Without its intent, which was decided like that."""
        if self.intent is None or not committed:
            return replace(self, intent=None)
        return replace(self, now=self.intent.next, intent=None, recent=advanced_ring(self.recent, self.intent.mark))


def _body(fields: list[Any] | None) -> Body | None:
    if fields is None:
        return None
    (namespace, name), metadata = fields
    return Body(Identifier(tuple(namespace), name), metadata)
