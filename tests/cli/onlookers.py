"""Programs without takehold: plain psycopg sessions that hold and await advisory locks, in threads of the test.

And what the tests of the command line on a server share.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
import pytest

from takehold import Key, Locks
from takehold.core.want import EXCLUSIVE, wants_for
from takehold.runtime import Threads, run
from tests.cli.conftest import RunTakehold, until


class Stranger:
    """One session of some other program."""

    def __init__(self, url: str, name: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, application_name=name, connect_timeout=10)
        self.pid = self.connection.info.backend_pid
        self._thread: threading.Thread | None = None

    def run(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def await_lock(self, call: str) -> None:
        """Begin to wait in a thread; returns when the server has it in the queue."""

        def wait() -> None:
            with suppress(psycopg.Error):
                self.run(f"SELECT {call}")

        self._thread = threading.Thread(target=wait)
        self._thread.start()
        with psycopg.connect(self.connection.info.dsn, autocommit=True) as other:
            until(lambda: other.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", [self.pid]).fetchall())

    def end(self) -> None:
        with suppress(psycopg.Error):
            self.connection.cancel()
        if self._thread is not None:
            self._thread.join(10)
        self.connection.close()


Strangers: TypeAlias = Callable[..., Stranger]


def prepared(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server with fences, where every command looks when it is not told."""
    run(Locks(url)._backend.init(Threads(), fence_from=None))
    monkeypatch.setenv("TAKEHOLD_URL", url)
    return url


def listed(takehold: RunTakehold, *words: str) -> list[dict[str, Any]]:
    """What `ls` says."""
    done = takehold("ls", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def number_of(url: str, key: str | Key, namespace: str = "") -> int:
    """What the server knows of a key."""
    place = Locks(url)._backend.place
    wants = wants_for((key,), namespace=namespace, mode=EXCLUSIVE, subtree=False, place=place)
    [number] = [want.place for want in wants if not want.implied]
    return int(number)
