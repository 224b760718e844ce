"""One process of the hammer: takes and releases keys in all modes, writes its history, may be killed."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from pathlib import Path
from typing import Any

import takehold
from tests.crash.history import Recorder

KEYS = [f"hammer/{number}" for number in range(16)]


def _choice(rng: random.Random) -> tuple[list[int], bool, float]:
    """Which keys, whether shared, and how long to wait."""
    numbers = rng.sample(range(len(KEYS)), 2 if rng.random() < 0.1 else 1)
    return numbers, rng.random() < 0.4, rng.choice((0.0, 0.002, 5.0, 5.0))


def _request(numbers: list[int], shared: bool) -> list[Any]:
    return [takehold.shared(KEYS[number]) if shared else KEYS[number] for number in numbers]


def work(locks: takehold.Locks, recorder: Recorder, rng: random.Random, operations: int) -> None:
    """The blocking face."""
    for _ in range(operations):
        numbers, shared, timeout = _choice(rng)
        try:
            hold = locks.lock(*_request(numbers, shared), timeout=timeout).acquire()
        except takehold.LockTimeout:
            continue
        marks = [(number, recorder.enter(number, shared, hold.fence)) for number in numbers]
        for number, mark in marks:
            recorder.exit(number, shared, mark)
        hold.release()


async def work_async(locks: takehold.AsyncLocks, recorder: Recorder, rng: random.Random, operations: int) -> None:
    """The asyncio face, with a suspension inside the hold."""
    for _ in range(operations):
        numbers, shared, timeout = _choice(rng)
        try:
            async with locks.lock(*_request(numbers, shared), timeout=timeout) as hold:
                marks = [(number, recorder.enter(number, shared, hold.fence)) for number in numbers]
                if rng.random() < 0.1:
                    await asyncio.sleep(0)
                for number, mark in marks:
                    recorder.exit(number, shared, mark)
        except takehold.LockTimeout:
            continue


def main(url: str, history: str, face: str, operations: int, seed: int) -> None:
    """Two actors of one face until the operations are done."""
    recorder = Recorder(Path(history))
    rngs = [random.Random(seed * 2 + actor) for actor in range(2)]
    each = operations // 2
    if face == "threads":
        locks = takehold.Locks(url, check_order="off")
        threads = [threading.Thread(target=work, args=(locks, recorder, rng, each)) for rng in rngs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:

        async def both() -> None:
            locks = takehold.AsyncLocks(url, check_order="off")
            await asyncio.gather(*(work_async(locks, recorder, rng, each) for rng in rngs))

        asyncio.run(both())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
