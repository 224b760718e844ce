"""The owner board: one mapped file per process that says who holds and who waits, for every other process.

Writing a record costs no system call. A board belongs to a live process as long as its first byte is locked;
whoever finds it unlocked sweeps it away. To evict a hold, another process writes the hold's generation into
its record and rings the counter in the header; the owner looks at the counter.

Format 1: a header of 4096 bytes, then records of 2048 bytes. All little-endian.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from takehold.backends.file.directory import Directory, lock_record
from takehold.core.owner import Owner, site_text
from takehold.core.seat import Seat
from takehold.core.want import SHARED
from takehold.errors import BackendRefused

__all__ = ["BOARD_FORMAT", "Board", "Line", "boards", "evict_line", "process", "sweep"]

BOARD_FORMAT: Final = 1
HEADER: Final = struct.Struct("<8sIIQQ64s")  # magic, format, pid, start time, evictions, host
MAGIC: Final = b"takehold"
EVICTIONS: Final = struct.Struct("<Q")
EVICTIONS_AT: Final = 24
EVICTIONS_INDEX: Final = EVICTIONS_AT // 8
HEADER_SIZE: Final = 4096
# generation, evicted generation, time in ns, fence, task | key id, length of the text, kind, at gate, state
RECORD: Final = struct.Struct("<QQqqqqHBBB")
MOMENT: Final = struct.Struct("<QQqqq")
ABOUT: Final = struct.Struct("<qHBB")
STATE_AT: Final = RECORD.size - 1
GATE_AT: Final = RECORD.size - 2
EVICT_AT: Final = 8
TEXT_AT: Final = 64
RECORD_SIZE: Final = 2048
TEXT_SIZE: Final = RECORD_SIZE - TEXT_AT
FREE, HELD, WAITING = 0, 1, 2
IS_SHARED, IS_IMPLIED = 1, 2
FIRST_SLOTS: Final = 64
MAX_SLOTS: Final = 65_536


def process(pid: int) -> tuple[int, bool]:
    """When a process started, in clock ticks since boot, and whether it runs (not stopped, not dead).

    With the pid, the start is an identity that is not reused. `(0, False)` when there is none.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]), fields[0] not in "TtZXx"
    except (OSError, IndexError):
        return 0, False


class Board:
    """This process's own board."""

    def __init__(self, directory: Directory, name: str) -> None:
        self.name = name
        self._directory = directory
        self._slots = FIRST_SLOTS
        self._free = list(range(FIRST_SLOTS - 1, -1, -1))
        self._generation = 0
        self.seats: dict[int, Seat] = {}
        """Holders by slot: who to tell when a record is evicted."""
        self.seen = 0
        self._about: list[tuple[object, ...]] = [()] * FIRST_SLOTS
        draft = f"boards/.{name}"
        # Two descriptions: a map keeps a copy of its descriptor, also in a forked child, which must not keep the lock.
        self.fd, mapped = directory.open(draft), directory.open(draft)
        # Allocated, not sparse: a full disk must be an error here, not a SIGBUS at some later write.
        os.posix_fallocate(mapped, 0, HEADER_SIZE + FIRST_SLOTS * RECORD_SIZE)
        self._map = mmap.mmap(mapped, 0)
        # A map of its own for the header: the other one must be free to grow.
        self.evictions = memoryview(mmap.mmap(mapped, HEADER_SIZE)).cast("Q")
        os.close(mapped)
        pid = os.getpid()
        host = socket.gethostname().encode()[:64]
        HEADER.pack_into(self._map, 0, MAGIC, BOARD_FORMAT, pid, process(pid)[0], 0, host)
        # Locked before it has its name, so that nobody takes it for the board of a dead process.
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, lock_record(fcntl.F_WRLCK, 0))
        os.rename(draft, f"boards/{name}", src_dir_fd=directory.fd, dst_dir_fd=directory.fd)

    @property
    def activity(self) -> int:
        """Grows with every record written."""
        return self._generation

    def id_of(self, seat: Seat) -> str:
        """`board-slot-generation`."""
        return f"{self.name}-{seat.slot}-{seat.generation}"

    def hold(self, seat: Seat) -> None:
        """Write down a hold."""
        slot = seat.slot
        if slot < 0:
            if not self._free and not self._grow():
                return
            slot = seat.slot = self._free.pop()
        self._write(seat, slot, HELD)
        self.seats[slot] = seat

    def wait(self, seat: Seat) -> None:
        """Write down a waiter."""
        if self._free or self._grow():
            seat.slot = self._free.pop()
            self._write(seat, seat.slot, WAITING)

    def erase(self, seat: Seat) -> None:
        """Take a record off the board."""
        slot = seat.slot
        if slot < 0:
            return
        # No call before the slot is ours no more: an interrupt may waste a slot, never give it to two.
        self._map[HEADER_SIZE + slot * RECORD_SIZE + STATE_AT] = FREE
        seat.slot = -1
        self.seats.pop(slot, None)
        self._free.append(slot)

    def at_gate(self, seat: Seat, there: bool) -> None:
        """Note whether a waiter is the one at the gate: that is who really blocks those behind."""
        if seat.slot >= 0:
            self._map[HEADER_SIZE + seat.slot * RECORD_SIZE + GATE_AT] = there

    def _write(self, seat: Seat, slot: int, state: int) -> None:
        self._generation = generation = seat.generation = self._generation + 1
        start = HEADER_SIZE + slot * RECORD_SIZE
        about = (seat.want, seat.site, seat.caller)
        # A loop that takes one key at one line finds its slot as it left it: only the moment is new.
        if self._about[slot] != about:
            self._describe(seat, start)
            self._about[slot] = about
        board = self._map
        MOMENT.pack_into(board, start, generation, 0, seat.at, seat.fence or 0, id(seat.me))
        # The state is the last byte written: a reader sees a whole record or none.
        board[start + STATE_AT] = state

    def _describe(self, seat: Seat, start: int) -> None:
        want = seat.want
        words = f"{want.text}\0{want.namespace}\0{seat.caller.label or ''}\0{site_text(seat.site)}"
        text = words.encode(errors="backslashreplace")  # a path need not be UTF-8
        size = min(len(text), TEXT_SIZE)
        self._map[start + TEXT_AT : start + TEXT_AT + size] = text[:size]
        kind = (IS_SHARED if want.mode is SHARED else 0) | (IS_IMPLIED if want.implied else 0)
        ABOUT.pack_into(self._map, start + MOMENT.size, want.place.offset, size, kind, 0)

    def _grow(self) -> bool:
        if self._slots >= MAX_SLOTS:
            return False
        more, size = self._slots, HEADER_SIZE + 2 * self._slots * RECORD_SIZE
        try:
            os.posix_fallocate(self.fd, 0, size)
            self._map.resize(size)
        except OSError:
            # No room to be seen; the lock itself is none the worse.
            return False
        self._slots += more
        self._about += [()] * more
        self._free = list(range(self._slots - 1, more - 1, -1))
        return True

    def rung(self) -> bool:
        """Whether somebody evicted something here since the last patrol; noted as seen."""
        count = self.evictions[EVICTIONS_INDEX]
        rung, self.seen = count != self.seen, count
        return rung

    def evicted(self, seat: Seat) -> bool:
        """Whether exactly this hold was evicted."""
        if seat.slot < 0:
            return False
        start = HEADER_SIZE + seat.slot * RECORD_SIZE
        return EVICTIONS.unpack_from(self._map, start + EVICT_AT)[0] == seat.generation  # type: ignore[no-any-return]

    def close(self) -> None:
        """Take the board away."""
        if self.fd >= 0:
            with suppress(OSError):
                os.unlink(f"boards/{self.name}", dir_fd=self._directory.fd)
            self.drop()

    def drop(self) -> None:
        """Close the descriptor and nothing else: after a fork the board is the parent's."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class Line:
    """One record, read from some board."""

    board: str
    slot: int
    generation: int
    key_id: int
    at: int
    fence: int
    task: int
    shared: bool
    implied: bool
    at_gate: bool
    held: bool
    key: str
    namespace: str
    owner: Owner
    started: int

    @property
    def id(self) -> str:
        """`board-slot-generation`, what `evict` takes."""
        return f"{self.board}-{self.slot}-{self.generation}"

    @property
    def party(self) -> tuple[str, int]:
        """The task or thread, unique on the host."""
        return self.board, self.task

    def conflicts(self, other: Line) -> bool:
        """Whether the two cannot hold at the same time."""
        return self.key_id == other.key_id and not (self.shared and other.shared)


def sweep(path: Path) -> None:
    """Take away the boards of dead processes."""
    folder = path / "boards"
    for entry in os.scandir(folder):
        with suppress(OSError), open(entry.path, "r+b", buffering=0) as file:
            if not entry.name.startswith(".") and _orphaned(file.fileno()):
                os.unlink(entry.path)


def boards(path: Path) -> list[Line]:
    """Every record of every live process. Boards of the dead are swept away."""
    lines: list[Line] = []
    folder = path / "boards"
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except FileNotFoundError:
        return []
    for name in names:
        with suppress(FileNotFoundError), open(folder / name, "r+b", buffering=0) as file:
            if _orphaned(file.fileno()):
                os.unlink(folder / name)
            else:
                lines += _read(name, file.fileno())
    return lines


def _orphaned(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock_record(fcntl.F_WRLCK, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _read(name: str, fd: int) -> list[Line]:
    lines: list[Line] = []
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as board:
        magic, number, pid, started, _, host = HEADER.unpack_from(board)
        if magic != MAGIC or number != BOARD_FORMAT:
            raise BackendRefused(
                f"the owner board {name} has format {number}, this release reads format {BOARD_FORMAT}; "
                "upgrade all processes of this host together"
            )
        machine = host.rstrip(b"\0").decode(errors="replace")
        for slot in range((len(board) - HEADER_SIZE) // RECORD_SIZE):
            start = HEADER_SIZE + slot * RECORD_SIZE
            if board[start + STATE_AT] == FREE:
                continue
            *facts, size, kind, gate, state = RECORD.unpack_from(board, start)
            text = board[start + TEXT_AT : start + TEXT_AT + size]
            again = EVICTIONS.unpack_from(board, start)[0]
            if state == FREE or again != facts[0] or board[start + STATE_AT] != state:
                continue  # changed while we read it
            generation, _, at, fence, task, key_id = facts
            key, namespace, label, site = (text.decode(errors="replace").split("\0") + [""] * 4)[:4]
            owner = Owner(machine, pid, label or None, site)
            lines.append(
                Line(
                    name,
                    slot,
                    generation,
                    key_id,
                    at,
                    fence,
                    task,
                    bool(kind & IS_SHARED),
                    bool(kind & IS_IMPLIED),
                    bool(gate),
                    state == HELD,
                    key,
                    namespace,
                    owner,
                    started,
                )
            )
    return lines


def evict_line(path: Path, line: Line) -> bool:
    """Ask the owner to give up exactly this hold; False when it is gone already."""
    try:
        with (
            open(path / "boards" / line.board, "r+b", buffering=0) as file,
            mmap.mmap(file.fileno(), 0) as board,
        ):
            start = HEADER_SIZE + line.slot * RECORD_SIZE
            if EVICTIONS.unpack_from(board, start)[0] != line.generation or board[start + STATE_AT] != HELD:
                return False
            EVICTIONS.pack_into(board, start + EVICT_AT, line.generation)
            # Two evictors may count one ring together; any change is enough for the owner to look.
            count = EVICTIONS.unpack_from(board, EVICTIONS_AT)[0]
            EVICTIONS.pack_into(board, EVICTIONS_AT, count + 1)
            return True
    except FileNotFoundError:
        return False
