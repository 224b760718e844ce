"""A block: the rows of one call, and what is known of it."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from takehold import UnknownOutcome
from takehold.clickhouse.naming import TableName

__all__ = ["Block", "State", "UnknownBlock", "id_of_token", "new_id"]

State = Literal["finished", "unfinished", "running"]


@dataclass(frozen=True, slots=True)
class Block:
    """What one call appended: contiguous, and found again by its id."""

    id: int
    table: str
    rows: int
    """How many; of an unfinished block, how many its writer got to."""
    state: State
    writer: str
    """`host:pid`, with the label of its locks."""
    fence: int
    first: int | None = None
    """The lowest row id, in a table that has them."""
    last: int | None = None
    """The highest row id."""
    token: str | None = None
    at: datetime | None = None
    """When it was recorded, by the server's clock; None when nobody lived to record it."""

    @property
    def finished(self) -> bool:
        """Whether the call came to its end: all its rows are there."""
        return self.state == "finished"


class UnknownBlock(UnknownOutcome):
    """An append may or may not have happened; the block's id tells when you look, and its token makes a retry safe."""

    def __init__(self, message: str, block: int) -> None:
        super().__init__(message)
        self.block = block


def new_id() -> int:
    """A number for a block: milliseconds and 22 random bits; calls on one table come one after the other."""
    return (time.time_ns() // 1_000_000 & (1 << 41) - 1) << 22 | secrets.randbits(22)


def id_of_token(table: TableName, token: str) -> int:
    """The number of the block that this token stands for, the same in every process."""
    digest = hashlib.blake2b(f"{table}\0{token}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1 or 1
