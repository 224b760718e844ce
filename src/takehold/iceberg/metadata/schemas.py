"""Schemas: reading one with every rule it must keep, comparing two, giving fresh ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from takehold.iceberg.metadata.defaults import check_default
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.types import Primitive, primitive
from takehold.iceberg.metadata.values import INT_MAX, Json, flag, integer, integers, optional, part, record, shown, text

__all__ = ["Column", "Schema", "fresh_schema", "same_schema"]

HIGHEST_ID = INT_MAX - 200
"""Ids above are Iceberg's own: those of metadata columns."""

ELEMENT = (("element-id", "element", "element-required", "element"),)
KEY_VALUE = (("key-id", "key", None, "key"), ("value-id", "value", "value-required", "value"))
PARTS = {"list": ELEMENT, "map": KEY_VALUE}
"""Where a list or map keeps the id, type and required flag of its parts, and how the part is called in full names."""


class Column(NamedTuple):
    """A column at any depth."""

    id: int
    name: str
    kind: Primitive | str
    required: bool
    parent: Column | None

    @property
    def type(self) -> str:
        """Its type in a message."""
        return self.kind.name if isinstance(self.kind, Primitive) else self.kind


class Schema:
    """A schema that keeps the rules, and its columns by id and by full name."""

    __slots__ = ("columns", "defaults", "highest", "ids", "raw")

    def __init__(self, raw: object) -> None:
        """Read `raw`, or say which rule it breaks."""
        self.raw = record(raw, "schema")
        self.columns: dict[int, Column] = {}
        self.ids: dict[str, int] = {}
        self.defaults: dict[int, Any] = {}
        if self.raw.get("type") != "struct":
            raise BadUpdate(f"Cannot create schema, not a struct type: {shown(self.raw.get('type'))}")
        short: dict[str, int] = {}
        self._struct(self.raw, None, "", "", short)
        for name, id in short.items():
            self.ids.setdefault(name, id)
        self.highest = max(self.columns, default=0)
        optional(integer, "schema-id", self.raw)
        for id in optional(integers, "identifier-field-ids", self.raw) or ():
            self._identifier(id)

    def check_version(self, version: int) -> None:
        """Refuse types and defaults that this format version does not have yet."""
        problems = []
        for id in sorted(self.columns):
            column = self.columns[id]
            if isinstance(column.kind, Primitive) and version < column.kind.since:
                problems.append(f"Invalid type for {column.name}: {column.type} is not supported until v3")
            elif id in self.defaults and version < 3:
                value = shown(self.defaults[id])
                problems.append(
                    f"Invalid initial default for {column.name}: non-null default ({value}) is not supported until v3"
                )
        if problems:
            raise BadUpdate(f"Invalid schema for v{version}:\n- " + "\n- ".join(problems))

    def _struct(self, raw: Json, parent: Column | None, path: str, shortest: str, short: dict[str, int]) -> None:
        fields = part("fields", raw)
        if not isinstance(fields, list | tuple):
            raise BadUpdate(f"Cannot parse struct fields from non-array: {shown(fields)}")
        for one in fields:
            field = record(one, "struct field")
            name, required = text("name", field), flag("required", field)
            optional(text, "doc", field)
            names = (f"{path}{name}", f"{shortest}{name}")
            self._column(integer("id", field), part("type", field), required, parent, names, short)
            self._defaults(field)

    def _column(
        self,
        id: int,
        kind: object,
        required: bool,
        parent: Column | None,
        names: tuple[str, str],
        short: dict[str, int],
    ) -> None:
        name, shortest = names
        if not 0 <= id <= HIGHEST_ID:
            raise BadUpdate(f"Invalid field id for {name}: {id} (must be between 0 and {HIGHEST_ID})")
        if id in self.columns:
            raise BadUpdate(f"Multiple entries with same key: {id}={self.columns[id].name} and {id}={name}")
        if name in self.ids:
            raise BadUpdate(f"Invalid schema: multiple fields for name {name}: {self.ids[name]} and {id}")
        if isinstance(kind, str):
            leaf = primitive(kind)
            if required and leaf.kind == "unknown":
                raise BadUpdate(f"Cannot create required field with unknown type: {name}")
            self.columns[id] = Column(id, name, leaf, required, parent)
            nested = None
        else:
            nested = kind.get("type") if isinstance(kind, Mapping) else None
            if nested not in ("struct", "list", "map"):
                raise BadUpdate(f"Cannot parse type from json: {shown(kind)}")
            self.columns[id] = Column(id, name, nested, required, parent)
        self.ids[name] = id
        short.setdefault(shortest, id)
        if nested is None:
            return
        assert isinstance(kind, Mapping)
        column = self.columns[id]
        if nested == "struct":
            self._struct(kind, column, name + ".", shortest + ".", short)
            return
        for id_key, type_key, required_key, called in PARTS[nested]:
            inner = part(type_key, kind)
            # Short names leave out the element or value of structs: points.x beside points.element.x.
            skips = called != "key" and isinstance(inner, Mapping) and inner.get("type") == "struct"
            self._column(
                integer(id_key, kind),
                inner,
                required_key is None or flag(required_key, kind),
                column,
                (f"{name}.{called}", shortest if skips else f"{shortest}.{called}"),
                short,
            )

    def _defaults(self, field: Json) -> None:
        for name in ("initial-default", "write-default"):
            value = field.get(name)
            if value is None:
                continue
            column = self.columns[field["id"]]
            if not isinstance(column.kind, Primitive):
                raise BadUpdate(f"Invalid default value for {column.type}: {shown(value)} (must be null)")
            check_default(value, column.kind)
            if name == "initial-default":
                self.defaults[column.id] = value

    def _identifier(self, id: int) -> None:
        column = self.columns.get(id)
        if column is None:
            raise BadUpdate(f"Cannot add fieldId {id} as an identifier field: field does not exist")
        refuse = f"Cannot add field {column.name.rpartition('.')[2]} as an identifier field: "
        if not isinstance(column.kind, Primitive):
            raise BadUpdate(refuse + "not a primitive type field")
        if not column.required:
            raise BadUpdate(refuse + "not a required field")
        if column.kind.kind in ("float", "double"):
            raise BadUpdate(refuse + "must not be float or double field")
        parent = column.parent
        while parent is not None:
            if parent.kind != "struct":
                raise BadUpdate(f"{refuse}must not be nested in {parent.name}")
            if not parent.required:
                raise BadUpdate(f"{refuse}must not be nested in an optional field {parent.name}")
            parent = parent.parent


def same_schema(one: Json, other: Json) -> bool:
    """Whether two schemas differ in nothing but their ids; stops at the first difference."""
    identifiers = [frozenset(schema.get("identifier-field-ids") or ()) for schema in (one, other)]
    return identifiers[0] == identifiers[1] and _same_type(one, other)


def _same_type(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and (one == other or primitive(one) == primitive(other))
    if one["type"] != other["type"]:
        return False
    if one["type"] == "struct":
        ours, theirs = one["fields"], other["fields"]
        return len(ours) == len(theirs) and all(map(_same_field, ours, theirs))
    return all(
        one[id_key] == other[id_key]
        and (required_key is None or one[required_key] == other[required_key])
        and _same_type(one[type_key], other[type_key])
        for id_key, type_key, required_key, _ in PARTS[one["type"]]
    )


def _same_field(one: Json, other: Json) -> bool:
    if any(one[key] != other[key] for key in ("id", "name", "required")):
        return False
    if any(one.get(key) != other.get(key) for key in ("doc", "initial-default", "write-default")):
        return False
    return _same_type(one["type"], other["type"])


def fresh_schema(schema: Schema) -> tuple[dict[str, Any], dict[int, int]]:
    """The same schema as id 0 with columns numbered from 1, all of a struct before what is inside them; old to new."""
    new: dict[int, int] = {}

    def assign(old: int) -> int:
        new[old] = len(new) + 1
        return new[old]

    result = {**_fresh_type(schema.raw, assign), "schema-id": 0}
    if identifiers := schema.raw.get("identifier-field-ids"):
        result["identifier-field-ids"] = [new[id] for id in identifiers]
    return result, new


def _fresh_type(kind: Any, assign: Callable[[int], int]) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        ids = [assign(field["id"]) for field in kind["fields"]]
        fields = [
            {**field, "id": id, "type": _fresh_type(field["type"], assign)}
            for id, field in zip(ids, kind["fields"], strict=True)
        ]
        return {**kind, "fields": fields}
    parts = PARTS[kind["type"]]
    changed = {id_key: assign(kind[id_key]) for id_key, *_ in parts}
    return {**kind, **changed, **{key: _fresh_type(kind[key], assign) for _, key, *_ in parts}}
