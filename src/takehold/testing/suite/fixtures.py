"""What the cases are given: the faces on the backend under test, what it declares, and how much work to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from takehold.core.backend import Capabilities
from takehold.locks._sync import Locks
from takehold.testing.faces import AsyncioFace, Face, ThreadFace, eventually

__all__ = [
    "asyncio_face",
    "both_faces",
    "capabilities",
    "face",
    "only_with_capabilities",
    "requires",
    "scaled",
    "thread_face",
]

_RANKS = {
    "across": ("process", "host", "server"),
    "evict": ("none", "ask", "terminate"),
    "fence": ("none", "after init", "always"),
}


def requires(*names: str, **least: str) -> pytest.MarkDecorator:
    """Skip a case unless the backend declares this much: `requires("shared")`, `requires(across="host")`.

    By what it can do, never by its name. `across`, `evict` and `fence` are met by more than was asked for.
    """
    return pytest.mark.requires(*names, **least)


def missing(capabilities: Capabilities, mark: pytest.Mark) -> str | None:
    """The first capability that a mark asks for and the backend does not declare."""
    for name in mark.args:
        if getattr(capabilities, name) in (False, None, "none"):
            return str(name)
    for name, least in mark.kwargs.items():
        has, ranks = getattr(capabilities, name), _RANKS.get(name)
        if has != least and (ranks is None or ranks.index(has) < ranks.index(least)):
            return f"{name}={least!r}"
    return None


@pytest.fixture
def capabilities(backend_url: Any) -> Capabilities:
    """What the backend under test declares."""
    declared: Capabilities = Locks(backend_url).capabilities
    return declared


@pytest.fixture(autouse=True)
def only_with_capabilities(request: pytest.FixtureRequest, capabilities: Capabilities) -> None:
    """Skip what the backend does not say it can do."""
    for mark in request.node.iter_markers("requires"):
        if lacks := missing(capabilities, mark):
            pytest.skip(f"this backend does not declare {lacks}")


@contextmanager
def _living(face: Face) -> Iterator[Face]:
    """A face for one test; at its end nothing may be left, held or waiting, and nothing may have gone wrong."""
    try:
        yield face
        left = face.who()
        if left and Locks(face.url).capabilities.loss == "trust deadline":
            # What a killed process had goes when its lease has run out.
            eventually(lambda: all(record.owner.pid == os.getpid() for record in face.who()))
            left = [record for record in left if record.owner.pid == os.getpid()]
    finally:
        face.close()
    assert not left, f"left behind: {left}"
    assert not face.troubles


@pytest.fixture(params=[ThreadFace, AsyncioFace], ids=["threads", "asyncio"])
def face(request: pytest.FixtureRequest, backend_url: Any) -> Iterator[Face]:
    """Each face in turn."""
    with _living(request.param(backend_url)) as face:
        yield face


@pytest.fixture
def thread_face(backend_url: Any) -> Iterator[Face]:
    """The blocking face, for what only threads do."""
    with _living(ThreadFace(backend_url)) as face:
        yield face


@pytest.fixture
def asyncio_face(backend_url: Any) -> Iterator[Face]:
    """The asyncio face, for what only tasks do."""
    with _living(AsyncioFace(backend_url)) as face:
        yield face


@pytest.fixture
def both_faces(thread_face: Face) -> Iterator[tuple[Face, Face]]:
    """Both at once, on the same keys."""
    with _living(AsyncioFace(thread_face.url, thread_face.namespace)) as asyncio_face:
        yield thread_face, asyncio_face


@pytest.fixture
def scaled() -> Callable[[int], int]:
    """How much of a full count to do: a tenth, or all of it with `TAKEHOLD_PROVE=1`."""
    prove = os.environ.get("TAKEHOLD_PROVE") == "1"
    return lambda full: full if prove else max(1, full // 10)
