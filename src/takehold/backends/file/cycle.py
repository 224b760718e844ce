"""Deadlocks across processes: follow who waits for whom over all owner boards.

A task waits for whoever holds its key in a conflicting mode, and for whoever stands at the gate before it.
A cycle counts only when every record in it is still there, unchanged, in a second reading: then all of them
were true at one moment. The youngest waiter of the cycle gives up; every process comes to the same answer.
"""

from __future__ import annotations

from pathlib import Path

from takehold.backends.file.board import Line, boards

__all__ = ["deadlock_sentence"]


def deadlock_sentence(path: Path, waiter: str) -> str | None:
    """A sentence when this waiter is in a cycle and is the one to give up."""
    cycle = find_cycle(boards(path), waiter)
    if cycle is None or _youngest(cycle).id != waiter:
        return None
    still = {line.id for line in boards(path)}
    if any(line.id not in still for line in cycle):
        return None
    me = next(line for line in cycle if line.id == waiter)
    steps = "; ".join(
        f"{line.owner} waits for {line.key!r}" if not line.held else f"which {line.owner} holds" for line in cycle
    )
    return f"waiting for {me.key!r} would deadlock: {steps}"


def _youngest(cycle: list[Line]) -> Line:
    return max((line for line in cycle if not line.held), key=lambda line: (line.at, line.id))


def find_cycle(lines: list[Line], waiter: str) -> list[Line] | None:
    """The records of a cycle that starts and ends with this waiter, in order."""
    start = next((line for line in lines if line.id == waiter and not line.held), None)
    if start is None:
        return None
    waits: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        if not line.held:
            waits.setdefault(line.party, []).append(line)

    def follow(line: Line, seen: set[tuple[str, int]]) -> list[Line] | None:
        for blocker in lines:
            if not _blocks(blocker, line) or blocker.party in seen:
                continue
            link = [blocker] if blocker.held else []
            if blocker.party == start.party:
                return [line, *link]
            seen.add(blocker.party)
            for further in waits.get(blocker.party, []):
                if (rest := follow(further, seen)) is not None:
                    return [line, *link, *rest]
        return None

    return follow(start, set())


def _blocks(blocker: Line, waiter: Line) -> bool:
    if blocker is waiter or not blocker.conflicts(waiter):
        return False
    if blocker.held:
        return True
    # In one process the line is first come, first served; between processes the one at the gate is next.
    if blocker.board == waiter.board:
        return blocker.at < waiter.at
    return blocker.at_gate and not waiter.at_gate
