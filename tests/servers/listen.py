"""The process of a ClickHouse server: the clickhouse-local inside the ``chdb-core`` wheel, told to listen.

``_chdb.query`` is private, but the only way: the wheel's public calls refuse to listen. Ports and other settings are
read from ``clickhouse-local.xml`` in the folder. Run as a script by path with ``python -I``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import urllib.request
from contextlib import suppress

CANCEL = b"KILL QUERY WHERE interface IN ('HTTP', 'TCP') ASYNC"  # all but the one that waits below
PATIENCE = 1.0  # seconds; it would wait five for clients that only keep their connections open


def listen(folder: str, port: int) -> None:
    """Serve until SIGTERM, then cancel the queries of clients, which hear of it, and wait for no idle one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in every thread: it stays pending, for us to see
    os.chdir(folder)
    if not os.path.exists("waiting"):
        os.mkfifo("waiting")
    pipe = os.open("waiting", os.O_RDWR)  # who reads it waits until it is closed here
    server = threading.Thread(target=_serve, args=[f"{folder}/waiting", f"{folder}/data"])
    server.start()
    while server.is_alive() and signal.SIGTERM not in signal.sigpending():  # sigtimedwait errs after SIGSTOP
        server.join(0.1)
    if server.is_alive():
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", CANCEL, timeout=PATIENCE).close()
        os.close(pipe)
        server.join(PATIENCE)
        os.write(1, b"ended by SIGTERM\n")
    os._exit(0)


def _serve(waiting: str, data: str) -> None:
    from chdb import _chdb

    listening = "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP"  # in this order: who is answered finds both
    script = f"{listening}; SELECT * FROM file('{waiting}', LineAsString) FORMAT Null"
    # Clients that name no format get this one, as of any server.
    _chdb.query(script, "TabSeparated", path=data)  # type: ignore[attr-defined]  # private


if __name__ == "__main__":
    listen(sys.argv[1], int(sys.argv[2]))
