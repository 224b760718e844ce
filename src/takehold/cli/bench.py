"""`takehold bench`: what a lock costs here and now, on one backend, in a few seconds.

Comparisons with other packages are in `benchmarks/` of the source tree; this is for the machine at hand.
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from takehold.cli.options import OK, Parser, seconds, shown_url, url_of
from takehold.cli.show import as_json, print_table
from takehold.errors import LockTimeout, UsageError
from takehold.locks._sync import Locks

__all__ = ["main", "parser"]

EXAMPLES: Final = """\
  takehold bench                         the default backend, about 4 s
  takehold bench --seconds 0.2 --json    shorter, for a program"""

MANY: Final = 1000
ROUND: Final = 200
"""Locks between two looks at the clock."""
HOLD: Final = 0.000_5
"""How long each side keeps the key in the hand-over: long enough for the other to stand at the gate."""
PATIENCE: Final = 5.0
LONGEST: Final = 60.0
RELEASED: Final = struct.Struct("<qq")  # when on the monotonic clock, by which pid


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Measure what locks cost on this machine. Uses keys of its own.", EXAMPLES)
    made.add_argument(
        "--seconds", type=seconds, default=1.0, metavar="S", help="time per question (default 1, at most 60)"
    )
    return made


def main(args: argparse.Namespace) -> int:
    """Measure and print."""
    if not 0 < args.seconds <= LONGEST:
        raise UsageError(f"--seconds takes more than 0 and at most {LONGEST:g}")
    url, space = url_of(args), f"takehold.bench.{os.getpid()}"
    before = conditions(shown_url(args))
    # First, while this process has no thread and no descriptor that a fork would copy.
    handing = _hand_over(url, space, args.seconds)
    results = [*_alone(url, space, args.seconds), *handing]
    if args.json:
        print(as_json({"conditions": before, "results": results}))
        return OK
    print(*(f"{name}: {value}" for name, value in before.items()), sep="\n", end="\n\n")
    titles = ("QUESTION", "p50 us", "p99 us", "max us", "per second", "TIMES")
    print_table(titles, [_row(result) for result in results])
    return OK


def conditions(url: str) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "url": url,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "note": "one thread, this machine as it is now: compare only runs under the same load",
    }


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    numbers = (f"{result[name]:.1f}" for name in ("p50_us", "p99_us", "max_us"))
    rate = f"{result['per_second']:,.0f}" if result["per_second"] else ""
    return result["question"], *numbers, rate, f"{result['times']:,}"


def _result(question: str, micros: list[float], times: int, *, rate: bool = True) -> dict[str, Any]:
    micros.sort()
    total = sum(micros)
    return {
        "question": question,
        "p50_us": micros[len(micros) // 2],
        "p99_us": micros[min(len(micros) - 1, len(micros) * 99 // 100)],
        "max_us": micros[-1],
        "per_second": len(micros) / total * 1e6 if rate else None,
        "times": times,
    }


# -- nobody else wants it ----------------------------------------------------------------------------


def _alone(url: str, space: str, allowed: float) -> Iterator[dict[str, Any]]:
    with Locks(url, namespace=space, label="bench", check_order="off") as locks:
        yield _measure("lock and release, one key", locks, lambda _: "key", allowed)
        yield _measure("lock and release, fresh keys", locks, lambda n: f"fresh/{n}", allowed)
        with ExitStack() as held:
            for n in range(MANY):
                held.enter_context(locks.lock(f"held/{n}", timeout=0))
            yield _measure(f"the same with {MANY:,} held", locks, lambda n: f"among/{n}", allowed)


def _measure(question: str, locks: Locks, key: Callable[[int], str], allowed: float) -> dict[str, Any]:
    """Means of rounds: reading the clock around every single lock would cost a good part of one."""
    micros: list[float] = []
    times = 0
    until = time.perf_counter() + allowed
    while not micros or time.perf_counter() < until:
        names = [key(times + n) for n in range(ROUND)]
        began = time.perf_counter()
        for name in names:
            with locks.lock(name, timeout=0):
                pass
        micros.append((time.perf_counter() - began) / ROUND * 1e6)
        times += ROUND
    return _result(f"{question} (means of {ROUND})", micros, times)


# -- from one process to another ---------------------------------------------------------------------


def _hand_over(url: str, space: str, allowed: float) -> list[dict[str, Any]]:
    """From the release in one process to the grant in another that was waiting."""
    if Locks(url).capabilities.across == "process":
        return []
    last = mmap.mmap(-1, RELEASED.size + 2)
    with _partner(lambda: _take_turns(url, space, last, allowed, 1)):
        micros = _take_turns(url, space, last, allowed, 0)
    question = "hand-over between two processes"
    return [_result(question, micros, len(micros), rate=False)] if micros else []


@contextmanager
def _partner(work: Callable[[], object]) -> Iterator[None]:
    """Another process that does the same; it never outlives the block."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.waitpid(pid, 0)


def _meet(last: mmap.mmap, side: int) -> None:
    """Begin together: a server takes its time to open."""
    last[RELEASED.size + side] = 1
    until = time.monotonic() + PATIENCE
    while not last[RELEASED.size + 1 - side] and time.monotonic() < until:
        time.sleep(0.000_5)


def _take_turns(url: str, space: str, last: mmap.mmap, allowed: float, side: int) -> list[float]:
    me = os.getpid()
    micros: list[float] = []
    with Locks(url, namespace=space, label="bench", check_order="off", timeout=PATIENCE) as locks:
        _meet(last, side)
        until = time.monotonic() + allowed
        while (asked := time.monotonic_ns()) < until * 1e9:
            try:
                with locks.lock("turn"):
                    got = time.monotonic_ns()
                    released, by = RELEASED.unpack_from(last)
                    # Only a release that happened while we were already waiting is a hand-over.
                    if by != me and released > asked:
                        micros.append((got - released) / 1e3)
                    time.sleep(HOLD)
                    RELEASED.pack_into(last, 0, time.monotonic_ns(), me)
            except LockTimeout:
                continue
    return micros
