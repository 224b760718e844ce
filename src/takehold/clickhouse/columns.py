"""What the columns of a table are, and how they travel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from takehold import UsageError
from takehold.clickhouse.kinds import Kind, kind_of
from takehold.clickhouse.quoting import identifier

__all__ = ["Column", "clickhouse_type", "structure"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column as `system.columns` has it.

    A type that cannot be carried is a UsageError only when it is asked for: a table may have one where nobody writes.
    """

    name: str
    type: str
    default: str = ""
    """`default_kind`: empty, or one of DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL."""

    @property
    def kind(self) -> Kind:
        """What fits it."""
        return kind_of(self.type)

    @property
    def wire(self) -> str:
        """The type to declare in `input(...)`; the server casts it to the column's own."""
        return self.kind.wire

    @property
    def arrow(self) -> pa.DataType:
        """The type of Arrow that values must fit. Texts may also travel as its siblings, such as large_string."""
        return self.kind.arrow

    @property
    def nullable(self) -> bool:
        """Whether it holds NULL."""
        return self.kind.nullable

    @property
    def writable(self) -> bool:
        """Whether an INSERT may name it."""
        return self.default not in {"MATERIALIZED", "ALIAS"}

    @property
    def required(self) -> bool:
        """Whether there is nothing to fill it with when it is left out."""
        return self.default == ""


def structure(columns: Iterable[Column]) -> str:
    """The columns as `input` wants them, to be quoted once more: ``f"input({text(structure(columns))})"``."""
    return ", ".join(f"{identifier(column.name)} {column.wire}" for column in columns)


_SCALARS = {
    pa.bool_(): "Bool",
    **{pa.type_for_alias(name.lower()): name for name in ("Int8", "Int16", "Int32", "Int64")},
    **{pa.type_for_alias(name.lower()): name for name in ("UInt8", "UInt16", "UInt32", "UInt64")},
    pa.float16(): "Float32",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.string(): "String",
    pa.large_string(): "String",
    pa.string_view(): "String",
    pa.binary(): "String",
    pa.large_binary(): "String",
    pa.binary_view(): "String",
    pa.date32(): "Date32",
    pa.date64(): "Date32",
    pa.uuid(): "UUID",
    **{
        pa.timestamp(unit): f"DateTime64({digits}, 'UTC')"
        for unit, digits in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))
    },
}


def clickhouse_type(arrow: pa.DataType, nullable: bool) -> str:
    """The type of a column made for values of this one.

    Instants become DateTime64 in UTC, whatever their zone was. Inside an Array, a Map or a Tuple nothing is Nullable.
    """
    types = pa.types
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return clickhouse_type(arrow.value_type, nullable)
    if nested := _nested_type(arrow):
        if nullable:
            raise UsageError(
                f"a column of {nested} cannot hold None: ClickHouse has no Nullable of it; give an empty one"
            )
        return nested
    plain = _scalar_type(arrow)
    return f"Nullable({plain})" if nullable else plain


def _nested_type(arrow: pa.DataType) -> str:
    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(is_(arrow) for is_ in lists):
        return f"Array({clickhouse_type(arrow.value_type, False)})"
    if types.is_map(arrow):
        return f"Map({clickhouse_type(arrow.key_type, False)}, {clickhouse_type(arrow.item_type, False)})"
    if types.is_struct(arrow) and arrow.num_fields:
        return (
            f"Tuple({', '.join(f'{identifier(field.name)} {clickhouse_type(field.type, False)}' for field in arrow)})"
        )
    return ""


def _scalar_type(arrow: pa.DataType) -> str:
    types = pa.types
    if types.is_null(arrow):
        raise UsageError("a column of nothing but None has no type: give at least one value")
    if types.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision:
        return f"Decimal({arrow.precision}, {arrow.scale})"
    if types.is_fixed_size_binary(arrow):
        return f"FixedString({arrow.byte_width})"
    if types.is_timestamp(arrow):
        arrow = pa.timestamp(arrow.unit)
    if arrow not in _SCALARS:
        raise UsageError(f"no type of ClickHouse for values of type {arrow}")
    return _SCALARS[arrow]
