"""Asking a lease table in SQLite: on the caller's own thread, or for asyncio on one of the channel's own."""

from __future__ import annotations

import ctypes
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

from takehold.backends.file.directory import _NETWORK, _file_system
from takehold.backends.lease.address import Address
from takehold.backends.lease.channel import LEASE_FORMAT, ChannelLost, Reply, Request, Troubled
from takehold.backends.lease.sqlite_table import SqliteTable, boot_id, foreign_format
from takehold.core.deadline import Backoff
from takehold.errors import BackendRefused
from takehold.runtime import Event, Runtime

__all__ = ["SqliteChannel"]

log = logging.getLogger(__name__)
FIRST_PAUSE: Final = 0.000_5
LONGEST_PAUSE: Final = 0.01
BUSY: Final = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
FOR_GOOD: Final = (1, 8, 11, 26)  # SQLITE_ERROR, SQLITE_READONLY, SQLITE_CORRUPT, SQLITE_NOTADB

_quiet = threading.Lock()
"""Held during every transaction and over a fork: a child must not inherit SQLite's own mutexes locked."""


def _before_fork() -> None:
    _quiet.acquire()


def _after_fork_in_parent() -> None:
    _quiet.release()


def _after_fork_in_child() -> None:
    global _quiet  # noqa: PLW0603 - the old one is locked, by a thread that may not exist here
    _quiet = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


class _Locked(Exception):
    """Somebody else is writing."""


class SqliteChannel:
    """One connection to the file."""

    def __init__(self, address: Address, rt: Runtime) -> None:
        self._address = address
        self._rt = rt
        self._db: sqlite3.Connection | None = None
        self._table: SqliteTable | None = None
        self._inode = 0
        self._closed = False
        self._worker: _Worker | None = None if rt.face == "threads" else _Worker()

    # -- asking --------------------------------------------------------------------------------------

    async def ask(self, what: str, request: Request, seconds: float) -> Reply | None:
        """One transaction; None when others were writing all the time."""
        write = what != "look"
        reply: Reply | None = await self._patiently(seconds, lambda: self._answer(what, request, write))
        return reply

    def _answer(self, what: str, request: Request, write: bool) -> Reply:
        table = self._opened("rw")
        with self._transaction(write=write):
            return table.answers[what](request)

    async def prepare(self, seconds: float, *, make: bool, fence_from: int | None = None) -> bool:
        """Look, and make the tables in one transaction."""
        try:
            there: bool | None = await self._patiently(seconds, lambda: self._prepare(make, fence_from))
        except Troubled as error:
            raise BackendRefused(f"{self._address.shown} cannot be used for leases: {error}") from error
        if there is None:
            raise ChannelLost(f"{self._address.shown} was locked for {seconds:.1f} s")
        return there

    def _prepare(self, make: bool, fence_from: int | None) -> bool:
        if not make and not os.path.exists(self._address.dsn):
            return False
        table = self._opened("rwc" if make else "rw")
        self._refuse_networks()
        with self._transaction(write=False):
            number = table.format()
        if number is None and not make:
            return False
        if number is None:
            self._fresh_file()
            with self._transaction(write=True):
                number = table.format()
                if number is None:
                    table.make()
                    number = LEASE_FORMAT
        if number != LEASE_FORMAT:
            raise foreign_format(number, self._address.shown)
        if fence_from is not None:
            with self._transaction(write=True):
                table.raise_fences(fence_from)
        return True

    def _refuse_networks(self) -> None:
        kind = _file_system(os.stat(self._address.dsn).st_dev)
        if kind in _NETWORK:
            raise BackendRefused(
                f"{self._address.shown} is on a network file system ({kind}), where SQLite does not exclude other "
                "hosts reliably; use a local file, or lease+postgresql:"
            )

    def _fresh_file(self) -> None:
        """A file that is ours alone gets a write-ahead log: looking then never waits for writers."""
        assert self._db is not None
        with _quiet:
            if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                self._db.execute("PRAGMA journal_mode = WAL")

    # -- the connection ------------------------------------------------------------------------------

    def _opened(self, mode: str) -> SqliteTable:
        if self._closed:
            raise ChannelLost("closed")
        if self._table is not None:
            self._same_file()
            return self._table
        path = self._address.dsn
        if mode == "rw" and not os.path.exists(path):
            raise Troubled(f"{path} was removed")
        with _quiet:
            db = sqlite3.connect(
                f"file:{quote(path)}?mode={mode}", uri=True, timeout=0, isolation_level=None,
                check_same_thread=False, cached_statements=64,
            )  # fmt: skip
            try:
                # A fence that was given out must not be given out again, not even after a power failure.
                db.execute("PRAGMA synchronous = FULL")
                self._inode = os.stat(path).st_ino
            except BaseException:
                db.close()
                raise
        self._db, self._table = db, SqliteTable(db, boot_id())
        return self._table

    def _same_file(self) -> None:
        """Somebody may have removed or replaced the file: what is written to the old one, nobody sees."""
        try:
            same = os.stat(self._address.dsn).st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            raise Troubled(f"{self._address.shown} was removed or replaced")

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[None]:
        """All of it or nothing, whatever interrupts it."""
        db = self._db
        assert db is not None
        with _quiet:
            try:
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    async def _patiently(self, seconds: float, work: Callable[[], Any]) -> Any:
        """Again and again until it is our turn to write."""
        until = self._rt.now() + seconds
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, self._rt.random)
        while True:
            try:
                return await self._do(lambda: _translated(work))
            except _Locked:
                left = until - self._rt.now()
                if left <= 0:
                    return None
            await self._rt.sleep(min(left, backoff.next()))

    async def _do(self, work: Callable[[], Any]) -> Any:
        if self._worker is None:
            return work()
        return await self._worker.do(work, self._rt.event())

    # -- ending --------------------------------------------------------------------------------------

    def last_words(self, what: str, request: Request) -> None:
        """The thread does it, whatever becomes of the loop."""
        assert self._worker is not None

        def words() -> None:
            try:
                _translated(lambda: self._answer(what, request, write=True))
            except (_Locked, ChannelLost, Troubled) as error:
                log.info("no goodbye: %s", error, extra={"event": "lease.goodbye"})
            self._closed = True
            self._hang_up()

        self._worker.end(words)

    def close(self) -> None:
        """After the running transaction."""
        self._closed = True
        if self._worker is not None:
            self._worker.end(self._hang_up)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        db, self._db, self._table = self._db, None, None
        if db is not None:
            with _quiet:
                db.close()

    def after_fork(self) -> None:
        """Never close it here, not even at the end of the process: it would undo what the parent is writing."""
        self._closed = True
        if self._db is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))


def _translated(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode & 0xFF
        if code in BUSY:
            raise _Locked from None
        if code in FOR_GOOD:
            raise Troubled(str(error)) from error
        raise ChannelLost(str(error)) from error
    except sqlite3.ProgrammingError as error:  # closed by another thread
        raise ChannelLost(str(error)) from error
    except sqlite3.DatabaseError as error:
        raise Troubled(str(error)) from error
    except OSError as error:
        raise ChannelLost(str(error)) from error


class _Worker:
    """A thread that does one thing after the other, for a loop that must not block."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waiting: set[Event] = set()
        self._thread: threading.Thread | None = None
        self._ended = False

    async def do(self, work: Callable[[], Any], done: Event) -> Any:
        """Have it done, and wait for its result; closing the channel ends the wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="takehold-sqlite", daemon=True)
            self._thread.start()
        box: list[Any] = []
        errors: list[BaseException] = []

        def job() -> None:
            try:
                box.append(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                errors.append(error)
            done.set()

        self._waiting.add(done)
        try:
            if self._ended:
                raise ChannelLost("closed")
            self._inbox.put(job)
            await done.wait(None)
        finally:
            self._waiting.discard(done)
        if errors:
            raise errors[0]
        if not box:
            raise ChannelLost("closed")
        return box[0]

    def _run(self) -> None:
        while (job := self._inbox.get()) is not None:
            job()

    def end(self, last: Callable[[], None]) -> None:
        """Do this last thing, then end."""
        self._ended = True
        if self._thread is None:
            last()
            return
        self._inbox.put(last)
        self._inbox.put(None)
        for event in list(self._waiting):
            event.set()
