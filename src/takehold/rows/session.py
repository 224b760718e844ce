"""Sessions of either face: every function of `takehold.rows` is written once, for a `Session`.

Given an `AsyncSession` it runs behind `run_sync`, where SQLAlchemy turns each statement into an await, and the caller
gets an awaitable. What must wait for something else than the database says so with `settled`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only

from takehold import UsageError

__all__ = ["AnySession", "is_async", "on", "pause", "session_of", "settled"]

P = ParamSpec("P")
T = TypeVar("T")
AnySession: TypeAlias = "Session | scoped_session[Session] | AsyncSession | async_scoped_session[AsyncSession]"


def on(
    session: AnySession, work: Callable[Concatenate[Session, P], T], /, *args: P.args, **kwargs: P.kwargs
) -> T | Awaitable[T]:
    """Call `work` with the session: its result, or an awaitable of it for an `AsyncSession`."""
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        return session.run_sync(work, *args, **kwargs)
    return work(session_of(session), *args, **kwargs)


def session_of(session: object) -> Session:
    """The `Session` behind any kind of session; `UsageError` when it is none."""
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        return session.sync_session
    if not isinstance(session, Session):
        raise UsageError(f"this takes a SQLAlchemy Session or AsyncSession, not {type(session).__name__}: {session!r}")
    return session


def is_async(session: Session) -> bool:
    """Whether its statements are awaited: then we run behind `run_sync`."""
    return session.get_bind().dialect.is_async


def settled(session: Session, outcome: T | Awaitable[T]) -> T:
    """The result of something that is awaited on one face and returned on the other."""
    if is_async(session):
        return cast("T", await_only(cast("Awaitable[Any]", outcome)))
    return cast("T", outcome)


def pause(session: Session, seconds: float) -> None:
    """Sleep, without holding up an event loop."""
    if is_async(session):
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
