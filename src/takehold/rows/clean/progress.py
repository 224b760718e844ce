"""A progress bar for long runs, drawn by rich on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Final, TypeVar

from takehold import UsageError

T = TypeVar("T")

SLICE: Final = 10_000
PATIENCE: Final = 0.5
"""Seconds that a run may take before it has to show something."""


def slices(values: Iterable[T]) -> Iterator[list[T]]:
    """The values in lists, between which there is time to look around."""
    rest = iter(values)
    while part := list(islice(rest, SLICE)):
        yield part


@contextmanager
def bar(what: str, values: Iterable[object], progress: bool | None) -> Iterator[Callable[[int], None]]:
    """A function to call with how many more are done. Only then is anything drawn, and only if it may."""
    total = len(values) if isinstance(values, Sized) else None
    with ExitStack() as stack:
        if progress is None:
            progress = _watched()
            start = time.monotonic() + PATIENCE
        else:
            start = time.monotonic()
        draw: Callable[[int], None] | None = None
        done = 0

        def advance(count: int) -> None:
            nonlocal done, draw
            done += count
            if not progress or (draw is None and time.monotonic() < start):
                return
            if draw is None:
                draw = stack.enter_context(_drawn(what, total))
            draw(done)

        yield advance


def _watched() -> bool:
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def _drawn(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        raise UsageError("progress=True draws with rich; install takehold[rich], or leave it out") from None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as drawn:
        task = drawn.add_task(what, total=total)
        yield lambda done: drawn.update(task, completed=done)
