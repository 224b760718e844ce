"""`takehold serve`: an Iceberg REST catalog on a directory or a bucket."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from takehold.cli.options import OK, Parser
from takehold.cli.show import one_line
from takehold.errors import UsageError

if TYPE_CHECKING:
    from takehold.server.opening import Opened

__all__ = ["main", "parser", "store_of", "takes_store"]

PORT: Final = 8181
DEFAULT_STORE: Final = "lake"

EXAMPLES: Final = """\
  takehold serve                                     tables in ./lake, on http://127.0.0.1:8181, locks beside them
  takehold serve --warehouse s3://bucket/lake --locks postgresql://app@db/app
                                                     one of several servers that act as one
  takehold serve --host 0.0.0.0 --token-file tokens  for other machines; lines like `write TOKEN` in the file"""

TRY: Final = """
The catalog is up. In Python (pip install 'pyiceberg[pyarrow]'):

    from pyiceberg.catalog import load_catalog
    catalog = load_catalog("lake", type="rest", uri="{uri}", warehouse="{name}")
    catalog.create_namespace("shop")

In DuckDB (INSTALL iceberg):

    ATTACH '{name}' AS lake (TYPE ICEBERG, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none');

{uri}/healthz says how it is, {uri}/metrics what it counts. Ctrl-C ends it."""


def takes_store(parser: argparse.ArgumentParser) -> None:
    """The options of every command about a catalog: where its objects are, and its locks."""
    parser.add_argument(
        "--warehouse", metavar="DIR|URL",
        help="where everything is: a directory, or s3://BUCKET/PREFIX?endpoint=URL with its keys in the environment "
        f"(default: $TAKEHOLD_WAREHOUSE, else ./{DEFAULT_STORE})",
    )  # fmt: skip
    parser.add_argument(
        "--locks", metavar="URL",
        help="file:DIRECTORY, memory:, postgresql://USER@HOST/DATABASE (default: files beside the directory; a bucket "
        "has none of its own: name those that all its servers share)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def store_of(args: argparse.Namespace) -> str:
    """`--warehouse`, `TAKEHOLD_WAREHOUSE`, or the directory `lake`."""
    return args.warehouse or os.environ.get("TAKEHOLD_WAREHOUSE") or DEFAULT_STORE


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Serve an Iceberg REST catalog. SIGTERM and Ctrl-C end it.", EXAMPLES, url=False)
    takes_store(made)
    made.add_argument("--name", default="main", help="the warehouse of clients that name none (default main)")
    made.add_argument("--host", default="127.0.0.1", help="the address to listen on (default 127.0.0.1)")
    made.add_argument("--port", type=port, default=PORT, help=f"0 takes a free one (default {PORT})")
    made.add_argument(
        "--token-file", metavar="FILE", help="who may do what: lines of a scope (read, write, admin) and a token; "
        "needed for every address but loopback",
    )  # fmt: skip
    made.add_argument(
        "--vend-credentials", action="store_true", help="give clients that ask the S3 keys of this process"
    )
    made.add_argument(
        "--log", choices=("errors", "all"), default="errors", help="which requests are logged; with --json as JSON"
    )
    return made


def port(text: str) -> int:
    """A port, for argparse."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Serve until somebody says stop."""
    try:
        from takehold.server.serving import Plan, serve
    except ImportError as error:
        raise UsageError(f"serving takes more packages: pip install 'takehold[server]' ({error})") from error
    plan = Plan(
        store=store_of(args),
        locks=args.locks,
        host=args.host,
        port=args.port,
        token_file=args.token_file,
        warehouse=args.name,
        vend=args.vend_credentials,
        log=args.log,
        json=args.json,
    )

    def ready(uri: str, opened: Opened) -> None:
        if not args.json:
            place = one_line(opened.store.location)
            print(f"{uri}  warehouse {args.name!r} in {place}, locks {opened.locks} ({opened.locks_url})")
            print(TRY.format(uri=uri, name=args.name), flush=True)

    serve(plan, ready)
    return OK
