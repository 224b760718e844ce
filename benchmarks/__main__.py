"""Run the questions, print their tables, keep their results; exit 1 when a bar is missed."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.measure import Report, Scale

QUESTIONS: Final = (
    "uncontended_file",
    "uncontended_memory",
    "many_held",
    "handover",
    "fairness",
    "fan_out",
    "readers",
    "postgres_fan_out",
    "postgres_one_by_one",
    "postgres_many_keys",
    "postgres_threads",
    "postgres_waiters",
    "rows_bulk",
    "rows_report",
    "fragments",
    "clean_text",
    "clickhouse_appends",
    "iceberg_commits",
)
HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results"
DOCS: Final = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: written by `python -m benchmarks --docs` -->", "<!-- end of results -->"


def main() -> int:
    """Do what the command line says."""
    parser = _parser()
    options = parser.parse_args()
    if unknown := set(options.name) - set(QUESTIONS):
        parser.error(f"no such question: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}")
    kept = options.json or RESULTS
    if options.docs:
        _write_docs(kept)
        return 0
    missed = 0
    for name in options.name or QUESTIONS:
        report = _run(name, Scale(options.quick))
        print(report.text(), flush=True)
        # A quick look must not replace the numbers that the docs quote.
        if options.json or not options.quick:
            report.write(kept / f"{name}.json")
        missed += sum(not bar.met for bar in report.bars)
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"{', '.join(QUESTIONS)}; all when none is named")
    parser.add_argument("--quick", action="store_true", help="small counts, to see that it works; keeps nothing")
    parser.add_argument("--json", type=Path, metavar="DIR", help=f"keep results there, not in {RESULTS.name}/")
    parser.add_argument("--docs", action="store_true", help="only rewrite the tables of docs/benchmarks.md")
    return parser


def _run(name: str, scale: Scale) -> Report:
    script = importlib.import_module(f"benchmarks.{name}")
    answer: Callable[[Scale, Path], Report] = script.answer
    started, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="takehold-bench-", ignore_cleanup_errors=True) as directory:
        report = answer(scale, Path(directory))
    question = (inspect.getdoc(script) or "").splitlines()[0]
    run = {"load before": f"{load:.2f}", "took": f"{time.monotonic() - started:.0f} s"}
    return replace(report, name=name, question=question, conditions=report.conditions | run)


def _write_docs(kept: Path) -> None:
    reports = [Report.read(path) for name in QUESTIONS if (path := kept / f"{name}.json").exists()]
    lines = ["| asked for | measured | |", "|---|---:|---|"]
    for report in reports:
        lines += [f"| {bar.what} | {bar.sentence} | {'pass' if bar.met else '**miss**'} |" for bar in report.bars]
    body = "\n".join([*lines, "", *(report.markdown() for report in reports)])
    before, _, rest = DOCS.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCS.write_text(f"{before}{BEGIN}\n\n{body}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
