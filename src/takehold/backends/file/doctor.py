"""The checks of `takehold doctor` on a lock directory. Nothing is made, nothing is swept away."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from takehold.backends.check import Check, duration, ok, stuck_holds, trouble, warning
from takehold.backends.file.board import Line, _read, process
from takehold.backends.file.directory import _NETWORK, FILE_FORMAT, FLOCK, STRIPES, _file_system, lock_record
from takehold.errors import BackendRefused

__all__ = ["examine"]

UNUSED: Final = 1 << 40
"""A byte of the file `fence` that nobody locks."""
LITTLE: Final = 16 << 20
OURS: Final = f"takehold file locks, format {FILE_FORMAT}, {STRIPES} stripes\n"


def examine(path: Path, long: float) -> list[Check]:
    """All checks, in the order people read them."""
    checks = [_system()]
    if checks[0].verdict != "ok":
        return checks
    directory = _directory(path)
    checks.append(directory)
    there = path.is_dir()
    if directory.verdict == "trouble":
        return checks
    place = path if there else _nearest(path)
    checks += [_kind(place), _space(place)]
    if there:
        checks += [_mode(path), _format(path)]
    checks.append(_ofd_locks(path))
    if there:
        checks += _boards(path, long)
    return checks


def _system() -> Check:
    if sys.platform != "linux" or not hasattr(fcntl, "F_OFD_SETLK"):
        advice = "Run the shipped conformance suite (takehold.testing.suite) there first, or use a server backend."
        return trouble("system", f"file locks are proven on Linux only, this is {sys.platform}", advice)
    return ok("system", f"Linux {os.uname().release}", release=os.uname().release)


def _nearest(path: Path) -> Path:
    """The directory that exists, on the way up."""
    return next(one for one in (path, *path.parents) if one.exists())


def _directory(path: Path) -> Check:
    name = "directory"
    if path.is_symlink():
        return trouble(name, f"{path} is a symbolic link", f"Name the directory itself: file:{path.resolve()}")
    if path.is_dir():
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            advice = "Make it yours (chown), or share it: a group of all users, mode 2770."
            return trouble(name, f"{path} may not be used by this user", advice, exists=True)
        return ok(name, f"{path} is there", exists=True)
    if path.exists():
        return trouble(name, f"{path} is not a directory", "Give the path of a directory.", exists=True)
    above = _nearest(path)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        advice = f"Make it once, as somebody who may: mkdir -m 700 {path}"
        return trouble(name, f"{path} is missing and cannot be made in {above}", advice, exists=False)
    return ok(name, f"{path} is not there yet; the first lock makes it", exists=False)


def _kind(path: Path) -> Check:
    kind = _file_system(path.stat().st_dev)
    if kind in _NETWORK:
        advice = "Use a directory on a local disk, or a server backend such as postgresql:"
        return trouble("file-system", f"{kind} is a network file system: its locks do not reach", advice, type=kind)
    if kind == "unknown":
        advice = "Make sure that it is a local disk: over a network, file locks do not exclude other hosts reliably."
        return warning("file-system", "the kernel does not say which one this is", advice, type=kind)
    return ok("file-system", f"{kind}, local", type=kind)


def _space(path: Path) -> Check:
    seen = os.statvfs(path)
    free = seen.f_bavail * seen.f_frsize
    found = f"{free >> 20} MiB free"
    if free < LITTLE:
        return warning("space", found, "Make room: every process writes down its holds in a file here.", free=free)
    return ok("space", found, free=free)


def _mode(path: Path) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    found = f"mode {mode:04o}"
    if mode & stat.S_IWOTH:
        advice = f"Anybody could break these locks: chmod 700 {path}, or 2770 with a group of all users."
        return trouble("mode", f"{found} is writable by everybody", advice, mode=mode)
    return ok("mode", found + (", shared with its group" if mode & stat.S_IWGRP else ""), mode=mode)


def _format(path: Path) -> Check:
    try:
        theirs = (path / "format").read_text()
    except FileNotFoundError:
        return ok("format", "not prepared yet; the first lock does it")
    if theirs != OURS:
        found = f"it says {theirs.strip()!r}, this release makes {OURS.strip()!r}"
        advice = "Use another directory, or stop all users of this one and remove it."
        return trouble("format", found, advice)
    return ok("format", theirs.strip())


def _ofd_locks(path: Path) -> Check:
    """Two descriptions of one file: the second must not get what the first has."""
    name, known = "ofd-locks", path / "fence"
    try:
        fds = [os.open(known, os.O_RDWR | os.O_CLOEXEC) for _ in range(2)]
        where = "in this directory"
    except OSError:
        memory = os.memfd_create("takehold-doctor")
        fds = [memory, os.open(f"/proc/self/fd/{memory}", os.O_RDWR | os.O_CLOEXEC)]
        where = "in this kernel"
    try:
        record = lock_record(fcntl.F_WRLCK, UNUSED + os.getpid())
        fcntl.fcntl(fds[0], fcntl.F_OFD_SETLK, record)
        try:
            fcntl.fcntl(fds[1], fcntl.F_OFD_SETLK, record)
        except (BlockingIOError, PermissionError):
            return ok(name, f"byte-range locks exclude {where}")
        advice = "Use another directory, or a server backend such as postgresql:"
        return trouble(name, f"byte-range locks do not exclude {where}", advice)
    except OSError as error:
        advice = "Use another directory, or a server backend such as postgresql:"
        return trouble(name, f"byte-range locks do not work {where}: {error.strerror}", advice)
    finally:
        for fd in fds:
            os.close(fd)


# -- the processes -----------------------------------------------------------------------------------


def _boards(path: Path, long: float) -> list[Check]:
    lines: list[Line] = []
    live, dead = 0, []
    try:
        names = sorted(entry.name for entry in os.scandir(path / "boards") if not entry.name.startswith("."))
    except OSError:
        names = []
    for name in names:
        with suppress(OSError):
            try:
                found = _lines(path / "boards" / name)
            except BackendRefused as error:
                return [trouble("boards", str(error), "Run the same release in all processes of this host.")]
            if found is None:
                dead.append(name)
            else:
                live += 1
                lines += found
    facts: dict[str, Any] = {"live": live, "dead": dead}
    counted = f"{live} processes" if live != 1 else "1 process"
    if dead:
        text = f"{counted}, and {len(dead)} left by processes that were killed"
        boards = warning("boards", text, "Nothing to do: the next process that opens this directory sweeps.", **facts)
    else:
        boards = ok("boards", f"{counted} with these locks open, none left behind", **facts)
    return [boards, _silent(lines), _stuck(lines, long)]


def _lines(board: Path) -> list[Line] | None:
    """What is on it, or None when its process is dead and nobody keeps it."""
    with board.open("rb") as file:
        # Asked, not taken: whoever sweeps at this very moment must not find it locked.
        answer = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, lock_record(fcntl.F_WRLCK, 0))
        return None if FLOCK.unpack(answer)[0] == fcntl.F_UNLCK else _read(board.name, file.fileno())


def _silent(lines: list[Line]) -> Check:
    """Holders that cannot answer: stopped, or dead with children that keep the lock."""
    chosen = [line for line in lines if line.held and not line.implied and not _answers(line)]
    if not chosen:
        return ok("silent-owners", "every owner of a hold runs", holds=[])
    return warning(
        "silent-owners",
        f"{len(chosen)} holds belong to processes that are stopped or dead",
        "Let them go on (kill -CONT), or end them: takehold evict ID --terminate.",
        [f"{line.key!r} of {line.owner}: {line.id}" for line in chosen],
        holds=[line.id for line in chosen],
    )


def _answers(line: Line) -> bool:
    started, runs = process(line.owner.pid)
    return runs and started == line.started


def _stuck(lines: list[Line], long: float) -> Check:
    now = time.monotonic_ns()
    awaited = {line.key_id for line in lines if not line.held}
    found = {
        line.id: f"{line.key!r} of {line.owner} for {duration(age)}: {line.id}"
        for line in lines
        if line.held and not line.implied and line.key_id in awaited and (age := (now - line.at) / 1e9) > long
    }
    return stuck_holds(found, long)
