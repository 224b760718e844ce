"""Shapes: what a value looked like when it came, so that it looks the same when it is read, also in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from takehold.clickhouse.data import VALUE, is_scalar, is_single_column

__all__ = ["VALUE", "Shape", "comment_of", "shape_of_comment", "shaped", "shown"]

Shape: TypeAlias = Literal["scalar", "array", "columns", "records", "record"]
"""`record` is one row of several columns: what an aggregate of columns gives."""

MARK: Final = "takehold: "


def shaped(value: Any) -> tuple[Shape, Any]:
    """The shape of a value, and the value as rows that can be appended."""
    if is_scalar(value):
        return "scalar", {VALUE: [value]}
    if isinstance(value, pa.RecordBatchReader):  # it can be read once
        value = value.read_all()
    if not is_single_column(value):
        return "columns", value
    if isinstance(value, Iterable) and not hasattr(value, "__getitem__"):
        value = list(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        return "records", value
    return "array", {VALUE: value}


def shown(table: Any, shape: Shape) -> Any:
    """An Arrow table as a value of this shape. A scalar to which more was appended is a list."""
    if shape == "records":
        return table.to_pylist()
    columns = table.to_pydict()
    if shape == "record" and table.num_rows == 1:
        return table.to_pylist()[0]
    if shape in {"columns", "record"}:
        return columns
    (values,) = columns.values()
    return values[0] if shape == "scalar" and len(values) == 1 else values


def comment_of(shape: Shape) -> str:
    """What the table's comment says."""
    return MARK + shape


def shape_of_comment(comment: str) -> Shape:
    """The shape of a table; one that we have not made is columns."""
    for shape in get_args(Shape):
        if comment == comment_of(shape):
            return shape  # type: ignore[no-any-return]
    return "columns"
