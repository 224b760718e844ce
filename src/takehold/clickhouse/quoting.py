"""Names and texts as ClickHouse reads them inside a statement."""

from __future__ import annotations

__all__ = ["identifier", "text"]


def identifier(name: str) -> str:
    """The name in backticks: `` `odd name` ``. For `db.table` quote each part."""
    return f"`{_escaped(name, '`')}`"


def text(value: str) -> str:
    """The value as a literal of SQL, in single quotes."""
    return f"'{_escaped(value, chr(39))}'"


def _escaped(value: str, mark: str) -> str:
    return value.replace("\\", "\\\\").replace(mark, f"\\{mark}")
