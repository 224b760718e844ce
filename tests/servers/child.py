"""What all servers share: an unprivileged account, a folder of their own, a free port, a watched child process."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import watch

# PostgreSQL and PgBouncer refuse to run as root.
ACCOUNT = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
UID, GID, GROUPS = (ACCOUNT.pw_uid, ACCOUNT.pw_gid, ()) if ACCOUNT else (None, None, None)
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}  # no PGHOST of the developer
BOOT = 30.0  # seconds
# In memory where there is plenty: no server here flushes for real, and a slow disk made stopping one take a minute.
SHARED_MEMORY = Path("/dev/shm")
PLENTY = 4 * 2**30


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on, below the range of outgoing connections: none can take it while a server is down."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port


def own_folder(name: str) -> Path:
    """A new folder the account can reach: pytest's own are closed to others, and too long for a Unix socket."""
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > PLENTY
    folder = Path(tempfile.mkdtemp(prefix=f"takehold-{name}-", dir=SHARED_MEMORY if roomy else "/tmp"))
    if ACCOUNT:
        os.chown(folder, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
    return folder


@contextmanager
def removed_on_failure(folder: Path) -> Iterator[Path]:
    """For the time until a server runs and somebody can stop it."""
    try:
        yield folder
    except BaseException:
        remove(folder)
        raise


def program(name: str) -> str | None:
    """Its path, also where only root looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def remove(folder: Path) -> None:
    """Remove a server's folder."""
    shutil.rmtree(folder, ignore_errors=True)


def run(command: Sequence[str]) -> None:
    """Run a server's tool to its end, under the account."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        cwd="/",
        user=UID,
        group=GID,
        extra_groups=GROUPS,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with {done.returncode}: {done.stderr or done.stdout}")


class Child:
    """A server in the foreground, and its watcher. ``folder`` is removed if this process dies before ``end``."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        *,
        last: signal.Signals = signal.SIGQUIT,
        as_root: bool = False,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
                cwd="/",
                user=None if as_root else UID,
                group=None if as_root else GID,
                extra_groups=None if as_root else GROUPS,
                process_group=0,  # Ctrl-C is for pytest, which then stops us in order
            )
        self.pid = self._process.pid
        numbers = [str(number) for number in (os.getpid(), self.pid, int(last))]
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", watch.__file__, *numbers, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            process_group=0,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait for the server to be ready; if it never is, end it and say what it wrote."""
        deadline = time.monotonic() + BOOT
        while not ready():
            if not self.running or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise RuntimeError(f"the server did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        """Signal the server and its children."""
        watch.send(watch.family(self.pid), number)

    def end(self, number: signal.Signals, patience: float = 30.0) -> None:
        """Signal the server and wait until it is gone. SIGKILL takes its children too, as a machine's end would."""
        until = time.monotonic() + patience
        try:
            while self.running:
                if number == signal.SIGKILL or time.monotonic() > until:
                    self._kill()
                    assert number == signal.SIGKILL, f"not ended {patience:g} s after {number.name}"
                    break
                self.send(signal.SIGCONT)
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(5.0)  # and once more: MariaDB can miss the signal when it has only just started
        finally:
            self._process.wait()
            self._watcher.wait()

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no other child while we count them
        everyone = watch.family(self.pid)
        watch.send(everyone, signal.SIGKILL)
        self._process.wait()
        while any(_lives(pid) for pid in everyone):
            time.sleep(0.001)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Server:
    """What a database server can do as a process; made and started by its own class."""

    folder: Path
    _child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End it for good and remove its folder; a log kept elsewhere stays."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def pause(self) -> None:
        """Stop the server and its sessions in their tracks, as a frozen machine would."""
        assert self._child is not None
        self._child.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        assert self._child is not None
        self._child.send(signal.SIGCONT)
