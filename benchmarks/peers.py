"""Four ways to take one key between processes, behind two calls; for the questions about waiting.

Each with the defaults of its library. How they wait: takehold at its gate, with a bell; filelock looks every
50 ms; fasteners after 10, 20, ... 100 ms; portalocker every 250 ms. None of the three has a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import fasteners
import filelock
import portalocker

import takehold

KEY: Final = "orders/42"


class Contender(Protocol):
    """One party that takes and gives back the one key of a directory."""

    def take(self, timeout: float) -> bool:
        """Wait at most so many seconds; whether it is ours."""

    def give(self) -> None:
        """Give it back."""


class Takehold:
    """The blocking face on files."""

    def __init__(self, directory: Path) -> None:
        self._locks = takehold.Locks(f"file:{directory / 'takehold'}")
        self._hold: takehold.Hold | None = None

    def take(self, timeout: float) -> bool:
        """Take the key."""
        try:
            self._hold = self._locks.lock(KEY, timeout=timeout).acquire()
        except takehold.LockTimeout:
            return False
        return True

    def give(self) -> None:
        """Give it back."""
        assert self._hold is not None
        self._hold.release()


class Filelock:
    """One `FileLock` object, reused."""

    def __init__(self, directory: Path) -> None:
        self._lock = filelock.FileLock(directory / "filelock")

    def take(self, timeout: float) -> bool:
        """Take the file."""
        try:
            self._lock.acquire(timeout=timeout)
        except filelock.Timeout:
            return False
        return True

    def give(self) -> None:
        """Give it back."""
        self._lock.release()


class Fasteners:
    """One `InterProcessLock` object, reused."""

    def __init__(self, directory: Path) -> None:
        self._lock = fasteners.InterProcessLock(directory / "fasteners")

    def take(self, timeout: float) -> bool:
        """Take the file."""
        return bool(self._lock.acquire(timeout=timeout))

    def give(self) -> None:
        """Give it back."""
        self._lock.release()


class Portalocker:
    """One `Lock` object, reused."""

    def __init__(self, directory: Path) -> None:
        self._lock = portalocker.Lock(directory / "portalocker")

    def take(self, timeout: float) -> bool:
        """Take the file."""
        try:
            self._lock.acquire(timeout=timeout)
        except portalocker.LockException:
            return False
        return True

    def give(self) -> None:
        """Give it back."""
        self._lock.release()


CONTENDERS: Final[dict[str, Callable[[Path], Contender]]] = {
    "takehold": Takehold,
    "filelock": Filelock,
    "fasteners": Fasteners,
    "portalocker": Portalocker,
}
PEERS: Final = ("filelock", "fasteners", "portalocker")
