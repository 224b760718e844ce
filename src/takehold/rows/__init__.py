"""Write safety through SQLAlchemy: every pattern as one function, on SQLite, PostgreSQL, MariaDB and MySQL.

Each takes a `Session`, or an `AsyncSession` and is awaited. `docs/rows.md` says which to use when.
"""

from __future__ import annotations

try:
    import sqlalchemy.ext.asyncio  # noqa: F401
except ImportError as error:
    raise ImportError("takehold.rows needs SQLAlchemy and greenlet: pip install 'takehold[sqlalchemy]'") from error

from takehold.rows.bulk import Inserted, Upserted, insert_missing, upsert
from takehold.rows.claiming import claim_rows
from takehold.rows.fencing import Fenced, fenced, write_fenced
from takehold.rows.guarding import guard
from takehold.rows.inserting import Got, get_or_insert, insert_once
from takehold.rows.leases import AsyncLease, AsyncLeases, Lease, Leased, Leases, lease
from takehold.rows.locker import get_locker, string_to_lock_id
from takehold.rows.locking import lock, lock_rows
from takehold.rows.names import unique_name
from takehold.rows.swapping import swap
from takehold.rows.uncommitted import released as _released  # noqa: F401 - what it registers
from takehold.rows.unit import retry, transaction
from takehold.rows.unprotected import UnprotectedWrite

__all__ = [
    "AsyncLease",
    "AsyncLeases",
    "Fenced",
    "Got",
    "Inserted",
    "Lease",
    "Leased",
    "Leases",
    "UnprotectedWrite",
    "Upserted",
    "claim_rows",
    "fenced",
    "get_locker",
    "get_or_insert",
    "guard",
    "insert_missing",
    "insert_once",
    "lease",
    "lock",
    "lock_rows",
    "retry",
    "string_to_lock_id",
    "swap",
    "transaction",
    "unique_name",
    "upsert",
    "write_fenced",
]
