"""The lock directory: its layout, its format number, and everything that is checked before it is trusted.

DIR/format      which layout this is; another number is refused
DIR/fence       two mapped numbers: what to add to the clock for a fence, and the highest fence seen
DIR/flags       mapped: per key slot, the bell of whoever waits at its gate
DIR/stripe-XX   byte-range locks, one byte per key; never unlinked
DIR/gate-XX     the queue in front of a contended key; never unlinked
DIR/boards/     one file per process: who holds and who waits
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from takehold.errors import BackendRefused, BackendUnavailable

__all__ = ["FILE_FORMAT", "FLAGS", "STRIPES", "Directory", "lock_record"]

FILE_FORMAT: Final = 1
STRIPES: Final = 128
FLAGS: Final = 16_384
FENCE: Final = struct.Struct("<qq16s")
GROUP_MODE: Final = 0o660
SECOND: Final = 1_000_000_000
FLOCK: Final = struct.Struct("hhqqi4x")
_NETWORK: Final = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.sshfs", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip


def lock_record(kind: int, offset: int) -> bytes:
    """The `struct flock` for one byte."""
    return FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)


@contextmanager
def locked(fd: int, offset: int = 0) -> Iterator[None]:
    """Hold one byte of a file for a few lines; waits in the kernel, for as long as another few lines take."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, lock_record(fcntl.F_WRLCK, offset))
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock_record(fcntl.F_UNLCK, offset))


class Directory:
    """An open lock directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._prepare()
        except OSError as error:
            raise BackendUnavailable(f"the lock directory {path} cannot be used: {error}") from error

    def _prepare(self) -> None:
        path = self.path
        if sys.platform != "linux" or not hasattr(fcntl, "F_OFD_SETLK"):
            raise BackendRefused(
                f"file locks are proven on Linux only, this is {sys.platform}; run the shipped conformance "
                "suite (takehold.testing.suite) there first, or use a server backend"
            )
        with suppress(FileExistsError):
            path.mkdir(parents=True, mode=0o700)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            seen = os.fstat(self.fd)
            self.mode = GROUP_MODE if seen.st_mode & stat.S_IWGRP else 0o600
            self._refuse_unsafe(seen)
            self._check_format()
            self.fences = self._map_fences()
            self.flags = memoryview(self._map("flags", FLAGS * 4)).cast("I")
            with suppress(FileExistsError):
                os.mkdir("boards", 0o700, dir_fd=self.fd)
                if self.mode == GROUP_MODE:
                    os.chmod(self.path / "boards", 0o770)  # noqa: S103 - as the directory itself
        except BaseException:
            os.close(self.fd)
            raise

    def _refuse_unsafe(self, seen: os.stat_result) -> None:
        if seen.st_mode & stat.S_IWOTH:
            raise BackendRefused(
                f"{self.path} is writable by everybody, who could break these locks; use a directory of mode 0700"
            )
        kind = _file_system(seen.st_dev)
        if kind in _NETWORK:
            raise BackendRefused(
                f"{self.path} is on a network file system ({kind}), where file locks do not exclude other hosts "
                "reliably; use a local directory, or a server backend such as postgresql:"
            )

    def open(self, name: str) -> int:
        """A descriptor on a file of the directory, made when it is missing, closed on exec."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, self.mode, dir_fd=self.fd)
        if self.mode == GROUP_MODE and os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, self.mode)  # a group directory is for the group, whatever our umask
        return fd

    def _map(self, name: str, size: int) -> mmap.mmap:
        fd = self.open(name)
        try:
            os.posix_fallocate(fd, 0, size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def _check_format(self) -> None:
        ours = f"takehold file locks, format {FILE_FORMAT}, {STRIPES} stripes\n"
        draft = f".format-{os.getpid()}-{time.monotonic_ns()}"
        try:
            fd = os.open("format", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            # Written aside and linked, so that nobody ever reads half of it, and the first one wins.
            with os.fdopen(self.open(draft), "w") as file:
                file.write(ours)
            with suppress(FileExistsError):
                os.link(draft, "format", src_dir_fd=self.fd, dst_dir_fd=self.fd)
            os.unlink(draft, dir_fd=self.fd)
            fd = os.open("format", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        with os.fdopen(fd) as file:
            theirs = file.read()
        if theirs != ours:
            raise BackendRefused(
                f"{self.path} was made by another release: it says {theirs.strip()!r}, this one makes "
                f"{ours.strip()!r}; processes of both would not exclude each other. Use another directory, or "
                "stop all users of this one and remove it"
            )

    def _map_fences(self) -> memoryview:
        """Fence = base + monotonic clock. The base is set once per boot, so that fences outlive reboots."""
        boot = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
        fd = self.open("fence")
        try:
            with locked(fd):
                os.posix_fallocate(fd, 0, FENCE.size)
                mapped = mmap.mmap(fd, FENCE.size)
                base, high, known = FENCE.unpack_from(mapped)
                if known != boot:
                    now = time.monotonic_ns()
                    # A wall clock that was set back must not set fences back: the mark is at most a minute old.
                    base = max(time.time_ns() - now, high + 60 * SECOND - now if high else 0)
                    FENCE.pack_into(mapped, 0, base, high, boot)
                fences = memoryview(mapped)[:16].cast("q")
                # Marked now: this process may end long before its first patrol.
                fences[1] = max(fences[1], fences[0] + time.monotonic_ns())
        finally:
            os.close(fd)
        return fences

    def raise_fences(self, above: int) -> None:
        """Make every later fence greater than `above`."""
        fd = self.open("fence")
        try:
            with locked(fd):
                self.fences[0] = max(self.fences[0], above + 1 - time.monotonic_ns())
        finally:
            os.close(fd)

    def mark_fence(self) -> None:
        """Note how far fences have come, for the next boot."""
        self.fences[1] = self.fences[0] + time.monotonic_ns()

    def trouble(self, fds: list[int]) -> str | None:
        """Why this directory can no longer be trusted, or None."""
        try:
            there, ours = os.stat(self.path), os.fstat(self.fd)
            removed = any(fd >= 0 and os.fstat(fd).st_nlink == 0 for fd in fds)
        except OSError as error:
            # Our own descriptors may be closed right now, by another thread: that is an end, no trouble.
            return f"the lock directory {self.path} is gone ({error.strerror})" if self.fd >= 0 else None
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            return f"the lock directory {self.path} was replaced by another one"
        return f"a lock file in {self.path} was removed under its users" if removed else None

    def close(self) -> None:
        """Close the descriptor. Maps stay readable until nobody refers to them."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _file_system(device: int) -> str:
    """The type of the file system a device number belongs to, as far as the kernel says."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    for line in lines:
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return "unknown"
