"""One process's grip on a lock directory: byte-range locks, fences, and a watch over what could go wrong.

Locks are open-file-description locks: they do not vanish when some other code closes the same file, they
exclude threads as well as processes, and the kernel frees them when the process dies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from takehold.backends.file.board import EVICTIONS_INDEX, Board, boards
from takehold.backends.file.cycle import deadlock_sentence
from takehold.backends.file.directory import FLAGS, FLOCK, STRIPES, Directory, lock_record
from takehold.backends.file.gate import FileTurn, ring
from takehold.backends.file.seen import blocking
from takehold.core.backend import Grant, Losses
from takehold.core.cycle import Picture
from takehold.core.record import HoldRecord
from takehold.core.seat import Seat
from takehold.core.want import EXCLUSIVE, SHARED, Want
from takehold.errors import BackendUnavailable
from takehold.runtime import Runtime

__all__ = ["FileSession", "Spot"]

PATROL: Final = 0.1
IDLE_PATROLS: Final = 10
MARK_PATROLS: Final = 10
PICTURE_NS: Final = 200_000_000
EVICTED: Final = "evicted by an operator"
_fcntl = fcntl.fcntl
_SETLK: Final = getattr(fcntl, "F_OFD_SETLK", 0)  # the directory has refused a system without it
_now = time.monotonic_ns


class Spot:
    """Where a key id lies: the byte, its file, and the ready-made lock records."""

    __slots__ = ("flag", "offset", "read", "stripe", "unlock", "write")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.stripe = offset % STRIPES
        self.flag = offset % FLAGS
        self.write = FLOCK.pack(fcntl.F_WRLCK, 0, offset, 1, 0)
        self.unlock = FLOCK.pack(fcntl.F_UNLCK, 0, offset, 1, 0)
        self.read: bytes | None = None


class FileSession:
    """Keeps descriptors, the board and the watch."""

    instant = True

    def __init__(self, directory: Directory, rt: Runtime, losses: Losses) -> None:
        self.lost: str | None = None
        self.usable = False
        self.rt = rt
        self.directory = directory
        self.flags = directory.flags
        # Weakly: the desk has the session, and must be able to go without the collector.
        self._losses: Losses = weakref.proxy(losses)
        self._fences = directory.fences
        self._stripes = [-1] * STRIPES
        self._gates = [-1] * STRIPES
        self.mutex = threading.Lock()
        """For what happens outside the desk's mutex: attempts at the gate."""
        self._opening = threading.Lock()
        self._loose = -1
        self._picture: Picture | None = None
        self._pictured = 0
        try:
            self.name = f"{os.getpid()}.{secrets.token_hex(4)}"
            self.board = Board(directory, self.name)
        except OSError as error:
            directory.close()
            raise BackendUnavailable(f"cannot write to {directory.path}: {error}") from error
        self._evictions = self.board.evictions
        self._activity = 0
        self._idle = 0
        self._patrols = 0

    # -- taking and giving ---------------------------------------------------------------------------

    def take_alone(self, seat: Seat) -> bool:
        """One system call, unless somebody waits at the gate."""
        spot: Spot = seat.want.place
        if self.flags[spot.flag] and not self._gate_is_free(spot):
            return False
        fd = self._stripes[spot.stripe]
        if fd < 0:
            fd = self._stripe(spot)
        try:
            _fcntl(fd, _SETLK, spot.write if seat.want.mode is EXCLUSIVE else spot.read or _read_record(spot))
        except OSError as error:
            self._refused(error)
            return False
        seat.at = now = _now()
        seat.fence = self._fences[0] + now
        return True

    def give_alone(self, seat: Seat) -> None:
        """Unlock, and ring whoever waits at the gate."""
        spot: Spot = seat.want.place
        _fcntl(self._stripes[spot.stripe], _SETLK, spot.unlock)
        if bell := self.flags[spot.flag]:
            ring(bell)

    def take(self, want: Want, beside: bool) -> Grant | None:
        """The same for any mode, and beside another grant of ours."""
        spot: Spot = want.place
        if self.flags[spot.flag] and not self._gate_is_free(spot):
            return None
        if not beside:
            return self.take_past_gate(want, None)
        # Noted first, so that `forget` finds it after a Ctrl-C; the desk's mutex keeps it ours.
        self._loose = self.open_stripe(spot)
        grant = self.take_past_gate(want, self._loose)
        if grant is None:
            self._close_loose()
        self._loose = -1
        return grant

    def take_past_gate(self, want: Want, own: int | None) -> Grant | None:
        """The lock itself, whoever waits; on a descriptor of its own beside another grant of ours.

        One description cannot hold a byte twice: a second shared grant needs another one.
        """
        spot: Spot = want.place
        fd = self._stripe(spot) if own is None else own
        try:
            _fcntl(fd, _SETLK, spot.write if want.mode is EXCLUSIVE else _read_record(spot))
        except OSError as error:
            self._refused(error)
            return None
        now = _now()
        return Grant(self, want, self._fences[0] + now, now, own)

    def open_stripe(self, spot: Spot) -> int:
        """A further descriptor on the file with this key's byte."""
        return self._open(f"stripe-{spot.stripe:02x}")

    def _stripe(self, spot: Spot) -> int:
        return self._opened(self._stripes, spot, "stripe")

    def _opened(self, fds: list[int], spot: Spot, kind: str) -> int:
        if fds[spot.stripe] < 0:
            with self._opening:
                # Looked at again: two threads that both opened it would lock one byte on two descriptors.
                if fds[spot.stripe] < 0:
                    fds[spot.stripe] = self._open(f"{kind}-{spot.stripe:02x}")
        return fds[spot.stripe]

    def _refused(self, error: OSError) -> None:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise BackendUnavailable(f"the kernel refused a file lock: {error}") from error

    def give(self, grant: Grant) -> None:
        """Unlock, and ring whoever waits at the gate."""
        spot: Spot = grant.want.place
        if grant.handle is None:
            _fcntl(self._stripes[spot.stripe], _SETLK, spot.unlock)
        else:
            os.close(grant.handle)
            grant.handle = None
        if bell := self.flags[spot.flag]:
            ring(bell)

    def forget(self, want: Want) -> None:
        """Unlock a byte that may or may not be locked."""
        if self._loose >= 0:
            self._close_loose()
            return
        spot: Spot = want.place
        if self._stripes[spot.stripe] >= 0:
            _fcntl(self._stripes[spot.stripe], _SETLK, spot.unlock)

    def _close_loose(self) -> None:
        if self._loose >= 0:
            os.close(self._loose)
            self._loose = -1

    def refence(self, grant: Grant) -> tuple[int | None, int]:
        """The clock again: it only grows."""
        now = _now()
        return self._fences[0] + now, now

    def descriptors(self, seat: Seat) -> tuple[int, ...]:
        """The lock's descriptor and the board's: a child with both keeps the key, and stays visible."""
        own = seat.grant.handle if seat.grant is not None else None
        return self._stripes[seat.want.place.stripe] if own is None else own, self.board.fd

    def _open(self, name: str) -> int:
        try:
            return self.directory.open(name)
        except OSError as error:
            raise BackendUnavailable(f"cannot open a lock file in {self.directory.path}: {error}") from error

    # -- the gate ------------------------------------------------------------------------------------

    def gate(self, spot: Spot) -> int:
        """The descriptor of the file with this key's gate byte."""
        return self._opened(self._gates, spot, "gate")

    def enter_gate(self, spot: Spot) -> bool:
        """Take the gate byte if nobody has it."""
        try:
            _fcntl(self.gate(spot), _SETLK, spot.write)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def leave_gate(self, spot: Spot) -> None:
        """Give the gate byte back."""
        _fcntl(self.gate(spot), _SETLK, spot.unlock)

    def _gate_is_free(self, spot: Spot) -> bool:
        """A flag is up: is somebody really there, or was it left by a dead waiter or by a neighbour's key?

        Only asked, never taken: two that look at once must not see each other.
        """
        answer = _fcntl(self.gate(spot), fcntl.F_OFD_GETLK, spot.write)
        if int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK:
            return False
        self.flags[spot.flag] = 0
        return True

    def turn(self, want: Want, beside: bool, seat: Seat) -> FileTurn:
        """A place at the gate."""
        return FileTurn(self, want, beside, seat)

    # -- watching ------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Check the directory now, and every 100 ms while there is something to watch."""
        if not self.usable and self.lost is None:
            self._idle = 0
            if reason := self.directory.trouble(self._stripes):
                self.lost = reason
            else:
                # At interpreter exit there are no new threads: then every acquire looks for itself.
                with suppress(RuntimeError):
                    self.rt.later(PATROL, self._patrol)
                    self.usable = True

    def _patrol(self) -> None:
        try:
            self._look_around()
        except ReferenceError:  # the desk is gone
            self.close()

    def _look_around(self) -> None:
        if self.lost is not None:
            return
        if reason := self.directory.trouble(self._stripes):
            self.lost, self.usable = reason, False
            self._losses.session_lost(self, reason)
            return
        self._losses.sweep()
        if self.board.rung():
            for seat in list(self.board.seats.values()):
                if self.board.evicted(seat):
                    self._losses.lose(seat, EVICTED)
        self._patrols += 1
        if self._patrols % MARK_PATROLS == 0:
            self.directory.mark_fence()
        busy = self.board.seats or self.board.activity != self._activity
        self._activity = self.board.activity
        self._idle = 0 if busy else self._idle + 1
        if self._idle >= IDLE_PATROLS:
            self.usable = False
        else:
            self.rt.later(PATROL, self._patrol)

    def doubt(self, seat: Seat) -> str | None:
        """Evicted, as far as the board says."""
        if self._evictions[EVICTIONS_INDEX] == self.board.seen:
            return self.lost
        return self.lost or (EVICTED if self.board.evicted(seat) else None)

    def deadlock(self, seat: Seat) -> str | None:
        """Follow who waits for whom over all boards; all waiters of this process share one reading of them."""
        if seat.slot < 0:
            return None
        now = _now()
        if self._picture is None or now - self._pictured > PICTURE_NS:
            self._picture, self._pictured = Picture(boards(self.directory.path)), now
        return deadlock_sentence(self.directory.path, self.board.id_of(seat), self._picture)

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Holders of this byte on any board."""
        return blocking(self.directory.path, want.place.offset, want.mode is SHARED)

    # -- ending --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything at once."""
        self.usable = False
        if self.lost is None:
            self.lost = "closed"
        with self.mutex:
            self.board.close()
            self._drop()

    def after_fork(self) -> None:
        """Close our copies: the parent's descriptions, and so its locks, stay."""
        self.board.drop()
        self._drop()

    def _drop(self) -> None:
        self.directory.close()
        for fds in (self._stripes, self._gates):
            for index, fd in enumerate(fds):
                fds[index] = -1
                if fd >= 0:
                    os.close(fd)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "board"):
            try:
                self.close()
            except Exception:
                # The interpreter ends, and has taken away what this needs: the kernel lets go of everything now.
                if not _ending():
                    raise


def _read_record(spot: Spot) -> bytes:
    if spot.read is None:
        spot.read = lock_record(fcntl.F_RDLCK, spot.offset)
    return spot.read
