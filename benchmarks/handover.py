"""How long does a key lie idle between one process that lets go and another that waits?

Condition: 2, 4 and 8 processes on one key of a `file:` directory, each logging the system-wide monotonic clock
after the grant and before the release; a hand-over is the grant minus the release before it, where the holder
changed. In two ways. *Turns*: each holds for 1 to 9 ms, at random so that no poller is in step, and asks again
only when somebody else has the key, so every release is a hand-over. *Hammer*: each asks again at once and holds
for no time; who polls then changes hands only when it is lucky, and only those times count, so their number
stands beside them. The peers wait as their defaults say (see benchmarks/peers.py). Two holders at once would end
the run with an error.

Bar: hand-over p50 at most 2 ms, in both ways and at each number of processes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import (
    Bar,
    Cell,
    Report,
    Scale,
    Table,
    Worker,
    at_most,
    conditions,
    quantile,
    shared_bytes,
)
from benchmarks.peers import CONTENDERS, PEERS

PROCESSES = (2, 4, 8)
HOLDS = {"turns": (0.001, 0.009), "hammer": (0.0, 0.0)}
LEAD_NS = 20_000_000
"""So that every process has been told before the first one starts."""
NANO_TO_MILLI = 1e-6


class Stay(NamedTuple):
    """One hold: when it was granted, when it was about to be released, and by whom."""

    grant: int
    release: int
    number: int


class Seen:
    """All stays of one contender under one condition."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.holds = 0
        self.seconds = 0.0

    def add(self, stays: list[Stay], seconds: float) -> None:
        """Add one slice of time; refuse two holders at once."""
        stays = sorted(stays)
        for before, after in pairwise(stays):
            if after.grant < before.release:
                raise RuntimeError(f"two processes held the key at once: {before} and {after}")
            if after.number != before.number:
                self.waits.append((after.grant - before.release) * NANO_TO_MILLI)
        self.holds += len(stays)
        self.seconds += seconds

    def row(self, name: str) -> list[Cell]:
        """As the table shows it."""
        shares = [quantile(self.waits, share) for share in (0.5, 0.99, 1.0)]
        return [name, *shares, len(self.waits) / self.seconds, self.holds / self.seconds]


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    slices, seconds = scale.of(3, 1), scale.of(60, 15) / 100
    tables: list[Table] = []
    bars: list[Bar] = []
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(_party, directory, number)) for number in range(max(PROCESSES))]
        for worker in workers:
            worker.ask("takehold", "hammer", 0, 0)
        for way in HOLDS:
            for processes in PROCESSES:
                seen = {name: Seen() for name in CONTENDERS}
                for _ in range(slices):
                    for name in CONTENDERS:
                        seen[name].add(_slice(workers[:processes], name, way, seconds), seconds)
                what = f"{way}, {processes} processes"
                tables.append(_table(what, seen))
                bars.append(at_most(f"hand-over p50, {what}", quantile(seen["takehold"].waits, 0.5), 2, "ms"))
    found = conditions(directory, PEERS, slices=f"{slices} of {seconds} s")
    return Report(tables, bars, conditions=found)


def _table(what: str, seen: dict[str, Seen]) -> Table:
    columns = ["", "p50, ms", "p99, ms", "max, ms", "hand-overs per s", "locks per s"]
    return Table(f"hand-over, {what}", columns, [one.row(name) for name, one in seen.items()])


def _slice(workers: list[Worker], name: str, way: str, seconds: float) -> list[Stay]:
    start = time.monotonic_ns() + LEAD_NS
    for worker in workers:
        worker.tell(name, way, start, start + int(seconds * 1e9))
    return [Stay(*stay) for worker in workers for stay in worker.answer()]


def _party(directory: Path, number: int) -> Callable[[str, str, int, int], list[Stay]]:
    """In a process of its own: take part in a slice, and answer with the log."""
    contenders = {name: make(directory) for name, make in CONTENDERS.items()}
    holder = shared_bytes(directory / "holder")
    now = time.monotonic_ns

    def take_part(name: str, way: str, start: int, end: int) -> list[Stay]:
        contender, hold = contenders[name], HOLDS[way]
        stays: list[Stay] = []
        time.sleep(max(0, start - now()) / 1e9)
        while (left := end - now()) > 0 and contender.take(left / 1e9):
            granted = now()
            holder[0] = number
            if way == "turns":
                time.sleep(random.uniform(*hold))
            stays.append(Stay(granted, now(), number))
            contender.give()
            while way == "turns" and holder[0] == number and now() < end:
                time.sleep(0.000_2)
        return stays

    return take_part
