"""What once went wrong with file locks where something had run out, or was forbidden; each by its symptom."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from takehold import Locks, LockTimeout
from takehold.runtime import threads as runtime
from takehold.testing import Taker
from takehold.testing.faces import eventually
from tests.backends.elsewhere import elsewhere, evicted_elsewhere

KEY = "orders/42"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted here: that needs root and CAP_SYS_ADMIN")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


OUT_OF_DESCRIPTORS = """
import os, resource, time
hold = takehold.Locks(sys.argv[1]).lock(sys.argv[2]).acquire()
seat = hold._seats[0]
print("holding", flush=True)
sys.stdin.readline()
while seat.session.flags[seat.want.place.flag] < 2:  # until somebody waits with a bell
    time.sleep(0.001)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    hold.release()
print("released", hold.released, "lost", hold.lost)
"""

MANY_KEYS = """
locks, holds = takehold.Locks(sys.argv[1], check_order="off"), []
try:
    for number in range(400):
        holds.append(locks.lock(f"{number}/" + "x" * 900).acquire())
    print("all granted")
except takehold.TakeholdError as error:
    print(type(error).__name__)
"""


@pytest.mark.crash
@pytest.mark.covers("L-6")
def test_a_waiter_polls_on_where_no_bell_can_be_hung(url: str, locks: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes forbid abstract sockets: the wait spun for ever, past its deadline."""

    def forbidden(bell: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    ended: list[Any] = []

    def wait(timeout: float) -> None:
        try:
            ended.append(locks.lock(KEY, timeout=timeout).acquire())
        except LockTimeout as error:
            ended.append(error)

    with Taker(url, KEY) as taker:
        monkeypatch.setattr(socket.socket, "bind", forbidden)
        # A daemon: where this fails, it never comes back.
        waiting = threading.Thread(target=wait, args=(0.1,), daemon=True)
        waiting.start()
        waiting.join(5)
        assert [type(end) for end in ended] == [LockTimeout]
        assert ended[0].waited < 2
        waiting = threading.Thread(target=wait, args=(20,), daemon=True)
        waiting.start()
        eventually(lambda: [record for record in locks.who() if record.state == "waiting"])
        taker.release()
        waiting.join(5)
    assert len(ended) == 2
    ended.pop().release()


@pytest.mark.crash
@pytest.mark.covers("L-13")
def test_a_timer_thread_that_could_not_start_once_is_started_later(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One `can't start new thread`, and from then on every hold was granted and none was watched."""
    real, told = threading.Thread.start, threading.Event()
    refused: list[bool] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == "takehold-alarms" and not refused:
            refused.append(True)
            raise RuntimeError("can't start new thread")
        real(thread)

    locks = Locks(url)
    monkeypatch.setattr(runtime, "_clock", runtime._AlarmClock())
    monkeypatch.setattr(threading.Thread, "start", start)
    with suppress(RuntimeError):
        locks.lock("a").acquire().release()
    assert refused
    hold = locks.lock("b").acquire()
    hold.on_lost(told.set)
    assert evicted_elsewhere(url, hold)
    assert told.wait(5)
    locks.close()


@pytest.mark.crash
@pytest.mark.covers("L-9")
def test_a_release_works_with_no_descriptor_left(url: str) -> None:
    """The bell needed one: release() raised after it had unlocked, and the hold still vouched for itself."""
    command = [sys.executable, "-c", "import sys, takehold\n" + OUT_OF_DESCRIPTORS, url, KEY]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        with Taker(url, KEY, wait=True) as waiter:
            said, _ = holder.communicate("go\n", timeout=20)
            assert said == "released True lost False\n"
            waiter.until_held()


@pytest.mark.covers("L-28")
def test_a_script_whose_path_is_not_utf_8_can_lock(locks: Locks) -> None:
    """Its line on the board could not be encoded, after the key had been taken."""
    found: dict[str, Any] = {"locks": locks}
    exec(compile(f"hold = locks.lock({KEY!r}).acquire()", "/srv/caf\udce9/job.py", "exec"), found)
    (record,) = locks.who()
    assert "job.py" in str(record.owner)
    found.pop("hold").release()
    assert locks.who() == []


@pytest.mark.crash
@pytest.mark.covers("L-32")
@pytest.mark.parametrize("full_at_first", [True, False])
def test_a_full_disk_is_an_error_and_no_signal(small_disk: Path, full_at_first: bool) -> None:
    """A mapped page that cannot be had kills the process with SIGBUS."""
    url = f"file:{small_disk}/locks"
    if full_at_first:
        elsewhere("takehold.Locks(sys.argv[1]).open().close()", url)
        with suppress(OSError), open(small_disk / "fill", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    # A disk that fills later costs only the lines of who(): locks themselves need no room.
    expected = "BackendUnavailable" if full_at_first else "all granted"
    assert elsewhere(MANY_KEYS, url) == expected
