"""Azurite, Microsoft's own emulator of Azure Blob Storage: another family of conditional writes. Needs Node.js.

``scripts/setup`` installs it where ``npm`` is; elsewhere its tests are skipped.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import signal
import socket
import sys
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import Literal, Self

from tests.servers import child

How = Literal["fast", "kill"]
ACCOUNT = "devstoreaccount1"
# The key that every Azurite has; it is in its manual.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite(child.Server):
    """One running server, all in memory; blobs on ``endpoint``, with ``ACCOUNT`` and ``KEY``."""

    def __init__(self, folder: Path, directory: Path | None) -> None:
        self.folder = folder
        self.log = (directory or folder) / f"{folder.name}.log"
        self.host = "127.0.0.1"
        self.port = child.free_port()

    @staticmethod
    def missing() -> str | None:
        """Why there is none here, for a skip."""
        if child.program("node") and _script().exists():
            return None
        return "no Azurite on this machine; `make setup` installs it where Node.js and npm are"

    @classmethod
    def start(cls, directory: Path | None = None) -> Self:
        """A new, empty server. ``directory`` keeps its log, and may be pytest's."""
        assert not cls.missing(), cls.missing()
        with child.removed_on_failure(child.own_folder("azurite")) as folder:
            made = cls(folder, directory)
            made.up()
        return made

    @property
    def endpoint(self) -> str:
        """Where the account's blobs are."""
        return f"http://{self.host}:{self.port}/{ACCOUNT}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client finds its credentials in."""
        return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}

    def url(self, container: str) -> str:
        """A container, as a store opens it; ``environment`` has the credentials."""
        return f"az://{container}?endpoint={self.endpoint}"

    def container(self, name: str) -> str:
        """Make a container, and return its URL."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        # The account stands there twice: once as such, once because it is in the path of an emulator.
        text = f"PUT\n{chr(10) * 11}{signed}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        headers["Content-Length"] = "0"
        url = f"{self.endpoint}/{name}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()
        return self.url(name)

    def up(self) -> None:
        """Start it and wait until it takes connections; what it had is gone."""
        assert not self.running, "it runs already"
        node = child.program("node")
        assert node, self.missing()
        where = ["--blobHost", self.host, "--blobPort", str(self.port)]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
        command = [node, str(_script()), *quiet, *where]
        # Not under the account, which may not reach this checkout.
        self._child = child.Child(command, self.log, self.folder, last=signal.SIGKILL, as_root=True)
        self._child.until(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((self.host, self.port)) == 0

    def down(self, how: How = "kill") -> None:
        """End the process; all is in memory, so all is lost."""
        assert self._child is not None
        self._child.end({"fast": signal.SIGTERM, "kill": signal.SIGKILL}[how])

    def stop(self, how: How = "kill") -> None:
        """End it for good and remove its folder; a log kept elsewhere stays."""
        try:
            self.down(how)
        finally:
            child.remove(self.folder)


def _script() -> Path:
    return Path(sys.prefix) / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
