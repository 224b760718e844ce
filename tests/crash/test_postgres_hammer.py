"""Four processes on few keys of one Postgres, while they are killed and paused, cut off and restarted under."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from takehold.locks._sync import Locks
from takehold.runtime import Threads, run
from tests import lanes
from tests.crash.history import Interval
from tests.crash.losses import WRITE, Checker, Cut, Judgement, Life
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

PROCESSES = 4
OPERATIONS = lanes.scaled(200_000)
BOUND = 1_000_000_000
"""Nanoseconds within which a loss must be told to a process that is awake, on a machine that is very busy."""
DATABASE = "takehold_hammer"
OURS = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name LIKE 'takehold%%'"


class Slot:
    """One place for a worker; who dies is followed by another."""

    def __init__(self, number: int, url: str, left: int) -> None:
        self.number, self.url, self.left = number, url, left
        self.process: subprocess.Popen[bytes] | None = None
        self.path = Path()
        self.pauses: list[tuple[int, int]] = []
        self.resume_at = 0.0

    @property
    def paused(self) -> bool:
        return self.resume_at > 0


class Hammer:
    """Starts the workers, does what a bad night does, and remembers when."""

    def __init__(self, server: Postgres, folder: Path, operations: int, *, deaf: bool = False) -> None:
        self.server, self.folder, self.deaf = server, folder, deaf
        self.seed = random.SystemRandom().randrange(1 << 30)
        self.rng = random.Random(self.seed)
        self.log = folder / "writes.log"
        self.proxy = Proxy(server.port)
        url = server.url(DATABASE)
        urls = [url if number < 2 else self.proxy.url(url) for number in range(PROCESSES)]
        self.slots = [Slot(number, urls[number], operations // PROCESSES) for number in range(PROCESSES)]
        self.lives: list[Life] = []
        self.cuts: list[Cut] = []
        self.counts: Counter[str] = Counter()
        self.started = 0
        self.holds = 0
        self._monitor: psycopg.Connection | None = None

    # -- the workers -----------------------------------------------------------------------------------

    def start(self, slot: Slot) -> None:
        """A new life for one slot."""
        self.started += 1
        slot.path = self.folder / f"{slot.number}-{self.started}.h"
        slot.pauses = []
        threads = slot.number % 2 == 0
        plan = {
            "url": slot.url, "history": str(slot.path), "log": str(self.log), "deaf": self.deaf,
            "face": "threads" if threads else "asyncio", "actors": 10 if threads else 26, "long": 8 if self.deaf else 2,
            "operations": int(slot.left * 1.5) + 50, "seed": self.seed + self.started,
        }  # fmt: skip
        slot.process = subprocess.Popen([sys.executable, "-m", "tests.crash.postgres_worker", json.dumps(plan)])

    def end(self, slot: Slot, killed_at: int | None) -> None:
        """Note how a life ended and how much it did."""
        assert slot.process is not None
        code = slot.process.wait(timeout=120)
        assert killed_at is not None or code == 0, f"a worker ended with {code}"
        slot.process = None
        if slot.path.exists():
            life = Life.read(slot.path, killed_at, slot.pauses)
            self.lives.append(life)
            slot.left -= len(life.holds)
            self.holds += len(life.holds)

    def run(self, seconds: float) -> None:
        """Until every slot has done its operations."""
        until = time.monotonic() + seconds
        for slot in self.slots:
            self.start(slot)
        try:
            while any(slot.process for slot in self.slots):
                assert time.monotonic() < until, f"only {self.holds} operations in {seconds} s"
                self._wait(self.rng.uniform(0.2, 0.4) if self.deaf else self.rng.uniform(0.02, 0.12))
                for slot in self.slots:
                    if slot.process is not None and slot.process.poll() is not None:
                        self.end(slot, None)
                        if slot.left > 0:
                            self.start(slot)
                self.strike()
        finally:
            for slot in self.slots:
                if slot.process is not None:
                    slot.process.kill()
                    slot.process.wait()
            self.proxy.close()
            self._forget_monitor()

    def _wait(self, seconds: float) -> None:
        """Sleep, and wake up whoever has been paused long enough."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            for slot in self.slots:
                if slot.paused and slot.resume_at <= now:
                    self._resume(slot)
            time.sleep(0.005)

    def _resume(self, slot: Slot) -> None:
        if slot.process is not None:
            slot.process.send_signal(signal.SIGCONT)
            slot.pauses[-1] = (slot.pauses[-1][0], time.monotonic_ns())
        slot.resume_at = 0.0

    # -- the nemesis -----------------------------------------------------------------------------------

    def strike(self) -> None:
        """One fault of some kind."""
        kinds = {self.kill: 3, self.pause: 6, self.pause_and_cut: 4, self.terminate: 6, self.cancel: 8, self.reset: 2}
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        if self.rng.random() < 0.02:
            kind = self.restart
        if self.deaf:
            kind = self.cut_off
        living = [slot for slot in self.slots if slot.process is not None and not slot.paused]
        if living:
            kind(self.rng.choice(living))
            self.counts[kind.__name__] += 1

    def kill(self, slot: Slot) -> None:
        """SIGKILL, and another one takes its place."""
        assert slot.process is not None
        killed_at = time.monotonic_ns()
        slot.process.kill()
        self.end(slot, killed_at)
        if slot.left > 0:
            self.start(slot)

    def pause(self, slot: Slot) -> None:
        """SIGSTOP, for 20 to 2 000 ms."""
        assert slot.process is not None
        slot.pauses.append((time.monotonic_ns(), 1 << 62))
        slot.process.send_signal(signal.SIGSTOP)
        slot.resume_at = time.monotonic() + 0.02 * 100 ** self.rng.random()

    def pause_and_cut(self, slot: Slot) -> None:
        """A pause in which all its sessions end: it wakes up with holds that are others' by now."""
        assert slot.process is not None
        self.pause(slot)
        slot.resume_at = max(slot.resume_at, time.monotonic() + 0.2)
        self.cut_off(slot)

    def cut_off(self, slot: Slot) -> None:
        """All its sessions end."""
        assert slot.process is not None
        mine = f"takehold%:{slot.process.pid}"
        self._cut(self._query(f"{OURS} AND application_name LIKE %s", DATABASE, mine))

    def terminate(self, slot: Slot) -> None:
        """`pg_terminate_backend` for one of our connections, whichever it is."""
        pids = self._query(OURS, DATABASE)
        self._cut(self.rng.sample(pids, min(1, len(pids))))

    def cancel(self, slot: Slot) -> None:
        """`pg_cancel_backend` for some of our connections, whatever they are doing."""
        for pid in self._query(OURS, DATABASE):
            if self.rng.random() < 0.5:
                self._query("SELECT pg_cancel_backend(%s)", pid)

    def reset(self, slot: Slot) -> None:
        """Everything behind the proxy is reset."""
        self.proxy.reset()

    def restart(self, slot: Slot) -> None:
        """The server goes down without a word, and comes up again."""
        pids = frozenset(self._query(OURS, DATABASE))
        self._forget_monitor()
        self.server.down("immediate")
        self.cuts.append(Cut(time.monotonic_ns(), pids))
        self.server.up()

    def _cut(self, pids: list[int]) -> None:
        for pid in pids:
            self._query("SELECT pg_terminate_backend(%s, 2000)", pid)
        self.cuts.append(Cut(time.monotonic_ns(), frozenset(pids)))

    def _forget_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = None

    def _query(self, sql: str, *params: object) -> list[int]:
        if self._monitor is None:
            self._monitor = psycopg.connect(self.server.socket_url(), autocommit=True)
        return [row[0] for row in self._monitor.execute(sql.encode(), params).fetchall()]


def prepared(server: Postgres) -> None:
    """A database with fences."""
    server.database(DATABASE)
    run(Locks(server.url(DATABASE))._backend.init(Threads(), fence_from=None))


def judged(hammer: Hammer) -> tuple[Judgement, dict[str, object]]:
    found = Checker(hammer.lives, hammer.cuts, BOUND).check(hammer.log)
    facts: dict[str, object] = {
        "seed": hammer.seed, "processes": hammer.started, **hammer.counts, "holds": found.holds,
        "exclusive": found.exclusive, "overlaps": len(found.overlaps), "overlaps of lost holds": found.excused,
        "holds told lost": found.lost, "told late": len(found.late), "slowest ms": round(found.slowest / 1e6),
        "fences back": len(found.fences), "writes": found.writes, "stale rejected": found.stale_rejected,
        "stale accepted": len(found.stale_accepted), "good refused": len(found.refused),
    }  # fmt: skip
    return found, facts


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.covers("L-1", "L-5", "L-13", "L-14", "L-15")
def test_a_bad_night_never_lets_two_in_and_tells_everybody_who_lost(tmp_path: Path) -> None:
    with Postgres.start(tmp_path) as server:
        prepared(server)
        hammer = Hammer(server, tmp_path, OPERATIONS)
        began = time.monotonic()
        hammer.run(1_500 if lanes.PROVE else 150)
        seconds = time.monotonic() - began
        found, facts = judged(hammer)
        facts["seconds"] = round(seconds)
        print(json.dumps(facts))  # noqa: T201 - the numbers to quote: pytest -s, or -rP
        until = time.monotonic() + 3
        while (left := server.advisory_locks()) and time.monotonic() < until:
            time.sleep(0.05)
    assert not left
    assert found.clean, f"{facts}: {found.overlaps[:3]} {found.late[:3]} {found.fences[:3]} {found.stale_accepted[:3]}"
    assert not found.refused
    assert found.holds >= OPERATIONS
    assert found.stale_rejected > 0
    assert found.lost > 0


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.covers("L-13")
def test_a_night_in_which_nobody_is_told_is_found_out(tmp_path: Path) -> None:
    """A planted bug: the desk does not listen when a session dies."""
    with Postgres.start(tmp_path) as server:
        prepared(server)
        hammer = Hammer(server, tmp_path, 6_000, deaf=True)
        hammer.run(150)
        found, facts = judged(hammer)
        print(json.dumps(facts))  # noqa: T201
    assert found.late


SECOND = 1_000_000_000


def test_the_checker_finds_what_it_is_for(tmp_path: Path) -> None:
    """Two at once; a loss told late, or never; a stale write that counts; and nothing in a good history."""

    def hold(owner: str, number: int, start: int, end: int, fence: int = 1) -> Interval:
        return Interval(1, False, start * SECOND, fence, owner, end * SECOND, number)

    def judge(*lives: Life, cuts: tuple[Cut, ...] = ()) -> Judgement:
        return Checker(lives, cuts, SECOND).check()

    a, b = hold("a", 1, 10, 20), hold("b", 1, 15, 25, 2)
    assert judge(Life("a", [a]), Life("b", [b])).overlaps
    assert judge(Life("a", [a], lost={1: 15 * SECOND + 5}), Life("b", [b])).clean
    assert judge(Life("a", [a], lost={1: 18 * SECOND}), Life("b", [b])).late
    paused = Life("a", [a], lost={1: 18 * SECOND}, pauses=[(14 * SECOND, 18 * SECOND)])
    assert judge(paused, Life("b", [b])).clean
    assert judge(Life("a", [hold("a", 1, 1, 9, 5), hold("a", 2, 10, 11, 4)])).fences
    deaf = Life("a", [a], on={1: 7}, opened={7: (9 * SECOND, 99)}, died={7: 12 * SECOND}, until=30 * SECOND)
    assert judge(deaf).late
    cut = Cut(12 * SECOND, frozenset({99}))
    blind = Life("a", [a], on={1: 7}, opened={7: (9 * SECOND, 99)}, until=30 * SECOND)
    assert judge(blind, cuts=(cut,)).late

    log = tmp_path / "writes"
    stale = Life("a", [a], lost={1: 14 * SECOND})
    log.write_bytes(WRITE.pack(1, 1, 2, 16, b"b") + WRITE.pack(1, 1, 1, 17, b"a"))
    found = Checker([stale, Life("b", [b])], (), SECOND).check(log)
    assert (found.stale_rejected, found.stale_accepted) == (1, [])
    log.write_bytes(WRITE.pack(1, 1, 2, 16, b"b") + WRITE.pack(1, 1, 3, 17, b"a"))
    assert Checker([stale, Life("b", [b])], (), SECOND).check(log).stale_accepted
