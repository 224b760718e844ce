"""Requirements: what must still be true of the table or view that a client saw, or its commit is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from takehold.iceberg.metadata.errors import BadUpdate, RequirementFailed
from takehold.iceberg.metadata.values import Json, bounded, integer, long, optional, shown, text

__all__ = ["CREATE", "check_table", "check_view", "each", "kind_of"]

CREATE = "assert-create"


def each(given: Any, what: str) -> Sequence[Any]:
    """The requirements or updates of a request; those of one that has none are empty."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise BadUpdate(f"Cannot parse {what} from non-array: {shown(given)}")
    bounded(given, what)
    return given


def kind_of(node: object, name: str, what: str) -> str:
    """The `type` of a requirement or the `action` of an update."""
    if not isinstance(node, dict):
        raise BadUpdate(f"Cannot parse {what} from non-object value: {shown(node)}")
    if node.get(name) is None:
        raise BadUpdate(f"Cannot parse {what}. Missing field: {name}")
    return text(name, node).lower()


def check_table(base: Json | None, requirements: Sequence[Json]) -> None:
    """Refuse when a requirement does not hold for `base`; None is a table that does not exist."""
    kinds = [kind_of(one, "type", "update requirement") for one in requirements]
    for kind in kinds:
        if kind not in TABLE and kind not in (CREATE, "assert-view-uuid"):
            raise BadUpdate(f"Unrecognized update requirement. Cannot convert to json: {shown(kind)[1:-1]}")
    if (base is None or CREATE in kinds) and (others := [kind for kind in kinds if kind != CREATE]):
        raise BadUpdate(f"Invalid create requirements: [{', '.join(others)}]")
    if base is None:
        return
    for kind, requirement in zip(kinds, requirements, strict=True):
        if kind == CREATE:
            raise RequirementFailed("Requirement failed: table already exists")
        if kind not in TABLE:
            raise BadUpdate("Cannot validate AssertViewUUID against a table")
        TABLE[kind](base, requirement)


def check_view(base: Json, requirements: Sequence[Json]) -> None:
    """Refuse when a requirement does not hold for a view."""
    for requirement in requirements:
        kind = kind_of(requirement, "type", "update requirement")
        if kind == "assert-view-uuid":
            uuid = text("uuid", requirement)
            if uuid.lower() != base["view-uuid"].lower():
                raise RequirementFailed(
                    f"Requirement failed: view UUID does not match: expected {base['view-uuid']} != {uuid}"
                )
        elif kind in JAVA_NAMES:
            raise BadUpdate(f"Cannot validate {JAVA_NAMES[kind]} against a view")
        else:
            raise BadUpdate(f"Unrecognized update requirement. Cannot convert to json: {shown(kind)[1:-1]}")


def _check_uuid(base: Json, requirement: Json) -> None:
    uuid, known = text("uuid", requirement), base.get("table-uuid")
    if known is None or uuid.lower() != known.lower():
        raise RequirementFailed(f"Requirement failed: UUID does not match: expected {known} != {uuid}")


def _check_ref(base: Json, requirement: Json) -> None:
    name, id = text("ref", requirement), optional(long, "snapshot-id", requirement)
    ref = base["refs"].get(name)
    if ref is None:
        if id is not None:
            raise RequirementFailed(f"Requirement failed: branch or tag {name} is missing, expected {id}")
        return
    if id is None:
        raise RequirementFailed(f"Requirement failed: {ref['type']} {name} was created concurrently")
    if id != ref["snapshot-id"]:
        raise RequirementFailed(
            f"Requirement failed: {ref['type']} {name} has changed: expected id {id} != {ref['snapshot-id']}"
        )


def _number(name: str, field: str, what: str) -> Callable[[Json, Json], None]:
    def check(base: Json, requirement: Json) -> None:
        expected, found = integer(name, requirement), base[field]
        if expected != found:
            raise RequirementFailed(f"Requirement failed: {what} changed: expected id {expected} != {found}")

    return check


TABLE: dict[str, Callable[[Any, Json], None]] = {
    "assert-table-uuid": _check_uuid,
    "assert-ref-snapshot-id": _check_ref,
    "assert-last-assigned-field-id": _number("last-assigned-field-id", "last-column-id", "last assigned field id"),
    "assert-current-schema-id": _number("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": _number(
        "last-assigned-partition-id", "last-partition-id", "last assigned partition id"
    ),
    "assert-default-spec-id": _number("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": _number("default-sort-order-id", "default-sort-order-id", "default sort order"),
}
JAVA_NAMES = {
    CREATE: "AssertTableDoesNotExist",
    "assert-table-uuid": "AssertTableUUID",
    "assert-ref-snapshot-id": "AssertRefSnapshotID",
    "assert-last-assigned-field-id": "AssertLastAssignedFieldId",
    "assert-current-schema-id": "AssertCurrentSchemaID",
    "assert-last-assigned-partition-id": "AssertLastAssignedPartitionId",
    "assert-default-spec-id": "AssertDefaultSpecID",
    "assert-default-sort-order-id": "AssertDefaultSortOrderID",
}
