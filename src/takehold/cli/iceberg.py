"""`takehold iceberg`: warehouses, pending transactions, recovery, contention, and a look at every record."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from takehold.cli.options import FAILED, OK, Parser
from takehold.cli.serve import PORT, store_of, takes_store
from takehold.cli.show import as_json, duration, print_table
from takehold.errors import BackendRefused, BackendUnavailable, UsageError

if TYPE_CHECKING:
    from takehold.iceberg import Catalog, Warehouse

__all__ = ["main", "parser"]

EXAMPLES: Final = """\
  takehold iceberg warehouse create eu         a second warehouse in ./lake
  takehold iceberg transactions                changes of several tables that are under way
  takehold iceberg recover                     finish or undo what dead servers left
  takehold iceberg contention                  where requests meet, as a running server has counted
  takehold iceberg fsck                        look at every record; exit code 1 when something is wrong"""

SECONDS: Final = 10.0


def parser(name: str) -> Parser:
    """The options of all of them."""
    made = Parser(name, "Look after an Iceberg catalog.", EXAMPLES, url=False)
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Part)
    warehouse = commands.add_parser("warehouse", help="create, list, show and delete warehouses")
    kinds = warehouse.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Part)
    create = _leaf(kinds, "create", "make a warehouse", _create)
    create.add_argument("name")
    create.add_argument("--location", help="below that of the store (default: a place of its own)")
    _leaf(kinds, "list", "all warehouses", _list)
    _leaf(kinds, "show", "one warehouse", _show).add_argument("name")
    _leaf(kinds, "delete", "delete an empty warehouse", _delete).add_argument("name")
    listed = _leaf(commands, "transactions", "changes of several records that are under way, oldest first", _pending)
    listed.add_argument("names", nargs="*", metavar="WAREHOUSE", help="only of these (default: of all)")
    recover = _leaf(commands, "recover", "finish or undo what dead servers left, now", _recover)
    recover.add_argument("names", nargs="*", metavar="WAREHOUSE", help="only in these (default: in all)")
    fsck = _leaf(commands, "fsck", "look at every record and say what is not as it should be", _fsck)
    fsck.add_argument("names", nargs="*", metavar="WAREHOUSE", help="only of these (default: of all)")
    fsck.add_argument("--repair", action="store_true", help="also put it right where that is safe")
    contention = commands.add_parser("contention", help="where requests meet, as a running server has counted")
    contention.add_argument("--server", default=f"http://127.0.0.1:{PORT}", help="default %(default)s")
    contention.add_argument("--token-file", metavar="FILE", help="a file with a token (default: $TAKEHOLD_TOKEN)")
    contention.add_argument("--json", action="store_true", help="answer as JSON")
    contention.set_defaults(work=None)
    return made


class _Part(argparse.ArgumentParser):
    """A command below `takehold iceberg`; its mistakes are told as everywhere."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{message} (see: {self.prog} --help)")


def _leaf(commands: Any, name: str, purpose: str, work: Callable[..., Awaitable[int]]) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=purpose, description=f"{purpose.capitalize()}.")
    takes_store(made)
    made.set_defaults(work=work)
    return made


def main(args: argparse.Namespace) -> int:
    """Do it."""
    if args.work is None:
        return _contention(args)
    try:
        from takehold.server.opening import open_all
    except ImportError as error:
        raise UsageError(f"this takes more packages: pip install 'takehold[server]' ({error})") from error

    async def opened() -> int:
        found = await open_all(store_of(args), args.locks)
        try:
            code: int = await args.work(found.catalog, args)
        finally:
            await found.catalog.close()
        return code

    return asyncio.run(opened())


# -- warehouses ----------------------------------------------------------------------------------------------


async def _create(catalog: Catalog, args: argparse.Namespace) -> int:
    made = await catalog.create_warehouse(args.name, location=args.location)
    _tell(args, _shown(made), f"{made.name} is in {made.location}")
    return OK


async def _list(catalog: Catalog, args: argparse.Namespace) -> int:
    found = await catalog.list_warehouses()
    if args.json:
        print(as_json([_shown(one) for one in found]))
    elif found:
        print_table(("WAREHOUSE", "LOCATION"), [(one.name, one.location) for one in found])
    else:
        print("there are no warehouses")
    return OK


async def _show(catalog: Catalog, args: argparse.Namespace) -> int:
    one = await catalog.get_warehouse(args.name)
    if args.json:
        print(as_json(_shown(one)))
    else:
        print_table(("WHAT", "VALUE"), [("name", one.name), ("location", one.location), *one.properties.items()])
    return OK


async def _delete(catalog: Catalog, args: argparse.Namespace) -> int:
    await catalog.delete_warehouse(args.name)
    _tell(args, {"deleted": args.name}, f"{args.name} is deleted")
    return OK


def _shown(one: Warehouse) -> dict[str, Any]:
    return {"name": one.name, "location": one.location, "properties": dict(one.properties)}


# -- transactions --------------------------------------------------------------------------------------------


async def _names(catalog: Catalog, args: argparse.Namespace) -> list[str]:
    if args.names:
        return [(await catalog.get_warehouse(name)).name for name in args.names]
    return [one.name for one in await catalog.list_warehouses()]


async def _pending(catalog: Catalog, args: argparse.Namespace) -> int:
    found = [(name, one) for name in await _names(catalog, args) for one in await catalog.transactions(name)]
    if args.json:
        print(as_json([{"warehouse": name, **asdict(one)} for name, one in found]))
    elif found:
        rows = [
            (one.id, name, one.kind, one.state, duration(one.age), ", ".join(one.tables), one.owner)
            for name, one in found
        ]
        print_table(("ID", "WAREHOUSE", "WHAT", "STATE", "AGE", "TABLES", "OWNER"), rows)
    else:
        print("nothing is under way")
    return OK


async def _recover(catalog: Catalog, args: argparse.Namespace) -> int:
    done = await catalog.recover(await _names(catalog, args))
    if args.json:
        print(as_json([asdict(one) for one in done]))
    elif done:
        print_table(("ID", "WHAT", "OUTCOME", "TABLES"), [(x.id, x.kind, x.outcome, ", ".join(x.tables)) for x in done])
    else:
        print("there was nothing to recover")
    return OK


async def _fsck(catalog: Catalog, args: argparse.Namespace) -> int:
    names = await _names(catalog, args)
    faults = [(name, one) for name in names for one in await catalog.fsck(name, repair=args.repair)]
    if args.json:
        print(as_json([{"warehouse": name, **asdict(one)} for name, one in faults]))
    elif faults:
        rows = [(x.kind, "repaired" if x.repaired else "", x.path, x.explanation) for _, x in faults]
        print_table(("FAULT", "STATE", "PATH", "EXPLANATION"), rows)
    else:
        print(f"{len(names)} warehouses, all is well")
    return FAILED if any(not one.repaired for _, one in faults) else OK


# -- contention ----------------------------------------------------------------------------------------------


def _contention(args: argparse.Namespace) -> int:
    counts = _asked(args)
    if args.json:
        print(as_json(counts))
        return OK
    titles = ("RESOURCE", "GRANTS", "WAITS", "WAITED", "TIMEOUTS", "CAS LOST", "RETRIES", "CONFLICTS")
    rows = [
        (
            name, str(one["grants"]), str(one["waits"]), duration(one["wait_seconds"]), str(one["timeouts"]),
            str(one["losses"]), str(one["retries"]), str(one["conflicts"]),
        )
        for name, one in counts.items()
    ]  # fmt: skip
    print_table(titles, rows)
    return OK


def _asked(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    if urlsplit(args.server).scheme not in ("http", "https"):
        raise UsageError(f"--server is a URL like http://127.0.0.1:{PORT}, not {args.server!r}")
    request = urllib.request.Request(f"{args.server.rstrip('/')}/contention")  # noqa: S310
    if token := _token(args):
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            found: dict[str, dict[str, Any]] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise BackendRefused(f"{args.server} answers {error.code}: {_reason(error)}") from error
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"{args.server} does not answer: {error}") from error
    return found


def _reason(error: urllib.error.HTTPError) -> str:
    with suppress(ValueError, KeyError, TypeError, OSError):
        return str(json.load(error)["error"]["message"])
    return str(error.reason)


def _token(args: argparse.Namespace) -> str:
    if args.token_file is None:
        return os.environ.get("TAKEHOLD_TOKEN", "")
    try:
        with open(args.token_file, encoding="utf-8") as file:
            words = [line.split() for line in file if line.split() and not line.startswith("#")]
    except OSError as error:
        raise UsageError(f"the token file {args.token_file!r} cannot be read: {error}") from error
    return words[0][-1] if words else ""


def _tell(args: argparse.Namespace, value: object, sentence: str) -> None:
    print(as_json(value) if args.json else sentence)
