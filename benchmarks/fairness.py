"""How long does a waiter wait for a process that releases the key and takes it again at once?

Condition: two processes on one key of a `file:` directory. One takes, holds for 1 ms (or for no time),
releases and takes again, without a pause; the other, which has done nothing for a few milliseconds, asks for
the key: the time from the call to the grant. The rest of the hold that it finds is part of it. The peers wait
as their defaults say (see benchmarks/peers.py) and give up after 1 s, which counts as 1 s.

Bar: p50 at most 3 ms, max at most 50 ms, over 200 rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import (
    MILLI,
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

BODIES = {"1 ms": 0.001, "no time": 0.0}
PATIENCE = 1.0


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    turns, ours = scale.of(8, 1), scale.of(25, 20)
    tables: list[Table] = []
    bars: list[Bar] = []
    with ExitStack() as stack:
        holder = stack.enter_context(Worker(_holder, directory))
        waiter = _Waiter(directory, holder)
        for body, seconds in BODIES.items():
            waits: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for _ in range(turns):
                for name in CONTENDERS:
                    waits[name] += waiter.rounds(name, seconds, ours if name == "takehold" else 1)
            tables.append(_table(body, waits))
            for word, share, limit in (("p50", 0.5, 3), ("max", 1.0, 50)):
                value = quantile(waits["takehold"], share) * MILLI
                bars.append(at_most(f"waiter against a re-taker that holds for {body}, {word}", value, limit, "ms"))
    found = conditions(directory, PEERS, rounds=f"{turns * ours} ({turns} for each peer)")
    return Report(tables, bars, conditions=found)


def _table(body: str, waits: dict[str, list[float]]) -> Table:
    rows: list[list[Cell]] = [
        [
            name,
            *(quantile(times, share) * MILLI for share in (0.5, 0.99, 1.0)),
            sum(seconds >= PATIENCE for seconds in times),
            len(times),
        ]
        for name, times in waits.items()
    ]
    columns = ["", "p50, ms", "p99, ms", "max, ms", "gave up", "rounds"]
    return Table(f"waiter against a re-taker that holds for {body}", columns, rows)


class _Waiter:
    """The process that asks."""

    def __init__(self, directory: Path, holder: Worker) -> None:
        self._contenders = {name: make(directory) for name, make in CONTENDERS.items()}
        self._running = shared_bytes(directory / "running")
        self._holder = holder

    def rounds(self, name: str, body: float, rounds: int) -> list[float]:
        """Seconds until the grant, so many times, against one run of the holder."""
        contender = self._contenders[name]
        waits = []
        self._running[0], self._running[1] = 1, 0
        self._holder.tell(name, body)
        while not self._running[1]:
            time.sleep(0.001)
        for _ in range(rounds):
            # Past whatever the last round left behind, and never in step with the holder.
            time.sleep(random.uniform(0.004, 0.008))
            start = time.monotonic()
            got = contender.take(PATIENCE)
            waits.append(min(time.monotonic() - start, PATIENCE) if got else PATIENCE)
            if got:
                contender.give()
        self._running[0] = 0
        self._holder.answer()
        return waits


def _holder(directory: Path) -> Callable[[str, float], None]:
    """In a process of its own: take, hold, release, take again, until told to stop."""
    contenders = {name: make(directory) for name, make in CONTENDERS.items()}
    running = shared_bytes(directory / "running")

    def hold(name: str, body: float) -> None:
        contender = contenders[name]
        while running[0]:
            contender.take(60)
            running[1] = 1
            if body:
                time.sleep(body)
            contender.give()

    return hold
