"""What every command shares: exit codes, the parser with its one-line errors, `--url` and `--json`."""

from __future__ import annotations

import argparse
import math
from functools import partial
from typing import Any, Final, NoReturn

from takehold.backends import default_url, masked
from takehold.core.deadline import Timeout
from takehold.errors import BackendError, LockTimeout, TakeholdError, UsageError, WouldDeadlock
from takehold.locks._sync import Locks

__all__ = [
    "Parser",
    "code_of",
    "locks_of",
    "seconds",
    "settle_place",
    "shown_url",
    "takes_place",
    "timeout",
    "url_of",
]

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 69
"""`EX_UNAVAILABLE`: the backend does not answer, or refuses."""
BUSY: Final = 75
"""`EX_TEMPFAIL`: somebody else has the key; try again later."""
LOST: Final = 76
"""Only `run`: the hold was lost and the command was stopped."""
CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127

EXIT_CODES: Final = """\
exit codes: 0 ok, 1 failed, 2 wrong usage, 69 the backend does not answer or refuses, 75 the key is busy"""


def code_of(error: TakeholdError) -> int:
    """The exit code that says what kind of no this is."""
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, LockTimeout | WouldDeadlock):
        return BUSY
    if isinstance(error, BackendError):
        return UNAVAILABLE
    return FAILED


class Parser(argparse.ArgumentParser):
    """One command's options; a mistake is one line on stderr and exit code 2."""

    def __init__(self, command: str, purpose: str, examples: str, *, codes: str = EXIT_CODES, url: bool = True) -> None:
        super().__init__(
            prog=f"takehold {command}".rstrip(),
            description=purpose,
            epilog=f"examples:\n{examples}\n\n{codes}" if examples else codes,
            # A width of its own: asking the terminal costs every command the import of shutil.
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=110),
            allow_abbrev=False,
        )
        if command and url:
            self.add_argument(
                "--url", help="where the locks live: file:DIRECTORY, sqlite:///FILE, postgresql://USER@HOST/DATABASE, "
                "lease+postgresql://... (default: $TAKEHOLD_URL, "
                "else the file backend in your state directory)",
            )  # fmt: skip
            self.add_argument("--json", action="store_true", help="answer as JSON")

    def error(self, message: str) -> NoReturn:
        """Leave with the reason and where to read more."""
        raise UsageError(f"{message} (see: {self.prog} --help)")


def seconds(text: str) -> float:
    """A duration of zero or more, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def timeout(text: str) -> Timeout:
    """Seconds, or `none` for ever, for argparse."""
    if text.lower() == "none":
        return None
    try:
        return seconds(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither seconds (0: one attempt) nor 'none' (wait for ever)"
        ) from None


def takes_place(parser: Parser) -> None:
    """For commands about a backend itself: the URL may stand without its option."""
    parser.add_argument("place", nargs="?", metavar="URL", help="the same as --url")


def settle_place(args: argparse.Namespace) -> None:
    """Make `args.url` of either."""
    if args.place is not None and args.url not in (None, args.place):
        raise UsageError(f"two URLs: {masked(args.place)!r} and --url {masked(args.url)!r}; give one")
    args.url = args.place if args.place is not None else args.url


def url_of(args: argparse.Namespace) -> str:
    """`--url`, `TAKEHOLD_URL`, or the embedded default."""
    return args.url if args.url is not None else default_url()


def shown_url(args: argparse.Namespace) -> str:
    """The same without its password."""
    return masked(url_of(args))


def locks_of(args: argparse.Namespace, **options: Any) -> Locks:
    """The locks a command works on; those of one process only would be this command's own, so they are refused."""
    locks = Locks(url_of(args), **options)
    if locks.capabilities.across == "process":
        origin = "--url" if args.url is not None else "TAKEHOLD_URL"
        raise UsageError(
            f"{origin} is {shown_url(args)!r}, and memory locks live inside one process: no command can see or share "
            "them; use file:DIRECTORY"
        )
    return locks
