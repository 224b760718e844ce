"""The SQL registry of ClickHouse tables: one advisory id for each name, who uses it, and ranges of snowflake ids.

Nothing here is locked for longer than one short transaction.
"""

from __future__ import annotations

from takehold.clickhouse.registry.aio import AsyncRegistry
from takehold.clickhouse.registry.blocking import Registry

__all__ = ["AsyncRegistry", "Registry"]
