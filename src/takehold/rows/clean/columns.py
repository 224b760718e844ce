"""Texts cut to the length of their column, one by one and row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from re import Pattern
from typing import Any, TypeVar

from takehold.rows.clean.characters import NIL, FourByte, lost_of, washed
from takehold.rows.clean.losses import Notifier, Summary, log, loss, tell
from takehold.rows.clean.place import Column, Place
from takehold.rows.clean.progress import bar, slices

T = TypeVar("T")


def fit_column(column: Column, value: T, *, notify: Notifier = log) -> T:
    """The value, cut to the length that the model gives its column.

    Anything but a text, a column without a length and a column that the model does not have: unchanged.
    """
    place = Place.of(column)
    return _cut(value, place, notify) if isinstance(value, str) else value


def records(
    model: type,
    rows: Iterable[Mapping[str, Any]],
    *,
    four_byte: FourByte = "strip",
    notify: Notifier = log,
    progress: bool | None = None,
) -> list[dict[str, Any]]:
    """New rows whose texts are clean, then fitted to the columns of `model`; one event per column and kind.

    Keys are names of attributes of `model`. What belongs to no text column stays as it is. `progress` as in `texts`.
    """
    lost = lost_of(four_byte)
    done: list[dict[str, Any]] = []
    with Summary(notify) as summary, bar(f"cleaning {model.__name__}", rows, progress) as advance:
        places = _Places(model)
        for part in slices(rows):
            done += [
                {
                    key: _stored(value, places[key], lost, summary) if isinstance(value, str) else value
                    for key, value in row.items()
                }
                for row in part
            ]
            advance(len(part))
    return done


class _Places(dict[str, Place]):
    """The columns of a model, each looked up once."""

    def __init__(self, model: type) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, key: str) -> Place:
        return self.setdefault(key, Place.of((self._model, key)))


def _stored(value: str, place: Place, lost: Pattern[str], notify: Notifier) -> Any:
    if not place.textual:
        return value
    clean = value if value.isascii() and value != NIL else washed(value, lost, place, notify)
    return clean if clean is None else _cut(clean, place, notify)


def _cut(value: Any, place: Place, notify: Notifier) -> Any:
    if not place.textual or place.length is None or len(value) <= place.length:
        return value
    tell(loss("truncated", place.where, len(value), place.length), notify)
    return value[: place.length]
