"""``pytest --covers``: the numbered behaviours a run has shown; it fails when a promised one is missing.

An id is shown by a test that carries it in ``@pytest.mark.covers(...)`` and passed; a skip shows nothing.
With ``--collect-only`` being collected is enough. Use it on the whole suite: a selection misses ids.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.promised import BEHAVIOURS

ID = re.compile(r"[A-Z]+-[1-9][0-9]*")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covers", action="store_true", help="fail when a promised behaviour has no passing test")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--covers"):
        config.pluginmanager.register(Covers(only_collect=config.getoption("--collect-only")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a misspelt id at once, in every run: it would silently count for nothing."""
    for item in items:
        if not (ids := ids_of(item)) and item.get_closest_marker("covers"):
            raise pytest.UsageError(f"{item.nodeid}: covers() names no id")
        if wrong := [one for one in ids if not ID.fullmatch(one)]:
            raise pytest.UsageError(f"{item.nodeid}: covers{tuple(wrong)} is not an id such as 'L-9'")


def ids_of(item: pytest.Item) -> set[str]:
    """All ids an item carries: its own marks and those of its class and module."""
    return {str(one) for mark in item.iter_markers("covers") for one in mark.args}


class Covers:
    """Counts the tests behind each id and turns a missing one into a failed run."""

    def __init__(self, *, only_collect: bool) -> None:
        self._only_collect = only_collect
        self._shown: Counter[str] = Counter()

    @property
    def missing(self) -> list[str]:
        return [one for one in BEHAVIOURS if not self._shown[one]]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._only_collect:
            for item in session.items:
                self._shown.update(ids_of(item))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        # With the report, which another process may have made.
        item.user_properties.append(("covers", sorted(ids_of(item))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, ids in report.user_properties:
                if name == "covers":
                    assert isinstance(ids, list)
                    self._shown.update(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return  # one of several processes: it has seen only its part
        if self.missing and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verb = "collected" if self._only_collect else "passed"
        terminalreporter.section(f"covers: tests {verb} per behaviour")
        terminalreporter.line("  ".join(f"{one} {self._shown[one]}" for one in BEHAVIOURS))
        if self.missing:
            terminalreporter.line(f"promised but not shown: {', '.join(self.missing)}", red=True)
