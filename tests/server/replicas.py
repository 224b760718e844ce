"""`takehold serve` as processes of their own, to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Self

from tests.servers.child import free_port

BOOT = 60.0


class Replica:
    """One server process; after `kill` it can be started again on the same port."""

    def __init__(self, store: str, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", "takehold", "serve", "--warehouse", store, "--port", str(self.port)]
        self.command += ["--json", *options]
        self.lines: list[dict[str, object]] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Run it until it listens."""
        process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env={**os.environ})
        self._process = process
        timer = threading.Timer(BOOT, process.kill)
        timer.start()
        assert process.stderr is not None
        for line in process.stderr:
            self.note(line)
            if '"event":"started"' in line:
                break
        else:
            raise AssertionError(f"{self.command} did not start: {self.lines}")
        timer.cancel()
        self._reader = threading.Thread(target=self._drain, args=(process,), daemon=True)
        self._reader.start()
        return self

    def note(self, line: str) -> None:
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.lines.append({"text": line.rstrip()})

    def _drain(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.note(line)

    def kill(self) -> None:
        """SIGKILL: it does nothing more."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(timeout=30)
        self._reader.join(timeout=30)
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
