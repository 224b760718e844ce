"""The number, as an object."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Of all tables here."""


class Counter(Base):
    """One number."""

    __tablename__ = "counter"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
