"""Tables whose rows are leased: jobs, the runs they belong to, and the machines they need."""

from __future__ import annotations

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from takehold import rows


class Base(DeclarativeBase):
    """Of the tables here."""


class Run(rows.Leased, Base):
    """Has jobs, and now and then wants all of them."""

    __tablename__ = "run"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")
    jobs: Mapped[list[Job]] = relationship(back_populates="run", order_by="Job.id")


class Job(rows.Leased, Base):
    """`applied` counts how often a result was written."""

    __tablename__ = "job"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="new")
    applied: Mapped[int] = mapped_column(default=0)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("run.id"))
    run: Mapped[Run | None] = relationship(back_populates="jobs")


class Effect(Base):
    """What a worker did besides: it must be there exactly when the result is."""

    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column()
    token: Mapped[str] = mapped_column(String(32))


class Seat(rows.Leased, Base):
    """Known by two numbers."""

    __tablename__ = "seat"
    row: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
