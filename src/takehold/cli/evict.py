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
from takehold.cli.look import named, person, records_of
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
PAUSE_OF_SERVERS: Final = 0.05
SHORT_HOST: Final = 30


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Make an owner give up a hold.", EXAMPLES)
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("hold", nargs="?", metavar="HOLD_ID", help="the id that `takehold ls` shows")
    which.add_argument("--key", help="every hold on this key")
    which.add_argument(
        "--pid", type=int, help="every hold of this process; of a program without takehold, the server process"
    )
    made.add_argument("--namespace", metavar="NS", help="with --key: only this namespace (default: all)")
    made.add_argument(
        "--terminate", action="store_true",
        help="end an owner that does not answer in time, with everything else it holds: its process on files, its "
        "session on a server; asks first",
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
    if args.key is not None:
        records = named(locks, records, args.key, args.namespace)
    chosen = [record for record in records if record.state == "held" and _is_meant(record, args)]
    if not chosen:
        raise TakeholdError(f"{_nothing(args, records)}; `takehold ls` shows what there is")
    _refuse_two_hosts(chosen, args)
    confirmed = args.terminate and _confirmed(locks, chosen, records, args)
    if args.terminate and not confirmed:
        raise TakeholdError("nothing was done")
    left = _ask(locks, chosen, args.timeout)
    report = _Report(locks, args, chosen)
    if left and (confirmed or _may_end(locks, left, args)):
        report.ends(left, _known(locks, chosen))
        left = _end(locks, left, args.timeout)
    report.show(left)
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


def _refuse_two_hosts(chosen: Sequence[HoldRecord], args: argparse.Namespace) -> None:
    hosts = sorted({record.owner.host for record in chosen})
    if args.pid is not None and len(hosts) > 1:
        raise UsageError(f"there is a process {args.pid} on {' and on '.join(hosts)}; give hold ids instead")


def _ask(locks: Locks, chosen: Sequence[HoldRecord], timeout: float) -> list[HoldRecord]:
    """Ask all owners, then wait for all of them together; those that are still there."""
    for record in chosen:
        locks.evict(record.id, timeout=0)
    return _left(locks, chosen, timeout)


def _left(locks: Locks, chosen: Sequence[HoldRecord], timeout: float) -> list[HoldRecord]:
    """Those that are still held, as they look now, in the order of `chosen`."""
    until = time.monotonic() + timeout
    while True:
        there = [record for record in _known(locks, chosen) if record.state == "held"]
        found = [next((other for other in there if _same(locks, record, other)), None) for record in chosen]
        left = [record for record in found if record is not None]
        if not left or time.monotonic() >= until:
            return left
        time.sleep(PAUSE if locks.capabilities.across == "host" else PAUSE_OF_SERVERS)


def _known(locks: Locks, chosen: Sequence[HoldRecord]) -> list[HoldRecord]:
    """Everybody, and those on the chosen keys by name."""
    records = records_of(locks)
    for key, namespace in {(record.key, record.namespace): None for record in chosen}:
        records = named(locks, records, key, namespace)
    return records


def _same(locks: Locks, record: HoldRecord, other: HoldRecord) -> bool:
    """Whether this is that hold. A server has another id for it when its owner has fallen silent meanwhile."""
    if record.id == other.id or locks.capabilities.across == "host" or not other.silent:
        return record.id == other.id
    names = (record.key, record.namespace) == (other.key, other.namespace)
    return names and _person(record) == _person(other)


def _person(record: HoldRecord) -> tuple[str, int]:
    """One process, or one session of somebody else; hosts are cut short where a server keeps their names."""
    return record.owner.host[:SHORT_HOST], record.owner.pid


def _may_end(locks: Locks, left: Sequence[HoldRecord], args: argparse.Namespace) -> bool:
    """Nobody said --terminate, but the owner is silent: somebody at a terminal can still decide it."""
    if not args.yes and not _interactive():
        return False
    return _confirmed(locks, left, _known(locks, left), args)


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
    for first in {_person(record): record for record in reversed(chosen)}.values():
        print(one_line(f"{_subject(locks, first)}, ends with"), file=sys.stderr)
        dying = _dying(locks, first, records)
        for record in dying:
            what = f"  {record.key!r} {record.state} for {duration(record.age)} at {record.owner.site}"
            print(one_line(what), file=sys.stderr)
        for keeper in sorted({pid for record in dying for pid in keepers(locks, record)} - {first.owner.pid}):
            print(one_line(f"  process {keeper}, {title(keeper)}, which keeps its keys"), file=sys.stderr)
    print("kill? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _subject(locks: Locks, record: HoldRecord) -> str:
    """What is ended: a process of this host, or a session at a server."""
    if locks.capabilities.across == "host":
        return f"process {record.owner.pid}, {title(record.owner.pid)}"
    return f"the session of {person(record.owner)}, {record.owner.site}"


def _dying(locks: Locks, record: HoldRecord, records: Sequence[HoldRecord]) -> list[HoldRecord]:
    """What goes when this owner is ended; where only holds can be ended, that one."""
    if locks.capabilities.evict != "terminate":
        return [record]
    return [other for other in records if _person(other) == _person(record)]


def _end(locks: Locks, left: Sequence[HoldRecord], timeout: float) -> list[HoldRecord]:
    """End the owners, then whoever inherited their keys. The backend makes sure that a pid is not reused."""
    # One process of this host has one life; at a server each hold may be on a session of its own.
    one_each = locks.capabilities.across == "host"
    for record in {record.owner.pid: record for record in left}.values() if one_each else left:
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


class _Report:
    """What became of the chosen holds, and of others that went with them."""

    def __init__(self, locks: Locks, args: argparse.Namespace, chosen: Sequence[HoldRecord]) -> None:
        self._locks = locks
        self._args = args
        self._chosen = chosen
        self._ended: list[HoldRecord] = []
        self._with_them: list[HoldRecord] = []

    def ends(self, left: Sequence[HoldRecord], records: Sequence[HoldRecord]) -> None:
        """Note before the end what is going to die."""
        self._ended = list(left)
        dying = {record.id: record for one in left for record in _dying(self._locks, one, records)}
        known = [*self._chosen, *left]
        self._with_them = [
            record for record in dying.values() if not any(_same(self._locks, one, record) for one in known)
        ]

    def show(self, left: Sequence[HoldRecord]) -> None:
        """Print it."""
        facts = [self._fact(record, left) for record in self._chosen]
        if not left:
            for record in self._with_them:
                if not self._args.json:
                    print(one_line(f"ended with it: {record.key!r} {record.state} ({record.id})"))
                facts.append({**record.as_dict(), "gone": True, "terminated": True, "kept_by": []})
        if self._args.json:
            print(as_json(facts))

    def _fact(self, record: HoldRecord, left: Sequence[HoldRecord]) -> dict[str, Any]:
        gone = not any(_same(self._locks, record, other) for other in left)
        ended = any(_same(self._locks, record, other) for other in self._ended)
        kept = [] if gone else keepers(self._locks, record)
        name = one_line(f"{record.key!r} ({record.id}) of {person(record.owner)}")
        if not gone:
            complain(f"{name} is still held: {self._why(kept, ended)}")
        elif not self._args.json:
            print(f"evicted {name}")
        return {**record.as_dict(), "gone": gone, "terminated": ended, "kept_by": kept}

    def _why(self, kept: Sequence[int], ended: bool) -> str:
        server = self._locks.capabilities.across != "host"
        if ended:
            return "this role could not end its session" if server else "its process could not be ended"
        whole = server and self._locks.capabilities.evict == "terminate"
        more = f"; --terminate ends {'its session, with all it holds' if whole else 'it'}"
        if kept:
            return f"kept by {', '.join(f'{pid} ({one_line(title(pid))})' for pid in kept)}{more}"
        return f"no answer within {self._args.timeout:g} s{more}"
