"""A lease table as somebody sees it who goes past the library: one place for both databases."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg

from takehold import Hold

TTL = 2.0
"""Seconds: the shortest there are."""
KEY = "orders/42"


@dataclass(frozen=True)
class LeaseTable:
    """The tables behind a `lease+...` URL."""

    url: str

    def to(self, **options: float | str) -> str:
        """The URL with options."""
        return self.url + "?" + "&".join(f"{name}={value}" for name, value in options.items())

    @property
    def sqlite(self) -> bool:
        return self.url.startswith("lease+sqlite:")

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement in which `{}` stands before the name of a table, and `now()` for the table's clock."""
        if self.sqlite:
            with closing(sqlite3.connect(urlsplit(self.url).path[1:], timeout=10)) as db, db:
                return db.execute(text.format("takehold_")).fetchall()
        with psycopg.connect(self.url.removeprefix("lease+"), autocommit=True) as connection:
            ran = connection.execute(text.format("takehold.").encode())
            return ran.fetchall() if ran.description else []

    def rows(self) -> int:
        """Leases and places in line, alive or not."""
        return int(self.sql("SELECT (SELECT count(*) FROM {0}lease) + (SELECT count(*) FROM {0}lease_waiter)")[0][0])


def lost_at(hold: Hold) -> list[float]:
    """When it was lost, if it was."""
    times: list[float] = []
    hold.on_lost(lambda: times.append(time.monotonic()))
    return times
