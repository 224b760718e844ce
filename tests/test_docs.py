"""The documentation is true: its code runs, its links lead somewhere, the tests it names exist, no name is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import takehold
from takehold import cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
BACKENDS = sorted((ROOT / "docs" / "backends").glob("*.md"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

NOT_RUN = "<!-- no-run -->"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
REFERENCE = re.compile(r"^\[([\w-]+)\]: (\S+) \"(.+)\"$", re.MULTILINE)
COLUMNS = ["excludes across", "survives a killed owner", "loss detected", "shared mode", "fence", "fair", "who, evict"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of Python on a page."""

    page: Path
    line: int
    source: str
    runs: bool

    def run(self, namespace: dict[str, Any]) -> None:
        # Blank lines in front, so that a traceback points at the page.
        # Without the `annotations` of this file: SQLAlchemy reads those of a reader's model.
        code = compile("\n" * (self.line - 1) + self.source, str(self.page), "exec", dont_inherit=True)
        exec(code, namespace)


def blocks(page: Path) -> Iterator[Block]:
    """The Python of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found[1] == "python":
            before = text[: found.start()]
            yield Block(page, before.count("\n") + 2, found[2], not before.rstrip().endswith(NOT_RUN))


def prose(page: Path) -> str:
    """A page without its code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))], ids=name_of)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TAKEHOLD_URL", f"file:{tmp_path}/default")
    namespace: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    for block in blocks(page):
        if block.runs:
            block.run(namespace)


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_a_link_to_a_file_leads_to_a_file(page: Path) -> None:
    targets = [*LINK.findall(prose(page)), *(target for _, target, _ in REFERENCE.findall(prose(page)))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(prose(index))}
    assert [name_of(page) for page in PAGES if page not in (README, index) and page not in linked] == []


# -- the guarantees -----------------------------------------------------------------------------------------


def guarantees() -> list[list[str]]:
    """The cells of the table on the README's first screen."""
    rows = [line.strip("|").split("|") for line in README.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in row] for row in rows]
    start = next(number for number, row in enumerate(cells) if row[0] == "backend")
    return [cells[start], *(row for row in cells[start + 2 :] if len(row) == len(cells[start]))]


def _backend_of(row: list[str]) -> list[str]:
    return re.findall(r"backends/(\w+)\.md", row[0])


def exists(test: str) -> bool:
    """Whether there is a test of this name, `path::class::function`."""
    path, *names = test.split("::")
    found: object = import_module(path.removesuffix(".py").replace("/", "."))
    for name in names:
        found = getattr(found, name, None)
    return callable(found) and names[-1].startswith("test_")


def test_the_guarantees_are_given_for_every_backend() -> None:
    titles, *rows = guarantees()
    assert titles == ["backend", *COLUMNS]
    assert sorted(name for row in rows for name in _backend_of(row)) == [page.stem for page in BACKENDS]


@pytest.mark.parametrize("row", range(len(guarantees()) - 1), ids=[_backend_of(row)[0] for row in guarantees()[1:]])
@pytest.mark.parametrize("column", range(1, len(COLUMNS) + 1), ids=COLUMNS)
def test_a_test_stands_behind_every_guarantee(row: int, column: int) -> None:
    found = REFERENCE.findall(README.read_text(encoding="utf-8"))
    references = {name: (target, test) for name, target, test in found}
    names = re.findall(r"\]\[([\w-]+)\]", guarantees()[1 + row][column])
    assert names, "a cell without a test behind it"
    for name in names:
        target, test = references[name]
        assert exists(test), test
        assert f"def {test.rpartition('::')[2]}(" in (ROOT / target).read_text(encoding="utf-8")


# -- completeness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in takehold.__all__ if not name.startswith("_")])
def test_a_public_name_is_mentioned(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", page.read_text(encoding="utf-8")) for page in PAGES)


def test_every_command_has_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^  takehold (\w+) ", capsys.readouterr().out, re.MULTILINE)
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert commands
    assert [command for command in commands if f"\n## `takehold {command}`\n" not in page] == []


def headings(page: Path) -> list[str]:
    return re.findall(r"^## (.+)$", prose(page), re.MULTILINE)


@pytest.mark.parametrize("page", BACKENDS, ids=name_of)
def test_a_backend_page_has_the_headings_of_all_of_them(page: Path) -> None:
    assert headings(page) == ["Guarantees", "How it works", "Options", "What it cannot do", "Seeing and clearing"]


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_is_one_page_with_four_headings(page: Path) -> None:
    assert headings(page) == ["Context", "Decision", "What was measured", "When to look again"]
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 70


# -- these checks can fail ----------------------------------------------------------------------------------


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_a_block_that_is_wrong_fails_with_the_line_of_the_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# A page\n\n```python\nx = 1\n```\n\ntext\n\n```python\nx += 1\nassert x == 3\n```\n")
    namespace: dict[str, Any] = {}
    first, second = blocks(page)
    first.run(namespace)
    with pytest.raises(AssertionError) as caught:
        second.run(namespace)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 11)


def test_a_block_is_left_out_only_by_its_mark(tmp_path: Path) -> None:
    page = page_of(tmp_path, f"{NOT_RUN}\n```python\nno\n```\n\n```console\n$ no\n```\n\n```python\nyes\n```\n")
    assert [(block.source, block.runs) for block in blocks(page)] == [("no\n", False), ("yes\n", True)]


def test_a_test_that_does_not_exist_is_not_found() -> None:
    assert exists("tests/test_docs.py::test_a_test_that_does_not_exist_is_not_found")
    assert not exists("tests/test_docs.py::test_nothing")
    assert not exists("tests/test_docs.py::TestNothing::test_nothing")
