"""What does one lock between processes cost when nobody else wants it?

Condition: one process, one thread or task, nothing else held; an empty block; a directory on a local file
system. A repeated key, as in a loop over one resource, and fresh keys, each used once. The peers in their best
case (one object made before and used again), with a new object per lock on a file that exists, and with fresh
keys, for which each of them needs a new file. The floor is what the kernel asks for: two byte-range lock calls.

Bars: a repeated key at least 8 times faster than filelock and 2 times faster than fasteners and portalocker,
each peer in its better case; fresh keys the same against fresh keys; on both faces.
"""

from __future__ import annotations

import fcntl
import os
from itertools import count
from pathlib import Path

import fasteners
import filelock
import portalocker

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
from benchmarks.peers import KEY, PEERS
from takehold.backends.file.directory import lock_record

LIMITS = {"filelock": 8, "fasteners": 2, "portalocker": 2}
FACES = {"blocking": "takehold", "asyncio": "takehold asyncio"}
REPEATED, FRESH = ", repeated key", ", fresh keys"
ONE, NEW = ", one object", ", new objects"


def answer(scale: Scale, directory: Path) -> Report:
    """Measure and judge."""
    rounds, operations = scale.of(40, 8), scale.of(1000, 200)
    contenders = _takehold(directory) | _peers(directory) | {"floor: two fcntl calls": _floor(directory)}
    samples = interleave(contenders, rounds=rounds, operations=operations)
    return Report(
        [cost_table("with locks.lock(key): pass", samples, FACES["blocking"] + REPEATED)],
        [
            at_least(f"{face}{keys}, against {peer}", ratio(samples, cases, ours + keys), limit)
            for face, ours in FACES.items()
            for peer, limit in LIMITS.items()
            for keys, cases in ((REPEATED, (peer + ONE, peer + NEW)), (FRESH, (peer + FRESH,)))
        ],
        conditions=conditions(directory, PEERS, rounds=rounds, operations=operations),
    )


def _takehold(directory: Path) -> dict[str, Work]:
    url = f"file:{directory / 'takehold'}"
    locks, tasks = takehold.Locks(url), takehold.AsyncLocks(url)
    number = count()
    return {
        FACES["blocking"] + REPEATED: loop(lambda: locks.lock(KEY)),
        FACES["blocking"] + FRESH: loop(lambda: locks.lock(f"orders/{next(number)}")),
        FACES["asyncio"] + REPEATED: loop_async(lambda: tasks.lock(KEY)),
        FACES["asyncio"] + FRESH: loop_async(lambda: tasks.lock(f"orders/{next(number)}")),
    }


def _peers(directory: Path) -> dict[str, Work]:
    path = {peer: str(directory / peer) for peer in PEERS}
    number = count()

    def fresh(peer: str) -> str:
        """The file of a key that was never used before."""
        return f"{path[peer]}-{next(number)}"

    one_filelock = filelock.FileLock(path["filelock"])
    one_fasteners = fasteners.InterProcessLock(path["fasteners"])
    one_portalocker = portalocker.Lock(path["portalocker"])
    return {
        "filelock" + ONE: loop(lambda: one_filelock),
        "filelock" + NEW: loop(lambda: filelock.FileLock(path["filelock"])),
        "filelock" + FRESH: loop(lambda: filelock.FileLock(fresh("filelock"))),
        "fasteners" + ONE: loop(lambda: one_fasteners),
        "fasteners" + NEW: loop(lambda: fasteners.InterProcessLock(path["fasteners"])),
        "fasteners" + FRESH: loop(lambda: fasteners.InterProcessLock(fresh("fasteners"))),
        "portalocker" + ONE: loop(lambda: one_portalocker),
        "portalocker" + NEW: loop(lambda: portalocker.Lock(path["portalocker"])),
        "portalocker" + FRESH: loop(lambda: portalocker.Lock(fresh("portalocker"))),
    }


def _floor(directory: Path) -> Work:
    fd = os.open(directory / "floor", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    write, unlock = lock_record(fcntl.F_WRLCK, 42), lock_record(fcntl.F_UNLCK, 42)

    def floor(operations: int) -> None:
        for _ in range(operations):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, write)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, unlock)

    return floor
