"""Requests as clients send them: short builders for the tests, and strategies for lists of updates."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from takehold.iceberg.metadata import new_table, new_view

Update = dict[str, Any]

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
NOW = 1_700_000_000_000
UNPARTITIONED: Update = {"spec-id": 0, "fields": []}
UNSORTED: Update = {"order-id": 0, "fields": []}


def dashed(fields: Update) -> Update:
    return {key.replace("_", "-"): value for key, value in fields.items()}


def column(id: int, name: str, kind: Any = "long", *, required: bool = False, **more: Any) -> Update:
    return {"id": id, "name": name, "required": required, "type": kind, **dashed(more)}


def struct(*columns: Update, **more: Any) -> Update:
    return {"type": "struct", "fields": list(columns), **dashed(more)}


def by(source: int, transform: str = "identity", name: str | None = None, **more: Any) -> Update:
    name = f"by_{source}_{transform[:5]}" if name is None else name
    return {"source-id": source, "transform": transform, "name": name, **dashed(more)}


def sort(source: int, transform: str = "identity", direction: str = "asc") -> Update:
    return {"source-id": source, "transform": transform, "direction": direction, "null-order": "nulls-first"}


def action(name: str, **fields: Any) -> Update:
    return {"action": name, **dashed(fields)}


def require(name: str, **fields: Any) -> Update:
    return {"type": name, **dashed(fields)}


def snapshot(id: int, sequence: int | None = None, **fields: Any) -> Update:
    raw = {
        "snapshot-id": id,
        "sequence-number": id if sequence is None else sequence,
        "timestamp-ms": NOW + id,
        "summary": {"operation": "append"},
        "manifest-list": f"s3://bucket/{id}.avro",
        "schema-id": 0,
        **dashed(fields),
    }
    return action("add-snapshot", snapshot={key: value for key, value in raw.items() if value is not None})


def head(id: int, name: str = "main", kind: str = "branch", **fields: Any) -> Update:
    return action("set-snapshot-ref", ref_name=name, type=kind, snapshot_id=id, **fields)


SCHEMA = struct(column(1, "id", required=True), column(2, "at", "timestamptz"), column(3, "name", "string"))


def table(version: int = 2, **request: Any) -> Update:
    asked = {"name": "t", "schema": SCHEMA, "properties": {"format-version": str(version)}, **dashed(request)}
    return new_table(asked, uuid=UUID, location="s3://bucket/t", now=NOW)


def version_of(sql: str, dialect: str = "spark", **fields: Any) -> Update:
    return {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": NOW,
        "summary": {},
        "default-namespace": ["db"],
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect}],
        **dashed(fields),
    }


def view(**request: Any) -> Update:
    asked = {"name": "v", "schema": SCHEMA, "view-version": version_of("select 1"), "properties": {}, **dashed(request)}
    return new_view(asked, uuid=UUID, location="s3://bucket/v", now=NOW)


# What a list of updates is drawn from: few different ones, so that they meet each other.

POINTS = {"type": "list", "element-id": 6, "element-required": True, "element": struct(column(7, "x", "double"))}
SCHEMAS = [
    SCHEMA,
    struct(*SCHEMA["fields"], column(4, "price", "decimal(9,2)")),
    struct(*SCHEMA["fields"], column(4, "price", "decimal(9, 2)"), column(5, "points", POINTS)),
    struct(column(1, "id", required=True), column(3, "name", "string"), identifier_field_ids=[1]),
    struct(column(1, "id", "int", required=True), column(2, "at", "timestamptz", doc="when")),
    struct(column(8, "data", "variant")),
    struct(column(1, "id"), column(9, "n", "int", initial_default=7, write_default=8)),
    struct(column(1, "id"), column(1, "again")),
    struct(column(1, "id"), column(2, "id")),
]
SPECS: list[list[Update]] = [
    [],
    [by(1, field_id=1000)],
    [by(2, "day", field_id=1000)],
    [by(1, "bucket[16]", field_id=1000), by(2, "hour", field_id=1001)],
    [by(3, "truncate[4]", "name_cut", field_id=1002)],
    [by(3, "identity", "id", field_id=1000)],
    [by(4, "identity", "price", field_id=1003)],
    [by(7, field_id=1004)],
    [by(3, "day", field_id=1005)],
    [by(77, "void", field_id=1006)],
]
ORDERS = [[], [sort(1)], [sort(1, direction="desc"), sort(2, "day")], [sort(3, "bucket[4]")], [sort(5)], [sort(99)]]

small = st.integers(-1, 4)
snapshot_ids = st.integers(1, 8)
names = st.sampled_from(["main", "main", "main", "dev", "tag"])
words = st.sampled_from(["a", "b", "c"])


@st.composite
def snapshots(draw: st.DrawFn, version: int = 3) -> Update:
    """A snapshot that a table of this version may accept, or not."""
    id, sequence = draw(snapshot_ids), draw(st.integers(0, 9))
    if version == 1 and id % 4:
        sequence = 0
    return snapshot(
        id,
        sequence,
        parent_snapshot_id=draw(st.none() | snapshot_ids),
        first_row_id=draw(st.sampled_from([None, 0, 0, 0, 10, 10, 20, 30])),
        added_rows=10,
    )


@st.composite
def commits(draw: st.DrawFn, version: int = 3) -> list[Update]:
    """A snapshot and its place on a branch: what most commits are."""
    added = draw(snapshots(version))
    return [added, head(added["snapshot"]["snapshot-id"], draw(names))]


SIMPLE: list[st.SearchStrategy[Update]] = [
    st.builds(lambda n: action("add-schema", schema=SCHEMAS[n]), st.integers(0, len(SCHEMAS) - 1)),
    st.builds(lambda n: action("set-current-schema", schema_id=n), small),
    st.builds(lambda n: action("add-spec", spec={"spec-id": n, "fields": SPECS[n]}), st.integers(0, len(SPECS) - 1)),
    st.builds(lambda n: action("set-default-spec", spec_id=n), small),
    st.builds(
        lambda n: action("add-sort-order", **{"sort-order": {"order-id": n, "fields": ORDERS[n]}}),
        st.integers(0, len(ORDERS) - 1),
    ),
    st.builds(lambda n: action("set-default-sort-order", sort_order_id=n), small),
    snapshots(),
    st.builds(head, snapshot_ids, names, st.sampled_from(["branch", "branch", "tag"])),
    st.builds(lambda n: head(n, "dev", "branch", max_ref_age_ms=n), snapshot_ids),
    st.builds(lambda n: action("remove-snapshot-ref", ref_name=n), names),
    st.builds(lambda ids: action("remove-snapshots", snapshot_ids=ids), st.lists(snapshot_ids, max_size=3)),
    st.builds(lambda key, value: action("set-properties", updates={key: value}), words, words),
    st.builds(lambda key: action("remove-properties", removals=[key]), words),
    st.builds(lambda word: action("set-location", location=f"s3://bucket/{word}"), words),
    st.builds(lambda n: action("upgrade-format-version", format_version=n), st.integers(1, 3)),
    st.builds(
        lambda n: action(
            "set-statistics",
            statistics={
                "snapshot-id": n,
                "statistics-path": "s3://bucket/s.puffin",
                "file-size-in-bytes": 10,
                "file-footer-size-in-bytes": 4,
                "blob-metadata": [
                    {"type": "deletion-vector-v1", "snapshot-id": n, "sequence-number": 1, "fields": [1]}
                ],
            },
        ),
        snapshot_ids,
    ),
    st.builds(lambda n: action("remove-statistics", snapshot_id=n), snapshot_ids),
    st.builds(
        lambda n: action(
            "set-partition-statistics",
            partition_statistics={"snapshot-id": n, "statistics-path": "s3://b/p", "file-size-in-bytes": 9},
        ),
        snapshot_ids,
    ),
    st.builds(lambda n: action("remove-partition-statistics", snapshot_id=n), snapshot_ids),
    st.builds(
        lambda word: action("add-encryption-key", encryption_key={"key-id": word, "encrypted-key-metadata": "AAEC"}),
        words,
    ),
    st.builds(lambda word: action("remove-encryption-key", key_id=word), words),
]
LAST = [
    st.builds(lambda ids: action("remove-partition-specs", spec_ids=ids), st.lists(st.integers(0, 3), max_size=2)),
    st.builds(lambda ids: action("remove-schemas", schema_ids=ids), st.lists(st.integers(0, 3), max_size=2)),
]


@st.composite
def update_lists(draw: st.DrawFn, version: int = 3) -> list[Update]:
    """One commit of a table. Removals of specs and schemas come last: Java forgets to forget them."""
    updates = draw(commits(version)) if draw(st.booleans()) else []
    updates += draw(st.lists(st.one_of(SIMPLE), max_size=4))
    return updates + draw(st.lists(st.one_of(LAST), max_size=1))


view_versions = st.builds(
    lambda sql, dialect, schema, id: version_of(sql, dialect, schema_id=schema, version_id=id),
    words,
    st.sampled_from(["spark", "trino"]),
    st.integers(-1, 2),
    st.integers(1, 9),
)
VIEW_UPDATES = [
    st.builds(lambda n: action("add-schema", schema=SCHEMAS[n]), st.integers(0, 3)),
    st.builds(lambda version: action("add-view-version", view_version=version), view_versions),
    st.builds(lambda n: action("set-current-view-version", view_version_id=n), st.integers(-1, 5)),
    st.builds(lambda key, value: action("set-properties", updates={key: value}), words, words),
    st.builds(
        lambda key, value: action("set-properties", updates={key: value}),
        st.sampled_from(["version.history.num-entries", "replace.drop-dialect.allowed"]),
        st.sampled_from(["true", "2", "1", "0"]),
    ),
    st.builds(lambda key: action("remove-properties", removals=[key]), words),
    st.builds(lambda word: action("set-location", location=f"s3://bucket/{word}"), words),
]
view_update_lists = st.lists(st.one_of(VIEW_UPDATES), max_size=5)


TYPES = [
    "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "string",
    "uuid", "binary", "fixed[4]", "FIXED[ 4 ]", "decimal(9,2)", "decimal( 38 , 0 )", "Long", "variant", "unknown",
    "decimal(39,2)", "fixed[-1]", "varchar", "int ", "",
]  # fmt: skip
column_names = st.sampled_from(["a", "b", "c", "a.b", "element", "key", "value"])
column_ids = st.integers(0, 40)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    columns = st.lists(
        st.builds(lambda id, name, kind, required: column(id, name, kind, required=required),
                  column_ids, column_names, inner, st.booleans()),
        min_size=1, max_size=4,
    )  # fmt: skip
    return (
        st.builds(lambda columns: struct(*columns), columns)
        | st.builds(
            lambda id, kind, required: {
                "type": "list", "element-id": id, "element": kind, "element-required": required,
            },
            column_ids, inner, st.booleans(),
        )
        | st.builds(
            lambda key, value, kind, required: {
                "type": "map", "key-id": key, "key": "string",
                "value-id": value, "value": kind, "value-required": required,
            },
            column_ids, column_ids, inner, st.booleans(),
        )
    )  # fmt: skip


good_types = st.recursive(st.sampled_from(TYPES[:18]), _nested, max_leaves=8)
any_types = st.recursive(st.sampled_from(TYPES), _nested, max_leaves=8)
TRANSFORMS = ["identity", "void", "bucket[8]", "truncate[3]", "year", "month", "day", "hour", "Bucket[8]", "bucket[0]"]


@st.composite
def create_requests(draw: st.DrawFn) -> Update:
    """A CreateTableRequest, half of the time one that has a chance."""
    good = draw(st.booleans())
    columns = draw(st.lists(good_types if good else any_types, min_size=1, max_size=5))
    first, step = draw(st.integers(0, 60)), draw(st.integers(1, 60))
    numbers = ((first + step * at) % 61 for at in range(61))

    def numbered(kind: Any) -> Any:
        if isinstance(kind, str):
            return kind
        if kind["type"] == "struct":
            names = {one["name"]: one for one in kind["fields"]}
            return struct(*({**one, "id": next(numbers), "type": numbered(one["type"])} for one in names.values()))
        ids = {key: next(numbers) for key in ("element-id", "key-id", "value-id") if key in kind}
        return {**kind, **ids, **{key: numbered(kind[key]) for key in ("element", "key", "value") if key in kind}}

    raw = not good and draw(st.booleans())
    fields = [
        column(next(numbers), f"c{at}", kind if raw else numbered(kind), required=draw(st.booleans()))
        for at, kind in enumerate(columns)
    ]
    flat = [one["id"] for one in fields if isinstance(one["type"], str)]
    sources = st.sampled_from(flat) if good and flat else st.integers(0, 60)
    most = 2 if flat or not good else 0
    transforms = st.sampled_from(["identity", "void", "bucket[8]"] if good else TRANSFORMS)
    spec = draw(st.lists(st.builds(by, sources, transforms), max_size=most))
    order = draw(st.lists(st.builds(sort, sources, transforms, st.sampled_from(["asc", "DESC"])), max_size=most))
    required = [one["id"] for one in fields if one["required"]]
    identifiers = draw(st.lists(st.sampled_from(required), max_size=1)) if required else []
    return {
        "schema": struct(*fields, identifier_field_ids=identifiers),
        "partition-spec": {"spec-id": 0, "fields": spec},
        "write-order": {"order-id": 1 if order else 0, "fields": order},
        "properties": draw(
            st.fixed_dictionaries(
                {"format-version": st.sampled_from(["1", "2", "3", "3", "3"])},
                optional={
                    "owner": words,
                    "uuid": words,
                    "commit.retry.num-retries": st.sampled_from(["1", "x", "-1"]),
                    "write.metadata.metrics.column.c0": st.just("full"),
                    "write.metadata.metrics.column.c4": st.just("full"),
                },
            )
        ),
    }
