"""How far a run is: a bar on a terminal, with rich where that is installed; else a line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from takehold.cli.show import duration

if TYPE_CHECKING:
    from takehold.fragments import Counts

__all__ = ["final_line", "line", "progress"]

EVERY: Final = 5.0
"""Seconds between two plain lines."""


def line(counts: Counts) -> str:
    """One line of numbers."""
    parts = [
        f"{counts.settled}/{counts.total}",
        f"{counts.done} done",
        f"{counts.elsewhere} done elsewhere",
        f"{counts.held} held elsewhere",
        f"{counts.unchanged} unchanged",
        f"{counts.failed} failed",
        f"{counts.removed} removed" if counts.removed else "",
        f"{counts.stuck} stuck?" if counts.stuck else "",
        f"{counts.rate:.1f}/s",
        "" if math.isnan(counts.left) else f"{duration(counts.left)} left",
    ]
    return ", ".join(part for part in parts if part)


def final_line(counts: Counts) -> str:
    """What it came to."""
    end = "all done" if counts.complete else "stopped" if counts.drained else "others hold the rest"
    parts = [
        f"{end}: {counts.done} done here",
        f"{counts.elsewhere} elsewhere",
        f"{counts.unchanged} unchanged",
        f"{counts.failed} failed",
        f"{counts.removed} removed",
        f"{counts.pending} pending",
    ]
    return f"{', '.join(parts)}, in {duration(counts.seconds)} ({counts.rate:.1f}/s)"


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[Counts], None]]:
    """What `Worker.run` is to call; on stderr, so that the answer can be piped."""
    if quiet:
        yield lambda _: None
        return
    if sys.stderr.isatty():
        bar = _Bar.made()
        if bar is not None:
            with bar:
                yield bar.show
            return
    yield _Lines().show


class _Lines:
    """Plain lines: on a terminal without rich, in a log, in a pipe."""

    def __init__(self) -> None:
        self._next = time.monotonic() + EVERY

    def show(self, counts: Counts) -> None:
        """A line, if the last one is a while ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            print(line(counts), file=sys.stderr, flush=True)


class _Bar:
    """A bar of rich."""

    def __init__(self, bar: object) -> None:
        from rich.progress import Progress

        assert isinstance(bar, Progress)
        self._bar = bar
        self._task = bar.add_task("fragments", total=None, numbers="")

    @classmethod
    def made(cls) -> _Bar | None:
        """None without rich."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
        except ImportError:
            return None
        columns = (BarColumn(bar_width=24), TextColumn("{task.fields[numbers]}"))
        return cls(Progress(*columns, console=Console(stderr=True), transient=True))

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, counts: Counts) -> None:
        """Move it."""
        self._bar.update(self._task, total=counts.total or None, completed=counts.settled, numbers=line(counts))
