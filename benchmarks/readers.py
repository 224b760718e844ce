"""What does a shared lock cost, alone and beside other readers?

Condition: one process, an empty block, one key in shared mode. Alone; beside another reader of the process, which
takes the key anew for every 32 readers that join it (coalesced: they share its kernel lock); the same with
`coalesce=False`, where each reader goes to the kernel; while another process reads. The peers in their best case,
one object used again.

No bar: the numbers are for choosing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aiorwlock
import fasteners

import takehold
from benchmarks.measure import Report, Scale, Work, Worker, conditions, cost_table, interleave, loop, loop_async
from benchmarks.peers import KEY

REFERENCE = "file:, alone"
JOINS = 32
"""Half of what one shared lock lets in before readers queue with everybody else again."""


def answer(scale: Scale, directory: Path) -> Report:
    """Measure."""
    rounds, operations = scale.of(40, 8), scale.of(1000, 200)
    exclusive = takehold.Locks(f"file:{directory / 'exclusive'}")
    other = f"file:{directory / 'process'}"
    contenders = {
        REFERENCE: loop(_requests(f"file:{directory / 'alone'}")),
        "file:, joining a reader": _beside(_requests(f"file:{directory / 'join'}")),
        "file:, beside a reader, coalesce=False": _beside(_requests(f"file:{directory / 'apart'}", coalesce=False)),
        "file:, beside another process": loop(_requests(other)),
        "file:, exclusive": loop(lambda: exclusive.lock(KEY)),
        "memory:, alone": loop(_requests("memory:")),
        "memory:, joining a reader": _beside(_requests("memory:")),
    } | _peers(directory)
    with Worker(_other, other) as process:
        process.ask()
        samples = interleave(contenders, rounds=rounds, operations=operations)
    return Report(
        [cost_table('with locks.lock(key, mode="shared"): pass', samples, REFERENCE)],
        [],
        conditions=conditions(directory, ("fasteners", "aiorwlock"), rounds=rounds, operations=operations),
    )


def _requests(url: str, *, coalesce: bool = True) -> Callable[[], takehold.Lock]:
    """Requests of one `Locks` object."""
    locks = takehold.Locks(url, coalesce=coalesce)
    return lambda: locks.lock(KEY, mode=takehold.Mode.SHARED)


def _beside(request: Callable[[], takehold.Lock]) -> Work:
    """Each `JOINS` readers beside one more, which counts too."""

    def work(operations: int) -> None:
        for start in range(0, operations, JOINS + 1):
            reader = request().acquire()
            # A thread may not read a key twice: this one is now somebody else's.
            reader.give(reader)
            for _ in range(start + 1, min(start + JOINS + 1, operations)):
                with request():
                    pass
            reader.release()

    return work


def _other(url: str) -> Callable[[], bool]:
    """In a process of its own: read to the end."""
    hold = takehold.Locks(url).lock(KEY, mode="shared").acquire()
    return lambda: not hold.lost


def _peers(directory: Path) -> dict[str, Work]:
    between = fasteners.InterProcessReaderWriterLock(directory / "fasteners")
    inside = fasteners.ReaderWriterLock()
    tasks = aiorwlock.RWLock(fast=True)

    return {
        "fasteners.InterProcessReaderWriterLock, alone": loop(between.read_lock),
        "fasteners.ReaderWriterLock, alone": loop(inside.read_lock),
        "aiorwlock, fast=True, alone": loop_async(lambda: tasks.reader),
    }
