"""`file:` and `sqlite:` - the processes of one host, through byte-range locks in a directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from takehold.backends.check import Check
from takehold.backends.file.board import boards, evict_line, process, sweep
from takehold.backends.file.directory import Directory
from takehold.backends.file.seen import seen
from takehold.backends.file.session import FileSession, Spot
from takehold.core.backend import Capabilities, Losses, Session
from takehold.core.key import hashed
from takehold.core.record import HoldRecord
from takehold.runtime import Runtime

__all__ = ["FileBackend", "default_directory"]


def default_directory() -> Path:
    """Where locks live when nobody says: not the runtime directory, which cron lacks and logout deletes."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "takehold" / "locks"


class FileBackend:
    """Keys as bytes of lock files."""

    capabilities = Capabilities(across="host", evict="terminate", loss="passive")
    solo = False

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.identity: Hashable = ("file", str(self.path))

    def place(self, encoded: bytes, number: int | None) -> tuple[Hashable, Any]:
        """63 bits of the id: the offset of a byte."""
        spot = Spot(hashed(encoded) >> 1)
        return spot.offset, spot

    def open_now(self, rt: Runtime, losses: Losses) -> FileSession:
        """Open the directory, or say why it cannot be trusted."""
        session = FileSession(Directory(self.path), rt, losses)
        sweep(self.path)
        session.attend()
        return session

    async def open(self, rt: Runtime, losses: Losses, seconds: float) -> Session:
        """The same: it takes no waiting."""
        return self.open_now(rt, losses)

    async def who(self, rt: Runtime) -> list[HoldRecord]:
        """What all boards say."""
        return seen(self.path)

    async def evict(self, rt: Runtime, hold_id: str, *, terminate: bool, timeout: float) -> bool:
        """Ask on the board; with `terminate`, end the process if it does not answer."""
        line = next((line for line in boards(self.path) if line.id == hold_id and line.held), None)
        if line is None or not evict_line(self.path, line):
            return True
        if await self._gone(rt, hold_id, timeout):
            return True
        if not terminate or not _kill(line.owner.pid, line.started):
            return False
        return await self._gone(rt, hold_id, timeout)

    async def _gone(self, rt: Runtime, hold_id: str, timeout: float) -> bool:
        until = rt.now() + timeout
        while any(line.id == hold_id for line in boards(self.path)):
            if rt.now() > until:
                return False
            await rt.sleep(0.02)
        return True

    async def examine(self, rt: Runtime, long: float) -> list[Check]:
        """What `takehold doctor` shows."""
        from takehold.backends.file.doctor import examine

        return examine(self.path, long)

    async def init(self, rt: Runtime, *, fence_from: int | None) -> str:
        """Make the directory; raise its fences when an application moves here from a server."""
        directory = Directory(self.path)
        try:
            if fence_from is not None:
                directory.raise_fences(fence_from)
        finally:
            directory.close()
        return f"{self.path} is ready" + (f", fences start above {fence_from}" if fence_from is not None else "")


def _kill(pid: int, started: int) -> bool:
    """End exactly that process: its pid may belong to another one by now, so look at the start time under a pidfd."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if process(pid)[0] != started:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)
