"""Whether this is one machine or a fleet: what the URL of the SQL database says."""

from __future__ import annotations

__all__ = ["is_distributed"]


def is_distributed(sql_url: str) -> bool:
    """True if the SQL database is PostgreSQL, which several hosts share; a SQLite file is one host's own."""
    return sql_url.startswith("postgresql")
