"""One thread that notices when a server hangs up, on any socket of the process, without a query.

It asks the kernel for POLLRDHUP only: replies do not wake it, the end of the connection does, within
milliseconds.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

__all__ = ["Hangups", "hangups"]

log = logging.getLogger(__name__)


class Hangups:
    """Who wants to know about which socket."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # the collector may close a wire of this very thread inside
        self._calls: dict[int, Callable[[], None]] = {}
        self._poll: select.epoll | None = None
        self._thread: threading.Thread | None = None

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        """Call back, once, when the other side of this socket hangs up."""
        with self._mutex:
            if self._poll is None:
                self._poll = select.epoll()
                self._thread = threading.Thread(
                    target=self._run, args=(self._poll,), name="takehold-hangups", daemon=True
                )
                self._thread.start()
            self._calls[fd] = call
            try:
                self._poll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
            except FileExistsError:  # the number came back before it was forgotten
                self._poll.modify(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, fd: int) -> None:
        """Before the socket is closed."""
        with self._mutex:
            if self._calls.pop(fd, None) is not None and self._poll is not None:
                try:
                    self._poll.unregister(fd)
                except OSError:
                    pass

    def _run(self, poll: select.epoll) -> None:
        while True:
            try:
                events = poll.poll()
            except (OSError, ValueError):  # closed
                return
            for fd, _ in events:
                with self._mutex:
                    call = self._calls.pop(fd, None)
                if call is not None:
                    try:
                        call()
                    except Exception:
                        log.exception("telling about a lost connection failed", extra={"event": "loss.failed"})

    def after_fork(self) -> None:
        """The thread does not exist here, and the epoll descriptor is the parent's."""
        if self._poll is not None:
            self._poll.close()
        self.__init__()  # type: ignore[misc]


hangups = Hangups()
os.register_at_fork(after_in_child=hangups.after_fork)
