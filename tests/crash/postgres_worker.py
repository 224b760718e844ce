"""One process of the Postgres hammer: many threads or tasks on few keys, all of it on record; may be killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

import takehold
from takehold.core.desk import Desk
from tests.crash.losses import LossRecorder, Register

KEYS = 24
LONG_KEYS = 8
"""Further ones, held for seconds: a loss must be told while they are."""
KEPT = "SELECT pid, objid, mode, granted FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY(%s)"
FAULTS = (takehold.BackendUnavailable, takehold.BackendRefused)


@dataclass(frozen=True)
class Errand:
    """What to take, for how long to wait, and how long to keep it."""

    numbers: list[int]
    shared: bool
    timeout: float
    keep: float

    @property
    def keys(self) -> list[Any]:
        names = [f"hammer/{number}" for number in self.numbers]
        return [takehold.shared(name) if self.shared else name for name in names]


def errand(rng: random.Random, long: bool) -> Errand:
    """Timeouts are about as long as holds are: many end while the key is being released."""
    if long:
        return Errand([KEYS + rng.randrange(LONG_KEYS)], rng.random() < 0.2, 5.0, rng.uniform(1.2, 2.5))
    numbers = sorted(rng.sample(range(KEYS), rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 2, 3))))
    timeout = rng.choice((0.0, 0.002, 0.004, 0.008, 0.012, 3.0, 3.0, 3.0))
    keep = rng.choice((0.0, 0.0, 0.0, rng.uniform(0.0, 0.006)))
    return Errand(numbers, rng.random() < 0.35, timeout, keep)


class Diary:
    """Notes the sessions as they come and go, and each hold on its way."""

    def __init__(self, history: Path, log: Path) -> None:
        self._recorder = LossRecorder(history)
        self._register = Register(log, history.stem)
        self._mutex = threading.Lock()
        self._sessions: dict[int, tuple[int, Any]] = {}
        self._numbers = itertools.count(1)
        threading.Thread(target=self._watch, daemon=True).start()

    def _session(self, session: Any) -> int:
        known = self._sessions.get(id(session))
        if known is None:
            with self._mutex:
                known = self._sessions.setdefault(id(session), (next(self._numbers), session))
            self._recorder.opened(known[0], session.keeper.pid)
        return known[0]

    def _watch(self) -> None:
        dead: set[int] = set()
        while True:
            for number, session in list(self._sessions.values()):
                if session.lost is not None and number not in dead:
                    dead.add(number)
                    self._recorder.died(number)
            time.sleep(0.005)

    def assert_nothing_kept(self, url: str) -> None:
        """Everybody has left: the sessions that live must not hold anything at the server."""
        until = time.monotonic() + 3
        left: list[Any] = []
        while time.monotonic() < until:
            living = [session for _, session in list(self._sessions.values()) if session.lost is None]
            pids = [wire.pid for session in living for wire in (session.keeper, *session.waiters.wires)]
            try:
                with psycopg.connect(url, autocommit=True) as connection:
                    left = connection.execute(KEPT, [pids]).fetchall()
            except psycopg.OperationalError:  # it is just being restarted
                left = []
            if not left:
                return
            time.sleep(0.05)
        raise AssertionError(f"still held, by nobody: {left}")

    def enter(self, hold: Any, it: Errand) -> list[tuple[int, int, int]]:
        """Right after the grant: key, number and fence of each part; a loss is noted when it is told."""
        session = self._session(hold._seats[-1].session)
        marks = []
        for name, _, fence in hold.grants:
            key = int(name.rpartition("/")[2])
            marks.append((key, self._recorder.enter_on(key, it.shared, fence, session), fence))
        hold.on_lost(lambda: self.lost(marks))
        return marks

    def lost(self, marks: list[tuple[int, int, int]]) -> None:
        """It was reported lost."""
        for key, number, _ in marks:
            self._recorder.lost(key, number)

    def write(self, marks: list[tuple[int, int, int]], it: Errand) -> None:
        """To the fenced log, under exclusive holds."""
        if not it.shared:
            for key, number, fence in marks:
                self._register.write(key, number, fence)

    def leave(self, marks: list[tuple[int, int, int]], it: Errand) -> None:
        """Right before the release."""
        for key, number, _ in marks:
            self._recorder.exit(key, it.shared, number)


def work(locks: takehold.Locks, diary: Diary, rng: random.Random, operations: int, long: bool) -> None:
    """The blocking face."""
    for _ in range(operations):
        it = errand(rng, long)
        try:
            hold = locks.lock(*it.keys, timeout=it.timeout).acquire()
        except takehold.LockTimeout:
            continue
        except FAULTS:
            time.sleep(rng.uniform(0.005, 0.05))
            continue
        marks: list[tuple[int, int, int]] = []
        try:
            with hold:
                marks = diary.enter(hold, it)
                hold.wait_lost(it.keep) if long else time.sleep(it.keep)
                diary.write(marks, it)
                diary.leave(marks, it)
        except takehold.HoldLost:
            diary.lost(marks)
            time.sleep(rng.uniform(0.0, 0.05))
            diary.write(marks, it)  # as somebody does who did not look


async def work_async(locks: takehold.AsyncLocks, diary: Diary, rng: random.Random, operations: int, long: bool) -> None:
    """The asyncio face: a loss cancels the block."""
    for _ in range(operations):
        it = errand(rng, long)
        marks: list[tuple[int, int, int]] = []
        try:
            async with locks.lock(*it.keys, timeout=it.timeout) as hold:
                marks = diary.enter(hold, it)
                try:
                    await asyncio.sleep(it.keep)
                    diary.write(marks, it)
                finally:
                    diary.leave(marks, it)
        except takehold.LockTimeout:
            continue
        except FAULTS:
            await asyncio.sleep(rng.uniform(0.005, 0.05))
        except takehold.HoldLost:
            diary.lost(marks)
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            diary.write(marks, it)


def main(plan: dict[str, Any]) -> None:
    """So many actors of one face until the operations are done; the first ones keep their keys for long."""
    threading.excepthook = _fail
    if plan["deaf"]:
        Desk.session_lost = lambda *_: None  # type: ignore[method-assign]
    diary = Diary(Path(plan["history"]), Path(plan["log"]))
    rngs = [random.Random(plan["seed"] * 1000 + actor) for actor in range(plan["actors"])]
    long, short = rngs[: plan["long"]], rngs[plan["long"] :]
    each = plan["operations"] // len(short)
    if plan["face"] == "threads":
        _threads(plan["url"], diary, long, short, each)
    else:
        asyncio.run(_tasks(plan["url"], diary, long, short, each))
    time.sleep(0.05)  # what died in the end is noted too


def _fail(what: threading.ExceptHookArgs) -> None:
    """An error in one thread is an error of the worker."""
    if what.exc_type is not SystemExit:
        traceback.print_exception(what.exc_value)
        os._exit(3)


def _threads(url: str, diary: Diary, long: list[random.Random], short: list[random.Random], each: int) -> None:
    locks, done = takehold.Locks(url, check_order="off"), threading.Event()

    def act(rng: random.Random) -> None:
        while not done.is_set():
            work(locks, diary, rng, 1, long=True)

    lasting = [threading.Thread(target=act, args=(rng,)) for rng in long]
    passing = [threading.Thread(target=work, args=(locks, diary, rng, each, False)) for rng in short]
    for thread in (*lasting, *passing):
        thread.start()
    for thread in passing:
        thread.join()
    done.set()
    for thread in lasting:
        thread.join()
    diary.assert_nothing_kept(url)
    locks.close()


async def _tasks(url: str, diary: Diary, long: list[random.Random], short: list[random.Random], each: int) -> None:
    locks, done = takehold.AsyncLocks(url, check_order="off"), asyncio.Event()

    async def act(rng: random.Random) -> None:
        while not done.is_set():
            await work_async(locks, diary, rng, 1, long=True)

    lasting = asyncio.gather(*map(act, long))
    await asyncio.gather(*(work_async(locks, diary, rng, each, long=False) for rng in short))
    done.set()
    await lasting
    await asyncio.to_thread(diary.assert_nothing_kept, url)
    await locks.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
