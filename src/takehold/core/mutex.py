"""A mutex that a forked child can take, whoever held it in the parent at the time of the fork."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType

__all__ = ["Mutex"]


class Mutex:
    """For the rare paths; the desk's own mutex is a bare lock, replaced by the desk after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """The thread that held it does not exist here."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[Mutex] = weakref.WeakSet()


def _after_fork() -> None:
    for mutex in list(_all):
        mutex.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
