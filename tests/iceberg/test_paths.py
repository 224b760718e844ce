"""Paths and names: golden, because other catalogs on the same store compute the same."""

from __future__ import annotations

import pytest

from takehold import UsageError
from takehold.iceberg import paths


@pytest.mark.covers("M-12")
def test_paths_are_exactly_these() -> None:
    assert paths.WAREHOUSES == "catalog/warehouse.bin"
    assert paths.registry("wh") == "catalog/wh/namespace.bin"
    assert paths.shard("wh", ("ns",), 15) == "catalog/wh/namespaces/ns/table-registry-shard-15.bin"
    assert paths.pointer("wh", "5b0b1bb6-26a5") == "catalog/wh/tables/5b0b1bb6-26a5.bin"
    assert paths.pending("wh", "tx1") == "catalog/wh/.tx/pending/tx1.bin"
    assert paths.function("wh", ("ns",)) == "catalog/wh/namespaces/ns"


@pytest.mark.covers("M-12")
@pytest.mark.parametrize(
    ("namespace", "part"),
    [
        (("..",), "%2E%2E"),
        (("a/b",), "a%2Fb"),
        (("é",), "%C3%A9"),
        (("a", "b"), "a%1Fb"),
        (("100%",), "100%25"),
        (("A_z-9",), "A_z-9"),
    ],
)
def test_a_name_is_one_part_of_a_path_whatever_is_in_it(namespace: tuple[str, ...], part: str) -> None:
    assert paths.registry(namespace[0]) != paths.registry("other")
    assert paths.function("wh", namespace) == f"catalog/wh/namespaces/{part}"


@pytest.mark.covers("M-13")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("", 9),
        ("orders", 5),
        ("customers", 8),
        ("events", 11),
        ("users", 7),
        ("table_0", 13),
        ("table_1", 8),
        ("lineitem", 8),
    ],
)
def test_the_shard_of_a_name_is_its_xxh64(name: str, number: int) -> None:
    assert paths.shard_number(name) == number


@pytest.mark.covers("M-13")
def test_sixteen_hundred_names_spread_over_all_shards() -> None:
    counts = [0] * paths.SHARDS
    for number in range(1600):
        counts[paths.shard_number(f"table_{number}")] += 1
    assert 70 < min(counts) <= max(counts) < 130


@pytest.mark.covers("M-12")
@pytest.mark.parametrize(
    "name",
    ["", "x" * 256, "é" * 43, "a\x00b", "a\x1fb", "a\nb", "\ud800", 7, None, ["x"]],
    ids=lambda name: repr(name)[:8],
)
def test_a_name_that_cannot_be_is_refused(name: object) -> None:
    with pytest.raises(UsageError):
        paths.checked_name(name, "a table")
    with pytest.raises(UsageError):
        paths.checked_namespace((name,))


@pytest.mark.covers("M-12")
def test_a_name_may_take_255_bytes_when_it_is_encoded() -> None:
    assert paths.checked_name("x" * 255, "a table")
    assert paths.checked_name("é" * 42, "a table")
    assert paths.checked_namespace(("a" * 126, "b" * 126))
    with pytest.raises(UsageError):
        paths.checked_namespace(("a" * 127, "b" * 127))
    with pytest.raises(UsageError):
        paths.checked_namespace("not a tuple")
    with pytest.raises(UsageError):
        paths.checked_namespace(())
