"""`takehold fragments`: run, status, retry; progress, signals, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from takehold.fragments import Counts
from takehold.testing.pipe import readable
from tests.fragments.site import PATIENCE, Site, until
from tests.fragments.test_look import command

PIPELINE = """
import asyncio, os, time
from pathlib import Path
from tests.fragments.site import Diary, Recorder
recorder = Recorder(Diary(Path(os.environ["DIARY"])), wait=float(os.environ.get("WAIT", "0")))
pipeline = recorder.pipeline()
tasks = recorder.pipeline(asynchronous=True)
wrong = 7
"""


@pytest.fixture
def words(file_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command up to its options."""
    (tmp_path / "pipe.py").write_text(PIPELINE)
    monkeypatch.setenv("DIARY", str(file_site.diary.path))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    return ["fragments", "run", f"{tmp_path}/pipe.py:pipeline", str(file_site.folder), "--url", file_site.url]


def test_run_status_and_retry(file_site: Site, words: list[str]) -> None:
    file_site.document("a.md", one="1", two="FAIL")
    done = command(*words, "--attempts", "1")
    assert done.returncode == 1
    assert "all done: 1 done here, 0 elsewhere, 0 unchanged, 1 failed" in done.stdout
    assert "corpus/a.md#two: ValueError: two cannot be extracted" in done.stderr
    status = json.loads(command("fragments", "status", "--url", file_site.url, "--json").stdout)
    assert [(one["status"], one["count"]) for one in status["runs"]] == [("done", 1), ("failed", 1)]
    assert [one["identity"] for one in status["failures"]] == ["corpus/a.md#two"]
    assert command("fragments", "retry", "--url", file_site.url, "--json").stdout.split() == ["{", '"due":', "1", "}"]
    file_site.document("a.md", one="1", two="mended")
    again = command(*words, "--json")
    facts = json.loads(again.stdout)
    assert (again.returncode, facts["done"], facts["unchanged"], facts["complete"]) == (0, 1, 1, True)
    forced = json.loads(command(*words, "--json", "--force").stdout)
    assert forced["done"] == 2
    assert file_site.results() == file_site.expected()


def test_a_pipeline_of_coroutine_functions_runs_too(file_site: Site, words: list[str]) -> None:
    file_site.documents(1, 5)
    words[2] = words[2].replace(":pipeline", ":tasks")
    assert command(*words).returncode == 0
    assert file_site.results() == file_site.expected()


@pytest.mark.crash
@pytest.mark.covers("R-16")
@pytest.mark.parametrize("name", ["pipeline", "tasks"])
def test_sigterm_stops_taking_work_finishes_what_has_begun_and_exits_0(
    file_site: Site, words: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file_site.documents(1, 50)
    monkeypatch.setenv("WAIT", "0.2")
    words[2] = words[2].replace(":pipeline", f":{name}")
    line = [sys.executable, "-m", "takehold", *words, "--concurrency", "2", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: file_site.diary.lines("begin"))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
    facts = json.loads(out)
    assert process.returncode == 0
    assert facts["drained"]
    assert facts["done"] == len(file_site.results()) == len(file_site.diary.lines("begin")) < 50
    assert facts["done"] + facts["pending"] == 50


@pytest.mark.crash
@pytest.mark.covers("R-16")
def test_what_is_not_finished_within_the_grace_is_released(
    file_site: Site, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file_site.documents(1, 3)
    monkeypatch.setenv("WAIT", "100")
    line = [sys.executable, "-m", "takehold", *words, "--grace", "0.2"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: file_site.diary.lines("begin"))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "stopped: 0 done here" in out) == (0, True)
    assert time.monotonic() - began < 50
    assert file_site.run().done == 3


def test_on_a_terminal_there_is_a_bar(file_site: Site, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file_site.documents(1, 20)
    monkeypatch.setenv("WAIT", "0.05")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "takehold", *words], stdout=slave, stderr=slave) as process:
        os.close(slave)
        said = b""
        while readable(master, PATIENCE):
            try:
                more = os.read(master, 4096)
            except OSError:
                break
            said += more
    os.close(master)
    assert process.returncode == 0
    for word in ("done", "held elsewhere", "unchanged", "failed", "/s", "left", "━", "all done: 20"):
        assert word in said.decode(), word


def test_a_plain_line_has_the_same_numbers() -> None:
    from takehold.cli.progress import line

    counts = Counts(documents=10, read=5, seen=50, done=10, held=2, unchanged=20, failed=1, seconds=2.0)
    assert counts.total == 100
    expected = "31/100, 10 done, 0 done elsewhere, 2 held elsewhere, 20 unchanged, 1 failed, 5.0/s, "
    assert line(counts).startswith(expected)
    assert line(counts).endswith("13.8 s left")


@pytest.mark.parametrize(
    ("pipeline", "corpus", "sentence"),
    [
        ("nonsense", ".", "PIPELINE is module:name or file.py:name"),
        ("no_such_module:x", ".", "there is no module 'no_such_module'"),
        ("/nowhere.py:x", ".", "there is no file '/nowhere.py'"),
        ("PIPE:nothing", ".", "has no 'nothing'"),
        ("PIPE:wrong", ".", "is no takehold.fragments.Pipeline, it is int"),
        ("PIPE:pipeline", "/nowhere", "a corpus is a directory"),
    ],
)
def test_a_mistake_is_one_sentence(
    file_site: Site, words: list[str], tmp_path: Path, pipeline: str, corpus: str, sentence: str
) -> None:
    pipeline = pipeline.replace("PIPE", f"{tmp_path}/pipe.py")
    done = command("fragments", "run", pipeline, corpus, "--url", file_site.url)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_ledger_that_is_not_there_and_a_url_without_one_are_refused(file_site: Site) -> None:
    done = command("fragments", "status", "--url", file_site.url)
    assert (done.returncode, "there is no ledger here yet" in done.stderr) == (2, True)
    done = command("fragments", "status", "--url", "file:/tmp/x")
    assert (done.returncode, "fragments need a database" in done.stderr) == (2, True)
