"""Locksets: named sets of the keys that somebody is at work on, where the database has no row locks: SQLite.

A thin layer over the process desk, under the names that dstack's "Locking" uses. On a database with row locks the same
code runs, and its locksets exclude nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from takehold import AsyncLocks, BackendRefused, Hold, Locks, LockTimeout, NotHeld, UsageError, shared
from takehold.rows.dialects import Dialect, dialect_named
from takehold.rows.party import application_line, party
from takehold.rows.session import AnySession, session_of

__all__ = ["Guard", "Locker", "Lockset", "get_locker", "owned", "string_to_lock_id"]

Value: TypeAlias = str | int | UUID
_MEMORY: Final = "memory:"
_KINDS: Final[dict[str, Callable[[str], Value]]] = {"i": int, "s": str, "u": UUID}
_USERS: Final = "lockset-users"
"""The key that every process keeps for as long as it lives: shared, or alone with locksets in memory."""


def string_to_lock_id(text: str) -> int:
    """The 63-bit number that `pg_advisory_xact_lock` takes for a name: the same on every machine."""
    return int(sha256(text.encode()).hexdigest(), 16) % 2**63


def get_locker(where: str | URL | Engine | AsyncEngine | AnySession, *, locks: str | None = None) -> Locker:
    """The locker of a database, the same object for everybody in this process.

    A session, an engine or a URL says which SQLite file it is: then every process on that file shares the locksets,
    through `app.db.locks/`. The name of a dialect alone says nothing: `"sqlite"` gives locksets of this process only,
    for all of its databases. `locks="memory:"` keeps those of a file in this process, which then must be the only one
    on it: a second one is refused.
    """
    if locks not in (None, _MEMORY):
        raise UsageError(f"locks= is 'memory:' or left out, which shares the locksets of a SQLite file; not {locks!r}")
    dialect, url = _described(where)
    if dialect.row_locks:
        return _remembered((dialect.name,), lambda: Locker(dialect.name))
    shared_url = _MEMORY if url is None else dialect.lock_url(url.database)
    on_file = not shared_url.startswith(_MEMORY)
    alone = on_file and locks == _MEMORY
    used = shared_url if on_file and not alone else f"{_MEMORY}locksets {shared_url}"

    def opened() -> Locker:
        return _DeskLocker(dialect.name, used, _registered(shared_url, alone=alone) if on_file else None)

    # A forked child is a second process: it must not inherit the right to be the only one.
    return _remembered((used, os.getpid()), opened)


def _described(where: Any) -> tuple[Dialect, URL | None]:
    if isinstance(where, str) and "://" not in where:
        return dialect_named(where), None
    if isinstance(where, str):
        where = make_url(where)
    if isinstance(where, URL):
        return dialect_named(where.get_backend_name()), where
    if isinstance(where, AsyncEngine):
        where = where.sync_engine
    engine = where if isinstance(where, Engine) else session_of(where).get_bind().engine
    return dialect_named(engine.dialect.name), engine.url


_lockers: dict[tuple[object, ...], Locker] = {}
_opening = threading.Lock()


def _remembered(key: tuple[object, ...], opened: Callable[[], Locker]) -> Locker:
    with _opening:
        found = _lockers.get(key)
        if found is None:
            found = _lockers[key] = opened()
        return found


def _registered(url: str, *, alone: bool) -> Hold:
    """Keep `_USERS` until this process ends; `BackendRefused` when another one's use of the file forbids it."""
    locks = Locks(url, label="locksets")
    hold = locks.lock(_USERS if alone else shared(_USERS)).try_acquire()
    if hold is None:
        others = ", ".join(sorted({str(record.owner) for record in locks.who(_USERS)})) or "another process"
        locks.close()
        why = (
            "locks='memory:' is for the only process on this file"
            if alone
            else "it keeps its locksets in its own memory (locks='memory:')"
        )
        raise BackendRefused(f"{url} is in use by {others}: {why}. Leave out locks= in all of them to share locksets")
    atexit.register(locks.close)
    return hold


# -- what excludes nothing -----------------------------------------------------------------------------------


class Lockset:
    """The keys of one namespace that somebody is at work on. Of this class itself: none, and nobody is kept out."""

    def __init__(self, dialect: str, namespace: str) -> None:
        self.namespace = namespace
        self._dialect = dialect

    def __repr__(self) -> str:
        return f"<Lockset {self.namespace!r}: excludes nothing on {self._dialect}, where row locks do>"

    def add(self, key: Value) -> None:
        """Say that we are at work on it; `LockTimeout` when somebody else is. Once more is a no-op."""

    def remove(self, key: Value) -> None:
        """Say that we are done; `NotHeld` unless it was this task or thread that added it."""

    def discard(self, key: Value) -> None:
        """The same, and nothing when nobody is at work on it."""

    def mine(self, key: Value) -> bool:
        """Whether it is this task or thread that is at work on it."""
        return False

    def __contains__(self, key: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Value]:
        return iter(())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Guard:
    """Keys for the length of a block: `with`, `async with`, or an (Async)ExitStack. Of this class itself: none."""

    def __repr__(self) -> str:
        return "<Guard: excludes nothing>"

    def __enter__(self) -> Any:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> Any:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Locker:
    """The locksets of one database. Of this class itself: where row locks and SKIP LOCKED do the work."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self._sets: dict[str, tuple[Guard, Lockset]] = {}

    def __repr__(self) -> str:
        return f"<Locker of {self.dialect}: excludes nothing, row locks do>"

    def get_lockset(self, namespace: str) -> tuple[Guard, Lockset]:
        """The guard of a namespace, and its keys: look and add inside of the guard, remove anywhere."""
        found = self._sets.get(namespace)
        return found or self._sets.setdefault(namespace, self._pair(namespace))

    def lock_ctx(self, namespace: str, keys: Iterable[Value], *, timeout: float | None = None) -> Guard:
        """A block in which these keys are ours: all or nothing, in an order that cannot deadlock.

        `LockTimeout` after so many seconds; None waits for as long as it takes.
        """
        return Guard()

    def _pair(self, namespace: str) -> tuple[Guard, Lockset]:
        return Guard(), Lockset(self.dialect, namespace)


def owned(namespace: str, key: Value) -> bool:
    """Whether this task or thread is at work on it, by a lockset of that name of any locker of this process."""
    return any(locker.get_lockset(namespace)[1].mine(key) for locker in list(_lockers.values()))


# -- at the desk ---------------------------------------------------------------------------------------------


class _DeskLocker(Locker):
    """Locksets that exclude: in the memory of this process, or in the lock directory of a file."""

    def __init__(self, dialect: str, url: str, registered: Hold | None) -> None:
        super().__init__(dialect)
        self.url = url
        self.blocking = Locks(url, label="locksets")
        self.awaited = AsyncLocks(url, label="locksets")
        self.added: dict[str, tuple[object, Any, str]] = {}
        """Owner, hold and line of every key that was added in this process."""
        self._registered = registered

    def __repr__(self) -> str:
        reach = "this process only" if self.url.startswith(_MEMORY) else self.url
        return f"<Locker of {self.dialect}: {reach}>"

    def here(self) -> Any:
        """The locks of the face that runs here: a deadlock is seen among all that one task or thread has."""
        return self.awaited if isinstance(party(), asyncio.Task) else self.blocking

    def lock_ctx(self, namespace: str, keys: Iterable[Value], *, timeout: float | None = None) -> Guard:
        return _DeskGuard(self, [_text(namespace, key) for key in keys], timeout)

    def _pair(self, namespace: str) -> tuple[Guard, Lockset]:
        return _DeskGuard(self, [f"lockset/{_quoted(namespace)}"], None), _DeskLockset(self, namespace)


class _DeskGuard(Guard):
    def __init__(self, locker: _DeskLocker, keys: list[str], timeout: float | None) -> None:
        self._locker = locker
        self._keys = keys
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<Guard {', '.join(self._keys)}>"

    # One request serves all who enter at the same time.
    @cached_property
    def _blocking(self) -> Any:
        return self._locker.blocking.lock(*self._keys, timeout=self._timeout) if self._keys else Guard()

    @cached_property
    def _awaited(self) -> Any:
        return self._locker.awaited.lock(*self._keys, timeout=self._timeout) if self._keys else Guard()

    def __enter__(self) -> Any:
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocking.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:
        return await self._awaited.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._awaited.__aexit__(kind, error, trace)


class _DeskLockset(Lockset):
    """Each key is a hold of its own, which only its owner lets go."""

    def __init__(self, locker: _DeskLocker, namespace: str) -> None:
        super().__init__(locker.dialect, namespace)
        self._locker = locker

    def __repr__(self) -> str:
        return f"<Lockset {self.namespace!r} of {self._locker!r}: {len(self)} keys>"

    def add(self, key: Value) -> None:
        text, me = _text(self.namespace, key), party()
        if self.mine(key):
            return
        hold = _at_once(self._locker.here().lock(text).try_acquire())
        if hold is None:
            raise LockTimeout(
                f"{key!r} of {self.namespace!r} is somebody else's: {self._owner(text)}. Look first, under the guard",
                key=text,
            )
        self._locker.added[text] = me, hold, application_line()

    def remove(self, key: Value) -> None:
        text = _text(self.namespace, key)
        added = self._locker.added.get(text)
        if added is None or added[0] is not party():
            raise NotHeld(
                f"{key!r} of {self.namespace!r} is not ours to remove: {self._owner(text)}. Only the task or thread "
                "that added a key removes it, and the block of a lock_ctx ends by itself",
                key=text,
            )
        del self._locker.added[text]
        _at_once(added[1].release())

    def discard(self, key: Value) -> None:
        if key in self:
            self.remove(key)

    def mine(self, key: Value) -> bool:
        return self._locker.here().held(_text(self.namespace, key)) is not None

    def __contains__(self, key: object) -> bool:
        if isinstance(key, bool) or not isinstance(key, Value):
            return False
        return _text(self.namespace, key) in self._texts()

    def __iter__(self) -> Iterator[Value]:
        for text in self._texts():
            _, _, kind, value = text.split("/")
            yield _KINDS[kind](unquote(value))

    def _texts(self) -> set[str]:
        """The keys of everybody, of other processes too."""
        return self._locker.blocking.busy(f"lockset/{_quoted(self.namespace)}/")

    def _owner(self, text: str) -> str:
        if (added := self._locker.added.get(text)) is not None:
            return f"{added[0]!r} added it at {added[2]}"
        owners = [
            str(record.owner) for record in self._locker.blocking.who() if record.key == text and record.state == "held"
        ]
        return f"it is held by {owners[0]}" if owners else "nobody has it"


def _at_once(outcome: Any) -> Any:
    """What came of something that never waits: on asyncio, a coroutine that runs through."""
    if not asyncio.iscoroutine(outcome):
        return outcome
    try:
        outcome.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("memory and files grant at once")


def _text(namespace: str, key: Value) -> str:
    """The key of the desk; it says of which type the value is, for whoever iterates in another process."""
    if isinstance(key, bool) or not isinstance(key, Value):
        raise UsageError(f"a key of a lockset is text, int or UUID, not {type(key).__name__}: {key!r}")
    kind = "s" if isinstance(key, str) else "u" if isinstance(key, UUID) else "i"
    return f"lockset/{_quoted(namespace)}/{kind}/{_quoted(str(key))}"


def _quoted(text: str) -> str:
    if not text:
        raise UsageError("a namespace or a key of a lockset is empty")
    return quote(text, safe=" :.,")
