"""One column's values in its type, or the sentence that names the first row that does not fit. Used by `data`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias

import pyarrow as pa

from takehold import UsageError
from takehold.clickhouse.columns import Column
from takehold.clickhouse.kinds import UNFIT, Kind, Misfit

__all__ = ["Values", "fitted", "is_column", "is_of", "values_of"]

Values: TypeAlias = "Sequence[Any] | pa.Array | pa.ChunkedArray"
LONGEST: Final = 80


def fitted(values: Values, column: Column, *, name: str) -> pa.Array | pa.ChunkedArray:
    """All values at once; only when that fails does anybody look for the row."""
    try:
        return _converted(values, column.kind)
    except UNFIT as error:
        row = _first_misfit(values, column.kind)
        try:
            _converted(values[row : row + 1], column.kind)
        except UNFIT as misfit:
            why = f": {misfit}" if isinstance(misfit, Misfit) else ""
            shown = _shown(values[row])
            raise UsageError(
                f"{name}: column {column.name!r} ({column.type}) cannot hold {shown} in row {row}{why}"
            ) from misfit
        raise UsageError(f"{name}: column {column.name!r} ({column.type}) cannot hold these values: {error}") from error


def _converted(values: Values, kind: Kind) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([kind.from_arrow(chunk) for chunk in values.chunks])
    return kind.from_arrow(values) if isinstance(values, pa.Array) else kind.from_list(values)


def _first_misfit(values: Values, kind: Kind) -> int:
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _converted(values[low:middle], kind)
        except UNFIT:
            high = middle
        else:
            low = middle
    return low


def _shown(value: Any) -> str:
    if isinstance(value, pa.Scalar):
        try:
            value = value.as_py()
        except ValueError:  # nanoseconds that no datetime of Python holds
            return f"{value} ({value.type})"
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) <= LONGEST else f'{text[:LONGEST]}...'} ({type(value).__name__})"


def is_of(value: Any, module: str, *names: str) -> bool:
    """Whether it is an instance of a class of a package; one that nobody has imported is not imported to ask."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names))


def is_column(value: Any) -> bool:
    """Whether it is many values in an order."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping | AbstractSet)


def values_of(column: Any, *, nan_is_null: bool) -> Values:
    """A list of Python values or an array of Arrow, whichever is there without a loop; NaN of pandas may mean NULL."""
    if isinstance(column, list | tuple | pa.Array | pa.ChunkedArray):
        return column
    if is_of(column, "pandas", "Series", "Index"):
        return _of_pandas(column, nan_is_null)
    if is_of(column, "numpy", "ndarray"):
        # Objects one by one: what pyarrow makes of a mixture depends on what comes first.
        return list(column) if column.dtype == object or column.ndim != 1 else _array(column, from_pandas=False)
    if hasattr(column, "__arrow_c_stream__"):
        return pa.chunked_array(column)
    return pa.array(column) if hasattr(column, "__arrow_c_array__") else list(column)


def _of_pandas(column: Any, nan_is_null: bool) -> Values:
    if column.dtype != object:
        return _array(column, from_pandas=nan_is_null)
    values: list[Any] = column.tolist()
    if not nan_is_null:
        return values
    return [None if missing else value for value, missing in zip(values, column.isna(), strict=True)]


def _array(column: Any, *, from_pandas: bool) -> Values:
    try:
        return pa.array(column, from_pandas=from_pandas)
    except UNFIT:  # no type of Arrow, such as complex numbers: its first value is named as one that does not fit
        return list(column)
