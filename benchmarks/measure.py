"""What every question shares: rounds, workers, a report with its table and its bars. Used by the scripts here."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import mmap
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

Work: TypeAlias = Callable[[int], float | None] | Callable[[int], Coroutine[Any, Any, float | None]]
"""Does so many operations; blocking, or on the loop of the run. Returns the seconds if not all of it counts."""
T = TypeVar("T")
Samples: TypeAlias = dict[str, list[float]]
"""Per contender, one number per round; the same index is the same round."""
Cell: TypeAlias = str | int | float | None

MICRO = 1e6
MILLI = 1e3


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the full counts, or fewer to see that a script works."""

    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        """The count for this run."""
        return quick if self.quick else full


# -- rounds ----------------------------------------------------------------------------------------------------


def interleave(
    contenders: dict[str, Work], *, rounds: int, operations: int, runner: asyncio.Runner | None = None
) -> Samples:
    """A B C, C B A, A B C ...: seconds per operation of each contender in each round. The collector stays on.

    On a loop of its own, or on that of a runner whose loop the contenders were made on.
    """
    if runner is None:
        with asyncio.Runner() as own:
            return interleave(contenders, rounds=rounds, operations=operations, runner=own)
    samples: Samples = {name: [] for name in contenders}
    for work in contenders.values():
        _seconds(runner, work, max(1, operations // 10))
    for number in range(rounds):
        order = list(contenders.items())
        for name, work in reversed(order) if number % 2 else order:
            samples[name].append(_seconds(runner, work, operations) / operations)
    return samples


def _seconds(runner: asyncio.Runner, work: Work, operations: int) -> float:
    async def on_loop() -> float:
        start = time.perf_counter()
        own = await work(operations)  # type: ignore[misc]
        return time.perf_counter() - start if own is None else float(own)

    if inspect.iscoroutinefunction(work):
        return runner.run(on_loop())
    start = time.perf_counter()
    own = work(operations)
    return time.perf_counter() - start if own is None else float(own)  # type: ignore[arg-type]


@contextmanager
def opened(runner: asyncio.Runner, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Set up on the loop of a run, and tear down there: pools and connections, outside what is timed."""
    entered = runner.run(_entering(manager))
    try:
        yield entered
    finally:
        runner.run(_leaving(manager))


async def _entering(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _leaving(manager: AbstractAsyncContextManager[T]) -> None:
    await manager.__aexit__(None, None, None)


def loop(request: Callable[[], Any]) -> Work:
    """Operations that each ask for a lock and run an empty block under it; one more call for every contender."""

    def work(operations: int) -> None:
        for _ in range(operations):
            with request():
                pass

    return work


def loop_async(request: Callable[[], Any]) -> Work:
    """The same with `async with`."""

    async def work(operations: int) -> None:
        for _ in range(operations):
            async with request():
                pass

    return work


def each(once: Callable[[int], Any]) -> Callable[[int], None]:
    """One call for each operation, with its number."""

    def work(operations: int) -> None:
        for number in range(operations):
            once(number)

    return work


def each_async(once: Callable[[int], Coroutine[Any, Any, Any]]) -> Callable[[int], Coroutine[Any, Any, None]]:
    """The same with `await`."""

    async def work(operations: int) -> None:
        for number in range(operations):
            await once(number)

    return work


def ratio(samples: Samples, slow: str | Iterable[str], fast: str) -> float:
    """How many times slower: the median of the rounds' ratios. Of several slow ones, each round's quickest."""
    names = [slow] if isinstance(slow, str) else list(slow)
    best = map(min, zip(*(samples[name] for name in names), strict=True))
    ratios: list[float] = [a / b for a, b in zip(best, samples[fast], strict=True)]
    return statistics.median(ratios)


def quantile(values: list[float], share: float) -> float:
    """The nearest value at or above this share of the others; nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


# -- other processes -------------------------------------------------------------------------------------------


class Worker:
    """Another process: what `make(*args)` returns there answers. `ask` is `tell` and then `answer`."""

    def __init__(self, make: Callable[..., Callable[..., Any]], *args: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, make, args), daemon=True)
        self._process.start()
        far.close()

    def tell(self, *message: object) -> None:
        """Send a question."""
        self._pipe.send(message)

    def answer(self) -> Any:
        """Wait for the answer to the oldest question."""
        return self._pipe.recv()

    def ask(self, *message: object) -> Any:
        """Send a question and wait for its answer."""
        self.tell(*message)
        return self.answer()

    def close(self) -> None:
        """Let the process end."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Connection, make: Callable[..., Callable[..., Any]], args: tuple[object, ...]) -> None:
    answer = make(*args)
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        pipe.send(answer(*message))


def shared_bytes(path: Path, size: int = 8) -> mmap.mmap:
    """A few bytes that all processes see: whose turn it is, or when to stop."""
    with path.open("a+b") as file:
        os.ftruncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)


# -- reports ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """A number that the issue asks for, and what was measured."""

    what: str
    value: float
    relation: str
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the measured value is on the right side; a missing value is not."""
        return self.value >= self.limit if self.relation == "at least" else self.value <= self.limit

    @property
    def sentence(self) -> str:
        """The measured value and the asked one."""
        return f"{shown(self.value)} {self.unit} ({self.relation} {self.limit:g} {self.unit})"


def at_least(what: str, value: float, limit: float, unit: str = "x") -> Bar:
    """More is better."""
    return Bar(what, value, "at least", limit, unit)


def at_most(what: str, value: float, limit: float, unit: str) -> Bar:
    """Less is better."""
    return Bar(what, value, "at most", limit, unit)


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers, with the condition in the title and the unit in the heading of the column."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question."""

    tables: list[Table]
    bars: list[Bar]
    name: str = ""
    question: str = ""
    conditions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Report:
        """A report that was kept."""
        kept = json.loads(path.read_text())
        tables = [Table(**table) for table in kept.pop("tables")]
        bars = [Bar(**bar | {"value": bar["value"] or math.nan}) for bar in kept.pop("bars")]
        return cls(tables, bars, **kept)

    def write(self, path: Path) -> None:
        """Keep it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_rounded(asdict(self)), indent=1) + "\n")

    def text(self) -> str:
        """For the terminal."""
        lines = [f"== {self.name}: {self.question}", "   " + self.condition, ""]
        for table in self.tables:
            grid = [table.columns, *([shown(cell) for cell in row] for row in table.rows)]
            widths = [max(len(row[column]) for row in grid) for column in range(len(table.columns))]
            lines.append(f"   {table.title}")
            lines += ["   " + _aligned(row, widths) for row in grid]
            lines.append("")
        lines += [f"   {'PASS' if bar.met else 'MISS'}  {bar.what}: {bar.sentence}" for bar in self.bars]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """For the docs."""
        lines = [f"### {self.question}", "", f"`benchmarks/{self.name}.py` · {self.condition}", ""]
        for table in self.tables:
            lines += [f"{table.title}:", "", "| " + " | ".join(table.columns) + " |"]
            lines.append("|---|" + "---:|" * (len(table.columns) - 1))
            lines += ["| " + " | ".join(shown(cell) for cell in row) + " |" for row in table.rows]
            lines.append("")
        return "\n".join(lines)

    @property
    def condition(self) -> str:
        """Where and on what it was measured."""
        return ", ".join(f"{name} {value}" for name, value in self.conditions.items())


def cost_table(title: str, samples: Samples, reference: str) -> Table:
    """Best and median of each contender, and the median of its rounds' ratios to the reference."""
    rows: list[list[Cell]] = [
        [name, min(costs) * MICRO, statistics.median(costs) * MICRO, ratio(samples, name, reference)]
        for name, costs in samples.items()
    ]
    return Table(title, ["", "best, us", "median, us", "times the first row"], rows)


def rate_table(title: str, samples: Samples, what: str = "locks") -> Table:
    """The same as a rate: the median round of each contender."""
    rows: list[list[Cell]] = [[name, round(1 / statistics.median(costs))] for name, costs in samples.items()]
    return Table(title, ["", f"{what} per s"], rows)


def conditions(directory: Path | None, peers: Iterable[str], **counts: object) -> dict[str, str]:
    """What stands beside the numbers: machine, versions, file system, counts."""
    cpu = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    found = {
        "Python": platform.python_version(),
        "Linux": platform.release(),
        "CPU": f"{os.cpu_count()} x {cpu}",
        "takehold": version("takehold"),
    }
    found |= {name: version(name) for name in peers}
    if directory is not None:
        shape = ["df", "--output=fstype", str(directory)]
        found["file system"] = subprocess.run(shape, capture_output=True, text=True, check=True).stdout.split()[1]
    found |= {name.replace("_", " "): str(count) for name, count in counts.items()}
    return found | {"measured": f"{datetime.now(UTC):%Y-%m-%d}"}


def shown(cell: Cell) -> str:
    """A cell as people read it: three figures are enough."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}".replace(",", " ")
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"


def _aligned(row: list[str], widths: list[int]) -> str:
    first, *others = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *others])


def _rounded(value: Any) -> Any:
    """Four significant figures: more would be noise in the history of the results."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
