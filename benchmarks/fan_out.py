"""What does a lock cost when 1 000 tasks of one process ask at once?

Condition: 1 000 asyncio tasks started together, each takes one key, yields to the loop once inside the block,
and ends; on 1 000 different keys, and on 10 keys with 100 tasks in line for each. The time of the whole
fan-out divided by the tasks, starting and ending them included: "no lock" is that alone. asyncio.Lock and
aiorwlock have one object per key, made before; filelock.AsyncFileLock one object per task (one object would let
all tasks of a process in), fewer rounds, its default thread and its default look every 50 ms.

No bar: the numbers are for choosing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiorwlock
import filelock

import takehold
from benchmarks.measure import Report, Scale, Table, Work, conditions, cost_table, interleave

REFERENCE = "takehold memory:"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure."""
    rounds, tasks = scale.of(20, 3), 1000
    tables = [
        _table(directory, keys, rounds=rounds, tasks=tasks, slow=scale.of(3, 1)) for keys in (tasks, tasks // 100)
    ]
    found = conditions(directory, ("aiorwlock", "filelock"), rounds=rounds, tasks=tasks)
    return Report(tables, [], conditions=found)


def _table(directory: Path, keys: int, *, rounds: int, tasks: int, slow: int) -> Table:
    memory = takehold.AsyncLocks("memory:")
    file = takehold.AsyncLocks(f"file:{directory / 'takehold'}")
    plain = [asyncio.Lock() for _ in range(keys)]
    readers_writer = [aiorwlock.RWLock(fast=True) for _ in range(keys)]
    names = [f"orders/{number}" for number in range(keys)]
    contenders = {
        REFERENCE: _fan(lambda task: memory.lock(names[task % keys])),
        "takehold file:": _fan(lambda task: file.lock(names[task % keys])),
        "asyncio.Lock": _fan(lambda task: plain[task % keys]),
        "aiorwlock writer, fast=True": _fan(lambda task: readers_writer[task % keys].writer),
        "no lock": _bare,
    }
    samples = interleave(contenders, rounds=rounds, operations=tasks)
    few = {
        REFERENCE: contenders[REFERENCE],
        "filelock.AsyncFileLock": _fan(lambda task: filelock.AsyncFileLock(directory / f"filelock-{task % keys}")),
    }
    table = cost_table(f"{tasks} tasks on {keys} keys, per task", samples, REFERENCE)
    rare = cost_table("", interleave(few, rounds=slow, operations=tasks), REFERENCE)
    return Table(table.title, table.columns, [*table.rows, *rare.rows[1:]])


def _fan(request: Callable[[int], Any]) -> Work:
    async def one(task: int) -> None:
        async with request(task):
            await asyncio.sleep(0)

    async def work(operations: int) -> None:
        await asyncio.gather(*map(one, range(operations)))

    return work


async def _bare(operations: int) -> None:
    async def one() -> None:
        await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(operations)))
