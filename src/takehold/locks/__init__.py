"""What users touch: `Locks` and `AsyncLocks`, their requests and their holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["on_release"]

on_release: Callable[[Any, int], None] | None = None
"""Called after each release with the hold and when it was granted, in nanoseconds on the monotonic clock."""
