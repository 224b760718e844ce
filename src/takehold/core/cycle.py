"""Deadlocks across processes: follow who waits for whom over what all of them say.

A task waits for whoever holds its key in a conflicting mode, and for whoever stands before it. A cycle counts
only when every line of it is still there, unchanged, in a second reading: then all of them were true at one
moment. The youngest waiter of the cycle gives up; every process comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from takehold.core.owner import Owner

__all__ = ["Line", "Picture", "sentence", "youngest"]

Party: TypeAlias = tuple[str, int]


class Line(Protocol):
    """One holder or waiter of some process, as it describes itself."""

    @property
    def id(self) -> str:
        """The id of the hold, or of the waiter."""

    @property
    def key(self) -> str:
        """What people call the key."""

    @property
    def key_id(self) -> int:
        """What the backend calls it."""

    @property
    def party(self) -> Party:
        """The process, and the task or thread in it."""

    @property
    def owner(self) -> Owner:
        """Who it is, for people."""

    @property
    def at(self) -> float:
        """Since when; comparable between the processes."""

    @property
    def held(self) -> bool:
        """Holder, or waiter."""

    @property
    def shared(self) -> bool:
        """In which mode."""

    @property
    def at_gate(self) -> bool:
        """A waiter that stands in the backend's own queue."""


def conflict(one: Line, other: Line) -> bool:
    """Whether the two cannot hold at the same time."""
    return one.key_id == other.key_id and not (one.shared and other.shared)


class Picture:
    """All boards at one reading, indexed."""

    def __init__(self, lines: Sequence[Line]) -> None:
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
            not other.held and other.party != party and conflict(other, line)
            for line in self._by_party[party]
            if line.held
            for other in self._by_key[line.key_id]
        )


def _chain(came_from: dict[str, Line], last: Line, start: Line) -> list[Line]:
    chain = [last]
    while chain[-1] is not start:
        chain.append(came_from[chain[-1].id])
    return chain[::-1]


def sentence(cycle: list[Line]) -> str:
    """What the one that gives up is told."""
    steps = "; ".join(
        f"{line.owner} waits for {line.key!r}" if not line.held else f"which {line.owner} holds" for line in cycle
    )
    return f"waiting for {cycle[0].key!r} would deadlock: {steps}"


def youngest(cycle: list[Line]) -> Line:
    """The waiter that has waited least: the one to give up."""
    return max((line for line in cycle if not line.held), key=lambda line: (line.at, line.id))


def _blocks(blocker: Line, waiter: Line) -> bool:
    if blocker is waiter or not conflict(blocker, waiter):
        return False
    if blocker.held:
        return True
    # In one process the line is first come, first served; between processes the one at the gate is next.
    if blocker.party[0] == waiter.party[0]:
        return blocker.at < waiter.at
    return blocker.at_gate and not waiter.at_gate
