"""What the table says about holders and waiters, as lines that people and the search for deadlocks read.

A row names the hold that it was granted to. What a process does with it afterwards without asking the table -
handing it on, letting readers join, waiting in its own line - the *board* of its session adds, a heartbeat later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from takehold.backends.lease.channel import FENCE_STEP, Reply
from takehold.core.owner import Owner, site_text
from takehold.core.record import HoldRecord, since
from takehold.core.seat import HELD, Seat
from takehold.core.waits import hold_id
from takehold.core.want import SHARED
from takehold.runtime import Runtime

__all__ = ["LeaseLine", "board_text", "described", "in_the_way", "lines_of", "row_of"]

SILENT_AFTER: Final = 2.5
"""Heartbeats that an owner may miss before it is called silent."""


def row_of(fence: int) -> int:
    """The fence of the row that a hold stands on; local hand-overs count up from it."""
    return fence // FENCE_STEP * FENCE_STEP


def described(seat: Seat) -> dict[str, Any]:
    """A seat as the columns of a row."""
    want = seat.want
    return {
        "key": want.place,
        "shared": want.mode is SHARED,
        "hold": hold_id(seat),
        "text": want.text,
        "namespace": want.namespace,
        "implied": want.implied,
        "label": seat.caller.label,
        # A path may hold bytes that are no text.
        "site": site_text(seat.site).encode(errors="replace").decode(),
        "party": id(seat.me),
    }


@dataclass(frozen=True, slots=True)
class LeaseLine:
    """One holder or waiter of some session."""

    id: str
    key: str
    key_id: int
    namespace: str
    session: str
    owner: Owner
    task: int
    held: bool
    shared: bool
    implied: bool
    at: float
    """On the table's clock."""
    at_gate: bool
    fence: int | None
    silent: bool

    @property
    def party(self) -> tuple[str, int]:
        """The session, and the task or thread in it."""
        return self.session, self.task

    def record(self, now: float, wall: float, blocked_by: tuple[str, ...]) -> HoldRecord:
        """As `who` shows it."""
        age = max(0.0, now - self.at)
        return HoldRecord(
            self.id, self.key, self.namespace, "shared" if self.shared else "exclusive",
            "held" if self.held else "waiting", self.owner, since(age, wall), age, self.fence,
            silent=self.silent, blocked_by=blocked_by,
        )  # fmt: skip


def in_the_way(lines: Iterable[LeaseLine], key_id: int, shared: bool) -> tuple[str, ...]:
    """The ids of the holds that keep such a waiter waiting."""
    return tuple(one.id for one in lines if one.held and one.key_id == key_id and not (one.shared and shared))


class _Session:
    """A row of the session table."""

    def __init__(self, row: list[Any]) -> None:
        self.name, self.host, self.pid, quiet, ttl, board = row
        self.silent = quiet > SILENT_AFTER * min(ttl / 3, 1.0)
        self.board: dict[str, Any] = json.loads(board) if board else {"gone": [], "seats": []}

    def line(self, row: list[Any], *, held: bool, at_gate: bool, fence: int | None) -> LeaseLine:
        """From `key, _, _, shared, at` and the columns of `described`."""
        key, _, _, shared, at, hold, text, namespace, implied, label, site, party = row
        owner = Owner(self.host, self.pid, label, site)
        return LeaseLine(
            hold, text, key, namespace, self.name, owner, party, held, bool(shared), bool(implied), float(at), at_gate,
            fence, self.silent,
        )  # fmt: skip


def lines_of(reply: Reply) -> list[LeaseLine]:
    """Everybody that one look at the table shows."""
    sessions = {row[0]: _Session(row) for row in reply["sessions"]}
    lines: list[LeaseLine] = []
    for row in reply["leases"]:
        session = sessions.get(row[1])
        if session is not None and row[5] not in session.board["gone"]:
            lines.append(session.line(row, held=True, at_gate=False, fence=row[2]))
    first: set[int] = set()
    for row in reply["waiters"]:
        session = sessions.get(row[1])
        if session is not None and row[5] not in session.board["gone"]:
            lines.append(session.line(row, held=False, at_gate=row[0] not in first, fence=None))
            first.add(row[0])
    known = {line.id for line in lines}
    for session in sessions.values():
        for held, fence, row in session.board["seats"]:
            if row[5] not in known:
                lines.append(session.line(row, held=held, at_gate=False, fence=fence))
    return lines


def board_text(seats: list[Seat], written: set[str], rt: Runtime, ahead: float) -> str | None:
    """What the table does not know yet of these seats; None when it knows all.

    `ahead`: what the table's clock is ahead of ours.
    """
    now = {hold_id(seat): seat for seat in seats}
    gone = [hold for hold in written if hold not in now]
    more: list[list[Any]] = []
    for hold, seat in now.items():
        if hold not in written:
            about = described(seat)
            at = rt.now() - max(0.0, (rt.now_ns() - seat.at) / 1e9) + ahead
            columns = [about[name] for name in ("hold", "text", "namespace", "implied", "label", "site", "party")]
            row = [about["key"], "", 0, about["shared"], at, *columns]
            more.append([seat.state == HELD, seat.fence, row])
    return json.dumps({"gone": gone, "seats": more}) if gone or more else None
