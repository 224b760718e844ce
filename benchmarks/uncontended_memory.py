"""What does one lock inside a process cost when nobody else wants it?

Condition: one thread or one task, nothing else held; an empty block; `memory:`. The peers in their best case,
one object made before and used again; ours pays for finding the key by name. aiorwlock yields to the loop
after every acquire unless it is made with `fast=True`: that one has no bar, and is more than twice as fast as we
are: it looks nothing up, knows no owner, no fence and no line of code.

Bar: asyncio at least as fast as aiorwlock as it comes, exclusive against its writer, shared against its reader.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from pathlib import Path

import aiorwlock
import fasteners

import takehold
from benchmarks.measure import (
    Report,
    Scale,
    Work,
    at_least,
    conditions,
    cost_table,
    interleave,
    loop,
    loop_async,
    ratio,
)
from benchmarks.peers import KEY

ASYNC_EXCLUSIVE, ASYNC_SHARED = "takehold asyncio, repeated key", "takehold asyncio, shared"
BLOCKING = "takehold, repeated key"
FAST = ", fast=True"


def answer(scale: Scale, directory: Path) -> Report:  # noqa: ARG001
    """Measure and judge."""
    rounds, operations = scale.of(60, 8), scale.of(1000, 200)
    samples = interleave(_asyncio(), rounds=rounds, operations=operations)
    threads = interleave(_blocking(), rounds=rounds, operations=operations)
    return Report(
        [
            cost_table("async with locks.lock(key): pass", samples, ASYNC_EXCLUSIVE),
            cost_table("with locks.lock(key): pass", threads, BLOCKING),
        ],
        [
            at_least(f"asyncio, memory, {mode}, against {peer}", ratio(samples, peer, ours), 1)
            for mode, peer, ours in (
                ("exclusive", "aiorwlock writer", ASYNC_EXCLUSIVE),
                ("shared", "aiorwlock reader", ASYNC_SHARED),
            )
        ],
        conditions=conditions(None, ("aiorwlock", "fasteners"), rounds=rounds, operations=operations),
    )


def _asyncio() -> dict[str, Work]:
    locks = takehold.AsyncLocks("memory:")
    numbers = count()
    one, fast, slow = asyncio.Lock(), aiorwlock.RWLock(fast=True), aiorwlock.RWLock()
    return {
        ASYNC_EXCLUSIVE: loop_async(lambda: locks.lock(KEY)),
        "takehold asyncio, fresh keys": loop_async(lambda: locks.lock(f"orders/{next(numbers)}")),
        ASYNC_SHARED: loop_async(lambda: locks.lock(KEY, mode="shared")),
        "aiorwlock writer" + FAST: loop_async(lambda: fast.writer),
        "aiorwlock reader" + FAST: loop_async(lambda: fast.reader),
        "aiorwlock writer": loop_async(lambda: slow.writer),
        "aiorwlock reader": loop_async(lambda: slow.reader),
        "asyncio.Lock": loop_async(lambda: one),
    }


def _blocking() -> dict[str, Work]:
    locks = takehold.Locks("memory:")
    numbers = count()
    one, readers_writer = threading.Lock(), fasteners.ReaderWriterLock()
    return {
        BLOCKING: loop(lambda: locks.lock(KEY)),
        "takehold, fresh keys": loop(lambda: locks.lock(f"orders/{next(numbers)}")),
        "takehold, shared": loop(lambda: locks.lock(KEY, mode="shared")),
        "fasteners.ReaderWriterLock writer": loop(readers_writer.write_lock),
        "fasteners.ReaderWriterLock reader": loop(readers_writer.read_lock),
        "threading.Lock": loop(lambda: one),
    }
