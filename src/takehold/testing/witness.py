"""An independent witness: it knows nothing of locks, and counts who is inside."""

from __future__ import annotations

import threading

__all__ = ["Witness"]


class Witness:
    """Holders say when they enter, after the grant, and when they leave, before the release."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.writers = 0
        self.readers = 0
        self.entered = 0
        self.most_writers = 0
        self.most_readers = 0
        self.mixed = 0
        """How often a reader and a writer were inside at once."""

    def enter(self, *, shared: bool = False) -> None:
        """Somebody has it."""
        with self._mutex:
            self.entered += 1
            if shared:
                self.readers += 1
            else:
                self.writers += 1
            self.most_writers = max(self.most_writers, self.writers)
            self.most_readers = max(self.most_readers, self.readers)
            self.mixed += bool(self.readers and self.writers)

    def leave(self, *, shared: bool = False) -> None:
        """They are about to give it back."""
        with self._mutex:
            if shared:
                self.readers -= 1
            else:
                self.writers -= 1
