"""Whether the client of a server session still lives, for clients of this very host: the kernel lists its sockets.

A server process that waits for a lock does not look at its socket, so it cannot tell. Nothing is guessed: an
address that is not our own, or a translated one, is not judged.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Neighbours"]

End: TypeAlias = tuple[str, int]
_ESTABLISHED: Final = "01"
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class Neighbours:
    """The TCP clients that run where we run."""

    def __init__(self, own: End | None) -> None:
        self._alive = _established()
        # Seen by the server as the kernel sees it here: no translation in between, and addresses can be compared.
        self._address = own[0] if own is not None and own in self._alive else None

    def gone(self, client: End | None) -> bool:
        """Whether this client was one of ours and has no such connection any more."""
        return client is not None and client[0] == self._address and client not in self._alive


def _established() -> set[End]:
    found: set[End] = set()
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    found.add(_end(fields[1]))
    return found


def _end(text: str) -> End:
    """`0100007F:1F90` as the kernel writes it: words in the order of the machine."""
    address, port = text.split(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    found = ip_address(raw)
    mapped: IPv4Address | None = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found), int(port, 16)
