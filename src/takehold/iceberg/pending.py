"""The record of a change of several records: write-ahead, and with its state the one commit point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from takehold.iceberg.records import Record

__all__ = ["Pending", "State"]

State: TypeAlias = Literal["pending", "committed", "aborted"]


@dataclass(frozen=True, slots=True)
class Pending(Record):
    """What is being changed, by whom, and whether it has been decided."""

    tx: str
    mark: str
    """The id under which participants remember that it was committed: `tx`, or an idempotency key."""
    what: str
    """`transaction`, `rename`, `drop` or `overwrite`."""
    state: State
    pointers: tuple[str, ...]
    """Paths of the pointers that carry, or will carry, its intent."""
    shards: tuple[str, ...]
    locks: tuple[str, ...]
    """Who gets one of these alone knows that the owner is not at work."""
    tables: tuple[str, ...]
    owner: str
    since: float
    """Seconds since the epoch on the owner's clock: for people."""
    version: int = 0
    recent: tuple[str, ...] = ()

    kind = "pending"

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "tx": self.tx,
            "mark": self.mark,
            "what": self.what,
            "state": self.state,
            "pointers": self.pointers,
            "shards": self.shards,
            "locks": self.locks,
            "tables": self.tables,
            "owner": self.owner,
            "since": self.since,
        }

    @classmethod
    def of(cls, body: dict[str, Any], version: int, recent: tuple[str, ...]) -> Self:
        """The record that this body was made from."""
        return cls(
            body["tx"],
            body["mark"],
            body["what"],
            body["state"],
            tuple(body["pointers"]),
            tuple(body["shards"]),
            tuple(body["locks"]),
            tuple(body["tables"]),
            body["owner"],
            body["since"],
            version,
            recent,
        )
