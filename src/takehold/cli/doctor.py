"""`takehold doctor`: look at a backend without touching it, and say what to do about what is found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from takehold.backends import backend_for
from takehold.backends.check import Check, ok, worst
from takehold.cli.options import FAILED, OK, Parser, seconds, settle_place, shown_url, takes_place, url_of
from takehold.cli.show import as_json, one_line
from takehold.core.backend import Backend
from takehold.core.record import STUCK_AFTER
from takehold.runtime import Threads, run

__all__ = ["main", "parser"]

EXAMPLES: Final = """\
  takehold doctor postgresql://app@db/app    can locks be trusted there, and is somebody stuck right now?
  takehold doctor --json                     the same for a program, of the default backend"""

CODES: Final = """\
exit codes: 0 all is well or there are only warnings, 1 there is trouble, 2 wrong usage, 69 the backend does not
answer. It reads and never writes: statements that would end a session are shown, not run"""

COLOURS: Final = {"ok": "green", "warning": "yellow", "trouble": "bold red"}


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Check a backend, and what other programs do to it. Changes nothing.", EXAMPLES, codes=CODES)
    takes_place(made)
    made.add_argument(
        "--stuck-after", type=seconds, default=STUCK_AFTER, metavar="S",
        help=f"report holders that are idle, and waiters, after so many seconds (default {STUCK_AFTER:g})",
    )  # fmt: skip
    return made


def main(args: argparse.Namespace) -> int:
    """Look, and tell."""
    settle_place(args)
    backend = backend_for(url_of(args))
    checks = run(_examined(backend, args.stuck_after))
    if args.json:
        print(as_json([check.as_dict() for check in checks]))
    else:
        print(f"{shown_url(args)}\n")
        if not (sys.stdout.isatty() and _rich(checks)):
            print(*lines(checks), sep="\n")
        print(f"\n{_summary(checks)}")
    return FAILED if worst(checks) == "trouble" else OK


async def _examined(backend: Backend, long: float) -> list[Check]:
    examine: Callable[..., Coroutine[Any, Any, list[Check]]] | None = getattr(backend, "examine", None)
    if examine is not None:
        return await examine(Threads(), long)
    if backend.capabilities.across == "process":
        return [ok("memory", "these locks live inside one process: there is nothing outside it to check")]
    return [ok("backend", f"{type(backend).__name__} has no checks of its own")]


def lines(checks: Sequence[Check]) -> list[str]:
    """One line for each check; what to do, and whom it is about, below it."""
    wide = max(len(check.name) for check in checks)
    told = []
    for check in checks:
        first, *rest = _text(check)
        told.append(f"{check.verdict:<7}  {check.name:<{wide}}  {first}")
        told += [f"{'':<7}  {'':<{wide}}  {line}" for line in rest]
    return told


def _text(check: Check) -> list[str]:
    """What was found, whom it is about, what to do."""
    advice = [f"-> {check.advice}"] if check.advice else []
    return [one_line(line) for line in (check.found, *(f"  {line}" for line in check.details), *advice)]


def _summary(checks: Sequence[Check]) -> str:
    counts = {verdict: sum(check.verdict == verdict for check in checks) for verdict in COLOURS}
    if not counts["trouble"] and not counts["warning"]:
        return f"{counts['ok']} checks, all is well"
    warnings = "1 warning" if counts["warning"] == 1 else f"{counts['warning']} warnings"
    return f"{len(checks)} checks: {counts['trouble']} in trouble, {warnings}, {counts['ok']} ok"


def _rich(checks: Sequence[Check]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for check in checks:
        colour = COLOURS[check.verdict]
        shown.add_row(
            Text(check.verdict, style=colour),
            Text(check.name, style="bold"),
            # Text, not str: what others call themselves may look like markup.
            Text("\n".join(_text(check)), overflow="fold"),
        )
    Console().print(shown)
    return True
