"""One desk per process, backend identity and face: all `Locks` objects of an identity queue together."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

from takehold.core.backend import Backend
from takehold.core.desk import Desk
from takehold.core.mutex import Mutex
from takehold.core.seat import Caller
from takehold.runtime import Runtime, Threads

__all__ = ["desk_for", "leave"]

_mutex = Mutex()
_threads = Threads()
_open: weakref.WeakValueDictionary[tuple[Hashable, int], Desk] = weakref.WeakValueDictionary()


def desk_for(backend: Backend, rt: Runtime, scope: int, caller: Caller) -> Desk:
    """The desk of this backend; `scope` tells event loops apart. A solo backend has one for everybody."""
    if backend.solo:
        rt, scope = _threads, 0
    key = (backend.identity, scope)
    with _mutex:
        desk = _open.get(key)
        if desk is None or desk.closed or not _same(desk.rt, rt):
            _bury_the_dead()
            desk = _open[key] = Desk(backend, rt)
        desk.callers.add(caller)
        return desk


def leave(desk: Desk, caller: Caller) -> None:
    """A `Locks` object is closed; with the last of its identity the session ends, and its connections."""
    with _mutex:
        desk.callers.discard(caller)
        last = not desk.callers and not desk.backend.solo
    if last:
        desk.close()


def _bury_the_dead() -> None:
    """Tasks of a closed loop can never run again: what they hold or wait for must not outlive it."""
    for desk in list(_open.values()):
        loop = getattr(desk.rt, "loop", None)
        if loop is not None and loop.is_closed():
            desk.close()


def _same(one: Runtime, other: Runtime) -> bool:
    """Whether two runtimes stand for the same loop: the id of a closed one may have come back."""
    return getattr(one, "loop", None) is getattr(other, "loop", None)
