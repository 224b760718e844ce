"""Holds that end with a database transaction: what one transaction has, and what its user gets to see of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from takehold.core.owner import site_text
from takehold.core.seat import GONE, HELD, Seat
from takehold.core.want import EXCLUSIVE, Want
from takehold.errors import UsageError
from takehold.locks._base import BaseHold, HoldFacts, in_transactions, shown

__all__ = ["Transaction", "TransactionHold", "of_this_process"]


class Party:
    """Stands for one transaction at the desk.

    Not the thread: a web framework may run handler and commit on two threads of a pool, and give the first one
    to another request in between.
    """

    def __repr__(self) -> str:
        return "<a transaction>"


class Transaction:
    """What one transaction of a session holds. It is kept by the session, and goes with it."""

    def __init__(self) -> None:
        self.party = Party()
        self.seats: dict[tuple[Hashable, Hashable], Seat] = {}
        """By backend and id; in the order they were taken."""
        self.attached: list[BaseHold] = []
        """Holds of the desk, which somebody must release; the server releases its own."""
        self.connection: Any = None
        """The session's own, when the server keeps the locks on it."""
        self.ended = False

    def known(self, backend: Hashable, wants: tuple[Want, ...]) -> list[Seat | None]:
        """What it has already of these; `UsageError` where it would have to turn shared into exclusive."""
        found = [self.seats.get((backend, want.id)) for want in wants]
        for want, seat in zip(wants, found, strict=True):
            if seat is not None and want.mode is EXCLUSIVE and seat.want.mode is not EXCLUSIVE:
                raise UsageError(
                    f"{want.text!r} is held in shared mode by this transaction, taken at {site_text(seat.site)}: two "
                    "that both want to go on to exclusive mode would wait for each other. Take it exclusively first"
                )
        return found

    def keep(self, backend: Hashable, seats: list[Seat]) -> None:
        """These are held from now on."""
        for seat in seats:
            self.seats[backend, seat.want.id] = seat

    def vouches(self, seat: Seat) -> bool:
        """Whether it is still held, from what is known without I/O."""
        if self.ended or seat.state != HELD:
            return False
        if seat.session is not None:
            return seat.session.doubt(seat) is None
        # A connection that was given up has taken the whole transaction with it.
        return not (self.connection.closed or self.connection.invalidated)

    def end(self, now_ns: int) -> None:
        """Committed or rolled back. Twice is a no-op."""
        if self.ended:
            return
        self.ended = True
        self._forget()
        for seat in self.seats.values():
            if seat.session is None and seat.state == HELD:
                seat.state, seat.group = GONE, None
                seat.caller.tell("released", seat, (now_ns - seat.at) / 1e9)
        self.let_go()

    def let_go(self) -> None:
        """Release the holds of the desk. Only instant backends have them: nothing is left to be sent."""
        while self.attached:
            hold = self.attached.pop()
            hold._desk.release(hold._seats)
            hold._done = True

    def remember(self) -> None:
        """The server keeps them, and the desk knows nothing of it: note them for whoever waits in this process."""
        for place, seat in self.seats.items():
            in_transactions.setdefault(seat.me, {})[place] = seat

    def _forget(self) -> None:
        for place, seat in self.seats.items():
            mine = in_transactions.get(seat.me)
            if mine is not None and mine.pop(place, None) is not None and not mine:
                in_transactions.pop(seat.me, None)

    def __del__(self) -> None:
        # A session that was dropped and never closed.
        self._forget()


def of_this_process(backend: Hashable, want: Want) -> list[Seat]:
    """Transactions of this process that have the key at the server."""
    places = [mine.get((backend, want.id)) for mine in list(in_transactions.values())]
    return [seat for seat in places if seat is not None]


class TransactionHold(HoldFacts):
    """Keys that are held until a transaction ends. There is nothing to release, and nothing to leave."""

    def __init__(self, transaction: Transaction, seats: list[Seat]) -> None:
        self._transaction = transaction
        self._seats = seats

    def __repr__(self) -> str:
        keys = ", ".join(shown(seat.want) for seat in self._shown_seats)
        return f"<{type(self).__name__} {keys} {'active' if self.active else 'ended'}>"

    @property
    def active(self) -> bool:
        """Whether the transaction still has the keys, as far as this process knows. Costs no I/O."""
        return all(self._transaction.vouches(seat) for seat in self._seats)
