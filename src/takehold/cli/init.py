"""`takehold init`: make what a backend needs, and say what was done."""

from __future__ import annotations

import argparse
from typing import Final

from takehold.backends import backend_for
from takehold.cli.options import OK, Parser, settle_place, shown_url, takes_place, url_of
from takehold.cli.show import as_json
from takehold.errors import UsageError
from takehold.runtime import Threads, run

__all__ = ["main", "parser"]

HIGHEST_FENCE: Final = 2**62

EXAMPLES: Final = """\
  takehold init                                     the default lock directory
  takehold init postgresql://app@db/app             the schema takehold: holds have fences from then on
  takehold init file:/srv/app/locks --fence-from N  fences start above N, the last one of the former backend"""


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Prepare a backend. Twice does no harm.", EXAMPLES)
    takes_place(made)
    made.add_argument(
        "--fence-from", type=int, metavar="N",
        help="make every later fence greater than N: for an application that moves here from another backend",
    )  # fmt: skip
    return made


def main(args: argparse.Namespace) -> int:
    """Prepare it."""
    settle_place(args)
    if args.fence_from is not None and not 0 <= args.fence_from < HIGHEST_FENCE:
        raise UsageError(f"--fence-from takes 0 .. 2**62-1, not {args.fence_from}")
    backend = backend_for(url_of(args))
    if backend.capabilities.across == "process":
        raise UsageError(f"{shown_url(args)!r} needs no preparation: memory locks live inside one process")
    done = run(backend.init(Threads(), fence_from=args.fence_from))
    print(as_json({"url": shown_url(args), "done": done}) if args.json else done)
    return OK
