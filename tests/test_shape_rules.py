"""Each rule of ``tests.shape`` and ``tests.parity`` can fail, and lets pass what it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import parity, shape

LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 60

REFUSED = [
    (
        shape.layers,
        "core/keys.py",
        "from takehold.locks import Locks",
        "imports takehold.locks.Locks, layer 3",
    ),
    (shape.layers, "core/keys.py", "from ..locks import Locks", "imports takehold.locks.Locks, layer 3"),
    (shape.layers, "core/__init__.py", "from ..locks import x", "imports takehold.locks.x, layer 3"),
    (shape.layers, "core/keys.py", "from .. import backends", "imports takehold.backends, layer 2"),
    (shape.layers, "core/keys.py", "from takehold import backends", "imports takehold.backends, layer 2"),
    (
        shape.layers,
        "core/keys.py",
        "import takehold.backends.file as f",
        "imports takehold.backends.file, layer 2",
    ),
    (shape.layers, "core/keys.py", "def f():\n    from ..backends import x", "core.keys:2: imports"),
    (shape.layers, "errors.py", "if TYPE_CHECKING:\n    from .core import Key", "errors:2: imports"),
    (shape.layers, "__init__.py", "from .cli import main", "imports takehold.cli.main, layer 5"),
    (shape.layers, "__init__.py", "from .testing import busy", "for tests"),
    (shape.layers, "cli/__init__.py", "from takehold.testing import busy", "for tests"),
    (shape.layers, "testing/suite.py", "from takehold.cli import main", "layer 5"),
    (shape.layers, "locks/sync.py", "from takehold import Key", "imports it in turn"),
    (shape.layers, "rows/lock.py", "from takehold.core import Key", "not public"),
    (shape.layers, "rows/lock.py", "from takehold.errors import Conflict", "not public"),
    (shape.layers, "rows/lock.py", "from takehold.locks._sync import Locks", "not public"),
    (shape.layers, "rows/lock.py", "from takehold import _registry", "not public"),
    (shape.layers, "rows/lock.py", "from takehold import core", "not public"),
    (shape.layers, "rows/lock.py", "from takehold.server import app", "layer 5, from layer 4"),
    (shape.layers, "plumbing.py", "", "takehold.plumbing: belongs to no layer"),
    (shape.core_is_colourless, "core/desk.py", "def f():\n    import asyncio", "imports asyncio"),
    (
        shape.core_is_colourless,
        "core/desk.py",
        "from asyncio.locks import Event",
        "imports asyncio.locks.Event",
    ),
    (shape.drivers_in_their_place, "backends/postgres.py", "import psycopg", "imports psycopg outside"),
    (
        shape.drivers_in_their_place,
        "locks/within.py",
        "from sqlalchemy.orm import Session",
        "imports sqlalchemy",
    ),
    (shape.drivers_in_their_place, "locks/_within.py", "import psycopg", "imports psycopg"),
    (shape.drivers_in_their_place, "__init__.py", "import rich", "imports rich"),
    (shape.foreign_private_names, "cli/show.py", "import rich\nrich._console", "rich._console is private"),
    (shape.foreign_private_names, "cli/show.py", "import rich as r\nr.live._x.y", "r.live._x is private"),
    (shape.foreign_private_names, "cli/show.py", "from rich import Live\nLive._go()", "Live._go is private"),
    (shape.foreign_private_names, "cli/show.py", "from rich import _x", "rich._x is private"),
    (shape.foreign_private_names, "cli/show.py", "from rich._a import b", "rich._a.b is private"),
    (shape.foreign_private_names, "cli/show.py", "import rich._a", "rich._a is private"),
    (shape.sizes, "core/keys.py", "x = 1\n" * 501, "501 lines"),
    (shape.sizes, "core/keys.py", LONG_FUNCTION, "f has 61 lines"),
    (
        shape.sizes,
        "core/keys.py",
        "class A:\n    async " + LONG_FUNCTION.replace("\n", "\n    "),
        "f has 61 lines",
    ),
    (shape.nouns, "core/_utils.py", "", "takehold.core._utils"),
    (shape.nouns, "core/helpers/__init__.py", "", "takehold.core.helpers"),
    (shape.module_docstrings, "core/keys.py", "x = 1", "has no docstring"),
]

ACCEPTED = [
    ("errors.py", "import sys"),
    (
        "core/keys.py",
        "from __future__ import annotations\nfrom ..errors import UsageError\nfrom .mode import Mode",
    ),
    ("backends/file/board.py", "from ...core import Key\nfrom takehold import errors\nfrom . import stripes"),
    ("backends/_drivers/psycopg.py", "import psycopg"),
    ("locks/_within_async.py", "from sqlalchemy.orm import Session"),
    ("locks/sync.py", "import asyncio\nimport os\nos._exit\nself._x\ntakehold._y"),
    ("rows/lock.py", "import sqlalchemy\nsqlalchemy.__version__\nimport takehold\nfrom takehold import Key"),
    ("rows/claim.py", "from takehold.locks import Locks\nfrom takehold import locks\nfrom .lock import rows"),
    ("cli/__init__.py", "import rich\nimport takehold\nfrom takehold.locks._sync import Locks"),
    ("testing/suite.py", "import pytest\nfrom takehold import Locks\nfrom takehold.core import Key"),
    ("__init__.py", "from .locks import Locks\nfrom takehold.errors import TakeholdError"),
]


def grow(package: Path, path: str, source: str) -> Path:
    file = package / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source, encoding="utf-8")
    return package


@pytest.mark.parametrize(("rule", "path", "source", "complaint"), REFUSED)
def test_a_rule_complains(
    tmp_path: Path, rule: Callable[[Path], list[str]], path: str, source: str, complaint: str
) -> None:
    (found,) = rule(grow(tmp_path, path, source))
    assert complaint in found


@pytest.mark.parametrize("rule", shape.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_lets_a_good_tree_pass(tmp_path: Path, rule: Callable[[Path], list[str]]) -> None:
    for path, source in ACCEPTED:
        grow(tmp_path, path, f'"""What lives here."""\n{source}')
    assert not rule(tmp_path)


DOOR = """
class Door:
    def __enter__(self) -> Door: ...
    @property
    def lost(self) -> bool: ...
    def open(self, key: str, *, then: Callable[[Door], None] | None = None) -> Door: ...
"""

TWIN = """
class AsyncDoor:
    async def __aenter__(self) -> 'AsyncDoor': ...
    @property
    def lost(self) -> bool: ...
    def open(
        self,
        key: str, *,
        then: Callable[[AsyncDoor], None] | Callable[[AsyncDoor], Awaitable[None]] | None = None,
    ) -> Coroutine[Any, Any, takehold.AsyncDoor]: ...
"""


def build(source: str) -> type:
    names: dict[str, type] = {}
    exec("from __future__ import annotations\n" + source, names)
    return next(value for name, value in names.items() if name.endswith("Door"))


def test_parity_accepts_what_must_differ() -> None:
    assert parity.differences(build(DOOR), build(TWIN)) == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("key: str", "name: str", "Door.open is"),
        ("key: str", "key: str = ''", "Door.open is"),
        ("key: str", "key: bytes", "Door.open is"),
        ("key: str, *,", "key: str,", "Door.open is"),
        ("takehold.AsyncDoor", "None", "Door.open is"),
        ("Callable[[AsyncDoor], None]", "Callable[[], None]", "Door.open is"),
        ("@property", "", "Door.lost is"),
        ("def lost", "def gone", "Door.lost has no twin"),
        ("__aenter__", "__await__", "Door.__enter__ has no twin"),
    ],
)
def test_parity_complains(before: str, after: str, complaint: str) -> None:
    found = parity.differences(build(DOOR), build(TWIN.replace(before, after, 1)))
    assert found
    assert found[0].startswith(complaint)


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ("self, on=True", ["open(on)"]),
        ("self, on: bool", ["open(on)"]),
        ("self, *, on: bool = True", []),
        ("self, n=1", []),
    ],
)
def test_a_flag_by_position_is_found(parameters: str, found: list[str]) -> None:
    assert parity.positional_flags(build(f"class Door:\n    def open({parameters}): ...")) == found
