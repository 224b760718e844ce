"""Deadlocks across the processes of a lock directory, from their owner boards."""

from __future__ import annotations

from pathlib import Path

from takehold.backends.file.board import boards
from takehold.core.cycle import Picture, sentence, youngest

__all__ = ["deadlock_sentence"]


def deadlock_sentence(path: Path, waiter: str, picture: Picture) -> str | None:
    """A sentence when this waiter is in a cycle and is the one to give up. The picture may be a little old."""
    if picture.cycle(waiter) is None:
        return None
    cycle = Picture(boards(path)).cycle(waiter)
    if cycle is None or youngest(cycle).id != waiter:
        return None
    still = {line.id for line in boards(path)}
    if any(line.id not in still for line in cycle):
        return None
    return sentence(cycle)
