"""``takehold run`` on a terminal: the keyboard, Ctrl-C and Ctrl-Z reach the command as if nobody stood between."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from takehold.cli.processes import title
from takehold.testing.pipe import readable
from tests.cli.conftest import PATIENCE, TAKEHOLD, Process, Processes, state, until
from tests.cli.test_run import TALKATIVE, evict_at_once

pytestmark = pytest.mark.crash

RUN = [*TAKEHOLD, "run", "-k", "k", "--"]


class Screen:
    """A terminal with a shell on it that runs one job."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.master, self._slave = pty.openpty()
        self._heard, self._report = os.pipe()
        self._control, self._orders = os.pipe()
        self.text = ""

    def start(self, *words: str) -> Process:
        shell = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.jobs", str(self._report), str(self._control), *words],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            pass_fds=(self._report, self._control),
            start_new_session=True,
            text=True,
        )
        self._processes.adopt(shell)
        return shell

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def shows(self, text: str) -> None:
        """Wait until it was printed."""
        end = time.monotonic() + PATIENCE
        while text not in self.text:
            if readable(self.master, 0.1):
                self.text += os.read(self.master, 4096).decode()
            assert time.monotonic() < end, f"{text!r} never came; the screen shows {self.text!r}"

    def read_by(self, group: str) -> bool:
        """Whether a group with this leader has the keyboard and is not stopped."""
        reader = os.tcgetpgrp(self.master)
        return title(reader).startswith(group) and state(reader) not in "TtZX"

    def told(self) -> str:
        """What the shell says next about its job."""
        assert readable(self._heard, PATIENCE), f"the job neither stopped nor ended; the screen shows {self.text!r}"
        return os.read(self._heard, 4096).decode().strip()

    def foreground(self) -> None:
        os.write(self._orders, b"fg\n")

    def close(self) -> None:
        for fd in (self.master, self._slave, self._heard, self._report, self._control, self._orders):
            os.close(fd)


@pytest.fixture
def screen(processes: Processes, url: str) -> Iterator[Screen]:
    made = Screen(processes)
    yield made
    processes.end()
    made.close()


@pytest.mark.covers("L-31")
def test_the_command_reads_the_keyboard_and_gives_it_back(screen: Screen) -> None:
    screen.start(*RUN, "sh", "-c", "echo ready; read word; echo got $word")
    screen.shows("ready")
    screen.type("hello\n")
    screen.shows("got hello")
    assert screen.told() == "ended 0, keyboard: job"


@pytest.mark.covers("L-31")
@pytest.mark.parametrize(("pager", "has_it"), [("", True), (" | cat", False)])
def test_the_command_has_the_keyboard_from_the_start_unless_a_pager_needs_it(
    screen: Screen, pager: str, has_it: bool
) -> None:
    """Programs look once, at their start, whether they are in the foreground."""
    code = "import os; print('foreground:', os.tcgetpgrp(0) == os.getpgrp())"
    screen.start("sh", "-c", shlex.join([*RUN, sys.executable, "-c", code]) + pager)
    screen.shows(f"foreground: {has_it}")


@pytest.mark.covers("L-31")
def test_the_keyboard_comes_when_asked_for_if_output_goes_to_a_pager(screen: Screen) -> None:
    """In a pipe the keyboard is the pager's until the command reads from it."""
    command = shlex.join([*RUN, "sh", "-c", "echo ready; read word; echo got $word"])
    screen.start("sh", "-c", f"{command} | cat")
    screen.shows("ready")
    screen.type("hello\n")
    screen.shows("got hello")
    assert screen.told() == "ended 0, keyboard: job"


@pytest.mark.covers("L-31")
@pytest.mark.parametrize("pipe", [False, True])
def test_ctrl_c_reaches_the_command_once(screen: Screen, pipe: bool) -> None:
    command = [*RUN, sys.executable, "-c", TALKATIVE + "# ready", "SIGINT"]
    if pipe:
        screen.start("bash", "-c", f"set -o pipefail; trap : INT; {shlex.join(command)} | (trap '' INT; cat)")
    else:
        screen.start(*command)
    screen.shows("\n")
    screen.type("\x03")
    screen.shows("SIGINT")
    assert screen.told().startswith("ended 3")
    assert screen.text.count("SIGINT") == 1


@pytest.mark.covers("L-31")
@pytest.mark.parametrize("pipe", [False, True])
def test_ctrl_z_stops_the_job_and_fg_brings_it_back(screen: Screen, pipe: bool) -> None:
    command = [*RUN, "sh", "-c", "echo ready; read word; echo got $word"]
    words = ["sh", "-c", f"{shlex.join(command)} | cat"] if pipe else command
    screen.start(*words)
    screen.shows("ready")
    # In the pipe it is first stopped for wanting the keyboard: Ctrl-Z is for when it has it.
    until(lambda: screen.read_by("sh -c echo ready"))
    screen.type("\x1a")
    assert screen.told() == "stopped, keyboard: job"
    screen.foreground()
    screen.type("again\n")
    screen.shows("got again")
    assert screen.told() == "ended 0, keyboard: job"


def test_raw_mode_is_undone_when_the_command_is_killed(screen: Screen, url: str) -> None:
    code = "import tty, time; tty.setraw(0); print('raw', flush=True); time.sleep(60)"
    screen.start(*TAKEHOLD, "run", "-k", "k", "--grace", "0", "--", sys.executable, "-c", code)
    screen.shows("raw")
    evict_at_once(url)
    assert screen.told().startswith("ended 76")
    screen.shows("was lost: evicted by an operator; the command was stopped\r\n")
