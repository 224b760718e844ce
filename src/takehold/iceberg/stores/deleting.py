"""Deleting by compare-and-set, which `obstore` does not have: a signed request with `If-Match`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError

from takehold import BackendRefused, BackendUnavailable, TakeholdError, UnknownOutcome
from takehold.iceberg.stores.store import Changed

__all__ = ["Request", "busy", "delete", "presigned", "shared_key"]

SECONDS = 30.0
BUSY_ATTEMPTS = 6
Request = Callable[[str, str], Awaitable[tuple[str, dict[str, str]]]]
"""From a path and a tag of the server to a URL and headers."""


def busy(answer: str) -> bool:
    """Whether S3 says that another conditional request is under way, which is no verdict on ours."""
    return "ConditionalRequestConflict" in answer or "OperationAborted" in answer


def presigned(bucket: Any) -> Request:
    """Requests signed by `obstore`, with whatever credentials it has."""

    async def made(path: str, e_tag: str) -> tuple[str, dict[str, str]]:
        try:
            url = await obstore.sign_async(bucket, "DELETE", path, timedelta(seconds=SECONDS))
        except (BaseError, OSError) as error:
            raise BackendRefused(
                f"{path}: a conditional delete needs a signed request, and these credentials cannot sign: {error}"
            ) from error
        return url, {"If-Match": e_tag}

    return made


def shared_key(container: str, account: str, key: str) -> Request:
    """Requests for Azure, signed here: what `obstore` signs is refused when a path needs percent signs."""

    async def made(path: str, e_tag: str) -> tuple[str, dict[str, str]]:
        url = f"{container}/{quote(path, safe='/')}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        text = f"DELETE\n\n\n\n\n\n\n\n{e_tag}\n\n\n\n{named}/{account}{urlsplit(url).path}"
        digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
        return url, {**headers, "If-Match": e_tag}

    return made


async def delete(request: Request, path: str, e_tag: str) -> None:
    """Delete what has this tag of the server; `Changed` when it has another one or is gone."""
    for attempt in range(BUSY_ATTEMPTS):
        status, answer = await asyncio.to_thread(_send, path, *await request(path, e_tag))
        if 200 <= status < 300:
            return
        if not (status == 409 and busy(answer)):
            raise _told(path, status, answer)
        await asyncio.sleep(0.02 * 2**attempt)
    raise BackendUnavailable(f"{path}: other conditional requests for it do not end")


def _send(path: str, url: str, headers: dict[str, str]) -> tuple[int, str]:
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        secure = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.netloc, timeout=SECONDS, context=secure)
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=SECONDS)
    try:
        connection.connect()
    except OSError as error:
        raise BackendUnavailable(f"{path}: {error}") from error
    try:
        connection.request("DELETE", f"{parts.path}?{parts.query}".rstrip("?"), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise UnknownOutcome(f"{path}: no answer to its delete: {error}", path=path) from error
    finally:
        connection.close()


def _told(path: str, status: int, answer: str) -> TakeholdError:
    if status == 412 or (status == 404 and "NoSuchBucket" not in answer and "ContainerNotFound" not in answer):
        return Changed(f"{path} was changed meanwhile, or is gone", path=path)
    if 400 <= status < 500 and status not in {408, 409, 429}:
        return BackendRefused(f"{path}: {status}: {answer[:300]}")
    return UnknownOutcome(f"{path}: {status} to its delete: {answer[:300]}", path=path)
