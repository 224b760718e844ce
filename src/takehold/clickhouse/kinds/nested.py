"""Values made of values: Array, Map and Tuple, each taken apart, converted by its parts and put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from takehold.clickhouse.kinds.base import Kind, Misfit

__all__ = ["Listing", "Pairs", "Record"]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple) or (type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0)


@dataclass(frozen=True)
class Listing(Kind):
    """Array(T)."""

    item: Kind

    _takes = "list, tuple and numpy arrays"

    def _taken(self, values: Sequence[Any]) -> pa.Array:
        if not all(map(_is_sequence, values)):
            raise Misfit(f"it takes {self._takes}")
        offsets = pa.array(accumulate(map(len, values), initial=0), type=pa.int64())
        return pa.LargeListArray.from_arrays(offsets, self.item.from_list(list(chain.from_iterable(values))))

    def _cast(self, array: pa.Array) -> pa.Array:
        kind = array.type
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)
        if not any(is_(kind) for is_ in (*lists, pa.types.is_large_list_view)):
            return self._refuse(array)
        if array.null_count:
            raise Misfit("an Array is never NULL")
        ends = pc.cumulative_sum(pc.list_value_length(array).cast(pa.int64()))
        offsets = pa.concat_arrays([pa.array([0], type=pa.int64()), ends])
        return pa.LargeListArray.from_arrays(offsets, self.item.from_arrow(array.flatten()))


@dataclass(frozen=True)
class Pairs(Kind):
    """Map(K, V), from dict or from a list of pairs."""

    key: Kind
    value: Kind

    _takes = "dict"

    def _taken(self, values: Sequence[Any]) -> pa.Array:
        if not all(isinstance(value, Mapping | list) for value in values):
            raise Misfit(f"it takes {self._takes}")
        pairs = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
        offsets = pa.array(accumulate(map(len, pairs), initial=0), type=pa.int32())
        flat = list(chain.from_iterable(pairs))
        keys, items = zip(*flat, strict=True) if flat else ((), ())
        return pa.MapArray.from_arrays(offsets, self.key.from_list(keys), self.value.from_list(items))

    def _cast(self, array: pa.Array) -> pa.Array:
        return self._taken(array.to_pylist()) if pa.types.is_map(array.type) else self._refuse(array)


@dataclass(frozen=True)
class Record(Kind):
    """Tuple(...): named elements from dict or tuple, others from tuple."""

    names: tuple[str, ...]
    items: tuple[Kind, ...]
    named: bool

    @property
    def _takes(self) -> str:
        elements = f"tuples of {len(self.items)}"
        return f"{elements}, or dicts with the keys {', '.join(map(repr, self.names))}" if self.named else elements

    def _taken(self, values: Sequence[Any]) -> pa.Array:
        rows = [self._elements(value) for value in values]
        columns = zip(*rows, strict=True) if rows else [()] * len(self.items)
        return self._joined([item.from_list(column) for item, column in zip(self.items, columns, strict=True)])

    def _elements(self, value: Any) -> Sequence[Any]:
        if self.named and isinstance(value, Mapping) and value.keys() == set(self.names):
            return [value[name] for name in self.names]
        if _is_sequence(value) and len(value) == len(self.items):
            return list(value)
        raise Misfit(f"it takes {self._takes}")

    def _cast(self, array: pa.Array) -> pa.Array:
        if not pa.types.is_struct(array.type) or array.type.num_fields != len(self.items):
            return self._refuse(array)
        if array.null_count:
            raise Misfit("a Tuple is never NULL")
        columns = array.flatten()
        if self.named:
            places = {field.name: place for place, field in enumerate(array.type)}
            if places.keys() != set(self.names):
                return self._refuse(array)
            columns = [columns[places[name]] for name in self.names]
        return self._joined([item.from_arrow(column) for item, column in zip(self.items, columns, strict=True)])

    def _joined(self, columns: list[pa.Array]) -> pa.Array:
        return pa.StructArray.from_arrays(columns, names=list(self.names))
