"""Our own statements, past SQLAlchemy and straight to its driver: that is a third of the price of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

__all__ = ["Link"]


class Link:
    """The driver's connection behind a connection of SQLAlchemy, in the transaction of that."""

    __slots__ = ("_connection", "_driver", "_more")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver: Any = connection.connection.driver_connection
        # The same few texts again and again: psycopg is to prepare each at once, unless a pooler stands in between.
        prepares = getattr(self._driver, "prepare_threshold", None) is not None
        self._more: dict[str, bool] = {"prepare": True} if prepares else {}

    def send(self, sql: str, facts: Mapping[str, Any]) -> list[Any]:
        """The rows that a statement returns."""
        cursor = self._execute(sql, facts)
        return cursor.fetchall() if cursor.description else []

    def change(self, sql: str, facts: Mapping[str, Any]) -> int:
        """How many rows a statement has changed."""
        return int(self._execute(sql, facts).rowcount)

    def _execute(self, sql: str, facts: Mapping[str, Any]) -> Any:
        try:
            return self._driver.execute(sql, facts, **self._more)
        except Exception:
            if getattr(self._driver, "closed", False):
                self._connection.invalidate()  # the pool has not seen it break
            raise
