"""Fronts of servers: one that does what ON CLUSTER does where there is no Keeper, one that counts round trips."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.servers.clickhouse import PAIR, ClickHouse
from tests.servers.proxy import Proxy, Side

ON_CLUSTER = f" ON CLUSTER `{PAIR}`"
OURS = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}


class Trips(Proxy):
    """Counts how often the client spoke after the server had."""

    def __init__(self, target_port: int) -> None:
        self.trips = 0
        self._last: Side = "server"
        super().__init__(target_port)

    def _passing(self, side: Side, size: int) -> int | None:
        if side == "client" and self._last == "server":
            self.trips += 1
        self._last = side
        return super()._passing(side, size)


class Front:
    """Passes every request on to the first server; one ON CLUSTER goes, without these words, to all of them.

    The servers of the tests have no Keeper, and refuse ON CLUSTER.
    """

    def __init__(self, servers: Sequence[ClickHouse]) -> None:
        self.everywhere: list[str] = []
        """The statements that went to all."""
        self._ports = [server.port for server in servers]

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Ask whom it concerns; what the first says."""
        place = urlsplit(path)
        asked = {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        sql = asked.get("query") or body.decode(errors="replace")
        if ON_CLUSTER not in sql:
            return _ask(self._ports[0], path, headers, body)
        self.everywhere.append(sql)
        if "query" in asked:
            asked["query"] = asked["query"].replace(ON_CLUSTER, "")
        path, body = f"{place.path}?{urlencode(asked)}", body.replace(ON_CLUSTER.encode(), b"")
        first, *_ = [_ask(port, path, headers, body) for port in self._ports]
        return first


def _ask(port: int, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body or None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


@contextmanager
def front(*servers: ClickHouse) -> Iterator[tuple[Front, int]]:
    """A front and its port."""
    made = Front(servers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = b"".join(_chunks(self.rfile)) if "Transfer-Encoding" in self.headers else self.rfile.read(self._size)
            kept = {name: value for name, value in self.headers.items() if name.lower() not in OURS}
            status, headers, said = made.answer(self.path, kept, body)
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in {*OURS, "keep-alive", "date", "server"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST  # noqa: N815

        @property
        def _size(self) -> int:
            return int(self.headers.get("Content-Length", "0"))

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield made, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _chunks(file: Any) -> Iterator[bytes]:
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()
    file.readline()
