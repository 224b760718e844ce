"""Locations: where a table's files may be. Checked before anything is written, and always inside the warehouse."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from takehold import UsageError
from takehold.iceberg.stores import Store
from takehold.iceberg.stores.store import checked

__all__ = [
    "check_places",
    "inside",
    "metadata_location",
    "new_places",
    "path_of",
    "table_location",
    "warehouse_location",
]

PATH_PROPERTIES: Final = (
    "write.metadata.path",
    "write.data.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Properties that tell an engine where to write: a way out of the warehouse, if nobody looked."""
_NUMBERED: Final = re.compile(r"(\d{1,9})-[^/]*$")


def path_of(store: Store, location: str) -> str:
    """The store's path of a location; `UsageError` when it is not on this store."""
    text, root = _normal(location), _normal(store.location)
    if not text.startswith(f"{root}/"):
        raise UsageError(f"{location!r:.300} is not below {store.location}")
    path = text[len(root) + 1 :]
    if any(unicodedata.category(letter) in ("Cc", "Cf", "Cs") for letter in path):
        raise UsageError(f"{location!r:.300} has a control or invisible character in it")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(f"{location!r:.300} has an empty part, or one of dots")
    if path.partition("/")[0] == "catalog":
        raise UsageError(f"{location!r:.300} is where the catalog keeps its own records")
    return checked(path)


def inside(warehouse: str, location: str) -> bool:
    """Whether a location is below that of the warehouse: the parts are compared, not the letters."""
    return _normal(location).startswith(f"{_normal(warehouse)}/")


def warehouse_location(store: Store, location: str | None, uuid: str) -> str:
    """Where a new warehouse keeps its tables; names never become directories."""
    if location is None:
        return f"{store.location}/warehouses/{uuid}"
    path_of(store, location.rstrip("/"))
    return location.rstrip("/")


def table_location(store: Store, warehouse: str, uuid: str, asked: object) -> str:
    """Where a new table keeps its files: where the client wants it, inside the warehouse, or under its uuid."""
    if asked is None:
        return f"{warehouse}/{uuid}"
    if not isinstance(asked, str):
        raise UsageError(f"a location is text, not {asked!r:.100}")
    _check(store, warehouse, asked.rstrip("/"), "the location")
    return asked.rstrip("/")


def new_places(metadata: Mapping[str, Any], base: Mapping[str, Any] | None) -> dict[str, object]:
    """The location and the paths in properties that are not those of the version before."""
    places = {"the location": metadata.get("location")}
    before: dict[str, object] = {"the location": (base or {}).get("location")}
    for found, where in ((places, metadata), (before, base or {})):
        properties = where.get("properties") or {}
        found.update({name: properties[name] for name in PATH_PROPERTIES if name in properties})
    return {what: place for what, place in places.items() if base is None or before.get(what) != place}


def check_places(store: Store, warehouse: str, places: Mapping[str, object]) -> None:
    """`UsageError` for one that leads out of the warehouse."""
    for what, place in places.items():
        _check(store, warehouse, place.rstrip("/") if isinstance(place, str) else place, what)


def metadata_location(metadata: Mapping[str, Any], before: str | None, uuid: str) -> str:
    """A fresh name for the next metadata file."""
    properties = metadata.get("properties") or {}
    directory = (properties.get("write.metadata.path") or f"{metadata['location']}/metadata").rstrip("/")
    numbered = _NUMBERED.search(before.rpartition("/")[2]) if before else None
    number = int(numbered[1]) + 1 if numbered else 0
    ending = ".gz.metadata.json" if properties.get("write.metadata.compression-codec") == "gzip" else ".metadata.json"
    return f"{directory}/{number:05d}-{uuid}{ending}"


def _check(store: Store, warehouse: str, location: object, what: str) -> None:
    if not isinstance(location, str) or not inside(warehouse, location):
        raise UsageError(f"{what} {location!r:.300} is not inside the warehouse, {warehouse}")
    path_of(store, location)


def _normal(location: str) -> str:
    """`file:/a` and `file:///a` are one place."""
    if location.startswith("file:/") and not location.startswith("file://"):
        return "file://" + location[5:]
    return location
