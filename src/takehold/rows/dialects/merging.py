"""Many rows into one table, each where its key is missing, or over the one that is there: what each database is told.

A `Merging` executes nothing: `steps` is a generator that yields statements, is sent their results, and returns the
counts. They are the database's own, taken by the statement that did the work: a look before or after it could be wrong.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    Select,
    String,
    Table,
    TypeDecorator,
    Uuid,
    and_,
    bindparam,
    cast,
    collate,
    column,
    false,
    func,
    literal_column,
    or_,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter

__all__ = ["Merge", "Merged", "Merging", "MySQLMerging", "PostgresMerging", "SQLiteMerging", "Steps", "Where"]

Where: TypeAlias = "ColumnElement[bool] | Callable[[Any], ColumnElement[bool]]"
Chunk: TypeAlias = "list[dict[str, Any]]"
PLAIN: Final = (Boolean, Date, DateTime, Float, Integer, String, Uuid)
PARAMETERS: Final = 32_000
"""How many one statement may have, on every database."""


class Merged(NamedTuple):
    """How many rows are new, and how many were there and have changed."""

    inserted: int
    updated: int


Steps: TypeAlias = "Generator[tuple[Any, Any], Any, Merged]"


@dataclass(frozen=True, slots=True)
class Merge:
    """What is to be done, whatever the database."""

    table: Table
    key: tuple[Column[Any], ...]
    update: tuple[Column[Any], ...] = ()
    """What a row that is there takes over from the new one; nothing skips it."""
    touched: dict[str, ColumnElement[Any]] = field(default_factory=dict)
    """What a changed row gets besides, of columns with `onupdate`."""
    where: Where | None = None
    attributes: dict[str, Column[Any]] = field(default_factory=dict)

    def condition(self, new: Any) -> list[ColumnElement[bool]]:
        """`where`, if there is one, with the values of the new row by the names of the model."""
        if self.where is None:
            return []
        if not callable(self.where):
            return [self.where]
        return [self.where(SimpleNamespace(**{name: new[column.key] for name, column in self.attributes.items()}))]

    def changes(self, new: Any) -> dict[str, ColumnElement[Any]]:
        """The new value of every column that changes."""
        return {column.key: new[column.key] for column in self.update} | self.touched

    def sent(self, statement: Any, chunk: Chunk, *, batches: bool = False) -> Iterator[tuple[Any, Chunk | None]]:
        """The statement with the rows of a chunk: as parameters of the one that is compiled once, which is fastest.

        Where those of all rows share `batches` of one statement, parameters behind VALUES would be taken for more
        of them; then the rows are written into the statement.
        """
        bound = (*self.touched.values(), *self.condition(self.table.c))
        if not batches or not any(isinstance(one, BindParameter) for part in bound for one in visitors.iterate(part)):
            yield statement, chunk
            return
        size = PARAMETERS // len(self.table.columns)
        for start in range(0, len(chunk), size):
            yield statement.values(chunk[start : start + size]), None


class Merging:
    """One database's way."""

    def ordered(self, keys: Collection[Any]) -> list[Any]:
        """In the order in which everybody writes them; a key of several columns is a tuple."""
        return sorted(keys)

    def steps(self, merge: Merge, chunks: Iterator[Chunk]) -> Steps:
        """The statements, one after the other; rows of a chunk have the keys of the table's columns."""
        raise NotImplementedError


class SQLiteMerging(Merging):
    """The only writer from its first statement on, so the table can be counted before and after.

    Of a table that is large beside the rows that would take too long: then what is missing is inserted first, and what
    differs updated by a second statement. A row that the first has inserted is the same as the second would make it.
    """

    large: ClassVar = 20
    """Times the first chunk."""

    def steps(self, merge: Merge, chunks: Iterator[Chunk]) -> Steps:
        """One statement for a chunk, or two."""
        insertion = sqlite.insert(merge.table).execution_options(preserve_rowcount=True)
        skipping = insertion.on_conflict_do_nothing(index_elements=merge.key)
        updating = self._updating(merge, insertion)
        inserted = updated = 0
        if updating is None:
            for chunk in chunks:
                inserted += (yield skipping, chunk).rowcount
            return Merged(inserted, 0)
        first = next(chunks)
        chunks = chain([first], chunks)
        # Changes nothing, but from here on nobody else does either.
        yield update(merge.table).values({merge.key[0]: merge.key[0]}).where(false()), None
        some: Select[Any] = select(literal_column("1")).select_from(merge.table)
        most = self.large * len(first)
        before = (yield select(func.count()).select_from(some.limit(most + 1).subquery()), None).scalar_one()
        if before <= most:
            for chunk in chunks:
                updated += (yield updating, chunk).rowcount
            inserted = (yield select(func.count()).select_from(merge.table), None).scalar_one() - before
            return Merged(inserted, updated - inserted)
        for chunk in chunks:
            fresh = (yield skipping, chunk).rowcount
            inserted += fresh
            if fresh < len(chunk):
                updated += (yield updating, chunk).rowcount
        return Merged(inserted, updated)

    @staticmethod
    def _updating(merge: Merge, insertion: sqlite.Insert) -> sqlite.Insert | None:
        if not merge.update:
            return None
        new = insertion.excluded
        # To a column that takes `a` for `A` the one would be no change of the other.
        old = {column.key: collate(type_coerce(column, String), "BINARY") for column in merge.update}
        differs = or_(*(value.is_distinct_from(new[key]) for key, value in old.items()))
        return insertion.on_conflict_do_update(
            index_elements=merge.key, set_=merge.changes(new), where=and_(differs, *merge.condition(new))
        )


class PostgresMerging(Merging):
    """One statement, which counts the rows that it wrote; a row that had no earlier version is new.

    Its rows are arrays, one for each column: half a dozen parameters, however many rows. Where a type or a default of
    the model needs each row by itself, they are written out.
    """

    batch: ClassVar = 1000
    """Rows of one statement that are written out: with more, parameters take the driver longer than the server."""
    dialect: ClassVar[Any] = postgresql.dialect()  # type: ignore[no-untyped-call]

    def steps(self, merge: Merge, chunks: Iterator[Chunk]) -> Steps:
        """One statement for a chunk."""
        inserted = updated = 0
        for chunk in chunks:
            kinds = self._arrays(merge.table, chunk[0])
            columns = {name: [row[name] for row in chunk] for name in kinds or ()}
            sent: Iterator[tuple[Any, Any]]
            if kinds is None or any(map(_mixed, columns.values())):
                insertion = postgresql.insert(merge.table).execution_options(insertmanyvalues_page_size=self.batch)
                sent = merge.sent(self._finished(merge, insertion), chunk, batches=True)
            else:
                sent = iter([(self._finished(merge, self._unnesting(merge.table, kinds)), columns)])
            for one in sent:
                new = (yield one).scalars().all()
                inserted += sum(new)
                updated += len(new) - sum(new)
        return Merged(inserted, updated)

    def _arrays(self, table: Table, row: dict[str, Any]) -> dict[str, Any] | None:
        """The type of each column's values in an array; None when there is one that an array cannot carry."""
        kinds: dict[str, Any] = {}
        for one in table.columns:
            if one.key not in row:
                if one.default is not None:
                    return None  # in Python, for each row
                continue
            kind = one.type.dialect_impl(self.dialect)
            # A type of the application's own has its own ways.
            if not type(one.type).__module__.startswith("sqlalchemy."):
                return None
            if isinstance(kind, Enum | TypeDecorator) or not isinstance(kind, PLAIN):
                return None
            # Without the length: a cast would cut what is too long, in silence.
            kinds[one.key] = String() if isinstance(kind, String) else kind
        return kinds

    @staticmethod
    def _unnesting(table: Table, kinds: dict[str, Any]) -> postgresql.Insert:
        arrays = [cast(bindparam(name, type_=ARRAY(kind)), ARRAY(kind)) for name, kind in kinds.items()]
        rows = func.unnest(*arrays).table_valued(*(column(name, kind) for name, kind in kinds.items()))
        new = select(*rows.render_derived().c)
        return postgresql.insert(table).from_select([table.c[name] for name in kinds], new, include_defaults=False)

    @staticmethod
    def _finished(merge: Merge, insertion: postgresql.Insert) -> Any:
        if not merge.update:
            return insertion.on_conflict_do_nothing(index_elements=merge.key).returning(literal_column("true"))
        new = insertion.excluded
        # As they are stored, which tells apart all that a collation takes for equal, and knows types without `=`.
        old, young = func.row(*merge.update), func.row(*(new[column.key] for column in merge.update))
        return insertion.on_conflict_do_update(
            index_elements=merge.key,
            set_=merge.changes(new),
            where=and_(func.record_image_ne(old, young), *merge.condition(new)),
        ).returning(literal_column("xmax = 0"))


def _mixed(values: list[Any]) -> bool:
    """Whether these have several types, as 1.5 and 2: psycopg makes no array of them."""
    return len({type(value) for value in values if value is not None}) > 1


class MySQLMerging(Merging):
    """ON DUPLICATE KEY UPDATE, which counts in variables of the connection: `rowcount` depends on how it was made.

    INSERT IGNORE would also let through what is too long, NULL, or refers to nothing.
    """

    met: ClassVar[ColumnElement[int]] = literal_column("@takehold_met")
    changes: ClassVar[ColumnElement[bool]] = literal_column("@takehold_changes")
    updated: ClassVar[ColumnElement[int]] = literal_column("@takehold_updated")
    out_of_range: ClassVar = 1690

    def ordered(self, keys: Collection[Any]) -> list[Any]:
        """As the index has them: InnoDB also locks the gap before a row.

        In another order, even the same one for all, writers would wait for each other in a circle.
        """
        if all(type(key) is str and key.isascii() for key in keys):
            return sorted(keys, key=str.upper)  # what `_collated` makes of them, at a third of the price
        return sorted(keys, key=lambda key: tuple(map(_collated, key)) if type(key) is tuple else _collated(key))

    def steps(self, merge: Merge, chunks: Iterator[Chunk]) -> Steps:
        """One statement for a chunk, one before all of them and one after."""
        rows = 0
        statement = self._statement(merge)
        yield text(f"SET {self.met} = 0, {self.updated} = 0"), None
        for chunk in chunks:
            rows += len(chunk)
            for one in merge.sent(statement, chunk, batches=True):
                try:
                    yield one
                except DBAPIError as error:
                    self._name(error, merge)
                    raise
        met, updated = (yield text(f"SELECT {self.met}, {self.updated}"), None).one()
        return Merged(rows - int(met), int(updated))

    def _statement(self, merge: Merge) -> mysql.Insert:
        insertion = mysql.insert(merge.table)
        new, first = insertion.inserted, merge.key[0]
        # The clause is for every unique key: a row that has only another one in common is not ours to change. No
        # expression can raise an error as such, but some have no value.
        ours = or_(
            and_(*(new[column.key].op("<=>")(column) for column in merge.key)),
            func.exp(literal_column("710") + func.length(new[first.key])),
        )
        noted = [ours, self._assign(self.met, self.met + literal_column("1"))]
        if merge.update:
            differs = or_(*(self._differs(column, new[column.key]) for column in merge.update))
            change = self._assign(self.changes, and_(differs, *merge.condition(new)))
            noted.append(self._assign(self.updated, self.updated + func.coalesce(change, literal_column("0"))))
        # Assignments are made in order, and the first one is the only one to see the old row.
        return insertion.on_duplicate_key_update(
            [(first.key, func.IF(and_(*noted), first, first))]
            + [
                (name, func.IF(self.changes, value, merge.table.c[name]))
                for name, value in (merge.changes(new) if merge.update else {}).items()
            ]
        )

    @staticmethod
    def _assign(variable: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
        return variable.op(":=")(value)

    @staticmethod
    def _differs(old: ColumnElement[Any], new: ColumnElement[Any]) -> ColumnElement[bool]:
        # Byte by byte too: to most collations `a` and `A` are equal. And not only so: a float's text is rounded.
        return or_(old.is_distinct_from(new), cast(old, LargeBinary).is_distinct_from(cast(new, LargeBinary)))

    def _name(self, error: DBAPIError, merge: Merge) -> None:
        """What the expression without a value stands for, as the other databases say it."""
        if error.orig is not None and self.out_of_range in error.orig.args[:1]:
            names = ", ".join(column.name for column in merge.key)
            meant = Exception(
                f"a row has a unique key of {merge.table} other than ({names}) in common with another one"
            )
            raise IntegrityError(error.statement, error.params, meant) from error


def _collated(value: Any) -> Any:
    """A text as the usual collations sort it: without regard to case and accents."""
    if not isinstance(value, str):
        return value
    if not value.isascii():
        value = "".join(one for one in unicodedata.normalize("NFKD", value) if not unicodedata.combining(one))
    return value.upper()
