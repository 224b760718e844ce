"""A ClickHouse of our own: clickhouse-local from the ``chdb-core`` wheel, which ``listen`` makes a server.

A real one for clients, over HTTP and over the native protocol; it has no Keeper and no ``system.query_log``.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.servers import child, listen

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

How = Literal["fast", "kill"]
SIGNALS: dict[How, signal.Signals] = {"fast": signal.SIGTERM, "kill": signal.SIGKILL}
SETTINGS = {
    "listen_host": "127.0.0.1",
    "max_server_memory_usage": "2000000000",  # else nine tenths of the machine; pools and caches start small as it is
}
PAIR = "pair"


class ClickHouse(child.Server):
    """One running server: user ``default``, no password, HTTP on ``host:port``, the native protocol on ``native``.

    Make one with ``start`` or two with ``pair``; end it with ``stop`` or as a context manager.
    """

    def __init__(self, folder: Path, directory: Path | None, native: int, settings: dict[str, str]) -> None:
        self.folder = folder
        self.log = (directory or folder) / f"{folder.name}.log"
        self.host = "127.0.0.1"
        self.port = _other_port(native)
        self.native = native
        self.settings = SETTINGS | {"http_port": str(self.port), "tcp_port": str(native)} | settings

    @staticmethod
    def missing() -> str | None:
        """Why there is none here, for a skip."""
        if importlib.util.find_spec("chdb") and importlib.util.find_spec("clickhouse_connect"):
            return None
        return "no ClickHouse on this machine; `pip install chdb-core clickhouse-connect` brings it"

    @classmethod
    def start(cls, directory: Path | None = None, *, cluster: Sequence[int] = (), **settings: str) -> Self:
        """A new, empty server. ``directory`` keeps its log, and may be pytest's; the data has its own in /tmp.

        ``cluster`` are the native ports, its own first, of the replicas of cluster ``pair``. A setting may be XML.
        """
        assert not cls.missing(), cls.missing()
        with child.removed_on_failure(child.own_folder("clickhouse")) as folder:
            if cluster:
                settings["remote_servers"] = _one_shard(cluster)
            made = cls(folder, directory, cluster[0] if cluster else child.free_port(), settings)
            made.up()
        return made

    @classmethod
    @contextmanager
    def pair(cls, directory: Path | None = None) -> Iterator[tuple[Self, Self]]:
        """Two servers that know each other as cluster ``pair``: one shard with two replicas."""
        one = child.free_port()
        two = _other_port(one)
        with cls.start(directory, cluster=(one, two)) as first, cls.start(directory, cluster=(two, one)) as second:
            yield first, second

    # ------------------------------------------------------------------------------------------ where it is

    def url(self, database: str = "default") -> str:
        """Over HTTP."""
        return f"clickhouse://default@{self.host}:{self.port}/{database}"

    def database(self, name: str) -> str:
        """Make a database unless it is there, and return its URL."""
        self.query(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        return self.url(name)

    # --------------------------------------------------------------------------------------- what is in it

    def client(self, **options: Any) -> Client:
        """A blocking client that threads may share, with connections of its own; the caller closes it."""
        import clickhouse_connect  # a third of a second, for the tests that need it

        own: dict[str, Any] = {"autogenerate_session_id": False, "dedicated_pool": True}
        return clickhouse_connect.get_client(host=self.host, port=self.port, **own | options)

    def query(self, sql: str, *, database: str = "default", **parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement with a client of its own, and return all rows; it may say ``{name:Type}``."""
        with closing(self.client(database=database)) as client:
            return [tuple(row) for row in client.query(sql, parameters).result_rows]

    def evict(self, database: str) -> None:
        """Cancel every query of clients of this database, and wait until they have ended."""
        self.query("KILL QUERY WHERE current_database = {name:String} SYNC", name=database)

    # -------------------------------------------------------------------------------------- up and down

    def up(self) -> None:
        """Start it, on the same ports and data as ever, and wait until it answers."""
        assert not self.running, "it runs already"
        settings = "".join(f"  <{name}>{value}</{name}>\n" for name, value in self.settings.items())
        (self.folder / "clickhouse-local.xml").write_text(f"<clickhouse>\n{settings}</clickhouse>\n")
        command = [sys.executable, "-I", listen.__file__, str(self.folder), str(self.port)]
        # Not under the account, which may not reach this interpreter; ClickHouse does not mind root.
        self._child = child.Child(command, self.log, self.folder, last=signal.SIGKILL, as_root=True)
        self._child.until(self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.port}/", b"SELECT 1", timeout=5) as answer:
                return bool(answer.read() == b"1\n")
        except OSError:
            return False

    def down(self, how: How = "fast") -> None:
        """End the process and keep the data. ``fast`` cancels queries and says so, ``kill`` tells nobody."""
        assert self._child is not None
        self._child.end(SIGNALS[how])

    def restart(self, how: How = "kill") -> None:
        """Take it down and up again; all queries end."""
        self.down(how)
        self.up()

    def stop(self, how: How = "fast") -> None:
        """End it for good and remove its folder; a log kept elsewhere stays."""
        try:
            self.down(how)
        finally:
            child.remove(self.folder)


def _other_port(taken: int) -> int:
    while (port := child.free_port()) == taken:
        pass
    return port


def _one_shard(ports: Sequence[int]) -> str:
    replicas = "".join(f"<replica><host>127.0.0.1</host><port>{port}</port></replica>" for port in ports)
    return f"<{PAIR}><shard>{replicas}</shard></{PAIR}>"
