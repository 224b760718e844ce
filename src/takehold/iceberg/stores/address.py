"""From a URL to a store. Credentials are never in it: a bucket takes them from the usual environment variables."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from takehold import BackendUnavailable, UsageError
from takehold.iceberg.stores.local import LocalStore
from takehold.iceberg.stores.memory import MemoryStore
from takehold.iceberg.stores.proof import prove
from takehold.iceberg.stores.store import Store

if TYPE_CHECKING:
    from takehold.iceberg.stores.deleting import Request

__all__ = ["open_store"]

KNOWN = "memory:, memory:NAME, a directory, file:DIRECTORY, s3://BUCKET/PREFIX?endpoint=URL, az://CONTAINER/PREFIX"
OPTIONS = {"s3": {"endpoint", "region"}, "az": {"endpoint", "account"}}
ANSWER = "30s"
_proven: set[tuple[str, str, str]] = set()
"""Buckets that have shown this process that they compare; each opening would cost a second otherwise."""


async def open_store(url: str) -> Store:
    """The store a URL names; a bucket has then proven that it compares before it sets (`prove`).

    `memory:` is private, `memory:NAME` shared in this process; a directory is made if it is not there. Buckets
    find their credentials as their vendors' tools do: `AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_KEY` and so on.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        name = rest.removeprefix("//")
        return MemoryStore.named(name) if name else MemoryStore()
    if colon and scheme in OPTIONS:
        return await _bucket(url)
    path = _directory(url)
    return await LocalStore.open(path)


def _directory(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if not url or (colon and "/" not in scheme and scheme != "file"):
        raise UsageError(f"{url!r} names no store; use one of: {KNOWN}")
    if not colon or scheme != "file":
        return url
    path = unquote(rest[2:] if rest.startswith("///") else rest)
    if not path or path.startswith("//"):
        raise UsageError("file: needs a directory of this host: file:lake, file:///srv/lake")
    return path


async def _bucket(url: str) -> Store:
    try:
        from takehold.iceberg.stores.bucket import BucketStore
    except ImportError as error:
        raise UsageError(f"{url.partition(':')[0]}: needs obstore: pip install 'takehold[iceberg]'") from error
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := set(options) - OPTIONS[parts.scheme]:
        raise UsageError(f"{parts.scheme}: has no option {', '.join(sorted(unknown))}")
    if not parts.hostname or "@" in parts.netloc:
        raise UsageError(f"{parts.scheme}: needs a name and no credentials, which belong into the environment")
    prefix = unquote(parts.path).strip("/")
    location = f"{parts.scheme}://{parts.netloc}/{prefix}".rstrip("/")
    makers = [_s3, _azure][parts.scheme == "az"]
    reader = makers(parts.netloc, prefix, options, 4)
    # A write that is sent twice can be refused because of itself, and then nobody knows.
    writer = makers(parts.netloc, prefix, options, 0)
    conditional = _azure_delete(parts.netloc, prefix, options) if parts.scheme == "az" else None
    store = BucketStore(reader, writer, location, conditional)
    server = (parts.scheme, parts.netloc, options.get("endpoint", ""))
    if server in _proven:
        return store
    try:
        async with asyncio.timeout(60):
            await prove(store)
    except TimeoutError as error:
        raise BackendUnavailable(f"{location} did not answer within a minute") from error
    _proven.add(server)
    return store


def _common(prefix: str, options: dict[str, str], retries: int) -> dict[str, Any]:
    endpoint = options.get("endpoint", "")
    return {
        "prefix": prefix or None,
        "client_options": {"timeout": ANSWER, "connect_timeout": "5s", "allow_http": endpoint.startswith("http:")},
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=30)},
        **({"endpoint": endpoint} if endpoint else {}),
    }


def _s3(bucket: str, prefix: str, options: dict[str, str], retries: int) -> Any:
    from obstore.store import S3Store

    settings = _common(prefix, options, retries)
    if "region" in options:
        settings["region"] = options["region"]
    if "endpoint" in options:
        settings["virtual_hosted_style_request"] = False  # a server of one's own has no host name for each bucket
    return S3Store(bucket, **settings)


def _azure(container: str, prefix: str, options: dict[str, str], retries: int) -> Any:
    from obstore.store import AzureStore

    settings = _common(prefix, options, retries)
    if account := _account(options):
        settings["account_name"] = account
    return AzureStore(container, **settings)


def _azure_delete(container: str, prefix: str, options: dict[str, str]) -> Request | None:
    from takehold.iceberg.stores.deleting import shared_key

    account, key = _account(options), os.environ.get("AZURE_STORAGE_ACCOUNT_KEY", "")
    if not account or not key:
        return None
    endpoint = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
    return shared_key("/".join(filter(None, [endpoint.rstrip("/"), container, quote(prefix)])), account, key)


def _account(options: dict[str, str]) -> str:
    return options.get("account") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
