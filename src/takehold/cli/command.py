"""`main`: find the command, run it, turn every error into one line and an exit code.

A command is a module with `parser()` and `main(args)`; only the one that is asked for is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import takehold
from takehold.cli.options import Parser, code_of
from takehold.errors import TakeholdError, UsageError

__all__ = ["main"]

COMMANDS: Final = {
    "run": ("run", "run a command while holding a key"),
    "ls": ("look", "list who holds and who waits"),
    "who": ("look", "show one key"),
    "evict": ("evict", "make somebody give up a hold"),
    "doctor": ("doctor", "check a backend and say what to do"),
    "init": ("init", "prepare a backend"),
    "bench": ("bench", "measure locks on this machine"),
    "fragments": ("fragments", "process a corpus, each fragment once"),
    "serve": ("serve", "serve an Iceberg catalog over HTTP"),
    "iceberg": ("iceberg", "look after an Iceberg catalog"),
}
"""Its module, and one line about it."""

PIPE_CLOSED: Final = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except TakeholdError as error:
        complain(str(error))
        return code_of(error)
    except BrokenPipeError:
        # `takehold ls | head`: nobody reads on. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        # Die of it, so that a shell script around us stops as well.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 128 + signal.SIGINT


def complain(sentence: str) -> None:
    """One line on stderr; drivers speak in several."""
    print(f"takehold: {' '.join(part.strip() for part in sentence.splitlines())}", file=sys.stderr, flush=True)


def _dispatch(words: list[str]) -> int:
    top = _top()
    if not words or words[0] not in COMMANDS:
        if words and not words[0].startswith("-"):
            raise UsageError(f"there is no command {words[0]!r}; commands: {', '.join(COMMANDS)}")
        top.parse_args(words)
        top.error(f"say what to do: {', '.join(COMMANDS)}")
    name, *rest = words
    module = import_module(f"takehold.cli.{COMMANDS[name][0]}")
    parser: Parser = module.parser(name)
    # What follows `--` is not ours to read: it may have a -k of its own.
    end = rest.index("--") if "--" in rest else len(rest)
    args = parser.parse_args(rest[:end])
    args.command = rest[end + 1 :]
    args.split = end < len(rest)
    if args.split and name != "run":
        parser.error("only `takehold run` takes a command after --")
    code: int = module.main(args)
    sys.stdout.flush()
    return code


def _top() -> Parser:
    about = "\n".join(f"  takehold {name:<9} {what}" for name, (_, what) in COMMANDS.items())
    top = Parser("", f"{takehold.__doc__}\n\n{about}\n\n`takehold COMMAND --help` has the options.", "")
    top.add_argument("--version", action="version", version=f"takehold {takehold.__version__}")
    return top
