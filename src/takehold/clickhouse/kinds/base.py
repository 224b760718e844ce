"""What every kind of column does: from Python values or an Arrow array to an array that ClickHouse stores as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["UNFIT", "Kind", "Misfit", "within"]


class Misfit(ValueError):
    """A value that the column cannot hold; the text says why, as the end of a sentence."""


# What a conversion raises when a value does not fit. Arrow's own errors are not all of them ValueError.
UNFIT = (ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException)


@dataclass(frozen=True)
class Kind(ABC):
    """A type of ClickHouse. `plain` is the type declared to the server, which casts it to the column's own.

    Whether a value fits depends on that value alone, never on its neighbours: the search for the bad row relies on it.
    """

    plain: str
    arrow: pa.DataType
    nullable: bool = field(default=False, kw_only=True)

    native: ClassVar[frozenset[type]] = frozenset()
    """Types of Python that pyarrow converts without a loss; other values go through `_one`, one by one."""

    @property
    def wire(self) -> str:
        """The type to declare, with its Nullable."""
        return f"Nullable({self.plain})" if self.nullable else self.plain

    def from_list(self, values: Sequence[Any]) -> pa.Array:
        """Python values, or one of UNFIT."""
        return self._sound(self._taken(values))

    def from_arrow(self, array: pa.Array) -> pa.Array:
        """Values that are in Arrow already, or one of UNFIT."""
        array = _decoded(array)
        return self._sound(pa.nulls(len(array), self.arrow) if pa.types.is_null(array.type) else self._cast(array))

    def _taken(self, values: Sequence[Any]) -> pa.Array:
        """The values as an array, exactly. pyarrow alone would cut 1.5 to 1 and a datetime to its date."""
        if set(map(type, values)) <= self.native | {NoneType}:
            return pa.array(values, type=self.arrow)
        return pa.array(
            [None if value is None else self._one(value) for value in map(_unboxed, values)], type=self.arrow
        )

    def _one(self, value: Any) -> Any:
        """The value as one that `arrow` takes, or a Misfit."""
        raise Misfit(f"it takes {self._takes}")

    @property
    @abstractmethod
    def _takes(self) -> str:
        """Which values of Python it takes, for an error."""

    @abstractmethod
    def _cast(self, array: pa.Array) -> pa.Array:
        """Another array as this kind, or an error if anything would be lost."""

    def _check(self, array: pa.Array) -> None:  # noqa: B027 - most kinds have nothing to check
        """A Misfit if a value is of the right type and still none for this column."""

    def _sound(self, array: pa.Array) -> pa.Array:
        if array.null_count and not self.nullable:
            raise Misfit("only a Nullable type holds None")
        self._check(array)
        return array

    def _refuse(self, array: pa.Array) -> pa.Array:
        raise Misfit(f"it takes {self._takes}, not {array.type}")


def within(array: pa.Array, low: int, high: int) -> bool:
    """Whether all numbers of an array lie between two, both included."""
    ends = pc.min_max(array)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return least is None or (low <= least and most <= high)


def _decoded(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    # A UUID stays one: as its 16 bytes it would also fit a String.
    if isinstance(array, pa.ExtensionArray) and array.type != pa.uuid():
        return array.storage
    return array


def _unboxed(value: Any) -> Any:
    """A scalar of numpy as its Python value; one that has none stays: nanoseconds would become a bare int."""
    if type(value).__module__ != "numpy" or not hasattr(value, "dtype") or value.ndim:
        return value
    plain = value.item()
    return value if value.dtype.kind in "mM" and isinstance(plain, int) else plain
