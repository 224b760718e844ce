"""From what an operator says to a catalog: which store, which locks, what clients are told about the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from takehold import AsyncLocks, UsageError
from takehold.backends import masked
from takehold.iceberg import AlreadyExists, Catalog
from takehold.iceberg.catalog import lock_url
from takehold.iceberg.stores import open_store

if TYPE_CHECKING:
    from takehold.iceberg.stores import Store

__all__ = ["Opened", "open_all", "table_config", "vended"]

SWITCH: Final = "TAKEHOLD_COALESCED_LOCKS"
LOCAL: Final = frozenset({"memory", "file", "sqlite"})


@dataclass(frozen=True, slots=True)
class Opened:
    """A catalog with its store, and the kind of its locks."""

    catalog: Catalog
    store: Store
    locks: str
    locks_url: str


async def open_all(store_url: str, locks_url: str | None = None, *, warehouse: str | None = None) -> Opened:
    """Open the store and the locks, and make the warehouse when it is not there."""
    store = await open_store(store_url)
    url = locks_url or lock_url(store.location)
    coalesce = _coalesced()
    locks = AsyncLocks(url, check_order="off", coalesce=coalesce, label="takehold serve")
    catalog = Catalog(store, locks, owns_locks=True)
    try:
        await locks.open()
        if warehouse is not None:
            await _make(catalog, warehouse)
    except BaseException:
        await catalog.close()
        raise
    return Opened(catalog, store, _kind(url, coalesce=coalesce), masked(url))


async def _make(catalog: Catalog, warehouse: str) -> None:
    if all(one.name != warehouse for one in await catalog.list_warehouses()):
        with suppress(AlreadyExists):  # another server was quicker
            await catalog.create_warehouse(warehouse)


def _kind(url: str, *, coalesce: bool) -> str:
    if url.partition(":")[0] in LOCAL:
        return "local"
    return "distributed, reads coalesced" if coalesce else "distributed"


def _coalesced() -> bool:
    text = os.environ.get(SWITCH, "on").lower()
    if text not in ("on", "off"):
        raise UsageError(f"{SWITCH} is on or off, not {text!r:.50}")
    return text == "on"


def table_config(store_url: str) -> dict[str, str]:
    """What clients need to know to reach the files of a bucket."""
    parts = urlsplit(store_url)
    if parts.scheme != "s3":
        return {}
    options = dict(parse_qsl(parts.query))
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL")
    return {
        **({"s3.region": region, "client.region": region} if region else {}),
        **({"s3.endpoint": endpoint, "s3.path-style-access": "true"} if endpoint else {}),
    }


def vended(store_url: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The keys of this process, for clients: everybody who may load a table then has them."""
    if urlsplit(store_url).scheme != "s3":
        raise UsageError("--vend-credentials hands out S3 keys, and the store is not on S3")
    names = {
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.session-token": "AWS_SESSION_TOKEN",
    }
    found = {key: environment[name] for key, name in names.items() if environment.get(name)}
    if "s3.secret-access-key" not in found:
        raise UsageError("--vend-credentials takes the keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return found
