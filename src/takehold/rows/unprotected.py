"""The warning about writes that no lock protects, or not for long enough."""

from __future__ import annotations

import warnings
from typing import Any

from takehold.rows.party import application_line

__all__ = ["UnprotectedWrite", "warn"]

_told: dict[Any, Any] = {}
"""What was said where: as with any warning, once per line of the application is enough."""


class UnprotectedWrite(RuntimeWarning):
    """A row was changed without its lock, or the lock was let go before the commit: somebody's work can be lost."""


def warn(sentence: str) -> None:
    """Warn whoever wrote the line of the application that runs now."""
    file, _, line = application_line().rpartition(":")
    warnings.warn_explicit(sentence, UnprotectedWrite, file, int(line), registry=_told)
