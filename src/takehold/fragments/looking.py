"""Looking at a ledger and its locks from outside: what is done, what failed, who has what, and for how long."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from takehold import HoldRecord, Locks, UsageError
from takehold.fragments.fragment import content_key
from takehold.fragments.ledger.link import Link
from takehold.fragments.ledger.place import place_of
from takehold.fragments.ledger.schema import check_format, tables_are_there
from takehold.fragments.ledger.statements import Statements, batch, statements_for

__all__ = ["Failed", "InHand", "Look", "Tally"]

T = TypeVar("T")
PREFIX: Final = "fragment/"
STUCK_AFTER: Final = 60.0
_NUMBER: Final = re.compile(r"#(-?\d+)( .*)?", re.DOTALL)
SESSIONS: Final = """
SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, l.pid, l.granted, a.usename::text, a.application_name,
    a.state,    EXTRACT(epoch FROM clock_timestamp() - a.query_start)::float8
FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many runs of one status."""

    corpus: str
    profile: str
    status: str
    count: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A fragment that failed, with its last error."""

    identity: str
    profile: str
    attempts: int
    error: str
    owner: str
    when: datetime


@dataclass(frozen=True, slots=True)
class InHand:
    """A fragment whose content somebody holds right now."""

    identity: str
    key: int
    owner: str
    seconds: float
    hold: str
    """What `takehold evict` takes."""
    stuck: bool
    sessions: tuple[dict[str, Any], ...] = ()
    """On Postgres, of each session at this key: pid, granted, usename, application_name, state, query_age."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


class Look:
    """A ledger, for people."""

    def __init__(self, url: object, *, profile: str = "", corpus: str = "") -> None:
        self.place = place_of(url)
        self._facts = {"profile": profile, "corpus": corpus}
        self._sql: Statements = statements_for(self.place.kind)

    def tallies(self) -> list[Tally]:
        """What is done, failed and due."""
        return [Tally(*row) for row in self._read(lambda link: link.send(self._sql.status, self._facts))]

    def failures(self) -> list[Failed]:
        """The newest hundred that failed."""
        rows = self._read(lambda link: link.send(self._sql.failures, self._facts))
        return [
            Failed(identity, profile, attempts, error or "", owner, datetime.fromtimestamp(when, UTC))
            for identity, profile, attempts, error, owner, when in rows
        ]

    def retry(self) -> int:
        """Make what failed due again; how many that is."""
        return self._read(lambda link: link.change(self._sql.retry, self._facts))

    def in_hand(self, stuck_after: float = STUCK_AFTER) -> list[InHand]:
        """The fragments that somebody holds, those held longest first. A silent owner's are named by the ledger."""
        with Locks(self.place.locks) as locks:
            held = [record for record in locks.who() if record.state == "held"]
        content = [(number, record) for record in held if (number := _number(record)) is not None]
        names = self._names([number for number, _ in content])
        sessions = self._sessions()
        places = {record.key.removeprefix(PREFIX) for record in held if record.key.startswith(PREFIX)}
        found = []
        for number, record in content:
            label = record.key.partition(" ")[2] or names.get(number, "")
            at = tuple(one for one in sessions if one["key"] == number)
            # Any other number is the key of something else.
            if number in names or label in places:
                found.append(
                    InHand(label, number, _owner(record), record.age, record.id, record.stuck(stuck_after), at)
                )
        return sorted(found, key=lambda one: -one.seconds)

    def _names(self, numbers: Sequence[int]) -> dict[int, str]:
        """Which fragments the ledger knows for these content keys."""
        given = batch({"hash": f"{number % 2**64:016x}"} for number in numbers)
        rows = self._read(lambda link: link.send(self._sql.named, {"batch": given})) if numbers else []
        return {content_key(digest): identity for identity, digest, *_ in rows}

    def _sessions(self) -> list[dict[str, Any]]:
        if self.place.kind != "postgresql":
            return []
        titles = ("key", "pid", "granted", "usename", "application_name", "state", "query_age")
        return [dict(zip(titles, row, strict=True)) for row in self._read(lambda link: link.send(SESSIONS, {}))]

    def _read(self, ask: Callable[[Link], T]) -> T:
        engine = self.place.engine()
        try:
            with engine.begin() as connection:
                _check(connection)
                return ask(Link(connection))
        finally:
            engine.dispose()


def _check(connection: Connection) -> None:
    if not tables_are_there(connection):
        raise UsageError("there is no ledger here yet; `takehold fragments run` makes one")
    check_format(connection)


def _number(record: HoldRecord) -> int | None:
    found = _NUMBER.fullmatch(record.key)
    number = None
    if found:
        with suppress(ValueError):
            number = int(found[1])
    return number


def _owner(record: HoldRecord) -> str:
    owner = record.owner
    return f"{owner.host}:{owner.pid}" + (f" ({owner.label})" if owner.label else "")
