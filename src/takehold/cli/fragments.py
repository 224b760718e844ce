"""`takehold fragments`: process a corpus, say how far it is, give another chance to what failed."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from takehold.backends import masked
from takehold.cli.command import complain
from takehold.cli.options import BUSY, FAILED, OK, Parser, seconds
from takehold.cli.progress import final_line, progress
from takehold.cli.show import as_json, duration, one_line, print_table
from takehold.core.record import STUCK_AFTER
from takehold.errors import UsageError

if TYPE_CHECKING:
    from takehold.fragments import AsyncWorker, Counts, Pipeline, Worker

__all__ = ["main", "parser"]

DEFAULT: Final = "sqlite:///takehold-fragments.db"
EXAMPLES: Final = """\
  takehold fragments run pipeline.py:terms docs/ --concurrency 8         ledger and results in takehold-fragments.db
  takehold fragments run app.rdf:pipeline docs/ --url postgresql://app@db/app     the same on each replica
  takehold fragments status                                              done, failed, who has what, what looks stuck
  takehold fragments retry                                               another chance for what failed"""
CODES: Final = """\
exit codes: 0 everything is done, or stopped by SIGTERM; 1 something failed; 2 wrong usage; 69 the backend does not
answer or refuses; 75 somebody else still holds the rest; 130 stopped by Ctrl-C"""
SHOWN: Final = 20
HELD: Final = ("HELD", "STATE", "FOR", "OWNER", "KEY", "SESSION", "ID")


class _Sub(Parser):
    """`takehold fragments run` and the like: argparse makes these itself."""

    def __init__(self, *, prog: str, purpose: str, **_: Any) -> None:
        super().__init__(prog.removeprefix("takehold "), purpose, EXAMPLES, codes=CODES)


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(
        "", "Process the fragments of a corpus, each once, with any number of replicas.", EXAMPLES, codes=CODES
    )
    made.prog = f"takehold {name}"
    which = made.add_subparsers(dest="what", required=True, metavar="run|status|retry", parser_class=_Sub)

    run = which.add_parser("run", purpose="Extract, validate and write what is new, changed or due.")
    run.add_argument(
        "pipeline", metavar="PIPELINE", help="module:name or file.py:name of a takehold.fragments.Pipeline"
    )
    run.add_argument("corpus", metavar="CORPUS", help="a directory, or module:name of a corpus of your own")
    run.add_argument("--name", help="of the corpus, the same on every replica (default: that of the directory)")
    run.add_argument("--concurrency", type=int, default=4, metavar="N", help="fragments at the same time (default 4)")
    run.add_argument(
        "--attempts", type=int, default=3, metavar="N", help="tries until a fragment has failed (default 3)"
    )
    run.add_argument("--force", action="store_true", help="make everything due again first; for one replica")
    run.add_argument("--label", metavar="L", help="a name for this replica")
    run.add_argument(
        "--patience", type=seconds, default=300.0, metavar="S",
        help="leave with 75 when nothing has happened for so long and others hold the rest (default 300)",
    )  # fmt: skip
    run.add_argument(
        "--grace", type=seconds, default=30.0, metavar="S",
        help="after SIGTERM: how long what has begun may take before it is released (default 30)",
    )  # fmt: skip
    run.set_defaults(do=_run)

    status = which.add_parser("status", purpose="Show what is done, what failed, and who has what.")
    status.set_defaults(do=_status)
    retry = which.add_parser("retry", purpose="Make what failed due again, for the next run.")
    retry.set_defaults(do=_retry)
    for one in (status, retry):
        one.add_argument("--profile", default="", help="only this profile (default: all)")
        one.add_argument("--corpus", default="", help="only this corpus (default: all)")
    for one in (run, status):
        one.add_argument(
            "--stuck-after", type=seconds, default=STUCK_AFTER, metavar="S",
            help=f"flag claims older than this (default {STUCK_AFTER:g})",
        )  # fmt: skip
    return made


def main(args: argparse.Namespace) -> int:
    """Do it."""
    try:
        import takehold.fragments  # noqa: F401
    except ImportError as error:
        raise UsageError(str(error)) from error
    if args.url is None:
        args.url = os.environ.get("TAKEHOLD_URL") or DEFAULT
    return args.do(args)  # type: ignore[no-any-return]


# -- run ---------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from takehold.fragments import AsyncWorker, Worker

    pipeline = _pipeline(args.pipeline)
    made = AsyncWorker if pipeline.asynchronous else Worker
    worker = made(
        pipeline, _corpus(args), args.url, concurrency=args.concurrency, attempts=args.attempts, force=args.force,
        label=args.label, patience=args.patience, grace=args.grace, stuck_after=args.stuck_after,
    )  # fmt: skip
    with _stopped_by_signals(worker) as caught, progress(quiet=args.json) as show:
        counts = asyncio.run(worker.run(show)) if isinstance(worker, AsyncWorker) else worker.run(show)
    _report(counts, args)
    sys.stdout.flush()
    if signal.SIGINT in caught:
        return 128 + signal.SIGINT
    if signal.SIGTERM in caught:
        return OK
    if counts.failures:
        return FAILED
    return OK if counts.complete else BUSY


def _report(counts: Counts, args: argparse.Namespace) -> None:
    if args.json:
        print(as_json({**counts.as_dict(), "url": masked(args.url)}))
        return
    print(final_line(counts))
    for failure in counts.failures[:SHOWN]:
        complain(one_line(f"{failure.identity}: {failure.error} (attempts: {failure.attempts})"))
    if len(counts.failures) > SHOWN:
        complain(f"and {len(counts.failures) - SHOWN} more; takehold fragments status lists them")


@contextmanager
def _stopped_by_signals(worker: Worker | AsyncWorker) -> Iterator[set[int]]:
    """SIGTERM and the first Ctrl-C stop taking work; the second Ctrl-C ends at once."""
    caught: set[int] = set()

    def stop(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in caught:
            raise KeyboardInterrupt
        caught.add(number)
        worker.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pipeline(text: str) -> Pipeline[Any]:
    from takehold.fragments import Pipeline

    found = _named(text, "PIPELINE")
    if not isinstance(found, Pipeline):
        raise UsageError(f"{text!r} is no takehold.fragments.Pipeline, it is {type(found).__name__}")
    return found


def _corpus(args: argparse.Namespace) -> Any:
    from takehold.fragments import Folder

    if os.path.isdir(args.corpus) or ":" not in args.corpus:
        return Folder(args.corpus, args.name)
    return _named(args.corpus, "CORPUS")


def _named(text: str, what: str) -> Any:
    """What `module:name` or `file.py:name` says."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UsageError(f"{what} is module:name or file.py:name, not {text!r}")
    sys.path.insert(0, os.getcwd())
    if place.endswith(".py"):
        path = Path(place).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UsageError(f"there is no file {place!r}")
        sys.path.insert(0, str(path.parent))
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and (place == error.name or place.startswith(f"{error.name}.")):
                raise UsageError(f"there is no module {place!r} on {sys.path[:2]} and so on") from error
            raise
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UsageError(f"{place!r} has no {name!r}")
    return found


# -- status and retry ----------------------------------------------------------------------------------------


def _status(args: argparse.Namespace) -> int:
    from takehold.fragments import Look

    look = Look(args.url, profile=args.profile, corpus=args.corpus)
    tallies, failures, held = look.tallies(), look.failures(), look.in_hand(args.stuck_after)
    if args.json:
        facts = {
            "format": 1,
            "runs": [{"corpus": t.corpus, "profile": t.profile, "status": t.status, "count": t.count} for t in tallies],
            "failures": [
                {
                    "identity": one.identity, "profile": one.profile, "attempts": one.attempts, "error": one.error,
                    "owner": one.owner, "when": one.when.isoformat(),
                }
                for one in failures
            ],
            "held": [one.as_dict() for one in held],
        }  # fmt: skip
        print(as_json(facts))
        return OK
    if not tallies:
        print(f"nothing is known in {masked(args.url)}")
    else:
        titles = ("CORPUS", "PROFILE", "STATUS", "FRAGMENTS")
        print_table(titles, [(one.corpus, one.profile, one.status, str(one.count)) for one in tallies])
    if held:
        print()
        print_table(HELD, [_held_row(one) for one in held])
    if failures:
        print()
        rows = [
            (one.identity, one.profile, str(one.attempts), one.error, f"{one.when.astimezone():%Y-%m-%d %H:%M:%S}")
            for one in failures
        ]
        print_table(("FAILED", "PROFILE", "ATTEMPTS", "ERROR", "WHEN"), rows)
    return OK


def _held_row(one: Any) -> tuple[str, ...]:
    sessions = [f"{at['pid']} {at['usename']} {at['state']}" for at in one.sessions if at["granted"]]
    return (
        one.identity,
        "held stuck?" if one.stuck else "held",
        duration(one.seconds),
        one.owner,
        str(one.key),
        ", ".join(sessions),
        one.hold,
    )


def _retry(args: argparse.Namespace) -> int:
    from takehold.fragments import Look

    count = Look(args.url, profile=args.profile, corpus=args.corpus).retry()
    print(as_json({"due": count}) if args.json else f"{count} due again: takehold fragments run tries them")
    return OK
