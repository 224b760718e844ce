"""Board lines as `who` shows them."""

from __future__ import annotations

import time
from pathlib import Path

from takehold.backends.file.board import Line, boards, process
from takehold.core.record import HoldRecord, since

__all__ = ["blocking", "seen"]


class _Reader:
    """Turns lines into records; asks the kernel about each process once."""

    def __init__(self, lines: list[Line]) -> None:
        self._holders = [line for line in lines if line.held]
        self._silent: dict[str, bool] = {}

    def record(self, line: Line) -> HoldRecord:
        """One line, as people read it."""
        age = max(0.0, (time.monotonic_ns() - line.at) / 1e9)
        in_the_way = () if line.held else tuple(other.id for other in self._holders if other.conflicts(line))
        return HoldRecord(
            line.id, line.key, line.namespace, "shared" if line.shared else "exclusive",
            "held" if line.held else "waiting", line.owner, since(age, time.time()), age,
            line.fence if line.held else None, silent=self._is_silent(line), blocked_by=in_the_way,
        )  # fmt: skip

    def _is_silent(self, line: Line) -> bool:
        # A child of `takehold run` keeps the board of a dead owner; a stopped owner cannot answer either.
        if line.board not in self._silent:
            self._silent[line.board] = process(line.owner.pid) != (line.started, True)
        return self._silent[line.board]


def seen(path: Path) -> list[HoldRecord]:
    """Everybody who holds or waits in this lock directory. What is held on behalf of a key below is left out."""
    lines = boards(path)
    reader = _Reader(lines)
    return [reader.record(line) for line in lines if not (line.held and line.implied)]


def blocking(path: Path, key_id: int, shared: bool) -> list[HoldRecord]:
    """Who holds this key in a mode that excludes ours."""
    lines = [line for line in boards(path) if line.held and line.key_id == key_id]
    reader = _Reader([])
    return [reader.record(line) for line in lines if not (shared and line.shared)]
