"""The types of ClickHouse: what they are declared as, and that each comes back from a real server as it was given."""

# ruff: noqa: DTZ001 - a datetime without a zone is taken as UTC, which is shown here

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from takehold import UsageError
from takehold.clickhouse.columns import Column, clickhouse_type, structure
from takehold.clickhouse.data import arrow_table, inferred, serialised
from takehold.clickhouse.quoting import identifier, text

ID = UUID("12345678-1234-5678-1234-567812345678")


class TestWhatIsDeclared:
    @pytest.mark.parametrize(
        ("type_", "wire"),
        [
            ("UInt64", "UInt64"),
            ("LowCardinality(Nullable(String))", "Nullable(String)"),
            ("Nullable(DateTime64(3, 'Europe/Berlin'))", "Nullable(DateTime64(3))"),
            ("DateTime('UTC')", "DateTime"),
            ("Enum8('a,(' = 1, 'it\\'s' = -2)", "String"),
            ("Nullable(UUID)", "Nullable(String)"),
            ("Int256", "String"),
            ("JSON(a UInt8, max_dynamic_paths=8)", "String"),
            ("Map(LowCardinality(String), Array(Nullable(IPv4)))", "Map(String, Array(Nullable(String)))"),
            ("Tuple(a UInt8, `b c` Tuple(UUID, Date))", "Tuple(`a` UInt8, `b c` Tuple(String, Date))"),
            ("Nested(a UInt8, b Enum8('x' = 1))", "Array(Tuple(`a` UInt8, `b` String))"),
            ("SimpleAggregateFunction(sum, UInt64)", "UInt64"),
        ],
    )
    def test_the_server_casts_what_arrow_has_no_type_for(self, type_: str, wire: str) -> None:
        assert Column("v", type_).wire == wire

    @pytest.mark.parametrize(
        ("type_", "arrow"),
        [
            ("UInt8", pa.uint8()),
            ("String", pa.binary()),
            ("DateTime64(0)", pa.timestamp("s", "UTC")),
            ("DateTime64(2)", pa.timestamp("ms", "UTC")),
            ("DateTime64(6)", pa.timestamp("us", "UTC")),
            ("DateTime64(7)", pa.timestamp("ns", "UTC")),
            ("Decimal(18, 4)", pa.decimal128(18, 4)),
            ("Decimal(76, 4)", pa.decimal256(76, 4)),
            ("Array(UInt8)", pa.large_list(pa.uint8())),
        ],
    )
    def test_values_must_fit_the_type_of_arrow(self, type_: str, arrow: pa.DataType) -> None:
        assert Column("v", type_).arrow == arrow

    @pytest.mark.parametrize("type_", ["Time", "AggregateFunction(sum, UInt64)", "Variant(String, UInt8)", "Dynamic"])
    def test_a_type_that_is_not_carried_is_named(self, type_: str) -> None:
        column = Column("v", f"Array({type_})")
        with pytest.raises(UsageError) as refused:
            arrow_table({"v": [[1]]}, [column], name="db.t")
        assert str(refused.value).startswith(f"db.t: column 'v': columns of type {type_} cannot be appended to")

    def test_nullable_is_that_of_the_column_not_of_its_elements(self) -> None:
        assert Column("v", "Nullable(UInt8)").nullable
        assert Column("v", "LowCardinality(Nullable(String))").nullable
        assert not Column("v", "Array(Nullable(UInt8))").nullable

    def test_the_structure_lists_names_and_wires(self) -> None:
        columns = [Column("id", "UInt64"), Column("at", "DateTime64(3, 'UTC')"), Column("o`d\\d", "UUID")]
        assert structure(columns) == r"`id` UInt64, `at` DateTime64(3), `o\`d\\d` String"

    def test_quotes_and_backslashes_are_escaped(self) -> None:
        assert identifier("a`b\\") == r"`a\`b\\`"
        assert text("it's \\") == r"'it\'s \\'"


class TestTypesForValues:
    @pytest.mark.parametrize(
        ("arrow", "type_"),
        [
            (pa.int64(), "Int64"),
            (pa.bool_(), "Bool"),
            (pa.large_string(), "String"),
            (pa.binary(4), "FixedString(4)"),
            (pa.timestamp("ms", "Asia/Tokyo"), "DateTime64(3, 'UTC')"),
            (pa.date32(), "Date32"),
            (pa.decimal128(18, 4), "Decimal(18, 4)"),
            (pa.uuid(), "UUID"),
            (pa.dictionary(pa.int8(), pa.string()), "String"),
            (pa.list_(pa.list_(pa.float32())), "Array(Array(Float32))"),
            (pa.map_(pa.string(), pa.uint8()), "Map(String, UInt8)"),
            (pa.struct([("a", pa.int8()), ("b c", pa.string())]), "Tuple(`a` Int8, `b c` String)"),
        ],
    )
    def test_every_usual_type_has_one(self, arrow: pa.DataType, type_: str) -> None:
        assert clickhouse_type(arrow, False) == type_

    def test_nullable_is_said_when_asked(self) -> None:
        assert clickhouse_type(pa.dictionary(pa.int8(), pa.string()), True) == "Nullable(String)"

    @pytest.mark.parametrize(
        ("arrow", "nullable", "sentence"),
        [
            (pa.null(), True, "nothing but None"),
            (pa.duration("s"), False, r"duration\[s\]"),
            (pa.list_(pa.null()), False, "nothing but None"),
            (pa.list_(pa.int8()), True, r"Array\(Int8\)"),
        ],
    )
    def test_what_has_none_is_refused(self, arrow: pa.DataType, nullable: bool, sentence: str) -> None:
        with pytest.raises(UsageError, match=sentence):
            clickhouse_type(arrow, nullable)


ROUND_TRIPS: list[tuple[str, list[Any], list[str]]] = [
    *((f"UInt{bits}", [0, 2**bits - 1], ["0", str(2**bits - 1)]) for bits in (8, 16, 32, 64, 128, 256)),
    *(
        (f"Int{bits}", [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], [str(-(2 ** (bits - 1))), str(2 ** (bits - 1) - 1)])
        for bits in (8, 16, 32, 64, 128, 256)
    ),
    ("Nullable(UInt256)", [None, 7], ["NULL", "7"]),
    ("Float32", [1.5, float("nan")], ["1.5", "nan"]),
    ("Float64", [0.1, float("-inf")], ["0.1", "-inf"]),
    ("Bool", [True, False], ["true", "false"]),
    ("String", ["é", "", b"x"], ["é", "", "x"]),
    ("FixedString(4)", ["ab", b"wxyz"], ["ab", "wxyz"]),
    ("Date", [date(1970, 1, 1), date(2149, 6, 6)], ["1970-01-01", "2149-06-06"]),
    ("Date32", [date(1900, 1, 1), date(2299, 12, 31)], ["1900-01-01", "2299-12-31"]),
    (
        "DateTime",
        [datetime(1970, 1, 1), datetime(2106, 2, 7, 6, 28, 15)],
        ["1970-01-01 00:00:00", "2106-02-07 06:28:15"],
    ),
    (
        "DateTime('Europe/Berlin')",
        [datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=-5))), datetime(2026, 7, 1, 12)],
        ["2026-07-01 19:00:00", "2026-07-01 14:00:00"],
    ),
    (
        "DateTime64(3, 'UTC')",
        [datetime(1900, 1, 1), datetime(2299, 12, 31, 23, 59, 59, 999000)],
        ["1900-01-01 00:00:00.000", "2299-12-31 23:59:59.999"],
    ),
    ("DateTime64(2)", [datetime(2026, 1, 1, 0, 0, 0, 120000)], ["2026-01-01 00:00:00.12"]),
    ("DateTime64(6)", [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)], ["1969-12-31 23:59:59.999999"]),
    (
        "DateTime64(9)",
        [datetime(2026, 1, 1, 0, 0, 0, 1), date(2026, 1, 2)],
        ["2026-01-01 00:00:00.000001000", "2026-01-02 00:00:00.000000000"],
    ),
    ("Decimal(9, 2)", [Decimal("-1234567.25"), 3], ["-1234567.25", "3"]),
    ("Nullable(Decimal(38, 10))", [Decimal("0.0000000001"), None], ["0.0000000001", "NULL"]),
    ("Decimal(76, 20)", [Decimal(10**55)], [str(10**55)]),
    ("UUID", [ID, ID.hex.upper()], [str(ID), str(ID)]),
    ("IPv4", [IPv4Address("1.2.3.4"), "255.255.255.255"], ["1.2.3.4", "255.255.255.255"]),
    ("IPv6", [IPv6Address("::1"), "2001:DB8::1", "1.2.3.4"], ["::1", "2001:db8::1", "::ffff:1.2.3.4"]),
    ("Nullable(IPv6)", [None, "::"], ["NULL", "::"]),
    ("Enum8('a' = 1, 'it\\'s, (2)' = -2)", ["a", "it's, (2)"], ["a", "it's, (2)"]),
    ("Nullable(Enum16('a\\nb' = 1000))", [None, "a\nb"], ["NULL", "a\nb"]),
    ("LowCardinality(String)", ["x", "x"], ["x", "x"]),
    ("LowCardinality(Nullable(String))", [None, "x"], ["NULL", "x"]),
    ("Nullable(DateTime64(3))", [None, datetime(2026, 1, 1)], ["NULL", "2026-01-01 00:00:00.000"]),
    ("Nullable(Bool)", [None, True], ["NULL", "true"]),
    ("Array(UInt8)", [[1, 2], [], (3,)], ["[1,2]", "[]", "[3]"]),
    ("Array(Array(Nullable(UUID)))", [[[ID, None], []]], [f"[['{ID}',NULL],[]]"]),
    ("Array(LowCardinality(String))", [["x", b"y"]], ["['x','y']"]),
    ("Map(String, UInt32)", [{"a": 1, "b": 2}, {}], ["{'a':1,'b':2}", "{}"]),
    ("Map(UInt8, Array(Tuple(a Nullable(Date), b IPv4)))", [{1: [(None, "1.2.3.4")]}], ["{1:[(NULL,'1.2.3.4')]}"]),
    ("Tuple(a UInt8, `b c` String)", [{"b c": "x", "a": 1}, (2, "y")], ["(1,'x')", "(2,'y')"]),
    ("Tuple(UInt8, UUID)", [(1, ID)], [f"(1,'{ID}')"]),
    ("Point", [(1.5, 2)], ["(1.5,2)"]),
    ("JSON", [{"a": {"b": [1, 2]}, "é": "x"}, '{"c":true}'], ['{"a":{"b":[1,2]},"é":"x"}', '{"c":true}']),
    ("SimpleAggregateFunction(sum, UInt64)", [5], ["5"]),
]


@pytest.mark.slow
class TestRoundTrips:
    """What goes in through `input` comes out of the table."""

    @pytest.mark.parametrize(("type_", "values", "expected"), ROUND_TRIPS, ids=[trip[0] for trip in ROUND_TRIPS])
    def test_a_type_comes_back_as_it_was_given(
        self, clickhouse_client: Client, type_: str, values: list[Any], expected: list[str]
    ) -> None:
        create(clickhouse_client, f"v {type_}")
        columns = described(clickhouse_client)
        insert(clickhouse_client, arrow_table({"v": values}, columns, name="t"), columns)
        assert stored(clickhouse_client) == expected

    @pytest.mark.parametrize(("type_", "expected"), [("String", "6100FF"), ("FixedString(4)", "6100FF00")])
    def test_bytes_that_are_no_text_arrive(self, clickhouse_client: Client, type_: str, expected: str) -> None:
        create(clickhouse_client, f"v {type_}")
        columns = described(clickhouse_client)
        insert(clickhouse_client, arrow_table({"v": [b"a\x00\xff"]}, columns, name="t"), columns)
        assert clickhouse_client.command("SELECT hex(v) FROM t") == expected

    def test_names_with_quotes_in_them_arrive(self, clickhouse_client: Client) -> None:
        odd = "a`b\\c'd é"
        create(clickhouse_client, f"{identifier(odd)} Tuple({identifier(odd)} Enum8({text(odd)} = 1))")
        columns = described(clickhouse_client)
        assert columns[0].name == odd
        insert(clickhouse_client, arrow_table([{odd: {odd: odd}}], columns, name="t"), columns)
        assert clickhouse_client.query(f"SELECT {identifier(odd)}.1 FROM t").result_rows == [(odd,)]

    @pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
    def test_a_compressed_stream_is_read(self, clickhouse_client: Client, compression: str | None) -> None:
        create(clickhouse_client, "v String")
        columns = described(clickhouse_client)
        table = arrow_table({"v": ["x" * 1000] * 1000}, columns, name="t")
        insert(clickhouse_client, table, columns, compression=compression)
        assert clickhouse_client.command("SELECT count(), min(length(v)) FROM t") == ["1000", "1000"]

    def test_a_nested_column_that_is_not_flattened_takes_a_list_of_records(self, clickhouse_client: Client) -> None:
        create(clickhouse_client, "v Nested(a UInt8, b String)", flatten_nested=0)
        columns = described(clickhouse_client)
        insert(clickhouse_client, arrow_table([{"v": [{"a": 1, "b": "x"}]}], columns, name="t"), columns)
        assert stored(clickhouse_client) == ["[(1,'x')]"]

    def test_a_table_made_for_values_holds_them(self, clickhouse_client: Client) -> None:
        rows = [
            {
                "i": 2**63,
                "d": Decimal("1.25"),
                "at": datetime(2026, 1, 1, tzinfo=UTC),
                "day": date(2026, 1, 1),
                "u": ID,
            },
            {"i": 1, "d": Decimal(7), "at": None, "day": date(1900, 1, 1), "u": ID},
        ]
        table = inferred(rows)
        made = [Column(f.name, clickhouse_type(f.type, table[f.name].null_count > 0)) for f in table.schema]
        create(clickhouse_client, ", ".join(f"{identifier(one.name)} {one.type}" for one in made))
        insert(clickhouse_client, arrow_table(table, made, name="t"), made)
        assert clickhouse_client.query("SELECT * FROM t").result_rows == [
            (2**63, Decimal("1.25"), datetime(2026, 1, 1), date(2026, 1, 1), ID),
            (1, Decimal(7), None, date(1900, 1, 1), ID),
        ]


def create(client: Client, columns: str, **settings: Any) -> None:
    client.command(f"CREATE TABLE t ({columns}) ENGINE = MergeTree ORDER BY tuple()", settings=settings)


def described(client: Client) -> list[Column]:
    listed = client.query(
        "SELECT name, type, default_kind FROM system.columns WHERE database = currentDatabase() AND table = 't'"
    )
    return [Column(*row) for row in listed.result_rows]


def insert(client: Client, table: pa.Table, columns: list[Column], *, compression: str | None = None) -> None:
    names = ", ".join(identifier(column.name) for column in columns)
    client.command(
        f"INSERT INTO t ({names}) SELECT {names} FROM input({text(structure(columns))}) FORMAT ArrowStream",
        data=serialised(table, compression=compression),
        settings={"async_insert": 0},
    )


def stored(client: Client) -> list[str]:
    rows = client.query("SELECT ifNull(toString(v), 'NULL') FROM t ORDER BY _part_offset").result_rows
    return [value for (value,) in rows]
