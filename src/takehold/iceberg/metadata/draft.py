"""A draft: the next version while updates are applied to it. It copies what it changes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.schemas import Schema
from takehold.iceberg.metadata.values import Json

__all__ = ["MAIN", "Draft", "opened"]

MAIN = "main"


class Draft:
    """What becomes of `base`; `changed` says whether anything did."""

    __slots__ = (
        "_owned",
        "_schema",
        "_snapshots",
        "added",
        "changed",
        "data",
        "forgot",
        "mains",
        "new_snapshots",
        "now",
        "rebound",
    )

    def __init__(self, data: dict[str, Any], now: int) -> None:
        """Start from `data`, a dict of the draft's own whose values belong to the base."""
        self.data = data
        self.now = now
        self.changed = False
        self.added: dict[str, int] = {}
        """The id of the last schema, spec, order and version that an update brought, new or found again."""
        self.new_snapshots: set[int] = set()
        self.mains: list[int] = []
        """The snapshots that became the head of main, one after the other."""
        self.forgot = False
        """Whether snapshots were removed."""
        self.rebound = False
        """Whether schema, spec or order changed, so that they must be checked against each other."""
        self._owned: set[str] = set()
        self._schema: Schema | None = None
        self._snapshots: dict[int, Json] | None = None

    @property
    def version(self) -> int:
        """The format version."""
        version: int = self.data["format-version"]
        return version

    def get(self, name: str, default: Any = None) -> Any:
        """A field as it is now."""
        value = self.data.get(name)
        return default if value is None else value

    def put(self, name: str, value: Any) -> None:
        """Set a field that is not a container."""
        if self.data.get(name) != value or name not in self.data:
            self.data[name] = value
            self.changed = True

    def own_list(self, name: str) -> list[Any]:
        """A list to be changed in place: the base keeps its own."""
        if name not in self._owned:
            self.data[name] = list(self.data.get(name) or ())
            self._owned.add(name)
        self.changed = True
        own: list[Any] = self.data[name]
        return own

    def own_dict(self, name: str) -> dict[str, Any]:
        """A dict to be changed in place: the base keeps its own."""
        if name not in self._owned:
            self.data[name] = dict(self.data.get(name) or {})
            self._owned.add(name)
        self.changed = True
        own: dict[str, Any] = self.data[name]
        return own

    def keep(self, name: str, wanted: Callable[[Any], bool]) -> None:
        """Drop from a list what is not wanted."""
        before = self.data.get(name) or ()
        kept = [one for one in before if wanted(one)]
        if len(kept) != len(before):
            self.data[name] = kept
            self._owned.add(name)
            self.changed = True

    def last_added(self, what: str, id: int, none: str) -> int:
        """The id that an update means: -1 is the one added last.

        Also when it was not new but found again: where Java says there is none, the client would have to guess an id.
        """
        if id != -1:
            return id
        if what not in self.added:
            raise BadUpdate(none)
        return self.added[what]

    def schema(self) -> Schema:
        """The current schema, read once."""
        id = self.get("current-schema-id", 0)
        for raw in self.get("schemas", ()):
            if raw.get("schema-id", 0) == id:
                if self._schema is None or self._schema.raw is not raw:
                    self._schema = Schema(raw)
                return self._schema
        raise BadUpdate("Cannot find the current schema: no schema has been added")

    def snapshot(self, id: int) -> Json | None:
        """A snapshot of the table as it is now."""
        return self.snapshots().get(id)

    def snapshots(self) -> dict[int, Json]:
        """All snapshots by their ids, to be kept in step by who changes the list."""
        if self._snapshots is None:
            self._snapshots = {one["snapshot-id"]: one for one in self.get("snapshots", ())}
        return self._snapshots


def opened(base: Json) -> dict[str, Any]:
    """A copy of the top of `base` in which old v1 files have what newer ones have."""
    data = dict(base)
    if "schemas" not in data and "schema" in data:
        data["schemas"] = [{"schema-id": 0, **data["schema"]}]
        data["current-schema-id"] = data["schemas"][0]["schema-id"]
    if "partition-specs" not in data and "partition-spec" in data:
        fields = [{"field-id": 1000 + at, **field} for at, field in enumerate(data["partition-spec"])]
        data["partition-specs"], data["default-spec-id"] = [{"spec-id": 0, "fields": fields}], 0
    if data.get("last-partition-id") is None:
        ids = [field["field-id"] for spec in data.get("partition-specs", ()) for field in spec["fields"]]
        data["last-partition-id"] = max(ids, default=999)
    if "sort-orders" not in data:
        data["sort-orders"], data["default-sort-order-id"] = [{"order-id": 0, "fields": []}], 0
    current = data.get("current-snapshot-id")
    if data.get("refs") is None:
        main = {MAIN: {"snapshot-id": current, "type": "branch"}}
        data["refs"] = main if current not in (None, -1) else {}
    return data
