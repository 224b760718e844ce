"""PgBouncer in front of a PostgreSQL: the pooler under which a session is not what it seems."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.servers import child
from tests.servers.postgres import Postgres

CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer:
    """One running pooler; end it with ``stop`` or as a context manager."""

    def __init__(self, folder: Path, port: int, process: child.Child) -> None:
        self.folder, self.port = folder, port
        self._child = process

    @staticmethod
    def missing() -> str | None:
        """Why there is none here, for a skip."""
        return (
            None
            if child.program("pgbouncer")
            else "no pgbouncer on this machine; as root `apt-get install pgbouncer` brings it"
        )

    @classmethod
    def start(
        cls, postgres: Postgres, mode: Literal["transaction", "session"] = "transaction", pool_size: int = 2
    ) -> Self:
        """A pooler for every database of ``postgres``, with ``pool_size`` server connections for each."""
        program = child.program("pgbouncer")
        assert program, cls.missing()
        port = child.free_port()
        with child.removed_on_failure(child.own_folder("pgbouncer")) as folder:
            text = CONFIGURATION.format(server=postgres.port, port=port, folder=folder, mode=mode, size=pool_size)
            (folder / "ini").write_text(text, encoding="ascii")
            (folder / "users").write_text('"postgres" ""\n', encoding="ascii")
            process = child.Child([program, str(folder / "ini")], folder / "log", folder, last=signal.SIGTERM)
            process.until(lambda: _listens(port))
        return cls(folder, port, process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def url(self, database: str = "postgres") -> str:
        """A database of the server, through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """End it; its clients and its server connections end with it."""
        try:
            self._child.end(signal.SIGTERM)
        finally:
            child.remove(self.folder)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
