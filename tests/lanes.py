"""How much work a test does: a tenth in ``make check`` and ``make test``, all of it in ``make prove``."""

from __future__ import annotations

import os

PROVE = os.environ.get("TAKEHOLD_PROVE") == "1"


def scaled(full: int) -> int:
    """Count to use in this lane for a test whose full count is ``full``; never less than one."""
    return full if PROVE else max(1, full // 10)


def describe() -> str:
    """One phrase for the run header."""
    return "full counts" if PROVE else "a tenth of the full counts (TAKEHOLD_PROVE=1 for all)"
