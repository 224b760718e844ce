"""PyIceberg as its users have it, and `takehold.iceberg.transaction` on top of it."""

from __future__ import annotations

import itertools
import secrets
import threading
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from takehold import TableUpdateConflict, UsageError
from takehold.iceberg import NoSuchTable, transaction
from takehold.iceberg.pyiceberg import Transaction
from takehold.server import Serving
from tests.lanes import scaled

ROWS = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture
def catalog(server: Serving) -> RestCatalog:
    made = load_catalog("lake", **server.properties)
    assert isinstance(made, RestCatalog)
    return made


@pytest.fixture
def ns(catalog: RestCatalog) -> str:
    name = f"p{secrets.token_hex(4)}"
    catalog.create_namespace(name, {"owner": "tests"})
    return name


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "word": [f"w{id}" for id in ids]}, schema=ROWS)


def ids(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


class TestCatalog:
    def test_namespaces(self, catalog: RestCatalog, ns: str) -> None:
        assert catalog.load_namespace_properties(ns) == {"owner": "tests"}
        catalog.update_namespace_properties(ns, removals={"owner"}, updates={"a": "b"})
        assert catalog.load_namespace_properties(ns) == {"a": "b"}
        catalog.create_namespace((ns, "deep er"))
        assert catalog.list_namespaces(ns) == [(ns, "deep er")]
        assert catalog.namespace_exists((ns, "deep er"))
        with pytest.raises(NamespaceAlreadyExistsError):
            catalog.create_namespace(ns)
        with pytest.raises(NamespaceNotEmptyError):
            catalog.drop_namespace(ns)
        catalog.drop_namespace((ns, "deep er"))
        with pytest.raises(NoSuchNamespaceError):
            catalog.drop_namespace((ns, "deep er"))

    def test_a_table_is_written_read_changed_renamed_and_dropped(self, catalog: RestCatalog, ns: str) -> None:
        table = catalog.create_table((ns, "t"), ROWS, properties={"format-version": "2"})
        table.append(rows(1, 2))
        table.overwrite(rows(3))
        table.append(rows(4))
        table.delete("id = 3")
        with table.update_schema() as schema:
            schema.add_column("more", LongType())
        with table.update_spec() as spec:
            spec.add_field("id", IdentityTransform())
        table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "now").commit()
        assert ids(catalog.load_table((ns, "t"))) == [4]
        assert catalog.load_table((ns, "t")).metadata.refs["now"].snapshot_ref_type == "tag"
        catalog.rename_table((ns, "t"), (ns, "u"))
        assert catalog.list_tables(ns) == [(ns, "u")]
        assert not catalog.table_exists((ns, "t"))
        with pytest.raises(TableAlreadyExistsError):
            catalog.create_table((ns, "u"), ROWS)
        with pytest.raises(NoSuchTableError):
            catalog.load_table((ns, "t"))
        catalog.purge_table((ns, "u"))
        assert catalog.list_tables(ns) == []

    def test_a_create_with_data_is_one_transaction(self, catalog: RestCatalog, ns: str) -> None:
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "word", StringType()))
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
        with catalog.create_table_transaction((ns, "t"), schema, partition_spec=spec) as staged:
            assert not catalog.table_exists((ns, "t"))
            staged.append(rows(1, 2))
        assert ids(catalog.load_table((ns, "t"))) == [1, 2]

    def test_a_table_is_registered_by_its_metadata(self, catalog: RestCatalog, ns: str) -> None:
        table = catalog.create_table((ns, "t"), ROWS)
        table.append(rows(1))
        place = catalog.load_table((ns, "t")).metadata_location
        catalog.drop_table((ns, "t"))
        assert ids(catalog.register_table((ns, "again"), place)) == [1]

    @pytest.mark.slow
    def test_writers_at_once_lose_nothing(self, catalog: RestCatalog, ns: str) -> None:
        catalog.create_table((ns, "t"), ROWS, properties={"commit.retry.num-retries": "100"})
        each = scaled(20) + 1

        def write(first: int) -> None:
            for number in range(first, first + each):
                catalog.load_table((ns, "t")).append(rows(number))

        threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 3000, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ids(catalog.load_table((ns, "t"))) == [n for s in range(0, 3000, 1000) for n in range(s, s + each)]


class TestTransaction:
    @pytest.fixture
    def two(self, catalog: RestCatalog, ns: str) -> tuple[tuple[str, str], tuple[str, str]]:
        for name in ("a", "b"):
            catalog.create_table((ns, name), ROWS)
        return (ns, "a"), (ns, "b")

    def test_several_tables_are_one_commit(self, catalog: RestCatalog, two: Any) -> None:
        a, b = two
        with transaction(catalog) as tx:
            tx.load_table(a).append(rows(1))
            tx.load_table(b).append(rows(2))
            assert ids(catalog.load_table(a)) == ids(catalog.load_table(b)) == []
        assert (ids(catalog.load_table(a)), ids(catalog.load_table(b))) == ([1], [2])

    def test_a_table_sees_what_was_done_to_it_before(self, catalog: RestCatalog, two: Any) -> None:
        a, _ = two
        with transaction(catalog) as tx:
            tx.load_table(a).append(rows(1))
            with tx.load_table(a).update_schema() as schema:
                schema.add_column("more", LongType())
            tx.load_table(a).append(rows(2))
            assert ids(tx.load_table(a)) == [1, 2]
            tx.load_table(a).delete("id = 1")
        found = catalog.load_table(a)
        assert ids(found) == [2]
        assert found.schema().column_names == ["id", "word", "more"]

    def test_a_block_that_raises_sends_nothing(self, catalog: RestCatalog, two: Any) -> None:
        def spoilt() -> None:
            with transaction(catalog) as tx:
                tx.load_table(two[0]).append(rows(1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            spoilt()
        assert ids(catalog.load_table(two[0])) == []

    def test_who_comes_second_changes_nothing_and_is_told(self, catalog: RestCatalog, two: Any) -> None:
        a, b = two
        tx = transaction(catalog)
        tx.load_table(a).append(rows(1))
        tx.load_table(b).append(rows(1))
        catalog.load_table(b).append(rows(9))
        with pytest.raises(TableUpdateConflict, match="branch main was created concurrently"):
            tx.commit()
        assert (ids(catalog.load_table(a)), ids(catalog.load_table(b))) == ([], [9])

    @pytest.mark.covers("M-54")
    def test_work_is_done_again_on_tables_read_anew_until_the_deadline(self, catalog: RestCatalog, two: Any) -> None:
        a, b = two
        attempts = itertools.count(1)

        def work(tx: Transaction) -> int:
            attempt = next(attempts)
            tx.load_table(a).append(rows(attempt))
            tx.load_table(b).append(rows(attempt))
            if attempt < 3:
                catalog.load_table(b).append(rows(100 + attempt))
            return attempt

        assert transaction(catalog, work, deadline=60) == 3
        assert (ids(catalog.load_table(a)), ids(catalog.load_table(b))) == ([3], [3, 101, 102])
        attempts = itertools.count(1)
        with pytest.raises(TableUpdateConflict):
            transaction(catalog, work, retry=None)
        assert ids(catalog.load_table(a)) == [3]

    def test_a_table_that_went_away_is_missing(self, catalog: RestCatalog, two: Any) -> None:
        tx = transaction(catalog)
        tx.load_table(two[0]).append(rows(1))
        catalog.drop_table(two[0])
        with pytest.raises(NoSuchTable):
            tx.commit()

    def test_two_open_changes_of_one_table_both_land(self, catalog: RestCatalog, two: Any) -> None:
        with transaction(catalog) as tx:
            table = tx.load_table(two[0])
            pending = table.transaction()
            pending.append(rows(1))
            table.append(rows(2))
            pending.commit_transaction()  # PyIceberg sees that it came second, and rebases it
        assert ids(catalog.load_table(two[0])) == [1, 2]

    def test_a_catalog_without_rest_is_refused(self) -> None:
        with pytest.raises(UsageError, match="InMemoryCatalog is no REST catalog"):
            transaction(InMemoryCatalog("x"))  # type: ignore[call-overload]
