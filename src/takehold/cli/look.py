"""`takehold ls` and `takehold who`: holders and waiters, by key."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from takehold.cli.options import OK, Parser, locks_of, seconds, shown_url
from takehold.cli.processes import exists
from takehold.cli.show import as_json, duration, one_line, print_table, table
from takehold.core.key import Key
from takehold.core.owner import Owner
from takehold.core.record import STUCK_AFTER, HoldRecord
from takehold.core.want import EXCLUSIVE, wants_for
from takehold.errors import BackendUnavailable, UsageError
from takehold.locks._sync import Locks

__all__ = ["main", "named", "parser", "records_of", "records_on"]

GLOB: Final = frozenset("*?[")

TITLES: Final = ("KEY", "STATE", "MODE", "FOR", "OWNER", "AT", "FENCE", "ID", "BEHIND")
OTHER_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
FIRST_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_REST: Final = "\x1b[J"

LS_EXAMPLES: Final = """\
  takehold ls                      everybody who holds or waits
  takehold ls 'orders/*' --top     keys that match, kept up to date; q ends it
  takehold ls --json               for a program"""
WHO_EXAMPLES: Final = """\
  takehold who nightly             who has it, since when, from where, who waits behind"""


def parser(name: str) -> Parser:
    """The options of either."""
    if name == "ls":
        made = Parser(name, "List who holds and who waits, by key.", LS_EXAMPLES)
        made.add_argument("pattern", nargs="?", default="*", help="keys to show; * ? [..] as in a shell")
        made.add_argument("--top", action="store_true", help="keep it up to date; q ends it")
        made.add_argument("--every", type=seconds, default=1.0, metavar="S", help="with --top (default 1)")
        made.set_defaults(show=_ls)
    else:
        made = Parser(name, "Show who holds one key and who waits for it.", WHO_EXAMPLES)
        made.add_argument("key", help="the key, exactly; of an advisory number also '#NUMBER' or its label alone")
        made.set_defaults(show=_who)
    made.add_argument("--namespace", metavar="NS", help="only this namespace (default: all)")
    made.add_argument(
        "--stuck-after", type=seconds, default=STUCK_AFTER, metavar="S",
        help=f"flag holds older than this (default {STUCK_AFTER:g})",
    )  # fmt: skip
    return made


def main(args: argparse.Namespace) -> int:
    """Show it."""
    return args.show(locks_of(args), args)  # type: ignore[no-any-return]


def records_of(locks: Locks, pattern: str = "*", namespace: str | None = None) -> list[HoldRecord]:
    """What `who` says, of one namespace or of all."""
    if not GLOB & set(pattern):
        return records_on(locks, pattern, namespace)
    return [record for record in _seen(locks, pattern) if namespace in (None, record.namespace)]


def records_on(locks: Locks, key: str, namespace: str | None = None) -> list[HoldRecord]:
    """Who holds or awaits exactly this key, also those that cannot say its name; a number also by its label."""
    records = named(locks, _seen(locks), key, namespace)
    return [record for record in records if _is(record.key, key) and namespace in (None, record.namespace)]


def _is(shown: str, key: str) -> bool:
    """Whether a key as it is shown is meant: `#42 prices` by all of it, by `#42`, or by `prices`."""
    number, _, label = shown.partition(" ") if shown.startswith("#") else ("", "", "")
    return key in (shown, number, label) if number else key == shown


def _seen(locks: Locks, pattern: str = "*") -> list[HoldRecord]:
    try:
        return locks.who(pattern)
    except OSError as error:
        raise BackendUnavailable(f"the locks cannot be read: {error}") from error


def named(locks: Locks, records: Sequence[HoldRecord], key: str, namespace: str | None) -> list[HoldRecord]:
    """A server knows only the number of a silent owner's key: call those by their text that are this key's."""
    spaces = {"", *(record.namespace for record in records)} if namespace is None else {namespace}
    texts = {f"#{place}": space for space in sorted(spaces, reverse=True) for place in _places(locks, key, space)}
    return [
        replace(record, key=key, namespace=texts[record.key]) if record.silent and record.key in texts else record
        for record in records
    ]


def _places(locks: Locks, key: str, namespace: str) -> list[object]:
    """What the backend makes of this text: as a plain string, and as the text of a `Key`."""
    found = []
    with suppress(UsageError):
        parts = [part.replace("%2F", "/").replace("%25", "%") for part in key.split("/")]
        for one in (key, Key(*parts)):
            wants = wants_for((one,), namespace=namespace, mode=EXCLUSIVE, subtree=False, place=locks._backend.place)
            found += [want.place for want in wants if not want.implied]
    return found


def _ls(locks: Locks, args: argparse.Namespace) -> int:
    if args.top and args.json:
        raise UsageError("--top is for people; use --json without it, as often as you like")
    if args.top and sys.stdout.isatty():
        return _top(locks, args)
    records = records_of(locks, args.pattern, args.namespace)
    if args.json:
        print(as_json([record.as_dict(args.stuck_after) for record in records]))
    elif records:
        print_table(TITLES, rows(locks, records, args.stuck_after))
    else:
        print(_nobody(args))
    return OK


def _who(locks: Locks, args: argparse.Namespace) -> int:
    records = records_on(locks, args.key, args.namespace)
    if args.json:
        print(as_json([record.as_dict(args.stuck_after) for record in records]))
        return OK
    if not records:
        print(f"nobody holds {args.key!r} or waits for it in {shown_url(args)}")
    for record in records:
        print(*detail(locks, record, records, args.stuck_after), sep="\n")
    return OK


def _nobody(args: argparse.Namespace) -> str:
    which = "" if args.pattern == "*" else f" a key like {args.pattern!r}"
    return f"nobody holds or waits for{which or ' anything'} in {shown_url(args)}"


def rows(locks: Locks, records: Sequence[HoldRecord], stuck_after: float) -> list[tuple[str, ...]]:
    """One row per record, under `TITLES`."""
    owners = {record.id: record.owner for record in records}
    return [
        (
            f"{record.namespace}:{record.key}" if record.namespace else record.key,
            state(locks, record, stuck_after),
            record.mode,
            duration(record.age),
            person(record.owner),
            record.owner.site,
            str(record.fence or ""),
            record.id,
            ", ".join(person(owners[id]) if id in owners else id for id in record.blocked_by),
        )
        for record in records
    ]


def state(locks: Locks, record: HoldRecord, stuck_after: float) -> str:
    """Held or waiting, and what is odd about it."""
    odd = ["stuck?"] if record.stuck(stuck_after) else []
    if record.silent and locks.capabilities.across != "host":
        odd.append("silent")  # a pid of another host says nothing here
    elif record.silent:
        odd.append("frozen" if exists(record.owner.pid) else "owner gone")
    return " ".join([record.state, *odd])


def person(owner: Owner) -> str:
    """Host, pid and label."""
    return f"{owner.host}:{owner.pid}" + (f" ({owner.label})" if owner.label else "")


def detail(locks: Locks, record: HoldRecord, records: Sequence[HoldRecord], stuck_after: float) -> list[str]:
    """One record as a paragraph."""
    verb = "held" if record.state == "held" else "waited for"
    space = f" (namespace {record.namespace!r})" if record.namespace else ""
    lines = [
        f"{record.key!r}{space} is {verb} by {person(record.owner)}",
        f"  at     {record.owner.site}",
        f"  mode   {record.mode}",
        f"  since  {record.since.astimezone():%Y-%m-%d %H:%M:%S} ({duration(record.age)})",
        f"  id     {record.id}",
    ]
    if record.fence is not None:
        lines.append(f"  fence  {record.fence}")
    owners = {other.id: other.owner for other in records}
    lines += [f"  behind {person(owners[id]) if id in owners else id}" for id in record.blocked_by]
    if (odd := state(locks, record, stuck_after)) != record.state:
        lines.append(f"  state  {odd}")
    return [one_line(line) for line in lines]


# -- --top -------------------------------------------------------------------------------------------


def _top(locks: Locks, args: argparse.Namespace) -> int:
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    modes = termios.tcgetattr(keyboard) if keyboard is not None else None
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        sys.stdout.write(OTHER_SCREEN)
        while True:
            _draw(locks, args)
            if _quit_within(args.every, keyboard):
                return OK
    except KeyboardInterrupt:
        return OK
    finally:
        sys.stdout.write(FIRST_SCREEN)
        sys.stdout.flush()
        if keyboard is not None and modes is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, modes)


def _draw(locks: Locks, args: argparse.Namespace) -> None:
    records = records_of(locks, args.pattern, args.namespace)
    holding = sum(record.state == "held" for record in records)
    width, height = shutil.get_terminal_size()
    lines = [f"{holding} held, {len(records) - holding} waiting in {shown_url(args)} (q ends)"]
    lines += table(TITLES, rows(locks, records, args.stuck_after)) if records else [_nobody(args)]
    shown = [line[:width] + CLEAR_LINE for line in lines[: height - 1]]
    sys.stdout.write(HOME + "\n".join(shown) + "\n" + CLEAR_REST)
    sys.stdout.flush()


def _quit_within(pause: float, keyboard: int | None) -> bool:
    ready, _, _ = select.select([keyboard] if keyboard is not None else [], [], [], pause)
    # Nothing to read from a keyboard that is ready: it was hung up.
    return bool(ready) and os.read(ready[0], 64)[:1] in (b"q", b"Q", b"\x04", b"")
