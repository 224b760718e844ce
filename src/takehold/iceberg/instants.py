"""Instants: whether several tables, read one after the other beside commits that never stop, show transactions whole.

Pointers remember the last changes that were committed to them. That says it without a lock: in three readings, each
after the one before, a transaction that the second has seen by half is new in one table of it, and new again in
another one of the third.
"""

from __future__ import annotations

from collections.abc import Sequence

from takehold.iceberg.finding import Sight
from takehold.iceberg.records import RING

__all__ = ["is_whole"]


def is_whole(before: Sequence[Sight], sights: Sequence[Sight], after: Sequence[Sight]) -> bool:
    """Whether nothing is seen by half in the second of three readings of the same tables; False also in doubt."""
    seen: set[str] = set()
    missed: set[str] = set()
    for earlier, sight, later in zip(before, sights, after, strict=True):
        if not earlier.target == sight.target == later.target:
            return False
        if later.pointer.version - earlier.pointer.version >= RING:
            return False  # what came between may be forgotten
        # An intent whose change may be committed counts as seen, and as not seen.
        seen |= _possible(sight)
        missed |= _possible(later) - _certain(sight)
    return not seen & missed


def _possible(sight: Sight) -> set[str]:
    intent = sight.pointer.intent
    return {*sight.pointer.recent, *([intent.mark] if intent is not None else [])}


def _certain(sight: Sight) -> set[str]:
    intent = sight.pointer.intent
    # One that would leave it as it is says nothing: it may be filled in yet.
    decided = intent is not None and sight.body == intent.next != sight.pointer.now
    return {*sight.pointer.recent, *([intent.mark] if intent is not None and decided else [])}
