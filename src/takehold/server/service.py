"""What all operations share: the catalog, and how this server was set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from takehold.server.access import Access

if TYPE_CHECKING:
    from takehold.iceberg import Catalog
    from takehold.iceberg.stores import Store
    from takehold.server.meters import Meters
    from takehold.server.replays import Replays
    from takehold.server.routing import Routes

__all__ = ["Service", "Settings"]

MEBIBYTE: Final = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """How one server behaves."""

    warehouse: str = "main"
    """The one of clients that name none."""
    most_body: int = 32 * MEBIBYTE
    """Bytes of a request. A commit is some kilobytes; a table of 10 000 columns is a megabyte."""
    patience: float = 5.0
    """Seconds for which a transaction that meets another one is tried again."""
    remembers: float = 1800.0
    """Seconds for which an idempotency key is remembered, at least."""
    table_config: Mapping[str, str] = field(default_factory=dict)
    """What clients are told about the store: its endpoint and region."""
    vended: Mapping[str, str] = field(default_factory=dict)
    """The store's keys, for clients that ask for them; empty unless the operator wants that."""
    locks: str = "local"
    """Which of the three kinds is in use: local, distributed with coalesced reads, distributed."""


@dataclass(slots=True)
class Service:
    """One server's parts."""

    catalog: Catalog
    store: Store
    settings: Settings
    access: Access
    routes: Routes
    replays: Replays
    meters: Meters
