"""Who has what, mapped back to the fragment; and how a stuck claim is cleared."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import takehold
from takehold.fragments import Look, content_key
from takehold.testing.pipe import readable
from tests.fragments.site import PATIENCE, Background, Gate, Site, until


@contextmanager
def at_work(site: Site) -> Iterator[Background]:
    """A replica that is in the middle of an extraction."""
    site.document("a.md", one="1")
    gate = Gate()
    running = Background(lambda: site.run(recorder=site.recorder(during=gate)))
    assert gate.reached.wait(PATIENCE)
    try:
        yield running
    finally:
        gate.open.set()
        running.join()


def command(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "takehold", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE, **options)


@pytest.mark.covers("R-10", "R-11")
def test_a_lock_is_mapped_back_to_its_fragment(site: Site) -> None:
    with at_work(site):
        [one] = Look(site.url).in_hand()
        by_label = json.loads(command("who", "corpus/a.md#one", "--url", site.url, "--json").stdout)
        by_number = json.loads(command("who", f"#{one.key}", "--url", site.url, "--json").stdout)
        status = command("fragments", "status", "--url", site.url)
    [fragment] = site.corpus.fragments("a.md")
    assert (one.identity, one.key) == (fragment.identity, fragment.key)
    assert f":{os.getpid()}" in one.owner
    assert [record["key"] for record in by_label] == [f"#{one.key} corpus/a.md#one"]
    assert [record["id"] for record in by_number] == [record["id"] for record in by_label] == [one.hold]
    assert str(one.key) in status.stdout
    assert "corpus/a.md#one" in status.stdout


@pytest.mark.covers("R-10")
def test_the_sessions_that_hold_are_shown_as_the_server_knows_them(server_site: Site) -> None:
    with at_work(server_site):
        [one] = Look(server_site.url).in_hand()
    [session] = one.sessions
    assert session["key"] == one.key
    assert session["granted"] is True
    assert session["usename"] == "postgres"
    assert session["application_name"].startswith("takehold")
    assert session["state"] == "idle"
    assert session["pid"] > 0
    assert session["query_age"] >= 0


@pytest.mark.covers("R-11")
def test_a_key_that_another_program_holds_is_named_from_the_ledger(server_site: Site) -> None:
    """It knows the number only: the statement of the source document."""
    server_site.document("a.md", one="1")
    server_site.run()
    [fragment] = server_site.corpus.fragments("a.md")
    with psycopg.connect(server_site.url, application_name="riverbank") as connection:
        connection.execute("SELECT pg_try_advisory_lock(%s)", (content_key(fragment.hash),))
        [one] = Look(server_site.url).in_hand()
    assert (one.identity, one.key) == ("corpus/a.md#one", fragment.key)
    assert one.sessions[0]["application_name"] == "riverbank"


@pytest.mark.covers("R-18")
def test_status_flags_a_claim_that_is_older_than_the_threshold(site: Site) -> None:
    with at_work(site):
        until(lambda: Look(site.url).in_hand()[0].seconds > 0.1)
        new = command("fragments", "status", "--url", site.url)
        old = command("fragments", "status", "--url", site.url, "--stuck-after", "0.1")
        facts = json.loads(command("fragments", "status", "--url", site.url, "--stuck-after", "0.1", "--json").stdout)
    assert "stuck?" not in new.stdout
    assert "held stuck?" in old.stdout
    assert [one["stuck"] for one in facts["held"]] == [True]


@pytest.mark.crash
@pytest.mark.covers("R-12")
def test_clearing_a_stuck_claim_asks_first_says_what_is_lost_and_corrupts_nothing(site: Site) -> None:
    site.document("a.md", one="1", two="2")
    process = site.replica(wait=60, concurrency=1)
    until(lambda: site.diary.lines("begin"))
    process.send_signal(signal.SIGSTOP)  # it does not answer: truly stuck
    evict = ["evict", "--pid", str(_pid(site, process)), "--terminate", "--url", site.url]
    refused = command(*evict, stdin=subprocess.DEVNULL)
    assert refused.returncode == 2
    assert "asks first" in refused.stderr
    said = _at_a_terminal(evict, "n")
    [lost] = Look(site.url).in_hand()
    assert lost.identity == site.diary.lines("begin")[0][3]
    # A server knows only the number of a silent owner's key; `fragments status` knows whose that is.
    assert (f"#{lost.key}" if site.name == "postgresql" else lost.identity) in said
    assert "kill? [y/N]" in said
    assert Look(site.url).in_hand()
    assert command(*evict, "--yes", "--timeout", "0.2").returncode in (0, 1)
    until(lambda: Look(site.url).in_hand() == [])
    counts = site.run()
    process.send_signal(signal.SIGCONT)
    assert counts.done == 2
    assert site.results() == site.expected()


def _pid(site: Site, process: subprocess.Popen[str]) -> int:
    """As `who` shows it: of a silent owner on a server, still that of its process."""
    with takehold.Locks(site.url) as locks:
        pids = {record.owner.pid for record in locks.who()}
    assert process.pid in pids
    return process.pid


def _at_a_terminal(words: list[str], answer: str) -> str:
    """What a command says to somebody at a terminal, who answers its question."""
    master, slave = pty.openpty()
    child = subprocess.Popen([sys.executable, "-m", "takehold", *words], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said = ""
    try:
        while "[y/N]" not in said:
            assert readable(master, PATIENCE), said
            said += os.read(master, 4096).decode()
        os.write(master, f"{answer}\n".encode())
        child.wait(PATIENCE)
    finally:
        child.kill()
        child.wait()
        os.close(master)
    return said
