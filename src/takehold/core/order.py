"""The order checker: remembers in which order key templates are nested, and speaks up before they deadlock."""

from __future__ import annotations

from takehold.core.mutex import Mutex
from takehold.core.owner import site_text
from takehold.core.seat import Seat

__all__ = ["OrderBook"]

MAX_EDGES = 10_000


class OrderBook:
    """Every `outer -> inner` pair of templates seen so far, with the lines that did it first."""

    def __init__(self) -> None:
        self._mutex = Mutex()
        self._inner: dict[str, dict[str, str]] = {}
        self._edges = 0

    def check(self, outer: Seat, asked: list[Seat]) -> str | None:
        """Note that `asked` is taken inside `outer`; a sentence when that inverts an order seen before.

        Only the innermost hold counts: what it is nested in follows from the pairs seen before.
        """
        for inner in asked:
            if not (outer.want.implied or inner.want.implied) and (sentence := self._note(outer, inner)):
                return sentence
        return None

    def _note(self, outer: Seat, inner: Seat) -> str | None:
        first, second = outer.want.template, inner.want.template
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
            f"lock order inverted: {second!r} inside {first!r} at {lines}, but {first!r} inside {second!r} "
            f"at {before}; one day these deadlock. Take both in one lock() call, or always in one order"
        )

    def _path(self, start: str, goal: str) -> str | None:
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
