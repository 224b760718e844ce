"""Board lines as `who` shows them."""

from __future__ import annotations

import time
from pathlib import Path

from takehold.backends.file.board import Line, boards
from takehold.core.record import HoldRecord, since

__all__ = ["blocking", "seen"]


def _record(line: Line, lines: list[Line]) -> HoldRecord:
    age = max(0.0, (time.monotonic_ns() - line.at) / 1e9)
    in_the_way = () if line.held else tuple(x.id for x in lines if x.held and x.conflicts(line))
    return HoldRecord(
        line.id, line.key, line.namespace, "shared" if line.shared else "exclusive",
        "held" if line.held else "waiting", line.owner, since(age, time.time()), age,
        line.fence if line.held else None, blocked_by=in_the_way,
    )  # fmt: skip


def seen(path: Path) -> list[HoldRecord]:
    """Everybody who holds or waits in this lock directory."""
    lines = boards(path)
    return [_record(line, lines) for line in lines]


def blocking(path: Path, key_id: int, shared: bool) -> list[HoldRecord]:
    """Who holds this key in a mode that excludes ours."""
    return [
        _record(line, [])
        for line in boards(path)
        if line.held and line.key_id == key_id and not (shared and line.shared)
    ]
