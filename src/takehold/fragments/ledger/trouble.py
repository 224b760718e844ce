"""Which errors of a database say something about it, and nothing about the fragment that met them."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout

__all__ = ["is_trouble"]

STATES: Final = frozenset(("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "25006"))
"""Serialization, deadlock, lock timeout, shut down, starting up, full, read only."""
SQLITE_BUSY: Final = frozenset((5, 6, 10, 13))
"""Busy, locked, input or output failed, disk full."""


def is_trouble(error: BaseException) -> bool:
    """Whether the same may go well later, as it is."""
    if isinstance(error, DisconnectionError | InterfaceError | PoolTimeout):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    # Our own statements raise the driver's errors as they are.
    driver: Any = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(driver, "sqlstate", None)
    if state is not None:
        return state in STATES or state.startswith("08")
    code = getattr(driver, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in SQLITE_BUSY
    # A connection that could not be made has no code.
    return type(driver).__name__ == "OperationalError"
