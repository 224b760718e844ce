"""What users hand over becomes one table of Arrow in the types of their table, before any lock is taken.

Accepted are a list, or a generator, of records (dicts); a dict of columns; a pandas DataFrame, whose index is not data;
and a Table, RecordBatch or RecordBatchReader of pyarrow, or whatever else gives its data as Arrow, such as polars.

A value is stored as it is or it is an error: nothing is cut, wrapped or rounded, except to the precision of Float32. A
datetime with a zone is that instant; one without is taken as UTC. NaN of pandas is NULL in a Nullable column and stays
NaN in another column of floats. Rows count from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from operator import itemgetter
from types import NoneType
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from takehold import UsageError
from takehold.clickhouse.columns import Column, clickhouse_type
from takehold.clickhouse.fitting import Values, fitted, is_column, is_of, values_of
from takehold.clickhouse.kinds import UNFIT

__all__ = ["VALUE", "arrow_table", "inferred", "is_scalar", "is_single_column", "serialised"]

VALUE: Final = "value"
# What pyarrow infers from a list of one of these is exact.
EXACT: Final = ({int}, {float}, {bool}, {str}, {bytes}, {datetime}, {date}, {Decimal}, {UUID})


def arrow_table(data: Any, columns: Sequence[Column], *, name: str) -> pa.Table:
    """The data in the types and the order of `columns`; those with a DEFAULT that are not given are not in the result.

    `name` is the table's, for errors, which are UsageError and name the column, the first bad row and its value.
    """
    given = _columns(data, name)
    _check_names(given, columns, name)
    taken = [column for column in columns if column.name in given]
    values = {
        column.name: values_of(given[column.name], nan_is_null=_carried(column, name).nullable) for column in taken
    }
    _check_lengths(values, name)
    arrays = [fitted(values[column.name], column, name=name) for column in taken]
    return pa.Table.from_arrays(arrays, names=[column.name for column in taken])


def serialised(table: pa.Table, *, compression: str | None = None) -> bytes:
    """The table as a stream of Arrow IPC, FORMAT ArrowStream; `compression` is lz4 or zstd."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def inferred(value: Any, *, name: str = "create") -> pa.Table:
    """The value as a table whose types `clickhouse_type` knows.

    A scalar and a list of scalars become the column `value`; everything that can be appended keeps its own columns.
    """
    if is_scalar(value):
        given: Mapping[str, Any] = {VALUE: [value]}
    elif is_single_column(value):
        value = list(value) if not hasattr(value, "__getitem__") else value
        is_records = isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], Mapping)
        given = _columns(value, name) if is_records else {VALUE: value}
    else:
        given = _columns(value, name)
    values = {column: values_of(raw, nan_is_null=True) for column, raw in given.items()}
    _check_lengths(values, name)
    return pa.table({column: _inferred(raw, column, name) for column, raw in values.items()})


def is_scalar(value: Any) -> bool:
    """Whether it is one value."""
    return isinstance(value, str | bytes | UUID | Decimal | date | int | float) or (
        is_of(value, "numpy", "generic") and not hasattr(value, "names")
    )


def is_single_column(value: Any) -> bool:
    """Whether it is values in an order, and not a table of them."""
    if isinstance(value, pa.Array | pa.ChunkedArray) or is_of(value, "pandas", "Series", "Index"):
        return True
    return is_column(value) and not hasattr(value, "__arrow_c_stream__") and not hasattr(value, "__arrow_c_array__")


def _inferred(values: Values, column: str, name: str) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        array = _of_any_size(values)
        kinds = set(map(type, values)) - {NoneType}
        if kinds and kinds not in EXACT:
            # Of a date and a datetime pyarrow would make two dates: see whether the values survive.
            made = clickhouse_type(array.type, array.null_count > 0)
            fitted(values, Column(column, made), name=name)
    except UsageError:
        raise
    except UNFIT as error:
        raise UsageError(f"{name}: column {column!r} has no one type for all its values: {error}") from error
    if pa.types.is_decimal128(array.type) and array.type.scale >= 0:
        return array.cast(pa.decimal128(38, array.type.scale))  # room for more digits than these values happen to have
    return array


def _of_any_size(values: Values) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:
        return pa.array(values, type=pa.uint64())


# -- columns from whatever was given --------------------------------------------------------------------------


def _columns(data: Any, name: str) -> Mapping[str, Any]:
    if is_of(data, "pandas", "DataFrame"):
        names, columns = list(data.columns), [data.iloc[:, place] for place in range(data.shape[1])]
    elif isinstance(data, Mapping):
        names, columns = list(data), list(data.values())
    elif hasattr(data, "__arrow_c_stream__") or isinstance(data, pa.RecordBatch):
        table = pa.table(data)
        names, columns = table.column_names, table.columns
    elif is_column(data) and not isinstance(data, pa.Array | pa.ChunkedArray):
        return _of_records(list(data), name)
    else:
        raise UsageError(
            f"{name}: cannot take rows from {type(data).__name__}; give a list of dicts, a dict of columns, a pandas"
            " DataFrame or a pyarrow Table"
        )
    if not names:
        raise UsageError(f"{name}: the data has no columns")
    for position, column in enumerate(names):
        if not isinstance(column, str):
            raise UsageError(f"{name}: columns are named by str, not {column!r} ({type(column).__name__})")
        if names.index(column) < position:
            raise UsageError(f"{name}: the data has two columns {column!r}")
        if not is_column(columns[position]):
            kind = type(columns[position]).__name__
            raise UsageError(f"{name}: column {column!r} is one {kind}, not a list; for a single row give [{{...}}]")
    return dict(zip(names, columns, strict=True))


def _of_records(rows: list[Any], name: str) -> Mapping[str, Any]:
    if not rows:
        raise UsageError(f"{name}: there are no rows")
    if set(map(type, rows)) != {dict}:
        rows = [_record(row, place, name) for place, row in enumerate(rows)]
    names = list(rows[0])
    if not names:
        raise UsageError(f"{name}: the data has no columns")
    try:
        columns = {column: list(map(itemgetter(column), rows)) for column in names}
    except KeyError:
        columns = {}
    if not columns or set(map(len, rows)) != {len(names)}:
        raise _uneven(rows, name)
    for column in names:
        if not isinstance(column, str):
            raise UsageError(f"{name}: columns are named by str, not {column!r} ({type(column).__name__})")
    return columns


def _record(row: Any, place: int, name: str) -> dict[Any, Any]:
    if not isinstance(row, Mapping):
        raise UsageError(f"{name}: row {place} is {type(row).__name__}, not a dict of column names and values")
    return dict(row)


def _uneven(rows: list[dict[Any, Any]], name: str) -> UsageError:
    first = rows[0].keys()
    place, row = next((place, row) for place, row in enumerate(rows) if row.keys() != first)
    for key in first:
        if key not in row:
            return UsageError(f"{name}: row {place} has no {key!r}, which row 0 has; all rows have the same keys")
    extra = next(key for key in row if key not in first)
    return UsageError(f"{name}: row {place} has {extra!r}, which row 0 has not; all rows have the same keys")


# -- what the columns must be -----------------------------------------------------------------------------------


def _check_names(given: Iterable[str], columns: Sequence[Column], name: str) -> None:
    known = {column.name: column for column in columns}
    for column in given:
        if column not in known:
            close = get_close_matches(column, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(map(repr, known))}"
            raise UsageError(f"{name}: there is no column {column!r}{hint}")
        if not known[column].writable:
            raise UsageError(
                f"{name}: column {column!r} is {known[column].default}: the server computes it; leave it out"
            )
    for wanted in columns:
        if wanted.required and wanted.name not in given:
            raise UsageError(
                f"{name}: column {wanted.name!r} ({wanted.type}) is missing: give it, or give the column a DEFAULT"
            )


def _carried(column: Column, name: str) -> Column:
    try:
        column.kind  # noqa: B018 - asks whether there is one
    except UsageError as error:
        raise UsageError(f"{name}: column {column.name!r}: {error}") from error
    return column


def _check_lengths(values: Mapping[str, Values], name: str) -> None:
    first, *others = values
    for other in others:
        if len(values[other]) != len(values[first]):
            raise UsageError(
                f"{name}: column {first!r} has {len(values[first])} rows and column {other!r} has {len(values[other])}"
            )
    if not len(values[first]):
        raise UsageError(f"{name}: there are no rows")
