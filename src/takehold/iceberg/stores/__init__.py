"""Stores: where a catalog keeps its objects. Six calls, and compare-and-set is the only way to change anything.

    store = await open_store("s3://bucket/lake?endpoint=http://127.0.0.1:8333")

`memory` is for tests, `local` is a directory, `bucket` is S3 and Azure. `takehold.testing.stores` has the suite
that all of them pass, for a store of your own.
"""

from takehold.iceberg.stores.address import open_store
from takehold.iceberg.stores.local import LocalStore
from takehold.iceberg.stores.memory import MemoryStore
from takehold.iceberg.stores.proof import prove
from takehold.iceberg.stores.store import AlreadyThere, Changed, Store, Stored

__all__ = ["AlreadyThere", "Changed", "LocalStore", "MemoryStore", "Store", "Stored", "open_store", "prove"]
