"""``takehold ls`` and ``takehold who``: by key text, with owner, age, fence, and who is behind whom."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from takehold import Locks
from takehold.cli import main, show
from tests.cli.conftest import PATIENCE, TAKEHOLD, Processes, line, screen_text, until


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with Locks(url, label="api") as made:
        yield made


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.covers("L-28")
def test_ls_shows_key_mode_owner_line_fence_and_id(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.lock("orders/42") as hold:
        titles, row = output(capsys, "ls").splitlines()
        facts = (f":{os.getpid()} (api)", hold.owner.site, str(hold.fence), hold.id)
    assert titles.split() == ["KEY", "STATE", "MODE", "FOR", "OWNER", "AT", "FENCE", "ID"]
    assert row.split()[:5] == ["orders/42", "held", "exclusive", "0.0", "s"]
    assert [fact for fact in facts if fact not in row] == []
    assert __file__ in row


@pytest.mark.covers("L-28")
def test_json_is_a_list_of_the_records_that_the_library_gives(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.lock("a"), locks.lock("b", mode="shared"):
        given = json.loads(output(capsys, "ls", "--json"))
        records = locks.who()
    assert [(one["key"], one["mode"]) for one in given] == [("a", "exclusive"), ("b", "shared")]
    assert given[0].keys() == records[0].as_dict().keys()
    assert given[0]["owner"]["pid"] == os.getpid()
    assert given[0]["fence"] == records[0].fence


def test_ls_takes_a_pattern_and_who_takes_a_key(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.lock("a/*"), locks.lock("a/b"), locks.lock("c"):
        listed = json.loads(output(capsys, "ls", "a/*", "--json"))
        assert [one["key"] for one in listed] == ["a/*", "a/b"]
        exact = json.loads(output(capsys, "who", "a/*", "--json"))
        assert [one["key"] for one in exact] == ["a/*"]


def test_nobody_is_an_answer_and_says_where_we_looked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped directory is as empty as an idle one."""
    assert output(capsys, "ls") == f"nobody holds or waits for anything in {url}\n"
    assert output(capsys, "ls", "x*") == f"nobody holds or waits for a key like 'x*' in {url}\n"
    assert output(capsys, "who", "k") == f"nobody holds 'k' or waits for it in {url}\n"
    assert output(capsys, "who", "k", "--json") == "[]\n"


@pytest.mark.covers("L-37")
def test_namespaces_are_shown_and_can_be_chosen(locks: Locks, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Locks(url, namespace="shop").lock("k"), locks.lock("k"):
        listed = output(capsys, "ls")
        assert "\nshop:k " in listed
        assert "\nk " in listed
        assert "'k' (namespace 'shop') is held by" in output(capsys, "who", "k")
        assert len(json.loads(output(capsys, "who", "k", "--namespace", "shop", "--json"))) == 1


@pytest.mark.covers("L-30")
def test_a_hold_older_than_the_threshold_is_flagged(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.lock("k"):
        assert "stuck?" not in output(capsys, "ls")
        assert "held stuck?" in output(capsys, "ls", "--stuck-after", "0")
        assert "state  held stuck?" in output(capsys, "who", "k", "--stuck-after", "0")
        assert json.loads(output(capsys, "ls", "--json", "--stuck-after", "0"))[0]["stuck"] is True


def test_a_key_cannot_steer_the_terminal(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.lock("red\x1b[31m\nline"):
        for words in (["ls"], ["who", "red\x1b[31m\nline"]):
            shown = output(capsys, *words)
            assert "\x1b" not in shown
            assert "red\\x1b[31m\\nline" in shown


def test_top_without_a_terminal_prints_once(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    with locks.lock("k"):
        shown = output(capsys, "ls", "--top")
    assert shown.splitlines()[1].startswith("k ")
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (60, "1 min"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert show.duration(seconds) == text


@pytest.mark.crash
@pytest.mark.covers("L-28")
def test_a_waiter_is_shown_with_who_it_waits_for(
    processes: Processes, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = processes.holder(url, "k")
    waiter = processes.takehold("run", "-k", "k", "--label", "late", "--", "true")
    until(lambda: any(record.state == "waiting" for record in Locks(url).who("k")))
    held, waits = output(capsys, "ls").splitlines()[1:]
    assert held.split()[1] == "held"
    assert waits.split()[1] == "waiting"
    assert f":{waiter.pid} (late)" in waits
    assert waits.endswith(f":{holder.pid} (holder)")
    assert f"  behind {held.split()[5]} (holder)" in output(capsys, "who", "k")


@pytest.mark.crash
@pytest.mark.covers("L-28")
def test_a_frozen_owner_is_still_listed_and_marked_silent(
    processes: Processes, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = processes.holder(url, "k")
    assert json.loads(output(capsys, "ls", "--json"))[0]["silent"] is False
    holder.send_signal(signal.SIGSTOP)
    until(lambda: json.loads(output(capsys, "ls", "--json"))[0]["silent"])
    assert "held frozen" in output(capsys, "ls")


@pytest.mark.crash
@pytest.mark.parametrize("rich", [True, False])
def test_on_a_terminal_ls_prints_a_table_and_top_goes_on_until_q(processes: Processes, url: str, rich: bool) -> None:
    """With rich or without; `--top` always plain."""
    processes.holder(url, "the/key")
    command = TAKEHOLD
    if not rich:
        hide = "import sys, runpy; sys.modules['rich'] = None; sys.argv[0] = 'takehold'; "
        command = [sys.executable, "-c", hide + "runpy.run_module('takehold', run_name='__main__')"]
    assert "the/key" in on_a_terminal(processes, [*command, "ls"])
    shown = on_a_terminal(processes, [*command, "ls", "--top", "--every", "0.01"], "q")
    assert "the/key" in shown
    assert shown.endswith("\x1b[?1049l")


def on_a_terminal(processes: Processes, words: list[str], keys: str = "") -> str:
    """All that a command prints there; it gets the keys once it has drawn three times."""
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, text=True)
        processes.adopt(process)
        os.close(slave)
        shown = ""
        end = time.monotonic() + PATIENCE
        while more := screen_text(master):
            shown += more
            assert time.monotonic() < end, "it does not end"
            if keys and shown.count("1 held, 0 waiting") >= 3:
                os.write(master, keys.encode())
                keys = ""
        assert process.wait(PATIENCE) == 0
        return shown
    finally:
        os.close(master)


@pytest.mark.crash
def test_a_reader_that_goes_away_is_no_error(processes: Processes, url: str) -> None:
    """As in ``takehold ls | head -1``."""
    keys = [f"{'k' * 900}/{n}" for n in range(100)]
    holder = processes.holder(url, *keys)
    assert holder.poll() is None
    listing = processes.takehold("ls")
    line(listing)
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.wait(PATIENCE) == 128 + signal.SIGPIPE
    assert listing.stderr is not None
    assert listing.stderr.read() == ""
