"""``takehold doctor`` on files and in memory: what it finds, that it touches nothing, and how it looks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from takehold import Locks
from takehold.backends.check import Check, worst
from takehold.cli import doctor, main
from tests.cli.conftest import PATIENCE, TAKEHOLD, Processes, until
from tests.cli.test_look import on_a_terminal

Checks = dict[str, dict[str, Any]]


def checked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Checks:
    """The checks by name."""
    assert main(["doctor", "--json", *words]) == code
    told = json.loads(capsys.readouterr().out)
    assert [one.keys() for one in told] == [{"name", "verdict", "found", "advice", "facts"}] * len(told)
    assert all(bool(one["advice"]) == (one["verdict"] != "ok") for one in told)
    found = {one["name"]: one for one in told}
    assert len(found) == len(told)
    return found


def verdicts(checks: Checks) -> set[str]:
    return {one["verdict"] for one in checks.values()}


def everything(place: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(place.rglob("*"))]


def test_a_directory_that_is_not_there_yet_is_fine_and_is_not_made(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = checked(capsys)
    assert verdicts(checks) == {"ok"}
    assert list(checks) == ["system", "directory", "file-system", "space", "ofd-locks"]
    assert not Path(url.removeprefix("file:")).exists()


def test_a_directory_in_use_is_fine_and_nothing_in_it_is_touched(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(url.removeprefix("file:"))
    with Locks(url) as locks, locks.lock("k"):
        before = everything(place)
        checks = checked(capsys)
        assert everything(place) == before
        assert verdicts(checks) == {"ok"}
        assert list(checks) == [
            "system", "directory", "file-system", "space", "mode", "format", "ofd-locks", "boards", "silent-owners",
            "stuck-holds",
        ]  # fmt: skip
        assert checks["boards"]["facts"] == {"live": 1, "dead": []}
        assert locks.held("k") is not None


def test_a_sqlite_url_is_looked_at_as_its_lock_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = checked(capsys, f"sqlite:///{tmp_path}/app.db")
    assert f"{tmp_path}/app.db.locks" in checks["directory"]["found"]


def test_memory_has_nothing_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(checked(capsys, "memory:")) == ["memory"]


def test_what_is_wrong_with_a_directory_is_trouble_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "newer").mkdir(mode=0o700)
    (tmp_path / "newer" / "format").write_text("takehold file locks, format 99, 1 stripes\n")
    for name, check, sentence in (
        ("file", "directory", "is not a directory"),
        ("file/below", "directory", "cannot be made in"),
        ("link", "directory", "is a symbolic link"),
        ("open", "mode", "writable by everybody"),
        ("newer", "format", "format 99"),
    ):
        found = checked(capsys, f"file:{tmp_path / name}", code=1)[check]
        assert found["verdict"] == "trouble"
        assert sentence in found["found"]
    monkeypatch.setattr("takehold.backends.file.doctor._file_system", lambda device: "nfs4")
    found = checked(capsys, f"file:{tmp_path}", code=1)["file-system"]
    assert found["facts"] == {"type": "nfs4"}


def test_locks_that_do_not_exclude_are_trouble(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("takehold.backends.file.doctor.fcntl.fcntl", lambda *_: b"")
    assert checked(capsys, code=1)["ofd-locks"]["verdict"] == "trouble"


@pytest.mark.crash
def test_the_board_of_a_killed_process_is_told_of_and_not_swept_away(
    processes: Processes, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = processes.holder(url, "k")
    holder.kill()
    holder.wait(PATIENCE)
    for _ in range(2):
        boards = checked(capsys)["boards"]
        assert boards["verdict"] == "warning"
        assert len(boards["facts"]["dead"]) == 1


@pytest.mark.crash
def test_a_frozen_owner_and_a_hold_that_others_wait_for_long_are_warned_about(
    processes: Processes, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = processes.holder(url, "k")
    processes.takehold("run", "-k", "k", "--", "true")
    until(lambda: len(Locks(url).who("k")) == 2)
    assert checked(capsys)["stuck-holds"]["verdict"] == "ok"
    checks = checked(capsys, "--stuck-after", "0")
    assert checks["stuck-holds"]["facts"]["holds"] == holder.ids  # type: ignore[attr-defined]
    assert checks["silent-owners"]["verdict"] == "ok"
    holder.send_signal(signal.SIGSTOP)
    until(lambda: checked(capsys)["silent-owners"]["verdict"] == "warning")
    assert main(["doctor"]) == 0
    assert "'k' of " in capsys.readouterr().out


# -- how it looks ------------------------------------------------------------------------------------


def test_each_check_is_a_line_and_what_to_do_stands_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o777)
    assert main(["doctor", f"file:{tmp_path}"]) == 1
    first, blank, *lines = capsys.readouterr().out.splitlines()
    assert (first, blank) == (f"file:{tmp_path}", "")
    at = next(n for n, line in enumerate(lines) if line.startswith("trouble  mode "))
    assert lines[at + 1].strip().startswith("-> Anybody could break these locks: chmod 700 ")
    assert lines[-1] == "10 checks: 1 in trouble, 0 warnings, 9 ok"


def test_what_others_call_themselves_cannot_steer_the_terminal() -> None:
    shown = doctor.lines([Check("x", "trouble", "found\x1b[31m", "do\nit", ("name\x1b]0;",))])
    assert all(line.isprintable() for line in shown)
    assert len(shown) == 3


def test_the_worst_verdict_counts() -> None:
    checks = [Check("a", "ok", ""), Check("b", "trouble", ""), Check("c", "warning", "")]
    assert worst(checks) == "trouble"
    assert worst(checks[::2]) == "warning"
    assert worst([]) == "ok"


@pytest.mark.crash
@pytest.mark.parametrize("rich", [True, False])
def test_on_a_terminal_it_has_colours_with_rich_and_none_without(processes: Processes, url: str, rich: bool) -> None:
    command = TAKEHOLD
    if not rich:
        hide = "import sys, runpy; sys.modules['rich'] = None; sys.argv[0] = 'takehold'; "
        command = [sys.executable, "-c", hide + "runpy.run_module('takehold', run_name='__main__')"]
    shown = on_a_terminal(processes, [*command, "doctor"])
    assert "file-system" in shown
    assert ("\x1b[" in shown) == (rich and os.environ.get("TERM", "dumb") != "dumb")


# -- leases ------------------------------------------------------------------------------------------


def test_a_lease_table_is_looked_at_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "app.db"
    url = f"lease+sqlite:///{place}"
    checks = checked(capsys, url)
    assert verdicts(checks) == {"ok"}
    assert checks["table"]["facts"]["format"] is None
    assert not place.exists()
    with Locks(url) as locks, locks.lock("k"):
        checks = checked(capsys, url)
    assert verdicts(checks) == {"ok"}
    assert list(checks) == ["reachable", "file-system", "table", "silent-owners", "stuck-holds"]
    assert checks["table"]["facts"]["format"] == 1


def test_a_lease_table_of_another_format_is_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"lease+sqlite:///{tmp_path}/app.db"
    assert main(["init", url]) == 0
    capsys.readouterr()
    with closing(sqlite3.connect(tmp_path / "app.db")) as db, db:
        db.execute("UPDATE takehold_lease_format SET number = 99")
    found = checked(capsys, url, code=1)["table"]
    assert found["verdict"] == "trouble"
    assert "format 99" in found["found"]
