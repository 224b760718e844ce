"""Contiguous appends to ClickHouse tables that several writers share, and tables as objects on top of them.

`docs/clickhouse.md` says which to use when.
"""

from __future__ import annotations

try:
    import alembic  # noqa: F401
    import clickhouse_connect  # noqa: F401
    import pyarrow as pa  # noqa: F401
    import sqlalchemy.ext.asyncio  # noqa: F401
except ImportError as error:
    raise ImportError(
        "takehold.clickhouse needs clickhouse-connect, pyarrow, SQLAlchemy and Alembic:"
        " pip install 'takehold[clickhouse]'"
    ) from error

from takehold.clickhouse import registry, snowflake
from takehold.clickhouse.appending import query_id
from takehold.clickhouse.block import Block, UnknownBlock
from takehold.clickhouse.locking import TableLock, table_lock
from takehold.clickhouse.mode import is_distributed
from takehold.clickhouse.objects.object import AsyncObject, Object
from takehold.clickhouse.objects.opening import Opening, open, open_async  # noqa: A004 - as `shelve.open`
from takehold.clickhouse.objects.store import AsyncStore, Store
from takehold.clickhouse.registry import AsyncRegistry, Registry
from takehold.clickhouse.table import AsyncTable, Table

__all__ = [
    "AsyncObject",
    "AsyncRegistry",
    "AsyncStore",
    "AsyncTable",
    "Block",
    "Object",
    "Opening",
    "Registry",
    "Store",
    "Table",
    "TableLock",
    "UnknownBlock",
    "is_distributed",
    "open",
    "open_async",
    "query_id",
    "registry",
    "snowflake",
    "table_lock",
]
