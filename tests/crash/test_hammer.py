"""Many processes on few keys, killed at random and started again; an independent checker counts violations."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.history import Interval, check, read
from tests.lanes import scaled

PROCESSES = 8
OPERATIONS = scaled(20_000)


class Hammer:
    """Starts the workers, kills some, and remembers when."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self.folder = url, folder
        self.rng = random.Random(seed)
        self.seed = seed
        self.started = 0
        self.kills = 0
        self.histories: list[tuple[Path, int | None]] = []
        self.slots: list[tuple[subprocess.Popen[bytes], Path] | None] = [None] * PROCESSES
        self.left = [OPERATIONS] * PROCESSES

    def start(self, slot: int) -> None:
        """A new life for one slot."""
        self.started += 1
        path = self.folder / f"{slot}-{self.started}.history"
        face = "threads" if slot % 2 else "asyncio"
        command = [sys.executable, "-m", "tests.crash.hammer_worker", self.url, str(path), face]
        process = subprocess.Popen([*command, str(self.left[slot]), str(self.seed * 1000 + self.started)])
        self.slots[slot] = (process, path)

    def end(self, slot: int, killed_at: int | None) -> None:
        """Note how a life ended and how much it did."""
        running = self.slots[slot]
        assert running is not None
        process, path = running
        code = process.wait(timeout=120)
        if killed_at is None:
            assert code == 0, f"a worker failed with exit code {code}"
        if path.exists():
            self.histories.append((path, killed_at))
            done = path.stat().st_size // 48
            self.left[slot] = 0 if killed_at is None else max(0, self.left[slot] - done)
        self.slots[slot] = None

    def run(self) -> None:
        """Until every slot has done its operations, with a kill every few hundred milliseconds."""
        for slot in range(PROCESSES):
            self.start(slot)
        while any(self.slots):
            time.sleep(self.rng.uniform(0.1, 0.4))
            for slot, running in enumerate(self.slots):
                if running is not None and running[0].poll() is not None:
                    self.end(slot, None)
            alive = [slot for slot, running in enumerate(self.slots) if running is not None]
            if alive:
                slot = self.rng.choice(alive)
                running = self.slots[slot]
                assert running is not None
                killed_at = time.monotonic_ns()
                running[0].kill()
                self.kills += 1
                self.end(slot, killed_at)
                if self.left[slot] > 0:
                    self.start(slot)


@pytest.mark.crash
@pytest.mark.covers("L-1", "L-5", "L-14")
def test_killed_and_restarted_processes_never_overlap(tmp_path: Path) -> None:
    """Zero violations among shared and exclusive holds of both faces, while workers are killed at random."""
    seed = random.SystemRandom().randrange(1 << 30)
    hammer = Hammer(f"file:{tmp_path}/locks", tmp_path, seed)
    hammer.run()
    intervals: list[Interval] = []
    for path, killed_at in hammer.histories:
        intervals += read(path, killed_at)
    verdict = check(intervals)
    facts = {
        "seed": seed, "processes": hammer.started, "kills": hammer.kills, "holds": verdict.holds,
        "exclusive": verdict.exclusive, "overlaps": len(verdict.overlaps), "stale_fences": len(verdict.stale_fences),
    }  # fmt: skip
    print(json.dumps(facts))  # noqa: T201 - the numbers to quote: pytest -s, or -rP
    assert verdict.clean, f"{facts}: {verdict.overlaps[:3]} {verdict.stale_fences[:3]}"
    assert verdict.holds > PROCESSES * OPERATIONS / 4
    assert hammer.kills > 0


def test_the_checker_finds_what_it_is_for() -> None:
    """One overlap of five nanoseconds, one fence that goes back; readers together are fine."""
    holds = [
        Interval(1, shared=False, start=100, fence=10, owner="a", end=200),
        Interval(1, shared=False, start=195, fence=11, owner="b", end=300),
        Interval(1, shared=False, start=400, fence=9, owner="c", end=500),
        Interval(2, shared=True, start=100, fence=1, owner="a", end=200),
        Interval(2, shared=True, start=150, fence=2, owner="b", end=300),
    ]
    verdict = check(holds)
    assert [(first.owner, second.owner) for first, second in verdict.overlaps] == [("a", "b")]
    assert [(first.owner, second.owner) for first, second in verdict.stale_fences] == [("b", "c")]
    assert not verdict.clean
