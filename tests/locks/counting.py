"""A process that adds to a number that others add to as well: ``counting.py LOCKS_URL SESSION_URL TIMES``."""

from __future__ import annotations

import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from takehold import Locks
from tests.locks.places import read, write


def main(locks_url: str, session_url: str, times: str) -> None:
    engine = create_engine(session_url)
    with Locks(locks_url) as locks:
        for _ in range(int(times)):
            with Session(engine) as session:
                locks.within(session).acquire("counter", timeout=60)
                write(session, read(session) + 1)
                session.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
