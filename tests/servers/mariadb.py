"""A MariaDB of our own: Debian's ``mariadb-server-core`` and ``-client-core``, which bring no service or account."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import pymysql

from tests.servers import child

PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults")  # the second calls the third
How = Literal["fast", "kill"]
SIGNALS: dict[How, signal.Signals] = {"fast": signal.SIGTERM, "kill": signal.SIGKILL}
SETTINGS = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "ON",
    "character-set-server": "utf8mb4",
    "max-connections": "200",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "16M",
    "innodb-flush-log-at-trx-commit": "2",  # no fsync, yet a killed server loses nothing: the kernel has it
}


class MariaDB(child.Server):
    """One running server: user ``root``, no password, TCP on ``host:port`` and a Unix socket.

    What a user notices is as it comes: InnoDB, REPEATABLE READ, a strict ``sql_mode``.
    Make one with ``start``; end it with ``stop`` or as a context manager.
    """

    def __init__(self, folder: Path, directory: Path | None, settings: dict[str, str]) -> None:
        self.folder = folder
        self.log = (directory or folder) / f"{folder.name}.log"
        self.settings = SETTINGS | settings
        self.host = "127.0.0.1"
        self.port = child.free_port()

    @staticmethod
    def missing() -> str | None:
        """Why there is none here, for a skip."""
        if all(map(child.program, PROGRAMS)):
            return None
        return "no MariaDB on this machine; as root `apt-get install mariadb-server-core mariadb-client-core` brings it"

    @classmethod
    def start(cls, directory: Path | None = None, **settings: str) -> Self:
        """A new, empty server. ``directory`` keeps its log, and may be pytest's; the data has its own in /tmp."""
        assert not cls.missing(), cls.missing()
        with child.removed_on_failure(child.own_folder("mariadb")) as folder:
            initialise(folder)
            made = cls(folder, directory, settings)
            made.up()
        return made

    # ------------------------------------------------------------------------------------------ where it is

    @property
    def socket(self) -> Path:
        """The Unix socket, which no proxy stands in front of."""
        return self.folder / "socket"

    def url(self, database: str = "mysql") -> str:
        """Over TCP."""
        return f"mysql://root@{self.host}:{self.port}/{database}"

    def database(self, name: str) -> str:
        """Make a database unless it is there, and return its URL."""
        self.query(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        return self.url(name)

    # --------------------------------------------------------------------------------------- what is in it

    def query(self, sql: str, *params: object, database: str = "mysql") -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own, over the Unix socket, and return all rows."""
        with self._connected(database) as connection, connection.cursor() as cursor:
            cursor.execute(sql, params or None)
            return list(cursor.fetchall())

    @contextmanager
    def _connected(self, database: str) -> Iterator[Any]:
        connection = pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=True, connect_timeout=10
        )
        try:
            yield connection
        finally:
            connection.close()

    def evict(self, database: str) -> None:
        """End every session that uses this database."""
        sessions = "SELECT id FROM information_schema.processlist WHERE db = %s"
        for (session,) in self.query(sessions, database):
            try:
                self.query(f"KILL {session}")
            except pymysql.err.OperationalError as error:
                if error.args[0] != 1094:  # no such session: it has ended by itself
                    raise

    # -------------------------------------------------------------------------------------- up and down

    def up(self) -> None:
        """Start it, on the same port and data as ever, and wait until it takes connections."""
        assert not self.running, "it runs already"
        place = [f"--datadir={self.folder / 'data'}", f"--socket={self.socket}", f"--port={self.port}"]
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        command = [_program("mariadbd"), "--no-defaults", *place, f"--pid-file={self.folder / 'pid'}", *settings]
        self._child = child.Child(command, self.log, self.folder, last=signal.SIGTERM)
        self._child.until(self._answers)

    def _answers(self) -> bool:
        """Whether it greets: it listens a little earlier, and a SIGTERM that comes then is lost."""
        with socket.socket(socket.AF_UNIX) as probe:  # pymysql leaves its own open when nobody is there
            probe.settimeout(1)
            try:
                probe.connect(str(self.socket))
                return bool(probe.recv(1))
            except OSError:
                return False

    def down(self, how: How = "fast") -> None:
        """End the process and keep the data. ``fast`` ends the sessions in order, ``kill`` tells nobody."""
        assert self._child is not None
        self._child.end(SIGNALS[how])

    def restart(self, how: How = "kill") -> None:
        """Take it down and up again; all sessions end."""
        self.down(how)
        self.up()

    def stop(self, how: How = "fast") -> None:
        """End it for good and remove its folder; a log kept elsewhere stays."""
        try:
            self.down(how)
        finally:
            child.remove(self.folder)


def _program(name: str) -> str:
    found = child.program(name)
    assert found, MariaDB.missing()
    return found


def initialise(folder: Path) -> None:
    """Make the data folder; anybody who reaches the port is let in."""
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", "--basedir=/usr"]
    child.run([_program("mariadb-install-db"), "--no-defaults", f"--datadir={folder / 'data'}", *options])
