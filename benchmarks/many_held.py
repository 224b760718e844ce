"""Does a lock get dearer when thousands of others are held?

Condition: `file:`; lock and release of keys that nobody else wants (64 of them in turn, so that every stripe
file has its share) while 0, 10, 1 000 or 10 000 other keys are held: by the same thread, by another thread of
the process, by another process. Each level has its processes and its directory, all alive at once, and they are
asked in turn. The same thread also with `check_order="off"`: the order checker looks at what a thread holds.

Bar: at 10 000 at most 2 times the cost with none held, wherever they are held.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

import takehold
from benchmarks.measure import (
    MICRO,
    Cell,
    Report,
    Samples,
    Scale,
    Table,
    Worker,
    at_most,
    conditions,
    ratio,
    shown,
)

LEVELS = (0, 10, 1_000, 10_000)
BATCH = 8
PATIENCE = 0.02
"""Seconds for one slice: what takes milliseconds is tried less often."""
OFF = "the same thread, check_order=off"
PLACES = ("the same thread", OFF, "another thread", "another process")


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, operations = scale.of(40, 6), scale.of(1000, 200)
    samples: Samples = {}
    with ExitStack() as stack:
        workers = {
            f"{place} {level}": stack.enter_context(Worker(_party, directory / f"{place} {level}", place, level))
            for place in PLACES
            for level in LEVELS
        }
        # What "another process" holds is held by one more process in the same directory.
        others = [directory / f"another process {level}" for level in LEVELS]
        held = zip(others, LEVELS, strict=True)
        for worker in [stack.enter_context(Worker(_party, home, OFF, level)) for home, level in held]:
            worker.ask(0)
        for worker in workers.values():
            worker.ask(BATCH)
        for _ in range(rounds):
            for name, worker in workers.items():
                samples.setdefault(name, []).append(worker.ask(operations))
    growth = {place: ratio(samples, f"{place} {LEVELS[-1]}", f"{place} 0") for place in PLACES}
    rows: list[list[Cell]] = [
        [
            f"held by {place}",
            *(statistics.median(samples[f"{place} {level}"]) * MICRO for level in LEVELS),
            growth[place],
        ]
        for place in PLACES
    ]
    columns = ["", *(f"{shown(level)} held, us" for level in LEVELS), "times, most to none"]
    return Report(
        [Table("with locks.lock(key): pass, median", columns, rows)],
        [at_most(f"10 000 held by {place}, to none", growth[place], 2, "x") for place in PLACES if place != OFF],
        conditions=conditions(directory, (), rounds=rounds, operations=operations),
    )


def _party(home: Path, place: str, level: int) -> Callable[[int], float]:
    """In a process of its own: hold so many keys there, then answer what a lock costs."""
    url = f"file:{home}"
    locks = takehold.Locks(url, check_order="off" if place == OFF else "warn")
    # Filled without the order checker: it is to be measured, not waited for.
    filling = takehold.Locks(url, check_order="off")
    holds: list[takehold.Hold] = []

    def fill() -> None:
        holds.extend(filling.lock(f"held/{number:05}").acquire() for number in range(level))

    if place == "another thread":
        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()
    elif place != "another process":
        fill()
    keys = cycle([f"measured/{number:02}" for number in range(64)])

    def cost(operations: int) -> float:
        start, done = time.perf_counter(), 0
        while done < operations and time.perf_counter() - start < PATIENCE:
            for key in islice(keys, BATCH):
                with locks.lock(key):
                    pass
            done += BATCH
        # Named here so that the holds live as long as this function does.
        assert len(holds) in (0, level)
        return (time.perf_counter() - start) / max(done, 1)

    return cost
