"""The watcher beside every server: when the test run dies, even by SIGKILL, it ends the server and its folder.

A process of its own instead of PR_SET_PDEATHSIG, because that signal comes when the *thread* that started the
server ends, and a restart from a worker thread would then take the server down later. Run as a script by path
with ``python -I -S``, so it uses the standard library only.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path


def family(pid: int) -> list[int]:
    """A server and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        children = []
    return [pid, *map(int, children)]


def send(pids: list[int], number: int) -> None:
    """Signal each one that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def watch(runner: int, server: int, number: int, folder: str) -> None:
    """Return when the server has ended; end it when the runner has."""
    try:
        ended = os.pidfd_open(server)
    except ProcessLookupError:
        return
    if died := _opened(runner):
        ready, _, _ = select.select([died, ended], [], [])
        if ended in ready:
            return
    signal.pidfd_send_signal(ended, number)
    send(family(server), signal.SIGCONT)  # a paused server cannot end itself
    if not select.select([ended], [], [], 2)[0]:
        send(family(server)[::-1], signal.SIGKILL)
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)  # its last children were still writing


def _opened(runner: int) -> int | None:
    try:
        died = os.pidfd_open(runner)
    except ProcessLookupError:
        return None
    return died if os.getppid() == runner else None  # it died before we looked, and the number may be another's


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
