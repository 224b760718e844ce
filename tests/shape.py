"""Rules on the shape of a source tree: each takes a package directory and returns its complaints.

``test_shape`` applies them to ``src/takehold``; ``test_shape_rules`` shows on small trees that each can fail.
Imports count wherever they stand: at the top, under ``TYPE_CHECKING``, inside a function.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "takehold"

LAYERS = {
    "errors": 0,
    "runtime": 0,
    "core": 1,
    "backends": 2,
    "locks": 3,
    "rows": 4,
    "clickhouse": 4,
    "fragments": 4,
    "iceberg": 4,
    "server": 5,
    "dashboard": 5,
    "cli": 5,
    "__main__": 5,
}
SURFACE = 3  # what `import takehold` may load
SYSTEMS = 4  # the layer that sees only what users see
ROOT = ""  # takehold/__init__.py
TESTING = "testing"
SERVED = "server"
PUBLIC = {PACKAGE, f"{PACKAGE}.locks", f"{PACKAGE}.runtime"}

EVENT_LOOPS = {"asyncio", "anyio", "trio", "curio", "twisted", "gevent"}
DRIVERS = f"{PACKAGE}.backends._drivers"
# `within(session)` is about sessions of SQLAlchemy: these modules, loaded by its first use, and no other package.
WITHIN = f"{PACKAGE}.locks._within"

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60
NOT_A_NOUN = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed file of the tree."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def part(self) -> str:
        """The name that has a layer: ``core`` for ``takehold.core.keys``, empty for ``takehold`` itself."""
        return _part(self.name)

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


@dataclass(frozen=True, slots=True)
class Import:
    """``from base import name``, or ``import base`` where ``name`` is empty; ``base`` is absolute."""

    base: str
    name: str
    bound: str
    node: ast.AST

    @property
    def target(self) -> str:
        return f"{self.base}.{self.name}" if self.name else self.base

    @property
    def top(self) -> str:
        return self.base.partition(".")[0]

    @property
    def foreign(self) -> bool:
        return self.top != PACKAGE and self.top not in sys.stdlib_module_names


def modules(package: Path) -> list[Module]:
    """Every Python file below ``package``, the directory of ``takehold``."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source = path.read_text(encoding="utf-8")
        found.append(Module(name, path, source, ast.parse(source, str(path))))
    return found


def imports(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", alias.asname or alias.name.partition(".")[0], node)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                yield Import(base, alias.name, alias.asname or alias.name, node)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = module.package.split(".")
    above = parents[: len(parents) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def _part(dotted: str) -> str:
    second = dotted.split(".")[1:2]
    return second[0] if second and (second[0] in LAYERS or second[0] == TESTING) else ROOT


def layers(package: Path) -> list[str]:
    """Imports point up the list of layers; nothing but tests imports ``testing``."""
    complaints = []
    for module in modules(package):
        if module.part == ROOT and module.name != PACKAGE:
            complaints.append(f"{module.name}: belongs to no layer")
            continue
        complaints += [
            f"{module.at(one.node)}: imports {one.target}, {why}"
            for one in imports(module)
            if one.top == PACKAGE and (why := _refusal(module.part, one))
        ]
    return complaints


def _refusal(own: str, one: Import) -> str | None:
    target = _part(one.target)
    # __init__ reaches what users see; testing also the systems above, whose parts have conformance suites too.
    layer = SYSTEMS if own == TESTING else LAYERS.get(own, SURFACE)
    if target == own:
        return None
    if target == TESTING:
        return "which is for tests"
    if own == TESTING and target == SERVED:
        return None  # a fixture serves a catalog
    if LAYERS.get(target, SURFACE) > layer:
        return f"layer {LAYERS[target]}, from layer {layer}"
    if target == ROOT and own in LAYERS and layer <= SURFACE:
        return "which imports it in turn"
    # Layer 4 proves the public surface by having nothing else.
    if (
        layer == SYSTEMS
        and own != TESTING
        and (one.base not in PUBLIC or target not in {ROOT, "locks", "runtime"} or _is_private(one.name))
    ):
        return "which is not public"
    return None


def core_is_colourless(package: Path) -> list[str]:
    """The core runs on threads, asyncio and simulation alike because it names none of them."""
    return [
        f"{module.at(one.node)}: imports {one.target}; the core awaits only its runtime"
        for module in modules(package)
        if module.part == "core"
        for one in imports(module)
        if one.top in EVENT_LOOPS
    ]


def drivers_in_their_place(package: Path) -> list[str]:
    """Up to layer 3 nothing has to be installed; what speaks to a server lives in ``backends/_drivers``."""
    return [
        f"{module.at(one.node)}: imports {one.target} outside {DRIVERS}"
        for module in modules(package)
        if LAYERS.get(module.part, SURFACE) <= SURFACE and module.part != TESTING
        if not f"{module.name}.".startswith(f"{DRIVERS}.")
        for one in imports(module)
        if one.foreign and not (module.name.startswith(WITHIN) and one.top == "sqlalchemy")
    ]


def foreign_private_names(package: Path) -> list[str]:
    """Private names of third-party packages change without notice."""
    complaints = []
    for module in modules(package):
        foreign = [one for one in imports(module) if one.foreign]
        complaints += [
            f"{module.at(one.node)}: {one.target} is private"
            for one in foreign
            if any(map(_is_private, one.target.split(".")))
        ]
        bound = {one.bound for one in foreign}
        complaints += [
            f"{module.at(node)}: {ast.unparse(node)} is private"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and _is_private(node.attr) and _root(node) in bound
        ]
    return complaints


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def sizes(package: Path) -> list[str]:
    """Files and functions that a reader can hold in the head."""
    complaints = []
    for module in modules(package):
        if (length := len(module.source.splitlines())) > MOST_LINES_OF_A_FILE:
            complaints.append(f"{module.name}: {length} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MOST_LINES_OF_A_FUNCTION:
                    complaints.append(f"{module.at(node)}: {node.name} has {length} lines")
    return complaints


def nouns(package: Path) -> list[str]:
    """If you need ``utils`` you have not found the noun."""
    return [
        f"{module.name}: name it for what lives there"
        for module in modules(package)
        if module.name.rpartition(".")[2].strip("_") in NOT_A_NOUN
    ]


def module_docstrings(package: Path) -> list[str]:
    """A module opens with what lives here and who uses it."""
    return [f"{module.name}: has no docstring" for module in modules(package) if not ast.get_docstring(module.tree)]


RULES = (
    layers,
    core_is_colourless,
    drivers_in_their_place,
    foreign_private_names,
    sizes,
    nouns,
    module_docstrings,
)
