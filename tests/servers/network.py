"""A PostgreSQL on a machine of its own, as far as packets can tell: a network namespace behind a veth pair.

``partition`` loses packets without a word, both ways, which a proxy cannot do: its two sockets always acknowledge.
The namespace has no name, so it and its devices vanish with the last process inside.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import child
from tests.servers.postgres import Postgres, initialise


class Namespace:
    """A network namespace with ``server`` in it; end it with ``stop`` or as a context manager."""

    def __init__(self, holder: child.Child, folder: Path) -> None:
        self._holder, self._folder = holder, folder
        self._near, self._far = f"th{os.getpid()}a", f"th{os.getpid()}b"
        self._inside = ("nsenter", f"--target={holder.pid}", "--net")
        self._parted = False
        self.server: Postgres

    @staticmethod
    def missing() -> str | None:
        """Why there can be none here, for a skip."""
        if os.geteuid() != 0:
            return "a network namespace takes root"
        if lacking := [name for name in ("ip", "tc", "unshare", "nsenter", "setpriv") if not shutil.which(name)]:
            return f"a network namespace takes {', '.join(lacking)}, which is not here"
        if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
            return "this machine allows no network namespace"
        return None

    @classmethod
    def start(cls, directory: Path | None = None, **settings: str) -> Self:
        """A new namespace and a server in it; the arguments are those of ``Postgres.start``."""
        folder = child.own_folder("namespace")
        command = ["unshare", "--net", "sh", "-c", f"echo > {folder}/made; exec sleep infinity"]
        holder = child.Child(command, folder / "log", folder, last=signal.SIGTERM, as_root=True)
        holder.until((folder / "made").exists)
        made = cls(holder, folder)
        try:
            made._connect(directory, settings)
        except BaseException:
            holder.end(signal.SIGKILL)
            child.remove(folder)
            raise
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def partition(self) -> None:
        """Drop every packet between the server and us, without a word to either."""
        if not self._parted:
            self._parted = True
            _run("tc", "qdisc", "add", "dev", self._near, "root", "blackhole")
            _run(*self._inside, "tc", "qdisc", "add", "dev", self._far, "root", "blackhole")

    def heal(self) -> None:
        """Let packets pass again."""
        if self._parted:
            _run("tc", "qdisc", "del", "dev", self._near, "root")
            _run(*self._inside, "tc", "qdisc", "del", "dev", self._far, "root")
            self._parted = False

    def stop(self) -> None:
        """End the server; the namespace goes with it."""
        try:
            self.server.stop()
        finally:
            self._holder.end(signal.SIGTERM)
            child.remove(self._folder)

    def _connect(self, directory: Path | None, settings: dict[str, str]) -> None:
        net = f"198.18.{random.randrange(256)}"  # reserved for tests of networks
        near, far = (self._near, f"{net}.1"), (self._far, f"{net}.2")
        _run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", str(self._holder.pid))
        for (device, address), inside in ((near, ()), (far, self._inside)):
            _run(*inside, "ip", "address", "add", f"{address}/30", "dev", device)
            _run(*inside, "ip", "link", "set", device, "up")
        _run(*self._inside, "ip", "link", "set", "lo", "up")
        # Each knows the other's hardware address for good. Lost ARP would be told to the sockets; lost packets are not.
        _meet(self._near, far[1], _hardware_address(self._far, self._inside), ())
        _meet(self._far, near[1], _hardware_address(self._near, ()), self._inside)

        account = child.ACCOUNT
        assert account
        drop = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
        settings = {"listen_addresses": "*"} | settings
        with child.removed_on_failure(child.own_folder("far")) as folder:
            initialise(folder)
            with (folder / "data" / "pg_hba.conf").open("a", encoding="ascii") as access:
                access.write("host all all all trust\n")
            self.server = Postgres(folder, directory, settings, host=far[1], within=(*self._inside, *drop))
            self.server.up()


def _meet(device: str, address: str, hardware: str, inside: tuple[str, ...]) -> None:
    _run(*inside, "ip", "neighbour", "replace", address, "lladdr", hardware, "dev", device, "nud", "permanent")


def _hardware_address(device: str, inside: tuple[str, ...]) -> str:
    return _run(*inside, "ip", "-brief", "link", "show", "dev", device).split()[2]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return done.stdout
