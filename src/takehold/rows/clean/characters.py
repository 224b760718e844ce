"""Characters that a database cannot store: what is done with them, in one value and in many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import Pattern
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

from takehold import UsageError
from takehold.rows.clean.losses import Notifier, Summary, log, loss, tell
from takehold.rows.clean.place import Column, Place
from takehold.rows.clean.progress import bar, slices

T = TypeVar("T")
FourByte: TypeAlias = Literal["strip", "keep"]

NIL: Final = "<nil>"
SURROGATE: Final = re.compile("[\ud800-\udfff]")
# All planes above the first, not only where the well-known emoji are.
BEYOND: Final = re.compile("[\U00010000-\U0010ffff]+")
LOST: Final[dict[str, Pattern[str]]] = {"strip": re.compile("[\ud800-\udfff\U00010000-\U0010ffff]"), "keep": SURROGATE}


@overload
def text(
    value: str, *, four_byte: FourByte = "strip", column: Column | None = None, notify: Notifier = log
) -> str | None: ...
@overload
def text(value: T, *, four_byte: FourByte = "strip", column: Column | None = None, notify: Notifier = log) -> T: ...
def text(value: Any, *, four_byte: FourByte = "strip", column: Column | None = None, notify: Notifier = log) -> Any:
    """A text that UTF-8 can encode and MySQL's utf8mb3 can store; anything else comes back as it is.

    `"<nil>"`, exactly, is None. A lone surrogate becomes `?`. Characters beyond U+FFFF are removed;
    `four_byte="keep"` leaves them. `column` says in events where the text belongs.
    """
    lost, place = lost_of(four_byte), Place.of(column)
    if not isinstance(value, str) or (value.isascii() and value != NIL):
        return value
    return washed(value, lost, place, notify)


def texts(
    values: Iterable[Any],
    *,
    four_byte: FourByte = "strip",
    column: Column | None = None,
    notify: Notifier = log,
    progress: bool | None = None,
) -> list[Any]:
    """`text` of each value, in order. One event per kind for all of them.

    A run of more than half a second shows a progress bar, if rich is installed and stderr is a terminal;
    `progress` says always or never.
    """
    lost, place = lost_of(four_byte), Place.of(column)
    done: list[Any] = []
    with Summary(notify) as summary, bar("cleaning", values, progress) as advance:
        for part in slices(values):
            # The one test that most values meet, without a call.
            done += [
                value
                if value.__class__ is str and value.isascii() and value != NIL
                else washed(value, lost, place, summary)
                for value in part
            ]
            advance(len(part))
    return done


def lost_of(four_byte: str) -> Pattern[str]:
    """Which characters are not to be stored."""
    try:
        return LOST[four_byte]
    except KeyError:
        raise UsageError(f"four_byte is 'strip' or 'keep', not {four_byte!r}") from None


def washed(value: Any, lost: Pattern[str], place: Place, notify: Notifier) -> Any:
    """What to store for a value of any type; tells what was lost."""
    if not isinstance(value, str):
        return value
    if value == NIL:
        return None
    if not lost.search(value):
        return value
    if replaced := len(SURROGATE.findall(value)):
        tell(loss("replaced", place.where, len(value), len(value) - replaced), notify)
    encodable = value.encode("utf-8", "replace").decode("utf-8") if replaced else value
    if lost is SURROGATE:
        return encodable
    kept = BEYOND.sub("", encodable)
    if len(kept) < len(value):
        tell(loss("stripped", place.where, len(value), len(kept)), notify)
    return kept
