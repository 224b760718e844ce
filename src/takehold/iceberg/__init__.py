"""A catalog of Iceberg tables on an object store: commits without locks, and transactions over several tables."""

from typing import TYPE_CHECKING, Any

from takehold.iceberg.catalog import Catalog, open_catalog
from takehold.iceberg.errors import (
    AlreadyExists,
    Answer,
    BrokenRecord,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    NotFound,
    Unprocessable,
    WarehouseNotEmpty,
    answer_of,
)
from takehold.iceberg.words import (
    Fault,
    Identifier,
    Loaded,
    PendingReport,
    Recovered,
    Retrying,
    TableChange,
    UpdatedProperties,
    Warehouse,
)

if TYPE_CHECKING:
    from takehold.iceberg.pyiceberg import transaction

__all__ = [
    "AlreadyExists",
    "Answer",
    "BrokenRecord",
    "Catalog",
    "Fault",
    "Identifier",
    "Loaded",
    "NamespaceNotEmpty",
    "NoSuchNamespace",
    "NoSuchTable",
    "NoSuchView",
    "NoSuchWarehouse",
    "NotFound",
    "PendingReport",
    "Recovered",
    "Retrying",
    "TableChange",
    "Unprocessable",
    "UpdatedProperties",
    "Warehouse",
    "WarehouseNotEmpty",
    "answer_of",
    "open_catalog",
    "transaction",
]


def __getattr__(name: str) -> Any:
    """`transaction` is for users of PyIceberg, which nobody else has to have."""
    if name == "transaction":
        from takehold.iceberg.pyiceberg import transaction

        return transaction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
