"""What the local store needs of a file system, and the real one.

The port is this small so that a simulated disk can stand in for it (`takehold.testing.disk`) and be crashed at
every step. What is below `SCRATCH` is the store's own and need not survive a loss of power.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import takehold
from takehold import BackendRefused, BackendUnavailable

__all__ = ["SCRATCH", "Disk", "RealDisk"]

T = TypeVar("T")

SCRATCH: Final = ".takehold"
FORMAT: Final = b"takehold store 1\n"
THREADS: Final = 16
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Hold(Protocol):
    """What `Disk.lock` gives."""

    def check(self) -> None:
        """Raise when the lock is not ours any more."""


class Disk(Protocol):
    """Paths are relative, with `/`, and already checked. Failures are `OSError`s.

    Nothing survives a loss of power before it is synced: not the bytes of a file before `write(sync=True)`, not a
    name (made, replaced or removed) before `sync_directory` of the directory it is in.
    """

    location: str

    def token(self) -> str:
        """A short text that was never given before."""

    async def call(self, work: Callable[..., T], *args: object) -> T:
        """Do blocking work where it may block. Once begun it is finished, also when the caller is cancelled."""

    async def look(self, work: Callable[..., T], *args: object) -> T:
        """Read a file or two, and wait for nobody."""

    def lock(self, name: str) -> AbstractContextManager[Hold]:
        """Exclude everybody else who takes this name: threads and processes; freed when the process dies."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, or None."""

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        """Make or overwrite a file; with `sync` its bytes are on the disk afterwards."""

    def rename(self, source: str, target: str) -> None:
        """Put a file in the place of another, or of none, at once."""

    def unlink(self, path: str) -> None:
        """Remove a file if it is there."""

    def make_directory(self, path: str) -> None:
        """Make one directory in an existing one, unless it is there."""

    def sync_directory(self, path: str) -> None:
        """Put the names in a directory on the disk; "" is the root."""

    def walk(self, path: str) -> list[str]:
        """Every file below a directory, without `SCRATCH`, unless that is what was asked for."""

    def close(self) -> None:
        """Let go of everything; twice is a no-op."""


class RealDisk:
    """A directory. Every path is opened part by part and no symbolic link is followed, so none leads out of it."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.location = "file://" + quote(self.root)
        self.syncs = 0
        """How often the disk was asked to make something last."""
        self._fd = -1
        self._locks: takehold.Locks | None = None
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def open(self) -> None:
        """Make the directory last, with what the store needs in it, and check what it was made by."""
        _make_lasting(self.root)
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in ("", "/new", "/unsynced"):
            self.make_directory(SCRATCH + name)
        self._locks = takehold.Locks(f"file:{quote(self.root)}/{SCRATCH}/locks", label="store", check_order="off")
        self._locks.open()
        with self._locks.lock("format"):
            self._check_format()

    def _check_format(self) -> None:
        seen = self.read(f"{SCRATCH}/format")
        if seen is None:
            self.write(f"{SCRATCH}/format.new", FORMAT, sync=True)
            self.rename(f"{SCRATCH}/format.new", f"{SCRATCH}/format")
            self.sync_directory(SCRATCH)
            self.sync_directory("")
        elif seen != FORMAT:
            raise BackendRefused(
                f"{self.root} was made by another release of takehold ({seen[:40]!r}); this one writes {FORMAT!r}"
            )

    def token(self) -> str:
        """64 random bits."""
        return secrets.token_hex(8)

    async def call(self, work: Callable[..., T], *args: object) -> T:
        """In a thread of the store's own."""
        future = asyncio.get_running_loop().run_in_executor(self._pool(), work, *args)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            # A write that goes on after its caller has let go of a lock would be a write without the lock.
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as cancel:
                cancelled = cancel
        if cancelled is not None:
            future.exception()
            raise cancelled
        return future.result()

    async def look(self, work: Callable[..., T], *args: object) -> T:
        """Here: a thread costs four times what a small file does, and records are small."""
        return work(*args)

    def _pool(self) -> ThreadPoolExecutor:
        # Threads do not come along into a forked child, but the pool would count on them.
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(THREADS, "takehold-store")
        return self._threads[1]

    def lock(self, name: str) -> AbstractContextManager[Hold]:
        """A file lock of takehold, in the store's own directory."""
        if self._locks is None:
            raise BackendUnavailable(f"the store in {self.root} is closed")
        return self._locks.lock(name)

    def read(self, path: str) -> bytes | None:
        """Whole."""
        try:
            with self._in(path) as (folder, name):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise IsADirectoryError(errno.EISDIR, "not a file", path)
            return file.read()

    def write(self, path: str, data: bytes, *, sync: bool) -> None:
        """Whole, or an error."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._in(path) as (folder, name), open(os.open(name, flags, 0o666, dir_fd=folder), "wb", 0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            if sync:
                self._sync(file.fileno())

    def rename(self, source: str, target: str) -> None:
        """Atomic, says POSIX."""
        with self._in(source) as (here, old), self._in(target) as (there, new):
            os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)

    def unlink(self, path: str) -> None:
        """No error when it is not there."""
        with suppress(FileNotFoundError), self._in(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def make_directory(self, path: str) -> None:
        """A link in its place is refused."""
        with self._in(path) as (folder, name):
            with suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=folder)
            os.close(os.open(name, _DIRECTORY, dir_fd=folder))

    def sync_directory(self, path: str) -> None:
        """The same call as for a file."""
        with self._in(f"{path}/.") as (folder, _):
            self._sync(folder)

    def walk(self, path: str) -> list[str]:
        """Links are neither files nor directories here."""
        found: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError), self._in(f"{path}/.") as (folder, _):
            self._walk(folder, f"{path}/" if path else "", found)
        return found

    def _walk(self, folder: int, start: str, found: list[str]) -> None:
        with os.scandir(folder) as entries:
            seen = [(entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries]
        for name, directory, link in seen:
            if not directory and not link:
                found.append(start + name)
            elif directory and start + name != SCRATCH:
                with suppress(FileNotFoundError):
                    fd = os.open(name, _DIRECTORY, dir_fd=folder)
                    try:
                        self._walk(fd, f"{start}{name}/", found)
                    finally:
                        os.close(fd)

    def close(self) -> None:
        """Threads, locks and the directory."""
        if self._threads is not None:
            self._threads[1].shutdown(wait=self._threads[0] == os.getpid())
            self._threads = None
        if self._locks is not None:
            self._locks.close()
            self._locks = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def _in(self, path: str) -> Any:
        """The directory of a path, open, and the name in it."""
        if self._fd < 0:
            raise BackendUnavailable(f"the store in {self.root} is closed")
        *parts, name = path.split("/")
        folder = self._fd
        try:
            for part in filter(None, parts):
                deeper = os.open(part, _DIRECTORY, dir_fd=folder)
                if folder != self._fd:
                    os.close(folder)
                folder = deeper
            yield folder, name
        finally:
            if folder != self._fd:
                os.close(folder)

    def _sync(self, fd: int) -> None:
        self.syncs += 1
        os.fsync(fd)


def _make_lasting(path: str) -> None:
    """Make a directory and those above it, and put each new name on the disk."""
    above = os.path.dirname(path)
    if above == path:
        return
    if not os.path.isdir(path):
        _make_lasting(above)
        with suppress(FileExistsError):
            os.mkdir(path)
    try:  # also when it is there: perhaps somebody was killed who had only just made it
        fd = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
