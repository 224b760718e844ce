"""Deadlocks across processes: follow who waits for whom over all owner boards.

A task waits for whoever holds its key in a conflicting mode, and for whoever stands at the gate before it.
A cycle counts only when every record in it is still there, unchanged, in a second reading: then all of them
were true at one moment. The youngest waiter of the cycle gives up; every process comes to the same answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from takehold.backends.file.board import Line, boards

__all__ = ["Picture", "deadlock_sentence"]

Party: TypeAlias = tuple[str, int]


class Picture:
    """All boards at one reading, indexed."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = {line.id: line for line in lines}
        self._by_key: dict[int, list[Line]] = {}
        self._by_party: dict[Party, list[Line]] = {}
        for line in lines:
            self._by_key.setdefault(line.key_id, []).append(line)
            self._by_party.setdefault(line.party, []).append(line)

    def cycle(self, waiter: str) -> list[Line] | None:
        """The records of a cycle that starts and ends with this waiter, in order."""
        start = self.lines.get(waiter)
        if start is None or start.held or not self._anybody_waits_for(start.party):
            return None
        came_from: dict[str, Line] = {}
        todo, seen = [start], {start.party}
        while todo:
            line = todo.pop()
            for blocker in self._by_key[line.key_id]:
                if not _blocks(blocker, line):
                    continue
                if blocker.party == start.party:
                    came_from[blocker.id] = line
                    return _chain(came_from, blocker, start)
                if blocker.party not in seen:
                    seen.add(blocker.party)
                    came_from[blocker.id] = line
                    for further in self._by_party[blocker.party]:
                        if not further.held:
                            came_from.setdefault(further.id, blocker)
                            todo.append(further)
        return None

    def _anybody_waits_for(self, party: Party) -> bool:
        """Mostly nobody does, and then there is nothing to look for."""
        return any(
            not other.held and other.party != party and other.conflicts(line)
            for line in self._by_party[party]
            if line.held
            for other in self._by_key[line.key_id]
        )


def _chain(came_from: dict[str, Line], last: Line, start: Line) -> list[Line]:
    chain = [last]
    while chain[-1] is not start:
        chain.append(came_from[chain[-1].id])
    return chain[::-1]


def deadlock_sentence(path: Path, waiter: str, picture: Picture) -> str | None:
    """A sentence when this waiter is in a cycle and is the one to give up. The picture may be a little old."""
    if picture.cycle(waiter) is None:
        return None
    cycle = Picture(boards(path)).cycle(waiter)
    if cycle is None or _youngest(cycle).id != waiter:
        return None
    still = {line.id for line in boards(path)}
    if any(line.id not in still for line in cycle):
        return None
    steps = "; ".join(
        f"{line.owner} waits for {line.key!r}" if not line.held else f"which {line.owner} holds" for line in cycle
    )
    return f"waiting for {cycle[0].key!r} would deadlock: {steps}"


def _youngest(cycle: list[Line]) -> Line:
    return max((line for line in cycle if not line.held), key=lambda line: (line.at, line.id))


def _blocks(blocker: Line, waiter: Line) -> bool:
    if blocker is waiter or not blocker.conflicts(waiter):
        return False
    if blocker.held:
        return True
    # In one process the line is first come, first served; between processes the one at the gate is next.
    if blocker.board == waiter.board:
        return blocker.at < waiter.at
    return blocker.at_gate and not waiter.at_gate
