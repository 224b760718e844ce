"""The kinds of columns: what fits a type of ClickHouse, and how it travels. Used by `columns` and `data`."""

from takehold.clickhouse.kinds.base import UNFIT, Kind, Misfit
from takehold.clickhouse.kinds.parsing import kind_of

__all__ = ["UNFIT", "Kind", "Misfit", "kind_of"]
