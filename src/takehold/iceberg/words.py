"""What goes into and comes out of a catalog: identifiers, tables, changes, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = [
    "Fault",
    "Identifier",
    "Kind",
    "Loaded",
    "Namespace",
    "PendingReport",
    "Recovered",
    "Retrying",
    "TableChange",
    "UpdatedProperties",
    "Warehouse",
]

Namespace: TypeAlias = tuple[str, ...]
"""The levels of a namespace, outermost first."""
Kind: TypeAlias = Literal["table", "view"]


class Identifier(NamedTuple):
    """Where a table or view is: its namespace, and its name there."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A named place for tables. Every location in it starts with its own."""

    name: str
    location: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table or view as it was at one instant."""

    identifier: Identifier
    kind: Kind
    uuid: str
    metadata_location: str | None
    """None for a staged table: nobody else can see that one yet."""
    metadata: dict[str, Any]
    """Table or view metadata as JSON has it. Shared with the cache: not to be changed."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table's part of a transaction: what must hold, and what to do."""

    identifier: Identifier
    requirements: Sequence[Mapping[str, Any]] = ()
    updates: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class UpdatedProperties:
    """What `update_namespace` did with each key it was given."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Retrying:
    """Pauses between the attempts of a transaction: growing, with jitter."""

    first: float = 0.01
    most: float = 0.5
    factor: float = 1.6


@dataclass(frozen=True, slots=True)
class PendingReport:
    """A change of several records that is under way, or was when its owner died."""

    id: str
    kind: str
    state: Literal["pending", "committed", "aborted"]
    tables: tuple[str, ...]
    owner: str
    age: float
    """Seconds since it was written, by this machine's clock."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did with one pending record."""

    id: str
    kind: str
    outcome: Literal["finished", "undone", "busy"]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something `fsck` found: where, what, and what was or can be done."""

    kind: Literal["broken", "orphan pointer", "dangling entry", "orphan file", "pending", "missing metadata", "unknown"]
    path: str
    explanation: str
    repaired: bool = False
