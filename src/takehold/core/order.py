"""The order checker: remembers in which order key templates are nested, and speaks up before they deadlock."""

from __future__ import annotations

from typing import TypeAlias

from takehold.core.mutex import Mutex
from takehold.core.owner import site_text
from takehold.core.seat import Seat

__all__ = ["OrderBook"]

MAX_EDGES = 10_000
_Template: TypeAlias = tuple[str, str]
"""Namespace and template: two applications in one process have two orders."""


class OrderBook:
    """Every `outer -> inner` pair of templates seen so far, with the lines that did it first."""

    def __init__(self) -> None:
        self._mutex = Mutex()
        self._inner: dict[_Template, dict[_Template, str]] = {}
        self._edges = 0

    def check(self, outer: Seat, asked: list[Seat]) -> str | None:
        """Note that `asked` is taken inside `outer`; a sentence when that inverts an order seen before.

        Only the innermost hold counts, with all its keys: what it is nested in follows from the pairs seen before.
        """
        for held in outer.together():
            for inner in asked:
                if not (held.want.implied or inner.want.implied) and (sentence := self._note(held, inner)):
                    return sentence
        return None

    def _note(self, outer: Seat, inner: Seat) -> str | None:
        first = outer.want.namespace, outer.want.template
        second = inner.want.namespace, inner.want.template
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
            before = self._path(second, first)
            if before is None:
                if self._edges < MAX_EDGES:
                    self._inner.setdefault(first, {})[second] = lines
                    self._edges += 1
                return None
        return (
            f"lock order inverted: {second[1]!r} inside {first[1]!r} at {lines}, but {first[1]!r} inside {second[1]!r} "
            f"at {before}; one day these deadlock. Take both in one lock() call, or always in one order"
        )

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
