"""The checks of `takehold doctor` on a lease table. The table is looked at, and not made."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from takehold.backends.check import Check, duration, ok, stuck_holds, trouble, warning
from takehold.backends.file.directory import _NETWORK, _file_system
from takehold.backends.lease.address import Address
from takehold.backends.lease.channel import LEASE_FORMAT
from takehold.core.record import HoldRecord
from takehold.errors import BackendRefused

__all__ = ["examine"]


async def examine(
    address: Address,
    prepared: Callable[[], Awaitable[bool]],
    who: Callable[[], Awaitable[list[HoldRecord]]],
    long: float,
) -> list[Check]:
    """All checks; `BackendUnavailable` when there is nobody to ask."""
    checks = [_file_system_of(address)] if address.kind == "sqlite" else []
    try:
        there = await prepared()
    except BackendRefused as error:
        return [*checks, trouble("table", str(error), "Do what it says; until then no lock is given here.")]
    checks.insert(0, ok("reachable", f"{address.shown} answers", kind=address.kind))
    if not there:
        found = "the lease table is not there yet; the first lock makes it, or takehold init"
        return [*checks, ok("table", found, format=None, ttl=address.ttl)]
    records = await who()
    return [
        *checks,
        ok("table", f"the lease table is there, format {LEASE_FORMAT}", format=LEASE_FORMAT, ttl=address.ttl),
        _silent(records, address.ttl),
        _stuck(records, long),
    ]


def _file_system_of(address: Address) -> Check:
    path = Path(address.dsn)
    above = next(one for one in (path, *path.parents) if one.exists())
    kind = _file_system(os.stat(above).st_dev)
    if kind in _NETWORK:
        advice = "Put the database on a local disk, or use lease+postgresql:"
        return trouble("file-system", f"{kind} is a network file system: SQLite is not safe there", advice, type=kind)
    return ok("file-system", f"{kind}, local", type=kind)


def _line(record: HoldRecord) -> str:
    return f"{record.key!r} of {record.owner} for {duration(record.age)}: {record.id}"


def _silent(records: list[HoldRecord], ttl: float) -> Check:
    chosen = [record for record in records if record.silent and record.state == "held"]
    if not chosen:
        return ok("silent-owners", "every owner of a lease gives signs of life", holds=[])
    return warning(
        "silent-owners",
        f"{len(chosen)} leases belong to owners that have missed a heartbeat",
        f"Wait: they expire {duration(ttl)} after the last one; or end them now with takehold evict ID --terminate.",
        [_line(record) for record in chosen],
        holds=[record.id for record in chosen],
    )


def _stuck(records: list[HoldRecord], long: float) -> Check:
    awaited = {id for record in records for id in record.blocked_by}
    return stuck_holds({one.id: _line(one) for one in records if one.id in awaited and one.stuck(long)}, long)
