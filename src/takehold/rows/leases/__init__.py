"""Leases on rows, for work that is too long for a transaction.

A claim writes an expiry, a token and an owner into the row and commits: while the work goes on, no connection is held
and no row is locked. A heartbeat puts the expiry off. The result is applied by a statement that asks for the token.
Whoever dies or sleeps too long is taken over when the lease expires, and changes nothing when it wakes up.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import QueryableAttribute, Session, sessionmaker

from takehold import UsageError
from takehold.rows.leases.aio import AsyncLease, AsyncLeases
from takehold.rows.leases.blocking import Lease, Leases
from takehold.rows.leases.columns import LONGEST_OWNER, Leased, entity_of, parent_of
from takehold.rows.leases.steps import Plan

__all__ = ["AsyncLease", "AsyncLeases", "Lease", "Leased", "Leases", "lease"]

M = TypeVar("M", bound=Leased)


@overload
def lease(
    maker: async_sessionmaker[AsyncSession],
    query: Select[M],
    *,
    owner: str,
    seconds: float = 30.0,
    heartbeat: float | None = 1.0,
    yields_to: QueryableAttribute[Any] | None = None,
) -> AsyncLeases[M]: ...
@overload
def lease(
    maker: sessionmaker[Session],
    query: Select[M],
    *,
    owner: str,
    seconds: float = 30.0,
    heartbeat: float | None = 1.0,
    yields_to: QueryableAttribute[Any] | None = None,
) -> Leases[M]: ...
def lease(
    maker: Any,
    query: Select[Any],
    *,
    owner: str,
    seconds: float = 30.0,
    heartbeat: float | None = 1.0,
    yields_to: QueryableAttribute[Any] | None = None,
) -> Any:
    """Leases on the rows of a query; `claim` takes some. Nothing is done by this itself.

    The row says who has it (`lock_owner`, the kind of worker, not the process), by which token, and until when by the
    *database's* clock: workers whose clocks differ agree. A worker trusts a lease for nine tenths of `seconds` by its
    own monotonic clock, from before the claim or the last extension was sent. Every `heartbeat` seconds those past half
    of their time are extended in the background, by one thread or task; `None` leaves that to you. One that has expired
    is never extended, only claimed anew, by workers of the same owner. Rows go by the query's order, then by
    `last_processed_at`.

    `yields_to=Job.run` passes over rows whose parent has an owner: it wants all of them (`take`), and could wait for
    ever for a moment when none is leased.
    """
    model = entity_of(query)
    parent_of(yields_to)
    if not owner or len(owner) > LONGEST_OWNER:
        raise UsageError(f"owner= names the kind of worker in 1 to {LONGEST_OWNER} characters; got {owner!r}")
    plan = Plan(model, query, owner, float(seconds), yields_to)
    if isinstance(maker, async_sessionmaker):
        return AsyncLeases(maker, plan, heartbeat)
    if not isinstance(maker, sessionmaker):
        raise UsageError(f"lease() takes a sessionmaker or an async_sessionmaker, not {type(maker).__name__}")
    return Leases(maker, plan, heartbeat)
