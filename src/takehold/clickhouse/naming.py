"""Names of tables: which are allowed, how they are written in SQL, and the key that protects one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from takehold import UsageError
from takehold.clickhouse.quoting import identifier

__all__ = ["TableName", "checked_name"]

OF_A_STORE: Final = re.compile(r"p_.+|j_[0-9]+_.+")
NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def checked_name(name: object, what: str = "a table's name") -> str:
    """The name, if it is one: letters, digits and underscores."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"{what} is made of letters, digits and _, and does not begin with a digit: not {name!r}")
    return name


@dataclass(frozen=True, slots=True)
class TableName:
    """A table and its database."""

    database: str
    table: str

    @classmethod
    def of(cls, text: object, database: str | None) -> TableName:
        """From `table` or `database.table`."""
        first, dot, second = text.partition(".") if isinstance(text, str) else (text, "", "")
        if not dot:
            return cls(database or "default", checked_name(first))
        return cls(checked_name(first, "a database's name"), checked_name(second))

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def sql(self) -> str:
        """As statements say it."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    @property
    def key(self) -> str:
        """What an append to the table holds, unless it is of a store."""
        return f"clickhouse/{self}"

    def check_key(self) -> None:
        """Raise if it is named like a table of a store: the store locks it by a number, and not by this name."""
        if OF_A_STORE.fullmatch(self.table):
            raise UsageError(
                f"{self} is named like a table of a store, which locks it by a number: take"
                f" store.table({self.table!r}); if no store writes to it, say key={self.key!r}"
            )
