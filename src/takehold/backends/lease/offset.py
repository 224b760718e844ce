"""How far the table's clock is ahead of ours."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Offset"]

AGEING: Final = 1.02
"""Clocks drift: a comparison counts as this much wider with every one that follows."""


class Offset:
    """Learned from answers that each took a while: the table read its clock at some moment between.

    Which of two waiters is the younger is told by this. The last answer alone will not do: one that was half a second
    under way on a busy host would make its waiter half a second older, and the wrong one would give up.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._width = math.inf

    def heard(self, there: float, asked: float, answered: float) -> None:
        """The table's clock said `there` between these two moments of ours; the closest comparison counts."""
        self._width *= AGEING
        width = answered - asked
        if width <= self._width:
            self._width = width
            self.seconds = there - (asked + answered) / 2
