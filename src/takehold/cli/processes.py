"""What the kernel says about processes: who lives, who keeps a file open."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TypeAlias

__all__ = ["exists", "holding_open", "inode", "members", "title"]

Inode: TypeAlias = tuple[int, int]
_DEAD: Final = b"ZXx"


def _stat(pid: int) -> list[bytes]:
    """The fields of `/proc/PID/stat` after the name: state, parent, process group, ...; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def exists(pid: int) -> bool:
    """Whether the process is there, running or not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in _DEAD


def members(group: int) -> list[int]:
    """The live processes of a process group."""
    found = []
    for pid in _pids():
        fields = _stat(pid)
        if fields and int(fields[2]) == group and fields[0] not in _DEAD:
            found.append(pid)
    return found


def inode(file: int | str) -> Inode:
    """What a descriptor or a path refers to."""
    seen = os.stat(file)
    return seen.st_dev, seen.st_ino


def holding_open(files: Iterable[Inode], among: Iterable[int] | None = None) -> list[int]:
    """Processes, other than this one, that have all of these files open, as far as we may look."""
    wanted = set(files)
    own = os.getpid()
    return [
        pid for pid in (_pids() if among is None else among) if pid != own and wanted and wanted <= _open_files(pid)
    ]


def _open_files(pid: int) -> set[Inode]:
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                found.add(inode(entry.path))
            except OSError:  # closed while we looked
                continue
    except OSError:  # ended while we looked, or somebody else's
        pass
    return found


def title(pid: int) -> str:
    """The command line of a process, or what is left of it."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace") or "?"
    except OSError:
        return "gone"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
