"""Directories: the list of warehouses, the namespaces of one, a shard of the names in one of those.

A directory belongs to one *epoch* of its parent. Who deletes the parent closes the directory first, while it is
empty; so a create that read it before finds it changed, and one that reads it now knows whom to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from takehold.iceberg.records import Record

__all__ = ["Directory", "Entry", "Target", "standing"]

Standing: TypeAlias = Literal["open", "closed", "ahead"]


@dataclass(frozen=True, slots=True)
class Directory(Record):
    """Names, and what each stands for."""

    kind: str
    parent: int = 0
    """The epoch of the parent that this was last changed under."""
    counter: int = 0
    """The highest epoch given to an entry. It never goes back, also when everything is deleted and made again."""
    closed: bool = False
    entries: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 0
    recent: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"parent": self.parent, "counter": self.counter, "closed": self.closed, "entries": self.entries}

    @classmethod
    def of(cls, body: dict[str, Any], version: int, recent: tuple[str, ...]) -> Self:
        """The directory that this body was made from."""
        return cls(body["kind"], body["parent"], body["counter"], body["closed"], body["entries"], version, recent)

    def having(self, name: str, entry: dict[str, Any] | None) -> Self:
        """With this entry, or without it."""
        entries = {**self.entries}
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
        return replace(self, entries=entries)

    def under(self, epoch: int) -> Self:
        """Open, for this epoch of the parent; what was closed for an earlier one was empty."""
        return replace(self, parent=epoch, closed=False)

    def with_epoch(self, name: str, entry: Mapping[str, Any]) -> Self:
        """With this entry, under a new epoch."""
        return replace(self.having(name, {**entry, "epoch": self.counter + 1}), counter=self.counter + 1)


def standing(directory: Directory, epoch: int) -> Standing:
    """Whether a name can be added under this epoch: `ahead` says that the epoch is out of date."""
    if directory.parent > epoch:
        return "ahead"
    return "closed" if directory.closed and directory.parent == epoch else "open"


class Target(NamedTuple):
    """What a name stands for: a pointer, and which birth of it."""

    kind: str
    uuid: str
    birth: str


class Entry(NamedTuple):
    """A name in a shard. With a `tx` it becomes `next` if that commits."""

    now: Target | None
    next: Target | None = None
    tx: str | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Entry:
        """The entry as it is stored."""
        now, after = fields["now"], fields.get("next")
        return cls(Target(*now) if now else None, Target(*after) if after else None, fields.get("tx"))

    def fields(self) -> dict[str, Any]:
        """As it is stored."""
        now = list(self.now) if self.now else None
        if self.tx is None:
            return {"now": now}
        return {"now": now, "next": list(self.next) if self.next else None, "tx": self.tx}
