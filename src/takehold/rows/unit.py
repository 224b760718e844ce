"""Units of work: a transaction as a function, run again as a whole when the database chose it as a victim.

A deadlock or a serialization failure undoes the transaction, savepoints included: to repeat the last statement would
lose what came before it. So the whole function runs again, in a fresh transaction.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from takehold import Conflict, UnknownOutcome, UsageError, WouldDeadlock
from takehold.rows.attempts import Attempts
from takehold.rows.dialects import RETRYABLE, Trouble, trouble_of
from takehold.rows.session import session_of

__all__ = ["retry", "transaction"]

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
SESSIONS: Final = (Session, scoped_session, AsyncSession, async_scoped_session)
FAILURES: Final = (DBAPIError, Conflict, WouldDeadlock)
"""What is judged; everything else is no failure of the database."""


class _Judge:
    """Decides after each failed attempt whether there is another one."""

    def __init__(self, what: str, attempts: Attempts, *, duplicates: bool) -> None:
        self.what = what
        self.attempts = attempts
        self.again = RETRYABLE | {Trouble.DUPLICATE} if duplicates else RETRYABLE

    def hear(self, error: BaseException, number: int, pause: float | None) -> float:
        """The pause before the next attempt; raises when there is none."""
        trouble = _trouble_in(error)
        if trouble not in self.again:
            raise error
        log.warning(
            "%s in %s, attempt %d/%d",
            trouble.value.capitalize(),
            self.what,
            number,
            self.attempts.count,
            extra={"event": "rows.retry"},
        )
        if pause is None:
            raise Conflict(f"{self.what} failed {number} times, at last with a {trouble.value}") from error
        return pause


def _trouble_in(error: BaseException) -> Trouble:
    """What an error means; a `Conflict` of ours says it, or stands for the driver's error behind it."""
    if isinstance(error, Conflict) and error.__cause__ is not None:
        return getattr(error, "trouble", None) or _trouble_in(error.__cause__)
    # The desk finds the deadlocks of keys that stand for rows.
    return Trouble.DEADLOCK if isinstance(error, WouldDeadlock) else trouble_of(error)


# -- a session of its own ------------------------------------------------------------------------------------


@overload
def transaction(
    maker: async_sessionmaker[AsyncSession],
    work: Callable[[AsyncSession], Awaitable[T]],
    attempts: int | None = None,
    isolation: str | None = None,
    *,
    delay: float | None = None,
    duplicates: bool = False,
) -> Coroutine[Any, Any, T]: ...
@overload
def transaction(
    maker: sessionmaker[Session],
    work: Callable[[Session], T],
    attempts: int | None = None,
    isolation: str | None = None,
    *,
    delay: float | None = None,
    duplicates: bool = False,
) -> T: ...
def transaction(
    maker: Any,
    work: Callable[[Any], Any],
    attempts: int | None = None,
    isolation: str | None = None,
    *,
    delay: float | None = None,
    duplicates: bool = False,
) -> Any:
    """Run `work(session)` in a session and transaction of its own, and commit; all of it again after a deadlock.

    `work` must not commit, and must have no effect that a rollback does not undo. `duplicates=True` also runs it
    again after a duplicate key. The last failure is a `Conflict`, from the driver's error. A connection lost in
    the commit is an `UnknownOutcome`: the database may have done it.
    """
    if not callable(work):
        raise UsageError(f"transaction() takes a function of a session, not {work!r}")
    judge = _Judge(_name_of(work), Attempts.of(attempts, delay), duplicates=duplicates)
    if isinstance(maker, async_sessionmaker):
        return _awaited(maker, work, isolation, judge)
    if not isinstance(maker, sessionmaker):
        raise UsageError(f"transaction() takes a sessionmaker or an async_sessionmaker, not {type(maker).__name__}")
    return _called(maker, work, isolation, judge)


def _called(maker: sessionmaker[Session], work: Callable[[Session], T], isolation: str | None, judge: _Judge) -> T:
    for number, pause in judge.attempts:
        try:
            with maker() as session:
                if isolation is not None:
                    session.connection(execution_options={"isolation_level": isolation})
                result = work(session)
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()
                    raise UsageError(f"{judge.what} is async: give transaction() an async_sessionmaker")
                session.flush()
                with _Committing():
                    session.commit()
                return result
        except FAILURES as error:
            seconds = judge.hear(error, number, pause)
        time.sleep(seconds)
    raise AssertionError("the last attempt returns or raises")


async def _awaited(
    maker: async_sessionmaker[AsyncSession],
    work: Callable[[AsyncSession], Awaitable[T]],
    isolation: str | None,
    judge: _Judge,
) -> T:
    for number, pause in judge.attempts:
        try:
            async with maker() as session:
                if isolation is not None:
                    await session.connection(execution_options={"isolation_level": isolation})
                awaitable = work(session)
                if not inspect.isawaitable(awaitable):
                    raise UsageError(f"{judge.what} is not async: give transaction() a sessionmaker")
                result = await awaitable
                await session.flush()
                with _Committing():
                    await session.commit()
                return result
        except FAILURES as error:
            seconds = judge.hear(error, number, pause)
        await asyncio.sleep(seconds)
    raise AssertionError("the last attempt returns or raises")


class _Committing:
    """A commit whose answer did not come is neither done nor undone, as far as we know.

    What is written before it, by a flush, is undone with the connection: that is no doubt.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            raise UnknownOutcome("the connection was lost in the commit: it may or may not be done") from error


# -- a function that owns its unit ---------------------------------------------------------------------------


@overload
def retry(attempts: Callable[P, T]) -> Callable[P, T]: ...
@overload
def retry(
    attempts: int | None = None, delay: float | None = None, *, duplicates: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def retry(attempts: Any = None, delay: float | None = None, *, duplicates: bool = False) -> Any:
    """Run the decorated function again, as a whole, after a deadlock or a serialization failure.

    For a function that begins and commits its own transaction: on a session it makes, or on one that is handed to it
    and has not begun. `@retry` alone takes the defaults, `DB_DEADLOCK_RETRY_ATTEMPTS` (5) and `DB_DEADLOCK_RETRY_DELAY`
    (0.2 s). With `duplicates=True` a duplicate key is one more reason. Everything else is raised at once.
    """
    if callable(attempts):
        return retry()(attempts)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def judge() -> _Judge:
            return _Judge(_name_of(function), Attempts.of(attempts, delay), duplicates=duplicates)

        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, T]", _awaiting(function, judge))
        return _calling(function, judge)

    return decorate


def _calling(function: Callable[P, T], judge: Callable[[], _Judge]) -> Callable[P, T]:
    @functools.wraps(function)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        sessions = _unbegun(function, args, kwargs)
        verdict = judge()
        for number, pause in verdict.attempts:
            try:
                return function(*args, **kwargs)
            except FAILURES as error:
                seconds = verdict.hear(error, number, pause)
            for session in sessions:
                session.rollback()
            time.sleep(seconds)
        raise AssertionError("the last attempt returns or raises")

    return repeated


def _awaiting(
    function: Callable[P, Coroutine[Any, Any, T]], judge: Callable[[], _Judge]
) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(function)
    async def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        sessions = _unbegun(function, args, kwargs)
        verdict = judge()
        for number, pause in verdict.attempts:
            try:
                return await function(*args, **kwargs)
            except FAILURES as error:
                seconds = verdict.hear(error, number, pause)
            for session in sessions:
                await session.rollback()
            await asyncio.sleep(seconds)
        raise AssertionError("the last attempt returns or raises")

    return repeated


def _unbegun(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The sessions among the arguments; `UsageError` when one has begun: its earlier work could not be repeated."""
    found = [one for one in (*args, *kwargs.values()) if isinstance(one, SESSIONS)]
    for session in found:
        if session_of(session).in_transaction():
            raise UsageError(
                f"{_name_of(function)} is to be retried as a whole, but its session is in the middle of a transaction, "
                "whose earlier work would be lost. Commit first, or use rows.transaction(maker, work), which has a "
                "session of its own"
            )
    return found


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
