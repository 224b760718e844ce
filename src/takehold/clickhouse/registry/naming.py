"""Names of tables and numbers of contexts: what the registry takes."""

from __future__ import annotations

import re
from typing import Final

from takehold import UsageError

__all__ = ["LOCK_ONLY", "checked_context", "checked_table", "is_result"]

LOCK_ONLY: Final = -1
"""The context of a row that only keeps the id of a table; no real context is negative."""

WORD = "[a-zA-Z_][a-zA-Z0-9_]*"
TABLE = re.compile(WORD)
IN_DATABASE = re.compile(rf"{WORD}\.{WORD}")
RESULT = re.compile("t_[0-9]+")


def is_result(table: str) -> bool:
    """Whether it is the result of an operator, `t_<id>`: of one owner, under a name that is never used again."""
    return RESULT.fullmatch(table) is not None


def checked_table(table: object, *, in_database: bool = False) -> str:
    """The name, if it is one; with `in_database` also as `database.table`."""
    if isinstance(table, str) and (TABLE.fullmatch(table) or (in_database and IN_DATABASE.fullmatch(table))):
        return table
    form = "letters, digits and _, not beginning with a digit"
    raise UsageError(f"{table!r} is no name of a table: {form}{', perhaps with database. before it' * in_database}")


def checked_context(context_id: object) -> int:
    """The number, if a context can have it."""
    if isinstance(context_id, int) and not isinstance(context_id, bool) and 0 <= context_id < 1 << 63:
        return context_id
    raise UsageError(f"{context_id!r} is no id of a context: an int from 0 to 2**63 - 1")
