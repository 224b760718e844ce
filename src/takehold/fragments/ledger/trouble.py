"""Which errors of a database say something about it, and nothing about the fragment that met them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from takehold import BackendUnavailable

__all__ = ["Theirs", "Trouble", "hear", "ours", "theirs"]

STATES: Final = frozenset(
    ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53100", "53200", "53300", "25006", "25P03")
)
"""Serialization, deadlock, lock timeout, shut down, starting up, disk, memory or places full, read only, idle."""
CANCELLED: Final = "57014"
"""By a timeout or by hand. Of our own short statements it says nothing, of a pipeline's it does: it took too long."""
DRIVERS: Final = frozenset(("psycopg", "sqlite3"))
SQLITE_BUSY: Final = frozenset((5, 6, 10, 13))
"""Busy, locked, input or output failed, disk full."""


class Trouble(BackendUnavailable):
    """The ledger's database does not take it now. Only the ledger raises it, so no pipeline can pass for it."""


class Theirs(Exception):
    """What a function of the pipeline raised inside of the ledger's transaction."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def ours() -> Iterator[None]:
    """Around our own statements: their trouble is `Trouble`, whatever the driver calls it."""
    try:
        yield
    except Exception as error:
        if _is_trouble(error, CANCELLED):
            raise Trouble(f"the ledger does not answer: {error}") from error
        raise


@contextmanager
def theirs(connection: Connection) -> Iterator[None]:
    """Around functions of a pipeline: what they raise is theirs, unless it is trouble of this very connection."""
    driver: Any = connection.connection.driver_connection
    try:
        yield
    except BaseException as error:
        gone = connection.invalidated or getattr(driver, "closed", False)
        heard = None if gone else connection.info.pop(HEARD, None)
        if gone or any(one is heard and _is_trouble(one) for one in _chain(error)):
            raise Trouble(f"the ledger does not answer: {error}") from error
        raise Theirs(error) from error


HEARD: Final = "takehold_heard"


def hear(context: ExceptionContext) -> None:
    """Remember the newest error of a connection: a pipeline may have another one, with errors of the same class."""
    if context.connection is not None and not context.connection.invalidated:
        context.connection.info[HEARD] = context.original_exception


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_trouble(error: BaseException, *more: str) -> bool:
    """Whether the same may go well later, as it is."""
    if isinstance(error, DisconnectionError | InterfaceError | PoolTimeout):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    # Our own statements raise the driver's errors as they are.
    driver: Any = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(driver, "sqlstate", None)
    if state is not None:
        return state in STATES or state in more or state.startswith("08")
    code = getattr(driver, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in SQLITE_BUSY
    # A connection that could not be made has no code.
    return type(driver).__name__ == "OperationalError" and type(driver).__module__.partition(".")[0] in DRIVERS
