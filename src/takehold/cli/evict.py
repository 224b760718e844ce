"""`takehold evict`: ask an owner to give up a hold; end the owner only when told to, knowing what dies with it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from takehold.cli.command import complain
from takehold.cli.look import person, records_of
from takehold.cli.options import FAILED, OK, Parser, locks_of, seconds, shown_url
from takehold.cli.processes import holding_open, inode, title
from takehold.cli.show import as_json, duration, one_line
from takehold.core.record import HoldRecord
from takehold.errors import TakeholdError, UsageError
from takehold.locks._sync import Locks

__all__ = ["main", "parser"]

EXAMPLES: Final = """\
  takehold evict 4121.9f3a51c2-0-7      that hold and no other: its owner sees HoldLost, its other holds stay
  takehold evict --key nightly          every hold on a key
  takehold evict --pid 4121 --terminate every hold of a process; end it if it does not answer"""

PAUSE: Final = 0.01


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Make an owner give up a hold.", EXAMPLES)
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("hold", nargs="?", metavar="HOLD_ID", help="the id that `takehold ls` shows")
    which.add_argument("--key", help="every hold on this key")
    which.add_argument("--pid", type=int, help="every hold of this process")
    made.add_argument("--namespace", metavar="NS", help="with --key: only this namespace (default: all)")
    made.add_argument(
        "--terminate", action="store_true",
        help="kill an owner that does not answer in time, with everything else it holds; asks first",
    )  # fmt: skip
    made.add_argument("--yes", action="store_true", help="answer yes to the question whether to end a silent owner")
    made.add_argument(
        "--timeout", type=seconds, default=2.0, metavar="S", help="how long an owner may take (default 2)"
    )
    return made


def main(args: argparse.Namespace) -> int:
    """Ask, wait, and end what must be ended."""
    locks = locks_of(args)
    records = records_of(locks)
    chosen = [record for record in records if record.state == "held" and _is_meant(record, args)]
    if not chosen:
        raise TakeholdError(f"{_nothing(args, records)}; `takehold ls` shows what there is")
    confirmed = args.terminate and _confirmed(locks, chosen, records, args)
    if args.terminate and not confirmed:
        raise TakeholdError("nothing was done")
    left = _ask(locks, chosen, args.timeout)
    if left and (confirmed or _may_end(locks, left, args)):
        left = _end(locks, left, args.timeout)
        ended = True
    else:
        ended = False
    _report(chosen, left, ended=ended, args=args, locks=locks)
    return FAILED if left else OK


def _is_meant(record: HoldRecord, args: argparse.Namespace) -> bool:
    if args.hold is not None:
        return record.id == args.hold  # type: ignore[no-any-return]
    if args.pid is not None:
        return record.owner.pid == args.pid  # type: ignore[no-any-return]
    return record.key == args.key and args.namespace in (None, record.namespace)


def _nothing(args: argparse.Namespace, records: Sequence[HoldRecord]) -> str:
    where = f"in {shown_url(args)}"
    if args.hold is not None:
        if any(record.id == args.hold for record in records):
            return f"{args.hold!r} only waits, it holds nothing; end its process to stop that"
        return f"there is no hold {args.hold!r} {where}"
    if args.pid is not None:
        return f"process {args.pid} holds nothing {where}"
    return f"nobody holds {args.key!r} {where}"


def _ask(locks: Locks, chosen: Sequence[HoldRecord], timeout: float) -> list[HoldRecord]:
    """Ask all owners, then wait for all of them together; those that are still there."""
    for record in chosen:
        locks.evict(record.id, timeout=0)
    return _left(locks, chosen, timeout)


def _left(locks: Locks, chosen: Sequence[HoldRecord], timeout: float) -> list[HoldRecord]:
    until = time.monotonic() + timeout
    while True:
        there = {record.id: record for record in records_of(locks) if record.state == "held"}
        left = [there[record.id] for record in chosen if record.id in there]
        if not left or time.monotonic() >= until:
            return left
        time.sleep(PAUSE)


def _may_end(locks: Locks, left: Sequence[HoldRecord], args: argparse.Namespace) -> bool:
    """Nobody said --terminate, but the owner is silent: somebody at a terminal can still decide it."""
    if not args.yes and not _interactive():
        return False
    return _confirmed(locks, left, records_of(locks), args)


def _interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _confirmed(
    locks: Locks, chosen: Sequence[HoldRecord], records: Sequence[HoldRecord], args: argparse.Namespace
) -> bool:
    """Show every hold that dies with these owners, then ask."""
    if args.yes:
        return True
    if not _interactive():
        raise UsageError("--terminate ends processes and asks first; without a terminal, say --yes")
    for pid in sorted({record.owner.pid for record in chosen}):
        dying = [record for record in records if record.owner.pid == pid]
        print(one_line(f"process {pid}, {title(pid)}, ends with"), file=sys.stderr)
        for record in dying:
            what = f"  {record.key!r} {record.state} for {duration(record.age)} at {record.owner.site}"
            print(one_line(what), file=sys.stderr)
        for keeper in sorted({pid for record in dying for pid in keepers(locks, record)} - {pid}):
            print(one_line(f"  process {keeper}, {title(keeper)}, which keeps its keys"), file=sys.stderr)
    print("kill? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _end(locks: Locks, left: Sequence[HoldRecord], timeout: float) -> list[HoldRecord]:
    """Kill the owners, then whoever inherited their keys. The backend makes sure that a pid is not reused."""
    for record in {record.owner.pid: record for record in left}.values():
        locks.evict(record.id, terminate=True, timeout=0)
    still = _left(locks, left, timeout)
    for record in still:
        for pid in keepers(locks, record):
            _kill(pid, locks, record)
    return _left(locks, still, timeout) if still else []


def _kill(pid: int, locks: Locks, record: HoldRecord) -> None:
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Looked at once more with the process in hand: the number may be another one's by now.
        if pid in keepers(locks, record):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError as error:
        complain(f"process {pid} cannot be killed: {error.strerror}")
    finally:
        os.close(process)


def keepers(locks: Locks, record: HoldRecord) -> list[int]:
    """Processes that keep a hold alive by an inherited descriptor, as `takehold run` gives to its command."""
    path = getattr(locks._backend, "path", None)
    if not isinstance(path, Path):
        return []
    try:
        board = inode(str(path / "boards" / record.id.rsplit("-", 2)[0]))
    except OSError:
        return []
    return [pid for pid in holding_open([board]) if pid != record.owner.pid]


def _report(
    chosen: Sequence[HoldRecord],
    left: Sequence[HoldRecord],
    *,
    ended: bool,
    args: argparse.Namespace,
    locks: Locks,
) -> None:
    still = {record.id for record in left}
    facts: list[dict[str, Any]] = []
    for record in chosen:
        gone = record.id not in still
        kept = [] if gone else keepers(locks, record)
        facts.append({**record.as_dict(), "gone": gone, "terminated": ended, "kept_by": kept})
        name = one_line(f"{record.key!r} ({record.id}) of {person(record.owner)}")
        if gone and not args.json:
            print(f"evicted {name}")
        elif not gone:
            complain(f"{name} is still held: {_why(kept, ended, args)}")
    if args.json:
        print(as_json(facts))


def _why(kept: Sequence[int], ended: bool, args: argparse.Namespace) -> str:
    if ended:
        return "its process could not be ended"
    more = "; --terminate ends it"
    if kept:
        return f"kept by {', '.join(f'{pid} ({one_line(title(pid))})' for pid in kept)}{more}"
    return f"no answer within {args.timeout:g} s{more}"
