"""The shape of the package: layers, faces, surface, what an import loads, sizes."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import takehold
from tests import parity, promised, shape

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "takehold"


@pytest.mark.parametrize("rule", shape.RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Callable[[Path], list[str]]) -> None:
    assert not rule(SOURCE)


@pytest.mark.parametrize(("blocking", "twin"), promised.FACES)
def test_both_faces_have_the_same_names_parameters_and_annotations(blocking: str, twin: str) -> None:
    assert not parity.differences(getattr(takehold, blocking), getattr(takehold, twin))


def test_the_public_names_are_what_is_promised_and_nothing_by_accident() -> None:
    listed = takehold.__all__
    assert len(listed) == len(set(listed))
    assert set(promised.NAMES) <= set(listed)
    assert not [name for name in listed if not hasattr(takehold, name)]
    own = {name for name, value in vars(takehold).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert own - {"annotations"} <= set(listed)


@pytest.mark.parametrize("name", [name for name in takehold.__all__ if not name.startswith("_")])
def test_a_public_name_is_documented_and_says_it_is_of_takehold(name: str) -> None:
    value = getattr(takehold, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    assert value.__module__ == "takehold"
    assert value.__name__ == name
    assert "__doc__" in vars(value) if inspect.isclass(value) else True
    assert (value.__doc__ or "").strip()


@pytest.mark.parametrize("name", [name for name in takehold.__all__ if not name.startswith("_")])
def test_a_public_flag_is_keyword_only(name: str) -> None:
    assert not parity.positional_flags(getattr(takehold, name))


@pytest.mark.parametrize("name", promised.ERRORS)
def test_an_error_is_a_takehold_error(name: str) -> None:
    assert issubclass(getattr(takehold, name), takehold.TakeholdError)


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert takehold.__version__ == project["version"]
    assert project["dependencies"] == []


def test_importing_takehold_loads_no_driver_and_nothing_above_the_locks() -> None:
    loaded = _loaded_by("import takehold")
    allowed = {part for part, layer in shape.LAYERS.items() if layer <= shape.SURFACE}
    ours = {name.split(".")[1] for name in loaded if name.startswith("takehold.")}
    assert ours <= allowed
    assert not {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"takehold"}


def _loaded_by(statement: str) -> list[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*(sys.modules.keys() - before))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()
