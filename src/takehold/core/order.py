"""The order checker: remembers in which order key templates are nested, and speaks up before they deadlock."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

from takehold.core.mutex import Mutex
from takehold.core.owner import site_text
from takehold.core.seat import Seat
from takehold.core.want import Want

__all__ = ["OrderBook"]

MAX_EDGES = 10_000
MAX_NOTED = 1_000
_Template: TypeAlias = tuple[str, str, bytes]
"""Namespace, template and kind of key: two applications in one process have two orders."""


class OrderBook:
    """Every `outer -> inner` pair of templates seen so far, with the lines that did it first."""

    def __init__(self) -> None:
        self._mutex = Mutex()
        self._inner: dict[_Template, dict[_Template, str]] = {}
        self._sorted: dict[_Template, dict[_Template, str]] = {}
        """Pairs that one request took, in its sorted order: among themselves these cannot deadlock."""
        self._edges = 0
        self._noted: set[Want] = set()
        """The first want of requests that were looked at: it is one object with them, and they do not change."""

    def check(self, outer: Seat, asked: list[Seat]) -> str | None:
        """Note that `asked` is taken inside `outer`; a sentence when that inverts an order seen before.

        Only the innermost hold counts, with all its keys: what it is nested in follows from the pairs seen before.
        """
        for held in outer.together():
            for inner in asked:
                if not (held.want.implied or inner.want.implied) and (sentence := self._note(held, inner)):
                    return sentence
        return None

    def check_request(self, seats: list[Seat]) -> str | None:
        """Note the order in which one request takes its own keys: nesting them the other way round inverts it."""
        if seats[0].want in self._noted:
            return None
        found = None
        for one, next_one in pairwise(seat for seat in seats if not seat.want.implied):
            first, second = _template(one), _template(next_one)
            if first == second or second in self._sorted.get(first, ()):
                continue
            line = site_text(one.site)
            with self._mutex:
                if self._edges < MAX_EDGES:
                    self._sorted.setdefault(first, {})[second] = line
                    self._edges += 1
                if (before := self._inner.get(second, {}).get(first)) is not None:
                    found = _sentence(first, second, line, before)
        if len(self._noted) >= MAX_NOTED:
            self._noted.clear()
        self._noted.add(seats[0].want)
        return found

    def _note(self, outer: Seat, inner: Seat) -> str | None:
        first, second = _template(outer), _template(inner)
        if first == second:
            if inner.want.order >= outer.want.order:
                return None
            return (
                f"{inner.want.text!r} is taken at {site_text(inner.site)} inside {outer.want.text!r}, taken at "
                f"{site_text(outer.site)}: in descending order, so another call with the keys the other way "
                "round will deadlock with it; take both in one lock() call, which sorts them"
            )
        if second in self._inner.get(first, ()):
            return None
        lines = f"{site_text(outer.site)} then {site_text(inner.site)}"
        with self._mutex:
            if second in self._inner.get(first, ()):
                return None
            before = self._path(second, first) or self._sorted.get(second, {}).get(first)
            if before is None:
                if self._edges < MAX_EDGES:
                    self._inner.setdefault(first, {})[second] = lines
                    self._edges += 1
                return None
        return _sentence(first, second, lines, before)

    def _path(self, start: _Template, goal: _Template) -> str | None:
        """The lines of a nesting that leads from `start` inwards to `goal`."""
        todo, seen = [(start, "")], {start}
        while todo:
            template, lines = todo.pop()
            for inner, site in self._inner.get(template, {}).items():
                if inner == goal:
                    return lines or site
                if inner not in seen:
                    seen.add(inner)
                    todo.append((inner, lines or site))
        return None


def _template(seat: Seat) -> _Template:
    return seat.want.namespace, seat.want.template, seat.want.domain


def _sentence(first: _Template, second: _Template, lines: str, before: str) -> str:
    return (
        f"lock order inverted: {second[1]!r} after {first[1]!r} at {lines}, but {first[1]!r} after {second[1]!r} "
        f"at {before}; one day these deadlock. Take both in one lock() call, or always in one order"
    )
