"""Both faces from one text: what differs between a blocking and an asyncio client."""

from __future__ import annotations

from inspect import isawaitable
from typing import Any

__all__ = ["settled"]


async def settled(value: Any) -> Any:
    """The value itself, as a blocking client gives it, or what it becomes when awaited, as an asyncio client does."""
    return await value if isawaitable(value) else value
