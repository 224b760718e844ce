"""`examples/fastapi_within.py`: requests on one key do not overlap until the first one's commit can be seen."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, create_engine, event

from examples import fastapi_within as example
from takehold import Locks
from takehold.testing import busy, no_waiting
from tests.lanes import scaled
from tests.locks.places import disposed, sqlalchemy_url

with warnings.catch_warnings():
    # It would rather have httpx2.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from fastapi.testclient import TestClient

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path}/shop.db"
    if request.param == "postgresql":
        url = sqlalchemy_url(request.getfixturevalue("postgres_url"), "psycopg")
    with disposed(create_engine(url)) as made:
        example.Base.metadata.drop_all(made)
        example.Base.metadata.create_all(made)
        yield made


@pytest.fixture
def locks(engine: Engine) -> Iterator[Locks]:
    with Locks(engine.url.render_as_string(hide_password=False)) as made:
        yield made


@pytest.fixture
def app(engine: Engine, locks: Locks) -> FastAPI:
    return example.make_app(engine, locks)


def raised(app: FastAPI, by: int = 1) -> int:
    with TestClient(app) as client:
        answer = client.post("/prices/eu", params={"by": by})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["cents"])


def test_no_update_is_lost(app: FastAPI) -> None:
    times = scaled(300)
    with ThreadPoolExecutor(6) as pool:
        seen = list(pool.map(lambda _: raised(app), range(times)))
    assert sorted(seen) == list(range(1, times + 1))


def test_the_next_request_waits_for_the_commit(app: FastAPI, engine: Engine, locks: Locks) -> None:
    """The first handler has long returned; its commit is what the second one waits for."""
    committing, go_on = threading.Event(), threading.Event()

    def commit(_: Any) -> None:
        committing.set()
        assert go_on.wait(10)

    event.listen(engine, "commit", commit)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(raised, app, 10)
        assert committing.wait(10)
        second = pool.submit(raised, app, 1)
        assert locks.lock("prices/eu").try_acquire() is None
        with pytest.raises(TimeoutError):
            second.result(0.2)
        go_on.set()
        assert (first.result(10), second.result(10)) == (10, 11)


def test_with_a_lock_of_the_handler_the_update_is_lost(
    app: FastAPI, engine: Engine, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is closed here: the same application, with a lock that is free again before the commit."""
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite refuses one of the two writers instead")
    both = threading.Barrier(2)

    class Around:
        def within(self, _: object) -> Any:
            return self

        def acquire(self, key: str, timeout: float) -> None:
            with locks.lock(key, timeout=timeout):
                pass

    raised(app, 5)
    app.state.locks = Around()
    event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: "UPDATE" in sql and both.wait(10))
    with ThreadPoolExecutor(2) as pool:
        seen = [work.result(20) for work in [pool.submit(raised, app), pool.submit(raised, app)]]
    assert seen == [6, 6]


def test_a_busy_key_is_said_to_be_busy(app: FastAPI, locks: Locks) -> None:
    with busy(locks, "prices/eu"), TestClient(app) as client, no_waiting():
        answer = client.post("/prices/eu", params={"by": 1})
    assert (answer.status_code, answer.json()) == (503, {"busy": "prices/eu"})
    assert raised(app) == 1
