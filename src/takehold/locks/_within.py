"""`locks.within(session)`: keys that are held until a SQLAlchemy session's transaction ends; the blocking face.

On Postgres they are advisory locks of that transaction, on the session's own connection. On SQLite they are
holds of the desk, released by the session's events. Loaded with the first `within`, as SQLAlchemy is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy.orm import Session, scoped_session

from takehold.core.deadline import DEFAULT, Deadline, Default, Timeout, seconds_of
from takehold.core.desk import Desk
from takehold.core.key import AnyKey
from takehold.core.owner import Site, calling_site
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.waits import reentry_sentence, timeout_error
from takehold.core.want import EXCLUSIVE, Mode, Shared, Want
from takehold.errors import LockTimeout, UsageError, WouldDeadlock
from takehold.locks._base import BaseHold, BaseLocks, adapt
from takehold.locks._transaction import Transaction, TransactionHold, of_this_process
from takehold.locks._within_session import engine_of, kind_of, prepare_sqlite, refuse_nested, transaction_of
from takehold.runtime import Threads, run
from takehold.runtime.threads import here

if TYPE_CHECKING:
    from takehold.locks._sync import Locks

__all__ = ["AnySession", "Asked", "BaseWithin", "Within", "session_of"]

AnySession: TypeAlias = Session | scoped_session[Session]
_rt = Threads()


def session_of(session: object) -> Session:
    """The session itself, or `UsageError` when it is none."""
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(getattr(session, "sync_session", None), Session):
        raise UsageError("this is an AsyncSession: use AsyncLocks(...).within(session)")
    if not isinstance(session, Session):
        raise UsageError(f"within() takes a SQLAlchemy Session, not {type(session).__name__}: {session!r}")
    return session


class Asked:
    """One request: what the transaction has already, and seats for the rest."""

    def __init__(self, transaction: Transaction, known: list[Seat | None]) -> None:
        self.transaction = transaction
        self._known = known
        self.seats: list[Seat] = []
        """What is still to be taken, in order."""

    def hold(self) -> TransactionHold:
        """All of it, once the rest is taken."""
        rest = iter(self.seats)
        return TransactionHold(self.transaction, [seat or next(rest) for seat in self._known])


class BaseWithin:
    """What both faces share."""

    def __init__(self, locks: BaseLocks, session: Session) -> None:
        self._locks: Any = locks
        self._session = session
        self._kind = kind_of(session, locks._backend)

    def _ask(self, wants: tuple[Want, ...], site: Site, me: object | None) -> Asked:
        """Decide what is missing, and refuse to take it where it would not last."""
        transaction = transaction_of(self._session)
        identity = self._locks._backend.identity
        asked = Asked(transaction, known := transaction.known(identity, wants))
        caller, party = self._locks._caller, me or transaction.party
        missing = [want for want, seat in zip(wants, known, strict=True) if seat is None]
        asked.seats = seats = [Seat(want, party, site, caller) for want in missing]
        if seats:
            refuse_nested(self._session)
        if len(seats) > 1:
            for seat in seats:
                seat.group = seats
        return asked

    def _refuse_endless(self, desk: Desk, me: object, asked: Asked, depth: int) -> None:
        """Refuse to wait for what this task or thread holds outside of the transaction; check the order."""
        held = desk.held.get(me) or {}
        for seat in asked.seats:
            for other in list(held):
                if other.want.id == seat.want.id and not (seat.want.implied and not other.conflicts(seat)):
                    seat.caller.tell("deadlock", seat, 0.0)
                    raise WouldDeadlock(reentry_sentence(seat, other), key=seat.want.text)
        inside = dict.fromkeys(asked.transaction.seats.values()) or held
        if inside or len(asked.seats) > 1:
            self._locks._check_order(desk, inside, asked.seats, depth)

    def _taken(self, asked: Asked) -> TransactionHold:
        """The transaction has them from here on."""
        asked.transaction.keep(self._locks._backend.identity, asked.seats)
        if self._kind == "postgresql":
            asked.transaction.remember()
        return asked.hold()

    def _near(self, desk: Desk, seat: Seat) -> list[HoldRecord]:
        """Transactions of this process that keep this seat waiting: they are known by their line."""
        return [desk.record(other) for other in of_this_process(desk.backend.identity, seat.want)]

    def _bind(self, asked: Asked, hold: BaseHold) -> None:
        """Let the end of the transaction end this hold."""
        transaction = asked.transaction
        transaction.attached.append(hold)
        try:
            if not self._session.in_transaction():
                # Nothing is sent by this; but a session that has not begun ends without a word.
                self._session.begin()
        except BaseException:
            transaction.let_go()
            raise


class Within(BaseWithin):
    """Takes keys for as long as the session's transaction lasts."""

    def __init__(self, locks: Locks, session: Session) -> None:
        super().__init__(locks, session)

    def acquire(
        self,
        *keys: AnyKey | Shared,
        timeout: Timeout | Default = DEFAULT,
        mode: Mode | str = EXCLUSIVE,
        subtree: bool = False,
    ) -> TransactionHold:
        """Wait for the keys; they are held until the transaction is committed or rolled back, by whomever."""
        patience = self._locks._timeout_of(timeout)
        deadline = Deadline(_rt.now, seconds_of(patience))
        asked = self._ask(self._locks._wants(keys, mode, subtree), calling_site(1), None)
        if not asked.seats:
            return asked.hold()
        desk = self._locks._here()
        if deadline.left() > 0:
            self._refuse_endless(desk, here.party, asked, 3)
        try:
            self._take(desk, asked, deadline)
        except LockTimeout:
            adapt(patience, None)
            raise
        adapt(patience, deadline.waited())
        self._locks._tell_acquired(asked.seats, deadline.waited())
        return self._taken(asked)

    def try_acquire(
        self, *keys: AnyKey | Shared, mode: Mode | str = EXCLUSIVE, subtree: bool = False
    ) -> TransactionHold | None:
        """Take the keys if nobody has them; never wait."""
        asked = self._ask(self._locks._wants(keys, mode, subtree), calling_site(1), None)
        if asked.seats:
            desk = self._locks._here()
            if self._try(desk, asked, Deadline(_rt.now, 0)) is not None:
                return None
            self._locks._tell_acquired(asked.seats)
        return self._taken(asked)

    def _take(self, desk: Desk, asked: Asked, deadline: Deadline) -> None:
        if self._kind == "sqlite":
            self._attach(desk, asked, deadline)
        elif (blocked := self._take_at_server(asked, deadline)) is not None:
            self._locks._caller.tell("timeout", blocked, deadline.waited())
            raise timeout_error(blocked, deadline.waited(), self._in_the_way(desk, blocked))

    def _try(self, desk: Desk, asked: Asked, deadline: Deadline) -> Seat | None:
        if self._kind == "sqlite":
            return self._attach(desk, asked, None)
        return self._take_at_server(asked, deadline)

    # -- on the session's own connection -------------------------------------------------------------

    def _take_at_server(self, asked: Asked, deadline: Deadline) -> Seat | None:
        from takehold.locks import _within_postgres as server

        session, backend = self._session, self._locks._backend
        if not server.is_proven(engine_of(session), backend):
            wire, number = run(server.invite(backend, _rt))
            try:
                server.prove(session, backend, number)
            finally:
                wire.close()
        asked.transaction.connection, blocked = server.take(session, asked.seats, deadline, _rt)
        return blocked

    def _in_the_way(self, desk: Desk, seat: Seat) -> list[HoldRecord]:
        from takehold.locks import _within_postgres as server

        found = self._near(desk, seat) or run(desk.in_the_way(seat))
        return found or server.holders(self._session, seat.want, _rt)

    # -- by a hold of the desk -----------------------------------------------------------------------

    def _attach(self, desk: Desk, asked: Asked, deadline: Deadline | None) -> Seat | None:
        from takehold.locks._sync import Hold

        prepare_sqlite(self._session)
        # The hold first, so that an interrupted caller has a finalizer.
        hold = Hold(desk, asked.seats)
        taken = desk.grab(asked.seats)
        if taken < len(asked.seats):
            if deadline is not None:
                run(desk.acquire(asked.seats, taken, deadline, _rt))
            elif (blocked := run(desk.take_now(asked.seats, taken, _rt))) is not None:
                return blocked
        self._bind(asked, hold)
        return None
