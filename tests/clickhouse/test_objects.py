"""Objects: values in their shapes, operators and aggregates, and whose tables go when."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from takehold import UsageError, clickhouse
from tests.clickhouse.conftest import everywhere
from tests.clickhouse.registries import in_processes
from tests.clickhouse.stores import Place, Stores, forbidden

pytestmark = pytest.mark.slow

COLUMNS = {"x": [1, 2, 3], "y": ["a", "b", "c"]}
RECORDS = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
DAY = datetime(2026, 11, 18, 20, 15, 13, 5, tzinfo=UTC)


def results(store: Any) -> list[str]:
    return [table for table in store.tables() if table.startswith("t_")]


@everywhere
def test_values_are_read_in_the_shape_in_which_they_came(store: Any) -> None:
    for value in (7, -1.5, "text", True, DAY, date(2026, 11, 18), [3, 1, 2], ["a", "b"], COLUMNS, RECORDS):
        for named in (None, f"v{abs(hash(str(value)))}"):
            assert store.create(value, named).value() == value
    assert store.create(Decimal("1.50")).value() == Decimal("1.50")
    assert store.create([1.5, None]).value() == [1.5, None]
    assert store.create(range(3)).value() == [0, 1, 2]
    assert store.create(number for number in (5, 6)).value() == [5, 6]
    assert store.create(pd.DataFrame(COLUMNS)).value() == COLUMNS
    assert store.create(pd.Series([1, 2])).value() == [1, 2]
    assert store.create(pa.table(COLUMNS)).value() == COLUMNS
    reader = pa.RecordBatchReader.from_batches(pa.table(COLUMNS).schema, pa.table(COLUMNS).to_batches())
    assert store.create(reader).value() == COLUMNS


def test_rows_are_read_as_arrow_in_the_order_in_which_they_came(store: Any) -> None:
    store.create(COLUMNS, "prices")
    store.insert("prices", {"x": [0], "y": ["z"]}, RECORDS)
    arrow = store.object("prices").arrow()
    assert isinstance(arrow, pa.Table)
    assert arrow.to_pydict() == {"x": [1, 2, 3, 0, 1, 2], "y": ["a", "b", "c", "z", "a", "b"]}


@everywhere
def test_another_store_finds_a_table_by_its_name_with_its_shape(stores: Stores) -> None:
    stores.open().create(RECORDS, "prices", job=7)
    store = stores.open()
    assert store.tables() == ["j_7_prices"]
    for found in (store.object("prices", job=7), store.object("j_7_prices")):
        assert (found.table, found.shape, found.columns) == ("j_7_prices", "records", ("x", "y"))
        assert found.value() == RECORDS


def test_operators_align_rows_and_spread_scalars(store: Any) -> None:
    one, other = store.create([7, -7, 3]), store.create([2, 2, -2])
    expected = {
        "plus": (one + other, [9, -5, 1]),
        "minus": (one - other, [5, -9, 5]),
        "times": (one * other, [14, -14, -6]),
        "divided": (one / other, [3.5, -3.5, -1.5]),
        "floor": (one // other, [7 // 2, -7 // 2, 3 // -2]),
        "rest": (one % other, [7 % 2, -7 % 2, 3 % -2]),
        "power": (one**2, [49.0, 49.0, 9.0]),
        "scalar": (10 - one, [3, 17, 7]),
        "less": (one < other, [False, True, False]),
        "equal": (one == 3, [False, False, True]),
        "both": ((one > 0) & (other > 0), [True, False, False]),
        "either": ((one > 0) | (other < 0), [True, False, True]),
        "not": (~(one > 0), [False, True, False]),
        "minus itself": (-one, [-7, 7, -3]),
        "sum": (one + one.sum(), [10, -4, 6]),
        "texts": (store.create(["a", "b"]) + "!", ["a!", "b!"]),
    }
    for name, (found, values) in expected.items():
        assert found.value() == values, name
        assert found.table.startswith("t_")


def test_columns_are_combined_column_by_column(store: Any) -> None:
    prices = store.create({"a": [1, 2], "b": [10, 20]})
    assert (prices * 2).value() == {"a": [2, 4], "b": [20, 40]}
    assert (prices + prices).value() == {"a": [2, 4], "b": [20, 40]}
    assert prices["b"].value() == [10, 20]
    assert (prices["a"] + prices["b"]).value() == [11, 22]
    assert (prices - prices["a"]).value() == {"a": [0, 0], "b": [9, 18]}
    assert prices.sum().value() == {"a": 3, "b": 30}


def test_aggregates_of_one_column_are_scalars(store: Any) -> None:
    numbers = store.create([2, 4, 4, 4, 5, 5, 7, 9])
    found = {name: getattr(numbers, name)().value() for name in ("sum", "mean", "min", "max", "count", "std")}
    assert found == {"sum": 40, "mean": 5.0, "min": 2, "max": 9, "count": 8, "std": 2.0}


def test_what_does_not_go_together_is_refused_and_leaves_no_table(store: Any) -> None:
    one, text = store.create([1, 2]), store.create(["a", "b"])
    columns, strange = store.create({"a": [1, 2]}), store.create({"b": [1, 2]})
    before = store.tables()
    calls: dict[str, Callable[[], Any]] = {
        "one length": lambda: one + store.create([1, 2, 3]),
        "do not go together": lambda: one + text,
        "for objects of Bool": lambda: one & one,
        "the same columns": lambda: columns + strange,
        "cannot be an operand": lambda: one + object(),
        "no column": lambda: columns["z"],
        "do not go": lambda: one // 0,
    }
    for sentence, call in calls.items():
        with pytest.raises(UsageError, match=sentence):
            call()
    gc.collect()
    assert store.tables() == before


def test_an_object_is_neither_true_nor_iterable(store: Any) -> None:
    made = store.create([1]).made
    with pytest.raises(UsageError, match="neither true nor false"):
        bool(made)
    with pytest.raises(TypeError):
        iter(made)


def test_objects_of_two_stores_do_not_mix(stores: Stores) -> None:
    one, other = stores.open(), stores.open()
    foreign = other.create([1])
    calls: list[Callable[[], Any]] = [
        lambda: one.create([1]) + foreign,
        lambda: one.concat(foreign),
        lambda: one.copy(foreign, "x"),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="another store"):
            call()


def test_concat_makes_one_object_of_several(store: Any) -> None:
    first = store.create({"x": [1], "y": ["a"]})
    joined = store.concat(first, {"x": [2], "y": ["b"]}, first)
    assert joined.value() == {"x": [1, 2, 1], "y": ["a", "b", "a"]}
    assert joined.table.startswith("t_")
    assert store.concat(first, first, name="all").table == "p_all"
    assert store.concat(first, name="all").value()["x"] == [1, 1, 1]
    with pytest.raises(UsageError, match="at least one source"):
        store.concat()


def test_numbers_are_fitted_to_the_table_or_refused(store: Any) -> None:
    store.create([1, 2], "whole")
    store.insert("whole", store.create([3.0]))
    assert store.object("whole").value() == [1, 2, 3]
    with pytest.raises(UsageError, match="cannot hold 1 of the values"):
        store.insert("whole", store.create([3.5, 4.0]))
    with pytest.raises(UsageError, match=r"is String in p_|is String in .*t_"):
        store.insert("whole", store.create(["3"]))
    assert store.object("whole").value() == [1, 2, 3]


def test_a_result_goes_with_its_last_object_and_a_shared_table_stays(store: Any) -> None:
    prices = store.create(COLUMNS, "prices")
    double = store.create([1, 2, 3]) * 2
    column = double["value"]
    gc.collect()
    assert results(store) == [double.table], "what it was made of is gone"
    del double
    gc.collect()
    assert results(store) == [column.table]
    column.close()
    prices.close()
    assert store.tables() == ["p_prices"]
    assert store.registry.unreferenced() == []


def test_a_result_that_another_store_uses_stays_until_that_closes(stores: Stores) -> None:
    one, other = stores.open(), stores.open()
    made = one.create([1, 2])
    found = other.object(made.table)
    made.close()
    assert results(other) == [found.table]
    assert found.value() == [1, 2]
    found.close()
    assert results(other) == []
    with pytest.raises(UsageError, match="no table"):
        other.object(made.table)


def leave_a_result(_: int, place: Place) -> str:
    """As a process that dies between its last use of a result and dropping it."""
    store = clickhouse.open(place.ch_url, place.sql_url)
    made = store.create([1, 2])
    store.registry.decref(made.table, store.context)
    made._finalizer.detach()
    return made.table


def test_a_result_whose_last_user_died_is_dropped_when_the_next_store_closes(distributed: Place) -> None:
    (left,) = in_processes(1, leave_a_result, distributed)
    for expected in ([left], []):
        with Stores("blocking", distributed) as stores:
            assert results(stores.open()) == expected


@pytest.mark.covers("A-23")
def test_reading_results_and_copies_take_no_lock(store: Any) -> None:
    prices = store.create(COLUMNS, "prices")
    with forbidden(store):
        assert store.object("prices").value() == COLUMNS
        assert prices["x"].sum().value() == 6
        assert (prices["x"] + 1).value() == [2, 3, 4]
        assert store.create([1]).value() == [1]
        assert store.concat(prices, prices).arrow().num_rows == 6
        assert store.copy(prices, "other").value() == COLUMNS
        store.drop("other")
        assert [table for table in store.tables() if table.startswith("p_")] == ["p_prices"]


@pytest.mark.covers("A-24", "A-28")
def test_a_copy_says_that_it_is_not_serialized_and_the_second_of_a_name_fails(store: Any) -> None:
    prices = store.create(COLUMNS, "prices")
    assert store.copy(prices, "other").value() == COLUMNS
    with pytest.raises(UsageError, match="is there already"):
        store.copy(prices, "other")
    assert store.object("other").value() == COLUMNS
    assert "not serialized" in type(store.made).copy.__doc__
