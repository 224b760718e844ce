"""A mapping as one document in a TEXT column: the largest entries are dropped until it fits."""

from __future__ import annotations

import json as _json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

from takehold import UsageError
from takehold.rows.clean.losses import Notifier, log, loss, tell
from takehold.rows.clean.place import Column, Place

TEXT: Final = 65_535
"""Bytes that a TEXT column of MySQL takes."""

# What YAML has to escape, of what JSON leaves as it is: controls, its own line breaks, surrogates, byte-order marks.
_ESCAPED: Final = re.compile('["\\\\\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')
_SPECIAL: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def json(mapping: Mapping[Any, Any]) -> str:
    """JSON, with every letter as it is."""
    return _json.dumps(dict(mapping), ensure_ascii=False)


def yaml_json(mapping: Mapping[Any, Any]) -> str:
    """The JSON text as one YAML scalar: what `yaml.dump(json(mapping), allow_unicode=True)` gives, on one line.

    Written here: a text that starts with a brace is always quoted, so there is nothing to decide but the quotes.
    """
    document = json(mapping)
    if _SPECIAL.search(document):
        return f'"{_ESCAPED.sub(_escape, document)}"\n'
    return "'" + document.replace("'", "''") + "'\n"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\{character}" if character in '"\\' else f"\\u{ord(character):04X}"


def fit_properties(
    mapping: Mapping[Any, Any],
    limit: int = TEXT,
    dumps: Callable[[dict[Any, Any]], str] = yaml_json,
    *,
    column: Column | None = None,
    notify: Notifier = log,
) -> str:
    """The document to store: `dumps(mapping)`, without its largest entries if it is longer than `limit` bytes of UTF-8.

    An entry is as large as the JSON object of it alone; of two of one size, the one whose JSON sorts later goes first.
    `dumps` of fewer entries must not be longer. `column` says in events where the document belongs.
    """
    place = Place.of(column)
    document = dumps(dict(mapping))
    if _size(document) <= limit:
        return document
    if _size(dumps({})) > limit:
        raise UsageError(f"nothing fits into {limit} bytes: an empty document takes {_size(dumps({}))}")
    largest_first = sorted(mapping, key=lambda key: _weight(key, mapping[key]), reverse=True)

    def without(dropped: int) -> str:
        gone = set(largest_first[:dropped])
        return dumps({key: value for key, value in mapping.items() if key not in gone})

    total = len(largest_first)
    dropped = bisect_left(range(total), True, lo=1, key=lambda count: _size(without(count)) <= limit)
    tell(loss("dropped", place.where, total, total - dropped), notify)
    return without(dropped)


def _weight(key: Any, value: Any) -> tuple[int, str]:
    # Only to be measured: a type that the caller's own `dumps` knows is measured as its str().
    alone = _json.dumps({key: value}, ensure_ascii=False, default=str)
    return _size(alone), alone


def _size(document: str) -> int:
    # A lone surrogate is for `text` to remove; here it must not hide how long the rest is.
    return len(document.encode("utf-8", "surrogatepass"))
