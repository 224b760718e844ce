"""What one statement on the keeper carries, and how its answer is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from takehold.backends._drivers.wire import Row, Statement
from takehold.backends.postgres.statements import UNLOCK, UNLOCK_ALL, UNLOCK_SHARED, Statements
from takehold.core.backend import Ask, Granted, Releasable
from takehold.core.want import EXCLUSIVE

__all__ = ["BUSY", "NotHeldThere", "Plan", "array"]

BUSY: Final[Granted] = ()


def array(items: Iterable[object]) -> str:
    """As the server reads one. A driver that encodes it item by item costs more than the lock."""
    return "{" + ",".join(map(str, items)) + "}"


class Plan:
    """One statement on its way: what it releases, what it asks for, and how to read its answer."""

    def __init__(self, releases: Sequence[Releasable], asks: Sequence[Ask]) -> None:
        self.freed: tuple[list[int], list[int]] = [], []
        self.tries: tuple[list[int], list[int]] = [], []
        self.walk: tuple[list[int], list[bool], list[int], list[int]] = [], [], [], []
        self.asks = asks
        self.attempt = 1
        self.sent = UNLOCK
        freed, freed_shared = self.freed
        for grant in releases:
            want = grant.want
            (freed if want.mode is EXCLUSIVE else freed_shared).append(want.place)
        tries, tries_shared = self.tries
        for ask in asks:
            if len(ask.wants) == 1:
                want = ask.wants[0]
                (tries if want.mode is EXCLUSIVE else tries_shared).append(want.place)
            else:
                self._add_walk(ask)

    def _add_walk(self, ask: Ask) -> None:
        keys, shared, first, last = self.walk
        first.append(len(keys) + 1)
        keys += [want.place for want in ask.wants]
        shared += [want.mode is not EXCLUSIVE for want in ask.wants]
        last.append(len(keys))

    def statement(self, known: Statements) -> tuple[Statement, tuple[Any, ...]] | None:
        """The smallest statement that carries it all; None when there is nothing to send."""
        freed, freed_shared = self.freed
        tries, tries_shared = self.tries
        if self.walk[0]:
            return known.walk, tuple([array(items) for items in (*self.freed, *self.tries, *self.walk)])
        if tries_shared or len(tries) > 1 or (tries and (freed_shared or len(freed) > 1)):
            return known.batch, tuple([array(items) for items in (*self.freed, *self.tries)])
        if tries:
            return (known.ride, (freed[0], tries[0])) if freed else (known.one, (tries[0],))
        if len(freed) + len(freed_shared) > 1:
            return UNLOCK_ALL, tuple([array(items) for items in self.freed])
        if freed or freed_shared:
            return (UNLOCK, (freed[0],)) if freed else (UNLOCK_SHARED, (freed_shared[0],))
        return None

    def read(self, statement: Statement, known: Statements, row: Row) -> list[Granted]:
        """What each ask was granted; `NotHeldThere` when a release was not known to the server."""
        if statement is known.one or statement is known.one_shared:
            return [BUSY if row[0] is None else (row[0],)]
        if statement is known.ride or statement is UNLOCK or statement is UNLOCK_SHARED:
            if row[0] is not True:
                raise NotHeldThere
            return [BUSY if row[1] is None else (row[1],)] if statement is known.ride else []
        if row[0] != 0:
            raise NotHeldThere
        if len(row) == 1:
            return []
        if len(row[1]) == len(self.asks):
            return [BUSY if fence is None else (fence,) for fence in row[1]]
        single, shared = iter(row[1]), iter(row[2])
        walked = zip(row[3], row[4], strict=True) if self.walk[0] else iter(())
        answers: list[Granted] = []
        for ask in self.asks:
            if len(ask.wants) > 1:
                busy, fence = next(walked)
                answers.append([fence] * (busy - 1 if busy else len(ask.wants)))
            else:
                fence = next(single if ask.wants[0].mode is EXCLUSIVE else shared)
                answers.append(BUSY if fence is None else (fence,))
        return answers

    @property
    def keys(self) -> tuple[list[int], list[int]]:
        """Everything that this statement may have locked, or not unlocked."""
        walked = list(zip(self.walk[0], self.walk[1], strict=True))
        return (
            [*self.freed[0], *self.tries[0], *(key for key, shared in walked if not shared)],
            [*self.freed[1], *self.tries[1], *(key for key, shared in walked if shared)],
        )


class NotHeldThere(Exception):
    """The server did not know a key that we gave back: it was not ours, who knows since when."""
