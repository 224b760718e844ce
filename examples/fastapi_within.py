"""A web application that commits after its handlers, and locks that last as long.

The session is a dependency: FastAPI commits it when the handler has returned. A lock that ends with a `with` block
in the handler is free *before* that commit, and the next request reads what was there before. One of
`locks.within(session)` ends with the transaction, wherever that is committed.

    pip install 'takehold[sqlalchemy,postgres]' fastapi uvicorn
    DATABASE_URL=postgresql+psycopg://app@db/app uvicorn --factory examples.fastapi_within:application
"""

import os
from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import takehold


class Base(DeclarativeBase):
    """Of all tables."""


class Price(Base):
    """What something costs in a region."""

    __tablename__ = "prices"
    region: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


def session(request: Request) -> Iterator[Session]:
    """A session per request; what the handler did is committed when it has returned, and only then."""
    with Session(request.app.state.engine) as made:
        yield made
        made.commit()


def raise_price(
    region: str, by: int, session: Annotated[Session, Depends(session)], request: Request
) -> dict[str, int]:
    """Read, add, write: one at a time per region, until the commit can be seen."""
    locks: takehold.Locks = request.app.state.locks
    locks.within(session).acquire(f"prices/{region}", timeout=5)
    price = session.get(Price, region)
    if price is None:
        price = Price(region=region, cents=0)
        session.add(price)
    price.cents += by
    return {"cents": price.cents}


def busy(_: Request, error: takehold.LockTimeout) -> JSONResponse:
    """Somebody else had the key all the time: the client may try again."""
    return JSONResponse({"busy": error.key}, status_code=503, headers={"Retry-After": "1"})


def make_app(engine: Engine, locks: takehold.Locks) -> FastAPI:
    """The application on a database, with locks of the same database."""
    app = FastAPI()
    app.state.engine, app.state.locks = engine, locks
    app.post("/prices/{region}")(raise_price)
    app.exception_handler(takehold.LockTimeout)(busy)
    return app


def application() -> FastAPI:
    """For a web server."""
    engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
    Base.metadata.create_all(engine)
    return make_app(engine, takehold.Locks(engine))  # type: ignore[arg-type]
