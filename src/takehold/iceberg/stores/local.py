"""Objects in a directory: safe between processes, and after a crash at any step.

A write is: lock the path, compare, write a new file and sync it, put up a flag, rename, sync the directory, take
the flag down. The flag is for readers. Between the rename and the sync everybody can see what a loss of power
would take back; who finds the flag of somebody who died there finishes the sync before believing what was read.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from takehold import BackendError, BackendRefused, BackendUnavailable, HoldLost, LockTimeout, UnknownOutcome
from takehold.iceberg.stores import record
from takehold.iceberg.stores.disk import SCRATCH, Disk, Hold, RealDisk
from takehold.iceberg.stores.store import AlreadyThere, Changed, Stored, below, checked

__all__ = ["LocalStore"]

Paths = list[str]
NEW: Final = f"{SCRATCH}/new/"
UNSYNCED: Final = f"{SCRATCH}/unsynced/"
REFUSALS: Final = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG),
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTEMPTY),
}


class LocalStore:
    """A store in a directory of this host. A write syncs twice: the file, then the directory it is in.

    A new directory costs one sync more for each level that this process has not seen yet. A refused
    compare-and-set, a `get` and a `list` cost none.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.location = disk.location
        self._lasting = {""}
        self._broken = ""

    @classmethod
    async def open(cls, root: str) -> LocalStore:
        """The store in a directory, which is made if it is not there."""
        disk = RealDisk(root)
        try:
            with _SortedOut(root):
                await disk.call(disk.open)
        except BaseException:
            disk.close()
            raise
        made = cls(disk)
        await disk.call(made.tidy)
        return made

    async def get(self, path: str) -> Stored | None:
        """What is stored there, and lasts."""
        found, due = await self.disk.look(self._seen, checked(path))
        if due:
            found = await self.disk.call(self._lasting_one, path)
        return found and Stored(found.data, found.tag)

    async def put_new(self, path: str, data: bytes) -> str:
        """Store it unless something is there."""
        return await self.disk.call(self._put_new, checked(path), data)

    async def put_if(self, path: str, data: bytes, tag: str) -> str:
        """Replace what has this tag."""
        return await self.disk.call(self._put_if, checked(path), data, tag)

    async def delete_if(self, path: str, tag: str | None) -> None:
        """Delete what has this tag; with None whatever is there. Its directory stays."""
        await self.disk.call(self._delete, checked(path), tag)

    async def list(self, prefix: str) -> list[str]:
        """Every path below a directory, sorted."""
        return await self.disk.call(self._list, below(prefix).removesuffix("/"))

    async def put(self, path: str, data: bytes) -> None:
        """Store an immutable file, as it is: other programs read it."""
        await self.disk.call(self._put, checked(path), data)

    async def prepare(self, prefix: str) -> None:
        """Make a directory in which other programs will put files."""
        await self.disk.call(self._prepare, checked(prefix.removesuffix("/")))

    async def close(self) -> None:
        """Let go of threads, locks and the directory."""
        self.disk.close()

    # ------------------------------------------------------------------------- below, everything may block

    def tidy(self) -> None:
        """Finish or remove what killed processes have left: half-written files, and syncs that were due."""
        with _SortedOut(self.location):
            for path in [*self.disk.walk(NEW.removesuffix("/")), *self.disk.walk(UNSYNCED.removesuffix("/"))]:
                name = path.rpartition("/")[2]
                with self.disk.lock(name):
                    self._settle(name)
                    self.disk.unlink(NEW + name)

    def _seen(self, path: str) -> tuple[record.Record | None, bool]:
        """What is there, and whether its sync is still due."""
        with self._may(path):
            found = self._read(path)
            # After the read: what was seen is either synced by now, or the flag is up.
            return found, self.disk.read(UNSYNCED + _name(path)) is not None

    def _lasting_one(self, path: str) -> record.Record | None:
        """The same after its sync, which somebody had begun."""
        with self._may(path), self.disk.lock(_name(path)):
            self._settle(_name(path))
            return self._read(path)

    def _put_new(self, path: str, data: bytes) -> str:
        with self._writing(path) as (hold, found):
            if found is not None:
                raise AlreadyThere(f"{path} is there already", path=path)
            return self._replace(path, data, 1, hold)

    def _put_if(self, path: str, data: bytes, tag: str) -> str:
        with self._writing(path) as (hold, found):
            _expect(path, found, tag)
            assert found is not None
            return self._replace(path, data, found.version + 1, hold)

    def _delete(self, path: str, tag: str | None) -> None:
        with self._writing(path) as (hold, found):
            if tag is not None:
                _expect(path, found, tag)
            if found is not None:
                hold.check()
                self._change(path, lambda: self.disk.unlink(path))

    def _put(self, path: str, data: bytes) -> None:
        name = _name(path)
        with self._may(path), self.disk.lock(name) as hold:
            self._settle(name)
            self._bring(path, record.plain(data, self.disk.token()), hold)

    def _list(self, prefix: str) -> Paths:
        with self._may(prefix or "the store"):
            found = sorted(self.disk.walk(prefix))
            for flag in self.disk.walk(UNSYNCED.removesuffix("/")):
                name = flag.rpartition("/")[2]
                with self.disk.lock(name):
                    self._settle(name)
        return found

    def _prepare(self, prefix: str) -> None:
        with self._may(prefix):
            self._reach(prefix)

    def _read(self, path: str) -> record.Record | None:
        blob = self.disk.read(path)
        return None if blob is None else record.read(path, blob)

    def _replace(self, path: str, data: bytes, version: int, hold: Hold) -> str:
        token = self.disk.token()
        self._bring(path, record.written(data, version, token), hold)
        return f"{version}-{token}"

    def _bring(self, path: str, blob: bytes, hold: Hold) -> None:
        """The write itself, under the lock."""
        new = NEW + _name(path)
        try:
            self.disk.write(new, blob, sync=True)
            self._reach(path.rpartition("/")[0])
            hold.check()
            self._change(path, lambda: self.disk.rename(new, path))
        except (OSError, HoldLost):
            self._lasting = {""}  # perhaps somebody removed a directory
            with suppress(OSError):
                self.disk.unlink(new)
            raise

    def _change(self, path: str, change: Callable[[], None]) -> None:
        """Change a name so that nobody takes it for lasting before it is."""
        flag = UNSYNCED + _name(path)
        self.disk.write(flag, path.encode(), sync=False)
        try:
            change()
        except OSError:
            self.disk.unlink(flag)
            raise
        self._sync(path.rpartition("/")[0], path, begun=True)
        with suppress(OSError):
            self.disk.unlink(flag)

    def _sync(self, folder: str, path: str, *, begun: bool) -> None:
        """Make the names in a directory last. Once that has failed this process believes the disk nothing more."""
        try:
            self.disk.sync_directory(folder)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            # The kernel may have dropped what it could not write; asking again would get a yes that means nothing.
            self._broken = f"the disk could not make {path} last ({error}); look at the disk, then start again"
            raise (UnknownOutcome if begun else BackendUnavailable)(self._broken, path=path) from error

    def _settle(self, name: str) -> None:
        """Finish the sync of somebody who died before it, under the lock."""
        flag = self.disk.read(UNSYNCED + name)
        if flag is None:
            return
        # After a loss of power the flag may be garbage, but then all that is left has lasted.
        with suppress(FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
            path = flag.decode()
            self._sync(path.rpartition("/")[0], path, begun=False)
        self.disk.unlink(UNSYNCED + name)

    def _reach(self, folder: str) -> None:
        """Make the directories of a path, and see that their names last, whoever made them."""
        if folder in self._lasting:
            return
        above = folder.rpartition("/")[0]
        self._reach(above)
        self.disk.make_directory(folder)
        self._sync(above, folder, begun=False)
        self._lasting.add(folder)

    @contextmanager
    def _writing(self, path: str) -> Iterator[tuple[Hold, record.Record | None]]:
        """Under the lock of a path, with what is there and lasts."""
        with self._may(path):
            name = _name(path)
            with self.disk.lock(name) as hold:
                self._settle(name)
                yield hold, self._read(path)

    def _may(self, path: str) -> _SortedOut:
        """Refuse on a disk that has failed; say what went wrong in takehold's words."""
        if self._broken:
            raise BackendUnavailable(self._broken)
        return _SortedOut(path)


class _SortedOut:
    """What the file system and the locks raise, in the words of a store."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, LockTimeout | HoldLost):
            raise BackendUnavailable(f"{self.path}: {error}") from error
        if isinstance(error, OSError):
            named: type[BackendError] = BackendRefused if error.errno in REFUSALS else BackendUnavailable
            raise named(f"{self.path}: {error}") from error


def _expect(path: str, found: record.Record | None, tag: str) -> None:
    if found is None or found.tag != tag:
        raise Changed(f"{path} {'is gone' if found is None else 'was changed meanwhile'}", path=path)


@lru_cache(8192)
def _name(path: str) -> str:
    """What the lock of a path, its new file and its flag are called."""
    return blake2b(path.encode(), digest_size=16).hexdigest()
