"""Encryption keys of a table."""

from __future__ import annotations

import base64
import binascii

from takehold.iceberg.metadata.draft import Draft
from takehold.iceberg.metadata.errors import BadUpdate
from takehold.iceberg.metadata.values import Json, optional, shown, text, text_map

__all__ = ["UPDATES"]


def _add_key(draft: Draft, update: Json) -> None:
    key = update.get("encryption-key")
    if not isinstance(key, dict):
        raise BadUpdate(f"Invalid encryption key, must be non-null object: {shown(key)}")
    id = text("key-id", key)
    try:
        base64.b64decode(text("encrypted-key-metadata", key), validate=True)
    except (binascii.Error, ValueError):
        raise BadUpdate(f"Invalid encrypted key metadata, must be base64: {shown(id)}") from None
    optional(text, "encrypted-by-id", key)
    if "properties" in key:
        text_map("properties", key)
    if all(one["key-id"] != id for one in draft.get("encryption-keys", ())):
        draft.own_list("encryption-keys").append(key)


def _remove_key(draft: Draft, update: Json) -> None:
    id = text("key-id", update)
    draft.keep("encryption-keys", lambda one: one["key-id"] != id)


UPDATES = {"add-encryption-key": _add_key, "remove-encryption-key": _remove_key}
