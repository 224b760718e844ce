"""A few tables for the tests of rows: a tree of two, a junction, a queue."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import DateTime, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Of the tables here. A test that needs others makes its own base."""


class Parent(Base):
    """Has a name that nobody else has."""

    __tablename__ = "parent"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    note: Mapped[str | None] = mapped_column(String(40))
    number: Mapped[int] = mapped_column(default=0, server_default="0")
    children: Mapped[list[Child]] = relationship(back_populates="parent", order_by="Child.id")


class Child(Base):
    """Belongs to a parent."""

    __tablename__ = "child"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent_id: Mapped[int] = mapped_column(ForeignKey("parent.id"))
    label: Mapped[str] = mapped_column(String(20), default="")
    parent: Mapped[Parent] = relationship(back_populates="children")


class Tag(Base):
    """The other side of `Pair`."""

    __tablename__ = "tag"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)


class Pair(Base):
    """A junction: a parent has a tag once."""

    __tablename__ = "pair"
    __table_args__ = (UniqueConstraint("left_id", "right_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    left_id: Mapped[int] = mapped_column(ForeignKey("parent.id"))
    right_id: Mapped[int] = mapped_column(ForeignKey("tag.id"))
    left: Mapped[Parent] = relationship()  # so that a flush writes both sides first
    right: Mapped[Tag] = relationship()


class Job(Base):
    """Waits in a queue, the oldest first."""

    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new", index=True)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), default=lambda: datetime.now(UTC))
    owner: Mapped[str | None] = mapped_column(String(80))
