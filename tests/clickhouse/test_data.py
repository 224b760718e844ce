"""What users hand over, in every shape, and the sentence they get when it does not fit."""

# ruff: noqa: DTZ001 - a datetime without a zone is taken as UTC, which is shown here

from __future__ import annotations

import subprocess
import sys
from collections import UserDict, defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from takehold import UsageError
from takehold.clickhouse.columns import Column, clickhouse_type
from takehold.clickhouse.data import arrow_table, inferred, serialised

NAME = "analytics.events"
EVENTS = [
    Column("id", "UInt64"),
    Column("word", "String"),
    Column("qty", "Nullable(UInt32)"),
    Column("n", "UInt8", "DEFAULT"),
]
RECORDS: list[dict[str, Any]] = [{"id": 1, "word": "a", "qty": 7}, {"qty": None, "id": 2, "word": "b"}]
COLUMNS: dict[str, list[Any]] = {"word": ["a", "b"], "id": [1, 2], "qty": [7, None]}
EXPECTED = {"id": [1, 2], "word": [b"a", b"b"], "qty": [7, None]}
NAN = float("nan")


def table(data: Any, columns: list[Column] | None = None) -> pa.Table:
    return arrow_table(data, EVENTS if columns is None else columns, name=NAME)


def fit(type_: str, values: Any) -> list[Any]:
    """The values as they travel to a column of the type."""
    found: list[Any] = table({"v": values}, [Column("v", type_)])["v"].to_pylist()
    return found


def refusal(data: Any, columns: list[Column] | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        table(data, columns)
    message = str(refused.value)
    assert message.startswith(f"{NAME}: ")
    return message.removeprefix(f"{NAME}: ")


def misfit(type_: str, values: Any) -> str:
    return refusal({"v": values}, [Column("v", type_)])


SHAPES = {
    "records": RECORDS,
    "tuple of records": tuple(RECORDS),
    "generator of records": (record for record in list(RECORDS)),
    "other mappings": [UserDict(record) for record in RECORDS],
    "dicts with a default": [defaultdict(int, record) for record in RECORDS],
    "columns": COLUMNS,
    "columns as tuples": {name: tuple(values) for name, values in COLUMNS.items()},
    "columns as iterators": {name: iter(values) for name, values in COLUMNS.items()},
    "columns of numpy": {"id": np.array([1, 2]), "word": np.array(["a", "b"]), "qty": np.array([7, None])},
    "columns of three kinds": {"id": range(1, 3), "word": pa.array(["a", "b"]), "qty": pd.Series([7, None])},
    "columns of chunks": {"id": pa.chunked_array([[1], [2]]), "word": pd.Categorical(["a", "b"]), "qty": [7.0, None]},
    "pandas": pd.DataFrame(COLUMNS),
    "pandas with an index": pd.DataFrame(COLUMNS, index=["x", "y"]).astype({"word": "category", "qty": "Int64"}),
    "pandas of objects": pd.DataFrame(COLUMNS).astype(object),
    "table": pa.table(COLUMNS),
    "batch": pa.record_batch(COLUMNS),
    "reader": pa.table(COLUMNS).to_reader(),
    "table with a dictionary": pa.table({**COLUMNS, "word": pa.array(["a", "b"]).dictionary_encode()}),
}


class TestShapes:
    @pytest.mark.parametrize("data", SHAPES.values(), ids=SHAPES)
    def test_every_shape_becomes_the_same_table(self, data: Any) -> None:
        made = table(data)
        assert made.column_names == ["id", "word", "qty"]
        assert made.schema.field("id").type == pa.uint64()
        assert made.schema.field("qty").type == pa.uint32()
        assert {**made.to_pydict(), "word": made["word"].cast(pa.binary()).to_pylist()} == EXPECTED

    def test_a_column_with_a_default_may_be_given(self) -> None:
        assert table([{**RECORDS[0], "n": 3}])["n"].to_pylist() == [3]

    def test_a_table_that_fits_is_not_copied(self) -> None:
        given = table(COLUMNS)
        again = table(given)
        assert again["id"].chunk(0).buffers()[1].address == given["id"].chunk(0).buffers()[1].address

    def test_the_stream_is_that_of_arrow(self) -> None:
        made = table(COLUMNS)
        assert pa.ipc.open_stream(serialised(made)).read_all() == made
        assert pa.ipc.open_stream(serialised(made, compression="zstd")).read_all() == made

    def test_neither_pandas_nor_numpy_has_to_be_there(self) -> None:
        script = (
            "import sys; sys.modules['pandas'] = sys.modules['numpy'] = None\n"
            "from takehold.clickhouse.columns import Column\n"
            "from takehold.clickhouse.data import arrow_table, inferred\n"
            "columns = [Column('a', 'UInt8'), Column('b', 'Array(String)')]\n"
            "assert arrow_table([{'a': 1, 'b': ['x']}], columns, name='t').num_rows == 1\n"
            "assert inferred([1, 2]).num_rows == 2\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


class TestShapesThatAreRefused:
    @pytest.mark.parametrize(
        "data", [5, "text", None, {1, 2}, pa.array([1]), object()], ids=lambda data: type(data).__name__
    )
    def test_a_kind_that_is_not_supported_is_named(self, data: Any) -> None:
        assert refusal(data).startswith(f"cannot take rows from {type(data).__name__}; give a list of dicts")

    @pytest.mark.parametrize(
        "data", [[], iter([]), {"id": [], "word": [], "qty": []}, pd.DataFrame(columns=["id", "word", "qty"])]
    )
    def test_no_rows(self, data: Any) -> None:
        assert refusal(data) == "there are no rows"

    @pytest.mark.parametrize("data", [{}, [{}], pd.DataFrame(), pa.table({})])
    def test_no_columns(self, data: Any) -> None:
        assert refusal(data) == "the data has no columns"

    def test_a_record_without_a_key(self) -> None:
        rows = [*RECORDS, {"id": 3, "word": "c"}]
        assert refusal(rows) == "row 2 has no 'qty', which row 0 has; all rows have the same keys"

    def test_a_record_with_a_key_too_many(self) -> None:
        rows = [*RECORDS, {**RECORDS[0], "n": 1}]
        assert refusal(rows) == "row 2 has 'n', which row 0 has not; all rows have the same keys"

    def test_a_record_with_another_key_is_not_filled_by_its_default(self) -> None:
        wrong: defaultdict[str, Any] = defaultdict(int, {"id": 1, "word": "a", "other": 1})
        assert refusal([RECORDS[0], wrong]).startswith("row 1 has no 'qty'")
        assert "qty" not in wrong

    def test_a_row_that_is_no_record(self) -> None:
        assert refusal([RECORDS[0], (1, 2)]) == "row 1 is tuple, not a dict of column names and values"

    def test_columns_of_different_lengths(self) -> None:
        assert refusal({**COLUMNS, "qty": [1]}) == "column 'id' has 2 rows and column 'qty' has 1"

    def test_a_dict_of_scalars(self) -> None:
        assert refusal(RECORDS[0]) == "column 'id' is one int, not a list; for a single row give [{...}]"

    def test_a_dict_of_texts_is_not_a_dict_of_letters(self) -> None:
        assert refusal({"word": "ab"}).startswith("column 'word' is one str, not a list")

    def test_an_unknown_column(self) -> None:
        assert refusal({**COLUMNS, "wrod": [1, 2]}) == "there is no column 'wrod'; did you mean 'word'?"

    def test_a_column_whose_name_is_no_text(self) -> None:
        assert refusal({1: [1]}) == "columns are named by str, not 1 (int)"
        assert refusal([{1: 1}]) == "columns are named by str, not 1 (int)"

    def test_two_columns_of_one_name(self) -> None:
        twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
        assert refusal(twice) == "the data has two columns 'id'"
        assert refusal(pd.DataFrame([[1, 2]], columns=["id", "id"])) == "the data has two columns 'id'"

    def test_a_missing_column_without_a_default(self) -> None:
        assert (
            refusal([{"id": 1, "word": "a"}])
            == "column 'qty' (Nullable(UInt32)) is missing: give it, or give the column a DEFAULT"
        )

    @pytest.mark.parametrize("default", ["MATERIALIZED", "ALIAS"])
    def test_a_column_that_the_server_computes(self, default: str) -> None:
        columns = [Column("id", "UInt64"), Column("twice", "UInt64", default)]
        assert table([{"id": 1}], columns).column_names == ["id"]
        wrong = refusal([{"id": 1, "twice": 2}], columns)
        assert wrong == f"column 'twice' is {default}: the server computes it; leave it out"


class TestTheFirstBadRow:
    def test_it_is_named_with_its_value(self) -> None:
        rows = [{"id": row, "word": "a", "qty": "seven" if row in {3, 5} else row} for row in range(9)]
        assert refusal(rows).startswith("column 'qty' (Nullable(UInt32)) cannot hold 'seven' (str) in row 3")

    @pytest.mark.parametrize("bad", [0, 1, 999, 1000])
    @pytest.mark.parametrize("shape", ["list", "numpy", "pandas", "arrow", "chunks"])
    def test_it_is_found_wherever_it_is(self, bad: int, shape: str) -> None:
        values = [1] * 1001
        values[bad] = values[-1] = 256
        shapes = {
            "list": values,
            "numpy": np.array(values),
            "pandas": pd.Series(values),
            "arrow": pa.array(values),
            "chunks": pa.chunked_array([values[:600], values[600:]]),
        }
        assert misfit("UInt8", shapes[shape]).startswith(f"column 'v' (UInt8) cannot hold 256 (int) in row {bad}")

    def test_a_long_value_is_cut(self) -> None:
        assert len(misfit("UInt8", ["x" * 10_000])) < 200


class TestNumbers:
    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            ("UInt8", 256),
            ("UInt8", -1),
            ("UInt64", 2**64),
            ("Int128", 2**127),
            ("UInt256", -1),
            ("UInt32", 1.5),
            ("UInt32", NAN),
            ("Int128", NAN),
            ("Int64", Decimal("1.5")),
            ("Int64", "1"),
            ("Int64", b"1"),
            ("Int64", datetime(2026, 1, 1)),
            ("Bool", 1),
            ("Bool", "true"),
            ("Float64", "1"),
            ("Float64", True),
            ("Float64", Decimal("0.1")),
            ("Float64", 2**53 + 1),
            ("Float32", 1e300),
            ("Decimal(9, 2)", 1.5),
            ("Decimal(9, 2)", Decimal("1.555")),
            ("Decimal(9, 2)", 10**7),
            ("Decimal(9, 2)", True),
            ("Decimal(9, 2)", Decimal("NaN")),
            ("Decimal(9, 2)", "1.5"),
        ],
        ids=repr,
    )
    def test_a_number_that_would_change_is_an_error(self, type_: str, value: Any) -> None:
        good = {"Bool": True}.get(type_, 1)
        shown = f"column 'v' ({type_}) cannot hold {value!r} ({type(value).__name__}) in row 1"
        assert misfit(type_, [good, value]).startswith(shown)

    @pytest.mark.parametrize(
        ("type_", "array"),
        [
            ("UInt8", pa.array([1, 256])),
            ("UInt32", pa.array([1, 1.5])),
            ("UInt32", pa.array([1, NAN])),
            ("Int64", pa.array(["1", "2"])),
            ("Float32", pa.array([1, 1e300])),
            ("Float64", pa.array([2**53 + 1])),
            ("Float64", pa.array([Decimal("0.1")])),
            ("Bool", pa.array([1, 0])),
            ("Decimal(9, 2)", pa.array([1.5])),
            ("Decimal(9, 2)", pa.array([1, 10**7])),
            ("Decimal(9, 2)", pa.array([Decimal("1.555")])),
            ("Int128", pa.array([1.5])),
        ],
    )
    def test_an_array_is_held_to_the_same(self, type_: str, array: pa.Array) -> None:
        assert f"column 'v' ({type_}) cannot hold " in misfit(type_, array)

    @pytest.mark.parametrize(
        ("type_", "values", "expected"),
        [
            ("UInt8", [1.0, True, Decimal(3), np.int64(4), np.float32(5), None], [1, 1, 3, 4, 5, None]),
            ("Int256", [2**200, 1.0, np.uint8(3), None], [str(2**200), "1", "3", None]),
            ("Float64", [1, 2.5, np.float32(0.5), None], [1.0, 2.5, 0.5, None]),
            ("Float32", [0.1, float("inf"), 1, None], [np.float32(0.1), float("inf"), 1.0, None]),
            ("Bool", [True, np.bool_(False), None], [True, False, None]),
            ("Decimal(9, 2)", [1, Decimal("1.500"), np.int8(2), None], [Decimal(1), Decimal("1.5"), Decimal(2), None]),
        ],
    )
    def test_what_fits_exactly_is_taken_from_any_type(self, type_: str, values: Any, expected: Any) -> None:
        assert fit(f"Nullable({type_})", values) == expected

    def test_arrays_of_other_types_are_taken_when_they_fit(self) -> None:
        assert fit("UInt8", pa.array([1.0, 2.0])) == [1, 2]
        assert fit("Decimal(9, 2)", pa.array([1, 2])) == [Decimal(1), Decimal(2)]
        assert fit("UInt8", pa.array([True])) == [1]
        assert fit("Int128", pa.array([-1])) == ["-1"]


class TestTexts:
    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            ("String", 5),
            ("String", "\ud800"),
            ("String", UUID(int=1)),
            ("FixedString(3)", "äöü"),
            ("FixedString(3)", b"1234"),
            ("Enum8('a' = 1, 'b' = 2)", "c"),
            ("Enum8('a' = 1, 'b' = 2)", "1"),
            ("Enum8('a' = 1, 'b' = 2)", 1),
            ("UUID", "nope"),
            ("UUID", "{12345678-1234-5678-1234-567812345678}"),
            ("IPv4", "1.2.3.04"),
            ("IPv4", "::1"),
            ("IPv6", "fe80::1%eth0"),
            ("JSON", "[1]"),
            ("JSON", "{"),
            ("JSON", [1]),
            ("JSON", {"a": NAN}),
            ("JSON", {"a": datetime(2026, 1, 1)}),
        ],
        ids=repr,
    )
    def test_what_the_server_could_not_read_is_an_error_before(self, type_: str, value: Any) -> None:
        assert misfit(f"Nullable({type_})", [None, value]).startswith(
            f"column 'v' (Nullable({type_})) cannot hold {value!r} ({type(value).__name__}) in row 1"
        )

    def test_the_names_of_an_enum_are_listed(self) -> None:
        assert misfit("Enum8('a' = 1, 'b' = 2)", ["c"]).endswith("in row 0: it takes one of 'a', 'b'")

    def test_bytes_that_are_no_text_fit_a_string_but_no_enum(self) -> None:
        assert fit("String", ["ä", b"\xff"]) == ["ä".encode(), b"\xff"]
        assert fit("String", pa.array([b"\xff"])) == [b"\xff"]
        assert "cannot hold b'\\xff' (bytes) in row 0" in misfit("Enum8('a' = 1)", pa.array([b"\xff"]))

    def test_arrays_of_any_text_are_taken(self) -> None:
        for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
            array = pa.array(["a", "b"], type=pa.string()).cast(kind)
            assert fit("Enum8('a' = 1, 'b' = 2)", array) == ["a", "b"]
            assert fit("FixedString(1)", array) in (["a", "b"], [b"a", b"b"])

    def test_a_uuid_of_arrow_is_taken_as_a_uuid_only(self) -> None:
        array = pa.array([UUID(int=1)], type=pa.uuid())
        assert fit("UUID", array) == [str(UUID(int=1))]
        assert "cannot hold UUID(" in misfit("String", array)


class TestInstants:
    def test_one_with_a_zone_is_that_instant_and_one_without_is_utc(self) -> None:
        berlin = datetime(2026, 7, 1, 14, tzinfo=timezone(timedelta(hours=2)))
        noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
        for values in ([berlin, noon.replace(tzinfo=None)], [noon.replace(tzinfo=None), berlin, date(2026, 7, 1)]):
            assert fit("DateTime64(3)", values)[:2] == [noon, noon]
        assert fit("DateTime", pd.Series([berlin])) == [noon]
        assert fit("DateTime", pd.Series([noon.replace(tzinfo=None)])) == [noon]

    @pytest.mark.parametrize(
        "values",
        [
            [datetime(2026, 1, 1, 0, 0, 0, 1001)],
            [datetime(2026, 1, 1, 0, 0, 0, 1001), date(2026, 1, 1)],
            [pd.Timestamp("2026-01-01 00:00:00.001001")],
            np.array(["2026-01-01T00:00:00.001001"], dtype="M8[us]"),
            pd.Series([datetime(2026, 1, 1, 0, 0, 0, 1001)]),
            pa.array([datetime(2026, 1, 1, 0, 0, 0, 1001)]),
        ],
        ids=["datetime", "with a date", "Timestamp", "numpy", "pandas", "arrow"],
    )
    def test_microseconds_do_not_fit_milliseconds(self, values: Any) -> None:
        wrong = misfit("DateTime64(3)", values)
        assert "in row 0: it would lose its fraction: round it first, or give the column more digits" in wrong
        assert len(fit("DateTime64(6)", values)) == len(values)

    def test_digits_between_the_units_count_too(self) -> None:
        assert fit("DateTime64(2)", [datetime(2026, 1, 1, 0, 0, 0, 120_000)])
        finer = datetime(2026, 1, 1, 0, 0, 0, 125_000)
        for values in ([finer], [finer, date(2026, 1, 1)], pa.array([finer], type=pa.timestamp("ms", "UTC"))):
            assert "lose its fraction" in misfit("DateTime64(2)", values)

    def test_nanoseconds_of_pandas_and_numpy_are_kept(self) -> None:
        for values in ([pd.Timestamp(1_700_000_000_123_456_789)], [np.datetime64(1_700_000_000_123_456_789, "ns")]):
            made = table({"v": values}, [Column("v", "DateTime64(9)")])["v"]
            assert made.cast(pa.int64()).to_pylist() == [1_700_000_000_123_456_789]
            assert "lose its fraction" in misfit("DateTime64(6)", values)

    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            ("DateTime", datetime(1969, 12, 31, 23, 59, 59)),
            ("DateTime", datetime(2106, 2, 7, 6, 28, 16)),
            ("DateTime64(3)", datetime(1899, 12, 31)),
            ("DateTime64(3)", datetime(2300, 1, 1)),
            ("DateTime64(9)", datetime(2262, 4, 12)),
            ("DateTime", 5),
            ("DateTime", "2026-01-01"),
            ("DateTime64(3)", timedelta(1)),
            ("Date", date(1969, 12, 31)),
            ("Date", date(2149, 6, 7)),
            ("Date32", date(2300, 1, 1)),
            ("Date", datetime(2026, 1, 1, 12)),
            ("Date", 5),
        ],
    )
    def test_what_lies_outside_or_is_none_is_an_error(self, type_: str, value: Any) -> None:
        shown = f"column 'v' ({type_}) cannot hold {value!r} ({type(value).__name__}) in row 1"
        assert misfit(type_, [date(2026, 1, 1), value]).startswith(shown)
        assert f"column 'v' ({type_}) cannot hold " in misfit(type_, pa.array([value]))

    def test_midnight_is_a_date(self) -> None:
        values = [datetime(2026, 1, 1), date(2026, 1, 2)]
        assert fit("Date", values) == [date(2026, 1, 1), date(2026, 1, 2)]
        assert fit("Date", pd.Series(values[:1])) == [date(2026, 1, 1)]


class TestNull:
    @pytest.mark.parametrize(
        "type_", ["UInt8", "String", "UUID", "DateTime", "JSON", "Array(UInt8)", "Map(String, UInt8)"]
    )
    def test_none_needs_a_nullable_type(self, type_: str) -> None:
        assert misfit(type_, [None]).startswith(f"column 'v' ({type_}) cannot hold None in row 0: ")
        assert misfit(type_, pa.nulls(1)).startswith(f"column 'v' ({type_}) cannot hold None in row 0")

    def test_nan_of_pandas_is_null_where_null_is_possible(self) -> None:
        for dtype in (float, object):
            series = pd.Series([1.0, NAN], dtype=dtype)
            assert fit("Nullable(UInt8)", series) == [1, None]
            assert fit("Nullable(Float64)", series) == [1.0, None]
            assert "cannot hold nan (float) in row 1" in misfit("UInt8", series)
        assert fit("Nullable(String)", pd.Series(["a", NAN], dtype=object)) == [b"a", None]
        assert fit("Nullable(DateTime)", pd.Series([pd.NaT, datetime(2026, 1, 1)]))[0] is None

    def test_nan_stays_in_a_column_of_floats(self) -> None:
        for values in (pd.Series([NAN]), pd.Series([NAN], dtype=object), np.array([NAN]), [NAN], pa.array([NAN])):
            (value,) = fit("Float64", values)
            assert value != value  # noqa: PLR0124 - that is what NaN is

    def test_nan_that_is_not_of_pandas_is_no_null(self) -> None:
        assert "cannot hold nan (float) in row 0" in misfit("Nullable(UInt8)", [NAN])
        assert "cannot hold NaT (NaTType) in row 0" in misfit("DateTime", [pd.NaT])


class TestNested:
    @pytest.mark.parametrize(
        ("type_", "value"),
        [
            ("Array(UInt8)", "ab"),
            ("Array(UInt8)", {1}),
            ("Array(UInt8)", [256]),
            ("Array(UInt8)", [1, None]),
            ("Array(Array(UInt8))", [[1], 2]),
            ("Map(String, UInt8)", {"a": "b"}),
            ("Map(String, UInt8)", [("a",)]),
            ("Tuple(a UInt8, b UInt8)", {"a": 1}),
            ("Tuple(a UInt8, b UInt8)", {"a": 1, "b": 2, "c": 3}),
            ("Tuple(a UInt8, b UInt8)", (1,)),
            ("Tuple(UInt8, UInt8)", {"1": 1, "2": 2}),
            ("Tuple(a UInt8, b UInt8)", (1, 1.5)),
        ],
    )
    def test_a_part_that_does_not_fit_is_an_error(self, type_: str, value: Any) -> None:
        shown = f"column 'v' ({type_}) cannot hold {value!r} ({type(value).__name__}) in row 0"
        assert misfit(type_, [value]).startswith(shown)

    @pytest.mark.parametrize(
        ("type_", "values", "arrow"),
        [
            ("Array(UInt8)", [[1, 2], [], [3]], pa.list_(pa.int64())),
            ("Array(UInt8)", [[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
            ("Array(Nullable(Date))", [[date(2026, 1, 1), None], [], []], pa.large_list(pa.date64())),
            ("Map(String, UInt8)", [[(b"a", 1)], [], [(b"b", 2)]], pa.map_(pa.string(), pa.int64())),
            ("Tuple(a UInt8, b Int8)", [{"a": 1, "b": 2}] * 3, pa.struct([("b", pa.int64()), ("a", pa.int64())])),
            ("Tuple(Int8, Int8)", [{"1": 1, "2": 2}] * 3, pa.struct([("1", pa.int64()), ("2", pa.int64())])),
        ],
    )
    def test_arrays_of_arrow_are_taken_apart_wherever_they_start(self, type_: str, values: Any, arrow: Any) -> None:
        array = pa.array(values, type=arrow)
        assert fit(type_, array) == values
        assert fit(type_, array[1:]) == values[1:]

    def test_two_dimensions_of_numpy_are_an_array_each_row(self) -> None:
        assert fit("Array(UInt8)", np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
        assert "cannot hold array([1, 2]) (ndarray) in row 0" in misfit("UInt8", np.array([[1, 2], [3, 4]]))


class TestInferred:
    @pytest.mark.parametrize(
        ("value", "type_", "expected"),
        [
            (5, "Int64", [5]),
            (True, "Bool", [True]),
            ("text", "String", ["text"]),
            (b"\xff", "String", [b"\xff"]),
            (1.5, "Float64", [1.5]),
            (np.float32(1.5), "Float32", [1.5]),
            (2**64 - 1, "UInt64", [2**64 - 1]),
            (Decimal("1.25"), "Decimal(38, 2)", [Decimal("1.25")]),
            (UUID(int=1), "UUID", [UUID(int=1)]),
            (date(2026, 1, 1), "Date32", [date(2026, 1, 1)]),
            (datetime(2026, 1, 1), "DateTime64(6, 'UTC')", [datetime(2026, 1, 1)]),
            ([1, None], "Nullable(Int64)", [1, None]),
            ([1, 2.5], "Float64", [1, 2.5]),
            ((1, 2), "Int64", [1, 2]),
            (range(2), "Int64", [0, 1]),
            ([[1], [2, 3]], "Array(Int64)", [[1], [2, 3]]),
            (np.array([1, 2], dtype="u1"), "UInt8", [1, 2]),
            (pd.Series(["a", "b"]), "String", ["a", "b"]),
            (pa.array([1]), "Int64", [1]),
        ],
    )
    def test_scalars_and_lists_become_the_column_value(self, value: Any, type_: str, expected: list[Any]) -> None:
        made = inferred(value)
        assert made.column_names == ["value"]
        assert made["value"].to_pylist() == expected
        assert clickhouse_type(made["value"].type, made["value"].null_count > 0) == type_

    @pytest.mark.parametrize(
        "value", [COLUMNS, RECORDS, iter(RECORDS), pd.DataFrame(COLUMNS), pa.table(COLUMNS), pa.record_batch(COLUMNS)]
    )
    def test_what_has_columns_keeps_them(self, value: Any) -> None:
        assert sorted(inferred(value).select(["id", "qty", "word"]).to_pylist(), key=lambda row: row["id"]) == RECORDS

    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            ([], "there are no rows"),
            ({}, "no columns"),
            (None, "cannot take rows from NoneType"),
            ([1, "a"], "no one type"),
            ([1, True], "no one type"),
            ([2**64], "no one type"),
            ([date(2026, 1, 1), datetime(2026, 1, 1, 12)], r"cannot hold datetime\.datetime\(2026.* in row 1"),
            ([Decimal("0.1"), 0.5], r"cannot hold|no one type"),
            ([pd.Timestamp(1_700_000_000_123_456_789)], "would lose its fraction"),
            ([{"a": {"x": 1}}, {"a": {"y": 1}}], r"column 'a' .* cannot hold \{'x': 1\}"),
            ({"a": [1], "b": [1, 2]}, "column 'a' has 1 rows and column 'b' has 2"),
            ([None], "nothing but None"),
        ],
    )
    def test_what_has_no_type_is_refused(self, value: Any, sentence: str) -> None:
        with pytest.raises(UsageError, match=sentence):
            clickhouse_type(next(iter(inferred(value).schema)).type, True)


def test_a_generator_is_read_to_its_end_before_anything_is_made() -> None:
    seen = []

    def rows() -> Iterator[dict[str, Any]]:
        for row in range(3):
            seen.append(row)
            yield {"id": row, "word": "a", "qty": -1 if row == 0 else 1}

    assert "in row 0" in refusal(rows())
    assert seen == [0, 1, 2]
