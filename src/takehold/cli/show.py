"""How answers look: tables, durations, one safe line of text, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from takehold.backends.check import duration

__all__ = ["as_json", "duration", "one_line", "print_table", "table"]


def one_line(text: str) -> str:
    """Text from somewhere else as one printable line: a key must not steer the terminal that shows it."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def as_json(value: Any) -> str:
    """One JSON document."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns; those without any content are left out."""
    used = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    lines = [[titles[i] for i in used], *([one_line(row[i]) for i in used] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(used))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """On a terminal with rich installed, in colour; else plain."""
    if sys.stdout.isatty() and _rich_table(titles, rows):
        return
    print(*table(titles, rows), sep="\n")


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    used = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i in used:
        shown.add_column(titles[i], overflow="fold")
    for row in rows:
        style = "red" if any("stuck" in cell for cell in row[:2]) else ""
        # Text, not str: a key may look like markup.
        shown.add_row(*(Text(one_line(row[i])) for i in used), style=style)
    Console().print(shown)
    return True
