"""Waiting for a key that another process holds: at a gate, one at a time, with a bell.

The waiter takes the key's gate byte and raises a flag in the shared map. Whoever wants the key and sees the
flag queues at the gate behind it, so a process that releases and takes again at once cannot starve it. The
kernel frees a dead waiter's gate. The flag is the number of the waiter's bell, a datagram socket: who
releases rings it, so a long wait can poll rarely and still end at once.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from takehold.core.backend import Grant
from takehold.core.deadline import Backoff, Deadline
from takehold.core.seat import Seat
from takehold.core.want import Want

if TYPE_CHECKING:
    from takehold.backends.file.session import FileSession, Spot

__all__ = ["FileTurn", "ring"]

NO_BELL: Final = 1
BELL_AFTER: Final = 0.002
FIRST_PAUSE: Final = 0.000_05
AT_GATE_PAUSE: Final = 0.001
NEWCOMER: Final = 0.05
NEWCOMER_PAUSE: Final = 0.002
IN_LINE_PAUSE: Final = 0.001
LONG_WAIT: Final = 30.0
LONG_PAUSE: Final = 0.002
WITH_BELL: Final = 0.050


def _address(bell: int) -> str:
    # The abstract namespace: no file to clean up, no limit on the length of the directory's path.
    return f"\0takehold-bell-{bell:08x}"


_ringer: list[socket.socket] = []


def ring(bell: int) -> None:
    """Wake a waiter, if it has a bell and still listens; it polls anyway."""
    if bell == NO_BELL:
        return
    with suppress(OSError):
        if not _ringer:
            _ringer.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        _ringer[0].sendto(b"!", _address(bell))


class FileTurn:
    """A waiter's place: in line for the gate, then at it."""

    def __init__(self, session: FileSession, want: Want, beside: bool, seat: Seat) -> None:
        self._session = session
        self._want = want
        self._beside = beside
        self._seat = seat
        self._spot: Spot = want.place
        self._at_gate = False
        self._own: int | None = None
        """A descriptor of its own, beside another grant of ours."""
        self._grant: Grant | None = None
        self._bell: socket.socket | None = None
        self._number = NO_BELL
        self._deaf = False
        self._started = session.rt.now()
        self._backoff = Backoff(FIRST_PAUSE, AT_GATE_PAUSE, session.rt.random)

    async def take(self, deadline: Deadline, seconds: float) -> Grant | None:
        """Poll, listen, or sleep; None when the time is over, with the place kept."""
        rt = self._session.rt
        until = min(deadline.at, rt.now() + seconds)
        while True:
            if not self._session.usable:
                self._session.attend()
            with self._session.mutex:
                if self._session.lost is None and self._try():
                    return self._grant
            left = until - rt.now()
            if left <= 0 or self._session.lost is not None:
                return None
            await self._pause(left)

    def _try(self) -> bool:
        session, spot = self._session, self._spot
        if not self._at_gate:
            # Noted before the call: an interrupt after it must not leak the gate. To unlock twice is harmless.
            self._at_gate = True
            if not session.enter_gate(spot):
                self._at_gate = False
                return False
            session.board.at_gate(self._seat, True)
            self._backoff = Backoff(FIRST_PAUSE, AT_GATE_PAUSE, session.rt.random)
        # Raised again at every try: a waiter of another key in the same slot may have taken it down.
        session.flags[spot.flag] = self._number
        if self._beside and self._own is None:
            self._own = session.open_stripe(spot)
        self._grant = session.take_past_gate(self._want, self._own)
        if self._grant is None:
            return False
        self._own = None
        self._step_aside()
        return True

    async def _pause(self, left: float) -> None:
        rt = self._session.rt
        waited = rt.now() - self._started
        if not self._at_gate:
            # Who has waited longer tries more often than a newcomer, or it would lose to newcomers for ever.
            pause = NEWCOMER_PAUSE if waited < NEWCOMER else IN_LINE_PAUSE if waited < LONG_WAIT else LONG_PAUSE
            await rt.sleep(min(left, pause))
        elif waited < BELL_AFTER or self._deaf:
            await rt.sleep(min(left, self._backoff.next()))
        elif self._bell is None:
            # The next try puts its number into the flag; only then does it make sense to listen for long.
            self._hang_bell()
        elif await rt.readable(self._bell.fileno(), min(left, WITH_BELL)):
            with suppress(OSError):
                self._bell.recv(16)

    def _hang_bell(self) -> None:
        """Bind a bell; where that is refused, or there are no descriptors left, polling must do."""
        number = secrets.randbits(32) | 2
        try:
            bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            self._deaf = True
            return
        try:
            bell.bind(_address(number))
        except OSError:
            bell.close()
            self._deaf = True
        else:
            self._bell, self._number = bell, number

    def _step_aside(self) -> None:
        """Open the gate for the next one."""
        session, spot = self._session, self._spot
        if self._at_gate:
            session.flags[spot.flag] = 0
            session.leave_gate(spot)
            self._at_gate = False
            session.board.at_gate(self._seat, False)
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    async def leave(self) -> None:
        """Give the place back, and the grant if it came too late."""
        with self._session.mutex:
            if self._own is not None:
                # Closing it unlocks what may or may not be locked.
                os.close(self._own)
                self._own = None
            if self._session.lost is not None:
                return
            if self._grant is not None:
                self._session.give(self._grant)
                self._grant = None
            elif self._at_gate and not self._beside:
                # Interrupted inside the try: unlock a byte that may or may not be locked.
                self._session.forget(self._want)
            self._step_aside()
