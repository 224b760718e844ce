"""Scopes: whose a table is, as the beginning of its name tells."""

from __future__ import annotations

import re
from typing import Final

from takehold import UsageError
from takehold.clickhouse.naming import checked_name

__all__ = ["SCOPED", "existing_name", "is_unshared", "table_name", "unshared_name"]

SCOPED: Final = re.compile("p_.+|j_[0-9]+_.+|t_[0-9]+")
UNSHARED: Final = re.compile("t_[0-9]+")


def table_name(name: object, job: object = None) -> str:
    """The table of this name: of all, `p_<name>`, or of a job, `j_<job>_<name>`."""
    checked = checked_name(name, "the name of an object")
    if SCOPED.fullmatch(checked):
        raise UsageError(f"{name!r} begins like a whole table's name: the object `prices` has the table `p_prices`")
    if job is None:
        return f"p_{name}"
    if isinstance(job, bool) or not isinstance(job, int) or job < 0:
        raise UsageError(f"a job is a number, 0 or more, not {job!r}")
    return f"j_{job}_{name}"


def existing_name(name: object) -> str:
    """The table that somebody means who says `prices` or `p_prices`."""
    return checked_name(name) if isinstance(name, str) and SCOPED.fullmatch(name) else table_name(name)


def unshared_name(number: int) -> str:
    """The table of a result; nobody else makes one of this name."""
    return f"t_{number}"


def is_unshared(table: str) -> bool:
    """Whether only those write to it who made it."""
    return UNSHARED.fullmatch(table) is not None
