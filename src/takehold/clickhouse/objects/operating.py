"""Operating: the SELECT of an operator between two operands, aligned by the order of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from takehold import UsageError
from takehold.clickhouse.channel import Channel
from takehold.clickhouse.objects.expressions import aggregate, binary, unary
from takehold.clickhouse.objects.literals import literal
from takehold.clickhouse.objects.relation import Relation, snapshot
from takehold.clickhouse.objects.shapes import VALUE, Shape
from takehold.clickhouse.quoting import identifier

__all__ = ["Result", "aggregated", "combined", "negated"]


@dataclass(frozen=True, slots=True)
class Result:
    """What is to be materialized."""

    select: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Operand:
    """One side: its columns as SQL and type, and where they are selected from; nowhere if it is broadcast."""

    columns: dict[str, tuple[str, str]]
    shape: Shape
    source: str = ""
    count: int = 1

    @property
    def wide(self) -> bool:
        return self.shape in {"columns", "records", "record"}

    def named(self, name: str) -> tuple[str, str]:
        return self.columns[name if self.wide else VALUE]


async def combined(channel: Channel, operator: str, left: Any, right: Any) -> Result:
    """`left operator right`; each is a relation or a scalar of Python."""
    one, other = await _operand(channel, left, "l"), await _operand(channel, right, "r")
    if one.source and other.source and one.count != other.count:
        raise UsageError(f"{operator} needs objects of one length: these have {one.count} and {other.count} rows")
    if one.wide and other.wide and one.columns.keys() != other.columns.keys():
        raise UsageError(f"{operator} needs the same columns: {list(one.columns)} and {list(other.columns)}")
    names = one if one.wide else other
    expressions = {name: binary(operator, one.named(name), other.named(name)) for name in names.columns}
    sources = [side.source for side in (one, other) if side.source]
    return Result(_select(expressions, " PASTE JOIN ".join(sources)), _shape(one, other))


async def negated(channel: Channel, operator: str, relation: Relation) -> Result:
    """`-x` or `~x`."""
    operand = await _operand(channel, relation, "l")
    expressions = {name: unary(operator, column) for name, column in operand.columns.items()}
    return Result(_select(expressions, operand.source), relation.shape)


async def aggregated(channel: Channel, name: str, relation: Relation) -> Result:
    """One value, or of several columns one each."""
    where = await snapshot(channel, relation)
    if name == "count":
        return Result(f"SELECT count() AS {VALUE} FROM {relation.table.sql}{where}", "scalar")
    if not await _count(channel, relation, where):
        raise UsageError(f"{relation.table} has no rows: there is no {name} of nothing")
    wide = relation.shape in {"columns", "records", "record"}
    expressions = {column: aggregate(name, _qualified("l", place)) for place, column in enumerate(relation.names)}
    return Result(_select(expressions, _source(relation, where, "l")), "record" if wide else "scalar")


async def _operand(channel: Channel, side: Any, alias: str) -> Operand:
    if not isinstance(side, Relation):
        return Operand({VALUE: literal(side)}, "scalar")
    where = await snapshot(channel, side)
    count = await _count(channel, side, where)
    if side.shape not in {"scalar", "record"} or count != 1:
        columns = {column.name: (_qualified(alias, place), column.type) for place, column in enumerate(side.columns)}
        return Operand(columns, _plural(side.shape), _source(side, where, alias), count)
    single = {}
    for place, column in enumerate(side.columns):
        value = f"(SELECT {_own(alias, place)} FROM {_source(side, where, alias)})"
        # A subquery of one value is Nullable, for the case that there is none; there is one.
        single[column.name] = (value if column.nullable else f"assumeNotNull({value})", column.type)
    return Operand(single, side.shape)


async def _count(channel: Channel, relation: Relation, where: str) -> int:
    return int((await channel.rows(f"SELECT count() FROM {relation.table.sql}{where}"))[0][0])


def _source(relation: Relation, where: str, alias: str) -> str:
    names = [_own(alias, place) for place in range(len(relation.columns))]
    return f"({relation.select(where, names)}) AS {alias}"


def _own(alias: str, place: int) -> str:
    return f"{alias}{place}"


def _qualified(alias: str, place: int) -> str:
    return f"{alias}.{_own(alias, place)}"


def _select(expressions: dict[str, str], source: str) -> str:
    shown = ", ".join(f"{expression} AS {identifier(name)}" for name, expression in expressions.items())
    return f"SELECT {shown} FROM {source}" if source else f"SELECT {shown}"


def _plural(shape: Shape) -> Shape:
    """What it is when it has not one row: a scalar to which more was appended."""
    return {"scalar": "array", "record": "columns"}.get(shape, shape)  # type: ignore[return-value]


def _shape(one: Operand, other: Operand) -> Shape:
    if not (one.source or other.source):
        return "record" if one.wide or other.wide else "scalar"
    if not (one.wide or other.wide):
        return "array"
    return _plural(one.shape if one.wide else other.shape)
