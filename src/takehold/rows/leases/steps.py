"""What leases do to the database: each function is one short transaction, which its caller commits.

Written for a `Session`, as all of rows; nothing here remembers anything.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Select, Update, not_, select
from sqlalchemy.orm import Session

from takehold import HoldLost, Key
from takehold.rows.clock import Clock
from takehold.rows.desk import key_of, within
from takehold.rows.dialects import dialect_of
from takehold.rows.guarding import vouch
from takehold.rows.identity import Identity, among, identity_of, key_columns, reader, row_key
from takehold.rows.leases.columns import change, entity_of, free, lease_values, unleased
from takehold.rows.leases.term import now
from takehold.rows.session import settled

__all__ = [
    "Extended",
    "Grips",
    "Pairs",
    "Plan",
    "Taken",
    "claim",
    "extend",
    "give_back",
    "guard",
    "name_of",
    "take",
    "take_keys",
]

Grips: TypeAlias = Sequence[tuple[Any, Sequence[Identity]]]
"""The rows under one token, by class: first the leased one alone, then those taken with it."""
Pairs: TypeAlias = Mapping[Any, Sequence[tuple[Identity, str]]]
"""Rows with their tokens, by class."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is claimed, for whom, and for how long."""

    model: type[Any]
    query: Select[Any]
    owner: str
    seconds: float
    yields_to: Any = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that one statement put under a token, as detached objects; `sent` is when it left."""

    token: str
    sent: float
    rows: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Extended:
    """What a heartbeat found: the rows it could get at, and those with their tokens that are live."""

    sent: float
    reached: set[tuple[Any, Identity]]
    live: set[tuple[Any, Identity, str]]


def claim(session: Session, plan: Plan, limit: int) -> Taken:
    """Lease so many of the rows that are free, the oldest first."""
    model, token = plan.model, uuid.uuid4().hex
    oldest = dialect_of(session).oldest_first(model.last_processed_at)
    query = _ids_of(plan.query, model).where(free(model, plan.owner, plan.yields_to))
    ids = _lock(session, model, query.order_by(oldest, *key_columns(model)), limit)
    sent = now()
    if not ids:
        return Taken(token, sent, [])
    values = lease_values(token, plan.owner, plan.seconds)
    session.execute(change(model, ids, free(model, plan.owner)).values(values))
    rows = _load(session, plan.query, model, ids, token)
    # Of another table, or before our lock: something changed since we looked, and these are no longer asked for.
    if others := [one for one in ids if one not in {identity_of(row) for row in rows}]:
        give_back(session, [(model, others)], token, processed=False)
    session.expunge_all()
    return Taken(token, sent, rows)


def take(session: Session, plan: Plan, grips: Grips, token: str, query: Select[Any]) -> Taken | None:
    """Lease all rows of a related query under a token that is ours already; None when one of them is not to be had.

    Then the leased row is let go, but for its owner: it will be claimed again, and others who respect the owner leave
    the related rows alone until then.
    """
    model, [main, *rest] = entity_of(query), grips
    owner = f"{plan.owner}:{','.join(map(str, main[1][0]))}"
    ids = _lock(session, model, _ids_of(query, model).where(free(model, owner)).order_by(*key_columns(model)), None)
    sent = guard(session, grips, token, seconds=plan.seconds)
    if set(ids) == set(_ids(session, _ids_of(query, model))):
        if ids:
            values = lease_values(token, owner, plan.seconds)
            session.execute(change(model, ids, free(model, owner)).values(values))
        rows = _load(session, query, model, ids, token)
        session.expunge_all()
        if len(rows) == len(ids):
            return Taken(token, sent, rows)
    give_back(session, [main], token, keep_owner=True)
    give_back(session, [*rest, (model, ids)], token)
    return None


def guard(
    session: Session,
    grips: Grips,
    token: str,
    values: Mapping[str, Any] | None = None,
    *,
    seconds: float | None = None,
) -> float:
    """End the lease, or renew it for so many seconds; `HoldLost` unless every row of it is still ours.

    The rows stay locked until the transaction ends: nobody can claim them before its other changes are committed.
    """
    sent = now()
    for model, ids in grips:
        columns = unleased() if seconds is None else {"lock_expires_at": Clock(seconds), "last_processed_at": Clock()}
        ours = change(model, ids, model.lock_token == token, model.lock_expires_at > Clock())
        if _changed(session, ours.values({**columns, **(values or {})})) != len(ids):
            raise HoldLost(
                f"the lease on {name_of(grips)} has expired or was taken over; nothing was changed",
                key=name_of(grips),
                reason="expired or taken over",
            )
        vouch(session, model, ids)
        values = None  # they are the leased row's
    return sent


def give_back(session: Session, grips: Grips, token: str, *, keep_owner: bool = False, processed: bool = True) -> bool:
    """Let go of what still has our token; whether all of it had."""
    columns, ours = unleased(keep_owner=keep_owner, processed=processed), True
    for model, ids in grips:
        given = _changed(session, change(model, ids, model.lock_token == token).values(columns)) if ids else 0
        ours = ours and given == len(ids)
    return ours


def extend(session: Session, pairs: Pairs, seconds: float) -> Extended:
    """Put off the expiry of those rows that have not expired and still have the token.

    A row that somebody has locked is passed over, or one who holds it for long would let all the others expire.
    """
    told = Extended(now(), set(), set())
    dialect = dialect_of(session)
    for model, wanted in pairs.items():
        ids = list(dict.fromkeys(one for one, _ in wanted))
        if dialect.row_locks:
            ids = _ids(session, _skipping(session, model, ids))
        if not ids:
            continue
        live = model.lock_expires_at > Clock()
        ours = change(model, ids, model.lock_token.in_({token for _, token in wanted}), live)
        session.execute(ours.values(lock_expires_at=Clock(seconds)))
        found = session.execute(select(*key_columns(model), model.lock_token).where(among(model, ids), live))
        told.reached.update((model, one) for one in ids)
        told.live.update((model, tuple(one), token) for *one, token in found)
    return told


def take_keys(session: Session, grips: Grips) -> None:
    """Where the database has no row locks: wait for whoever has locked these rows with `rows.lock`."""
    if not dialect_of(session).row_locks:
        keys = [row_key(model, one) for model, ids in grips for one in ids]
        settled(session, within(session).acquire(*keys))


# -- rows that nobody else has locked ------------------------------------------------------------------------


def _lock(session: Session, model: Any, query: Select[Any], limit: int | None) -> list[Identity]:
    """Which of the rows are ours until the transaction ends; first thing in it. Those of others are passed over."""
    dialect = dialect_of(session)
    if dialect.row_locks and not dialect.greedy:
        return _ids(session, dialect.locking(query.limit(limit), [model], skip=True))
    if not dialect.row_locks:
        # Until our commit: the next one to look must see what we have claimed.
        settled(session, within(session).acquire(_turn(model)))
    passed: list[Identity] = []
    while True:
        with reader(session) as looking:
            others = query.where(not_(among(model, passed))) if passed else query
            found = _ids(looking, others.limit(limit))
        if not found or (taken := _lock_these(session, model, found)):
            return taken if found else []
        passed += found


def _lock_these(session: Session, model: Any, ids: list[Identity]) -> list[Identity]:
    if not dialect_of(session).row_locks:
        keys = within(session)
        return [one for one in ids if settled(session, keys.try_acquire(row_key(model, one))) is not None]
    got = set(_ids(session, _skipping(session, model, ids)))
    if not got:
        session.rollback()  # so that the next look does not need a second connection
    return [one for one in ids if one in got]


def _skipping(session: Session, model: Any, ids: Sequence[Identity]) -> Select[Any]:
    query = select(*key_columns(model)).where(among(model, ids))
    return dialect_of(session).locking(query, [model], skip=True)


def _turn(model: Any) -> Key:
    """The key under which one after the other claims rows of a table."""
    return key_of(model, "claim", "lease")


# -- small words ---------------------------------------------------------------------------------------------


def name_of(grips: Grips) -> str:
    """The leased row, as people say it: `Job 5`."""
    model, (identity, *_) = grips[0]
    return f"{model.__name__} {','.join(map(str, identity))}"


def _ids_of(query: Select[Any], model: Any) -> Select[Any]:
    return query.with_only_columns(*key_columns(model), maintain_column_froms=True)


def _ids(session: Session, query: Select[Any]) -> list[Identity]:
    return list(dict.fromkeys(tuple(row) for row in session.execute(query)))


def _load(session: Session, query: Select[Any], model: Any, ids: list[Identity], token: str) -> list[Any]:
    if not ids:
        return []
    found = session.scalars(query.where(among(model, ids), model.lock_token == token)).unique().all()
    place = {one: number for number, one in enumerate(ids)}
    return sorted(found, key=lambda row: place[identity_of(row)])


def _changed(session: Session, statement: Update) -> int:
    return session.execute(statement).rowcount  # type: ignore[attr-defined, no-any-return]
