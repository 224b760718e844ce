"""One finding of `takehold doctor`: what was looked at, what was found, and one sentence of what to do.

A backend that can be examined has `async def examine(rt, long) -> list[Check]`. It reads and never writes, makes
nothing, and leaves no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

__all__ = [
    "OK",
    "TROUBLE",
    "WARNING",
    "Check",
    "Verdict",
    "duration",
    "ok",
    "stuck_holds",
    "trouble",
    "warning",
    "worst",
]

Verdict: TypeAlias = Literal["ok", "warning", "trouble"]
OK: Final = "ok"
WARNING: Final = "warning"
TROUBLE: Final = "trouble"
_ORDER: Final[tuple[Verdict, ...]] = (OK, WARNING, TROUBLE)


@dataclass(frozen=True, slots=True)
class Check:
    """The names are stable: programs look for them."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    """What to do; empty when all is well."""
    details: tuple[str, ...] = ()
    """One line for each session, process or file that it is about."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The same for a program: plain JSON values."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "found": self.found,
            "advice": self.advice,
            "facts": self.facts,
        }


def ok(name: str, found: str, **facts: Any) -> Check:
    """All is well."""
    return Check(name, OK, found, facts=facts)


def warning(name: str, found: str, advice: str, details: Sequence[str] = (), **facts: Any) -> Check:
    """Locks work; something will hurt one day, or hurts somebody else."""
    return Check(name, WARNING, found, advice, tuple(details), facts)


def trouble(name: str, found: str, advice: str, details: Sequence[str] = (), **facts: Any) -> Check:
    """Locks do not work here, or somebody is stuck right now."""
    return Check(name, TROUBLE, found, advice, tuple(details), facts)


def stuck_holds(lines: dict[str, str], long: float) -> Check:
    """Old holds that somebody waits for: a line about each, by its id."""
    name = "stuck-holds"
    if not lines:
        return ok(name, f"nobody waits for a hold older than {duration(long)}", holds=[])
    found = f"{len(lines)} holds are old, and others wait for them"
    advice = "Look at the line that holds, or end the hold: takehold evict ID."
    return warning(name, found, advice, list(lines.values()), holds=list(lines))


def worst(checks: Sequence[Check]) -> Verdict:
    """The worst verdict of all."""
    return max((check.verdict for check in checks), key=_ORDER.index, default=OK)


def duration(seconds: float) -> str:
    """Two units at most: `0.4 s`, `14.2 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    raise AssertionError
