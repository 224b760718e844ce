"""References: which tables a store uses, so that the results of operators go when nobody needs them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any

from takehold.clickhouse.colour import settled

__all__ = ["References"]


class References:
    """The tables that one context uses, and how many of its objects stand for each."""

    def __init__(self, registry: Any, context: int) -> None:
        self.context = context
        self._registry = registry
        self._mutex = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._left: deque[str] = deque()

    async def take(self, table: str) -> None:
        """One object more, noted in the registry before it is used."""
        self.share(table)
        try:
            await settled(self._registry.incref(table, self.context))
        except BaseException:
            self.leave(table)
            raise

    def share(self, table: str) -> None:
        """One object more of a table that is noted already."""
        with self._mutex:
            self._counts[table] += 1

    def leave(self, table: str) -> None:
        """One object less; may be called by the garbage collector, at any place, so it only takes a note."""
        self._left.append(table)

    async def settle(self) -> list[str]:
        """Tell the registry what was left since the last time; the tables that nobody uses any more."""
        unused = []
        for table in self._gone():
            others = await settled(self._registry.decref(table, self.context))
            with self._mutex:
                again = self._counts[table] > 0
            if again:  # another thread took it while we gave it back
                await settled(self._registry.incref(table, self.context))
            elif not others:
                unused.append(table)
        return unused

    def leave_all(self) -> None:
        """As if every object were gone."""
        with self._mutex:
            self._left.clear()
            self._left.extend(self._counts.elements())

    def _gone(self) -> list[str]:
        gone = []
        while self._left:
            try:
                table = self._left.popleft()
            except IndexError:  # another thread was quicker
                break
            with self._mutex:
                self._counts[table] -= 1
                if self._counts[table] <= 0:
                    del self._counts[table]
                    gone.append(table)
        return gone
