"""Literals: scalars of Python as SQL has them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from takehold import UsageError
from takehold.clickhouse.quoting import text

__all__ = ["literal"]


def literal(value: Any) -> tuple[str, str]:
    """The value in SQL, and its type. A datetime without a zone is taken as UTC."""
    match value:
        case bool():
            return ("true" if value else "false"), "Bool"
        case int() if -(1 << 63) <= value < 1 << 64:
            return f"({value})", "Int64" if value < 0 else "UInt64"
        case float():
            return f"toFloat64({text(repr(value))})", "Float64"
        case str():
            return text(value), "String"
        case datetime():
            moment = value.astimezone(UTC) if value.tzinfo else value
            return f"toDateTime64({text(f'{moment:%Y-%m-%d %H:%M:%S.%f}')}, 6, 'UTC')", "DateTime64(6, 'UTC')"
        case date():
            return f"toDate32({text(value.isoformat())})", "Date32"
        case Decimal() if value.is_finite():
            scale = max(0, -int(value.as_tuple().exponent))
            return f"toDecimal128({text(f'{value:f}')}, {scale})", f"Decimal(38, {scale})"
    raise UsageError(f"{value!r} ({type(value).__name__}) cannot be an operand: use an Object, a number, text, a bool,"
                     " a date or a Decimal")  # fmt: skip
