"""``takehold run``: exit codes, signals, the environment, and who has the key when something dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from takehold import Locks
from tests.cli.conftest import PATIENCE, TAKEHOLD, Processes, RunTakehold, alive, is_free, line, until

pytestmark = pytest.mark.crash


TALKATIVE = """
import os, signal, sys, time
def say(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        sys.exit(3)
for name in sys.argv[1].split(','):
    signal.signal(getattr(signal, name), say)
print(os.getpid(), flush=True)
while True:
    time.sleep(10)
"""
"""Says its pid, then every signal it gets of those named in its first argument."""

DEAF = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(60)
"""
"""Says its pid and can only be killed."""


@pytest.mark.covers("L-31")
@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_that_of_the_command(takehold: RunTakehold, code: int) -> None:
    assert takehold("run", "-k", "k", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.covers("L-31")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_a_signal_is_128_and_its_number(takehold: RunTakehold, number: int) -> None:
    done = takehold("run", "-k", "k", "--", "sh", "-c", f"kill -{number} $$")
    assert done.returncode == 128 + number
    assert done.stderr == ""


def test_a_command_that_cannot_run_is_126_or_127_as_in_a_shell(takehold: RunTakehold, url: str) -> None:
    missing = takehold("run", "-k", "k", "--", "no-such-command")
    assert missing.returncode == 127
    assert missing.stderr == "takehold: cannot run 'no-such-command': No such file or directory\n"
    assert takehold("run", "-k", "k", "--", "/etc").returncode == 126
    assert is_free(url)


def test_output_and_input_are_the_commands_own(takehold: RunTakehold) -> None:
    done = takehold("run", "-k", "k", "--", "cat", stdin=None, input="a line\n")
    assert (done.stdout, done.stderr) == ("a line\n", "")


def test_everything_after_the_dashes_belongs_to_the_command(takehold: RunTakehold) -> None:
    """Consul lock read options of the command as its own."""
    done = takehold("run", "-k", "k", "--", "sh", "-c", 'echo "$@"', "sh", "-k", "x", "--", "--timeout", "-v")
    assert done.stdout == "-k x -- --timeout -v\n"


# -- busy --------------------------------------------------------------------------------------------


@pytest.mark.covers("L-31", "L-28")
def test_a_busy_key_is_75_and_the_message_names_the_owner_and_its_line(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    holder = processes.holder(url, "k")
    done = takehold("run", "-k", "k", "--timeout", "0", "--", "echo", "never")
    assert (done.returncode, done.stdout) == (75, "")
    source = Path(__file__).with_name("holder.py")
    number = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "others are told" in text)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("takehold: 'k' not acquired after 0.0 s, held by ")
    assert f":{holder.pid} (holder) at {source}:{number} for " in done.stderr


@pytest.mark.covers("L-31")
def test_a_busy_key_names_the_command_that_runs_under_it(takehold: RunTakehold, processes: Processes) -> None:
    first = processes.takehold("run", "-k", "k", "--label", "cron", "--", "sh", "-c", "echo in; sleep 60")
    line(first)
    done = takehold("run", "-k", "k", "--timeout", "0.05", "--", "true")
    assert done.returncode == 75
    assert f":{first.pid} (cron) at takehold run -- sh -c echo in; sleep 60 for " in done.stderr


def test_a_run_waits_for_its_key(processes: Processes, url: str) -> None:
    first = processes.takehold("run", "-k", "k", "--", "sh", "-c", "echo in; read line; echo out")
    line(first)
    second = processes.takehold("run", "-k", "k", "--timeout", "none", "--", "echo", "in")
    locks = Locks(url)
    until(lambda: any(record.state == "waiting" for record in locks.who("k")))
    assert first.communicate("\n", timeout=PATIENCE)[0] == "out\n"
    assert second.communicate(timeout=PATIENCE)[0] == "in\n"


def test_a_run_that_is_ended_while_it_waits_leaves_nothing(processes: Processes, url: str) -> None:
    processes.holder(url, "k")
    locks = Locks(url)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        waiter = processes.takehold("run", "-k", "k", "--", "echo", "never")
        until(lambda: len(locks.who("k")) == 2)
        waiter.send_signal(number)
        out, err = waiter.communicate(timeout=PATIENCE)
        assert (waiter.returncode, out, err) == (-number, "", "")
        until(lambda: len(locks.who("k")) == 1)


@pytest.mark.covers("L-31")
@pytest.mark.parametrize("patience", ["0", "none"])
def test_a_run_inside_a_run_of_the_same_key_is_refused_at_once(takehold: RunTakehold, patience: str) -> None:
    """It would wait for its own end."""
    inner = [*TAKEHOLD, "run", "-k", "k", "--timeout", patience, "--", "echo", "never"]
    done = takehold("run", "-k", "j", "-k", "k", "--", *inner)
    assert (done.returncode, done.stdout) == (75, "")
    assert "which started this command and waits for its end" in done.stderr


def test_a_run_inside_a_run_of_another_key_works(takehold: RunTakehold) -> None:
    done = takehold("run", "-k", "a", "--", *TAKEHOLD, "run", "-k", "b", "--", "echo", "both")
    assert (done.returncode, done.stdout) == (0, "both\n")


# -- keys, modes, environment ------------------------------------------------------------------------


@pytest.mark.covers("L-31")
def test_the_command_finds_key_and_fence_and_fences_grow(takehold: RunTakehold) -> None:
    fences = []
    for _ in range(3):
        done = takehold("run", "-k", "orders/42", "--", "sh", "-c", 'echo "$TAKEHOLD_KEY $TAKEHOLD_FENCE"')
        key, fence = done.stdout.split()
        assert key == "orders/42"
        fences.append(int(fence))
    assert fences == sorted(set(fences))


def test_several_keys_are_taken_all_or_none(takehold: RunTakehold, processes: Processes, url: str) -> None:
    both = processes.takehold("run", "-k", "b", "-k", "a", "--", "sh", "-c", "echo $TAKEHOLD_KEY; read line")
    assert line(both) == "a b"
    assert not is_free(url, "a")
    assert not is_free(url, "b")
    done = takehold("run", "-k", "b", "-k", "c", "--timeout", "0", "--", "true")
    assert done.returncode == 75
    assert is_free(url, "c")
    both.communicate("\n", timeout=PATIENCE)
    assert is_free(url, "a")


def test_shared_runs_go_together_and_keep_writers_out(takehold: RunTakehold, processes: Processes) -> None:
    reader = processes.takehold("run", "-k", "k", "--shared", "--", "sh", "-c", "echo in; read line")
    line(reader)
    assert takehold("run", "-k", "k", "--shared", "--timeout", "0", "--", "true").returncode == 0
    assert takehold("run", "-k", "k", "--timeout", "0", "--", "true").returncode == 75


@pytest.mark.covers("L-37")
def test_namespaces_keep_runs_apart(takehold: RunTakehold, processes: Processes) -> None:
    first = processes.takehold("run", "-k", "k", "--namespace", "shop", "--", "sh", "-c", "echo in; read line")
    line(first)
    assert takehold("run", "-k", "k", "--timeout", "0", "--", "true").returncode == 0
    assert takehold("run", "-k", "k", "--timeout", "0", "--namespace", "shop", "--", "true").returncode == 75


def test_a_run_works_in_an_empty_environment(url: str) -> None:
    words = ["env", "-i", *TAKEHOLD, "run", "-k", "k", "--url", url, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_url_the_locks_are_in_the_state_directory(tmp_path: Path) -> None:
    words = ["env", "-i", f"HOME={tmp_path}", *TAKEHOLD, "run", "-v", "-k", "k", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    place = tmp_path / ".local" / "state" / "takehold" / "locks"
    assert done.returncode == 0
    assert "'k' taken after 0.0" in done.stderr
    assert f"in file:{place}, fence " in done.stderr
    assert place.stat().st_mode & 0o777 == 0o700


def test_json_says_on_stderr_what_happened(takehold: RunTakehold, processes: Processes, url: str) -> None:
    done = takehold("run", "-k", "k", "--json", "--", "sh", "-c", "echo $TAKEHOLD_FENCE $TAKEHOLD_HOLD")
    said = json.loads(done.stderr)
    fence, hold = done.stdout.split()
    assert (said["event"], said["keys"], said["fence"], said["hold"]) == ("acquired", ["k"], int(fence), [hold])
    holder = processes.holder(url, "k")
    said = json.loads(takehold("run", "-k", "k", "--json", "--timeout", "0", "--", "true").stderr)
    assert (said["event"], said["owner"]["pid"]) == ("busy", holder.pid)


def test_a_run_leaves_no_board_behind(takehold: RunTakehold, url: str) -> None:
    """A cron job would fill the directory otherwise."""
    takehold("run", "-k", "k", "--", "true")
    assert os.listdir(Path(url.removeprefix("file:")) / "boards") == []


def test_inherited_descriptors_are_out_of_the_way_of_scripts(takehold: RunTakehold) -> None:
    done = takehold("run", "-k", "k", "--", "sh", "-c", "ls /proc/$$/fd")
    numbers = [int(name) for name in done.stdout.split()]
    # 10 is the shell's own copy of a stream.
    assert [n for n in numbers if n > 10]
    assert all(n <= 2 or n == 10 or n >= 500 for n in numbers)


def test_a_run_loads_nothing_heavy() -> None:
    code = "import sys, takehold.cli.run; print(*sorted({'asyncio', 'subprocess', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


# -- signals -----------------------------------------------------------------------------------------


@pytest.mark.covers("L-31")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_reaches_a_grandchild_and_the_code_comes_back(processes: Processes, url: str, name: str) -> None:
    """Of a shell that passes nothing on, as in consul lock."""
    script = f'trap "" {name[3:]}; "$0" -c "$1" "$2"; exit $?'
    runner = processes.takehold(
        "run", "-k", "k", "--", "bash", "-c", script, sys.executable, TALKATIVE, name, stdin=subprocess.DEVNULL
    )
    grandchild = processes.also_end(int(line(runner)))
    assert os.getpgid(grandchild) != os.getpgid(runner.pid)
    runner.send_signal(getattr(signal, name))
    assert line(runner) == name
    assert runner.wait(PATIENCE) == 3
    assert not alive(grandchild)
    assert is_free(url)


def test_user_signals_and_window_changes_are_passed_on(processes: Processes) -> None:
    names = "SIGUSR1,SIGUSR2,SIGWINCH,SIGCONT"
    runner = processes.takehold("run", "-k", "k", "--", sys.executable, "-c", TALKATIVE, names)
    line(runner)
    for name in names.split(","):
        runner.send_signal(getattr(signal, name))
        assert line(runner) == name
    assert runner.poll() is None


def test_what_was_ignored_stays_ignored_and_nothing_else_is(takehold: RunTakehold) -> None:
    """Nohup ignores HUP for its command; Python ignores PIPE, which no command expects."""
    show = "grep SigIgn /proc/self/status"
    words = " ".join(f"'{word}'" for word in [*TAKEHOLD, "run", "-k", "k", "--"])
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; {words} {show}"], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    # 32 and above belong to the C library, and come from whoever started us: make ignores one of them.
    ours = (1 << 31) - 1
    assert int(done.stdout.split()[1], 16) & ours == 1 << (signal.SIGHUP - 1)
    assert int(takehold("run", "-k", "k", "--", *show.split()).stdout.split()[1], 16) & ours == 0


# -- the runner dies ---------------------------------------------------------------------------------


@pytest.mark.covers("L-31")
def test_a_killed_runner_takes_its_command_along(processes: Processes, url: str) -> None:
    runner = processes.takehold("run", "-k", "k", "--", sys.executable, "-c", TALKATIVE, "SIGTERM")
    child = processes.also_end(int(line(runner)))
    runner.kill()
    assert line(runner) == "SIGTERM"
    until(lambda: not alive(child))
    until(lambda: is_free(url))


@pytest.mark.covers("L-31", "L-28")
def test_a_killed_runners_key_stays_taken_and_visible_until_the_whole_group_is_gone(
    takehold: RunTakehold, processes: Processes, url: str
) -> None:
    """The command dies with the runner, but what it started does not listen."""
    script = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, DEAF]
    runner = processes.takehold("run", "-k", "k", "--", *script, stdin=subprocess.DEVNULL)
    grandchild = processes.also_end(int(line(runner)))
    child = os.getpgid(grandchild)
    runner.kill()
    runner.wait(PATIENCE)
    until(lambda: not alive(child))
    assert alive(grandchild)
    assert not is_free(url)
    assert takehold("run", "-k", "k", "--timeout", "0", "--", "true").returncode == 75
    shown = takehold("who", "k").stdout
    assert f":{runner.pid}" in shown
    assert "owner gone" in shown
    os.kill(grandchild, signal.SIGKILL)
    until(lambda: is_free(url))
    assert "nobody" in takehold("who", "k").stdout


# -- the command leaves something behind -------------------------------------------------------------


@pytest.mark.covers("L-31")
def test_a_process_left_in_the_group_keeps_the_key(processes: Processes, url: str, takehold: RunTakehold) -> None:
    runner = processes.takehold("run", "-k", "k", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; exit 4")
    left = processes.also_end(int(line(runner)))
    assert runner.wait(PATIENCE) == 4
    assert alive(left)
    assert not is_free(url)
    assert f":{runner.pid}" in takehold("who", "k").stdout
    os.kill(left, signal.SIGKILL)
    until(lambda: is_free(url))


@pytest.mark.covers("L-31")
def test_the_runner_stays_for_a_group_that_closed_the_descriptors(processes: Processes, url: str) -> None:
    """As Python's subprocess does with every descriptor it was not told to pass on."""
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL,"
        " stderr=subprocess.DEVNULL); print(p.pid, flush=True)"
    )
    runner = processes.takehold("run", "-v", "-k", "k", "--", sys.executable, "-c", code)
    left = processes.also_end(int(line(runner)))
    assert "taken after" in line(runner, "stderr")
    assert "kept for what the command left running" in line(runner, "stderr")
    assert not is_free(url)
    os.kill(left, signal.SIGKILL)
    assert runner.wait(PATIENCE) == 0
    assert is_free(url)


def test_a_daemon_that_left_the_group_does_not_keep_the_key(processes: Processes, url: str) -> None:
    """An agent started by chance must not hold the nightly job's key until the next reboot."""
    runner = processes.takehold(
        "run", "-k", "k", "--", "sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!; read line"
    )
    daemon = processes.also_end(int(line(runner)))
    until(lambda: os.getsid(daemon) == daemon)
    runner.communicate("\n", timeout=PATIENCE)
    assert runner.returncode == 0
    assert alive(daemon)
    assert is_free(url)


# -- loss --------------------------------------------------------------------------------------------


def evict_at_once(url: str, key: str = "k") -> float:
    """Evict the holder of a key and wait for the key; how long that took."""
    locks = Locks(url)
    began = time.monotonic()
    for record in locks.who(key):
        assert locks.evict(record.id, timeout=PATIENCE)
    return time.monotonic() - began


@pytest.mark.covers("L-31", "L-29")
def test_an_evicted_run_stops_its_whole_group_and_says_so(processes: Processes, url: str) -> None:
    script = ["sh", "-c", '"$0" -c "$1" SIGTERM & wait', sys.executable, TALKATIVE]
    runner = processes.takehold("run", "-k", "k", "--", *script, stdin=subprocess.DEVNULL)
    grandchild = processes.also_end(int(line(runner)))
    took = evict_at_once(url)
    assert not alive(grandchild)
    assert is_free(url)
    assert took < 1.0
    out, err = runner.communicate(timeout=PATIENCE)
    assert (runner.returncode, out) == (76, "SIGTERM\n")
    assert err == "takehold: 'k' was lost: evicted by an operator; the command was stopped\n"


@pytest.mark.covers("L-31")
def test_an_evicted_group_is_gone_before_anybody_else_gets_the_key(processes: Processes, url: str) -> None:
    """It tidies up for a while after TERM; the next one waits for the end of that."""
    tidy = "trap 'sleep 0.15; echo end; exit' TERM; echo in; while :; do sleep 0.01; done"
    first = processes.takehold("run", "-k", "k", "--", "bash", "-c", tidy, stdin=subprocess.DEVNULL)
    line(first)
    second = processes.takehold("run", "-k", "k", "--", sys.executable, "-c", "import time; print(time.time())")
    locks = Locks(url)
    until(lambda: len(locks.who("k")) == 2)
    asked = time.time()
    evict_at_once(url)
    assert first.communicate(timeout=PATIENCE)[0] == "end\n"
    assert float(line(second)) - asked > 0.15


@pytest.mark.covers("L-31")
def test_a_command_that_ignores_term_is_killed_after_the_grace(processes: Processes, url: str) -> None:
    runner = processes.takehold("run", "-k", "k", "--grace", "0.05", "--", sys.executable, "-c", DEAF)
    child = processes.also_end(int(line(runner)))
    assert evict_at_once(url) < 1.0
    assert not alive(child)
    assert runner.wait(PATIENCE) == 76


@pytest.mark.covers("L-31")
def test_a_stopped_command_is_ended_by_a_loss_too(processes: Processes, url: str) -> None:
    runner = processes.takehold("run", "-k", "k", "--", sys.executable, "-c", TALKATIVE, "SIGTERM")
    child = processes.also_end(int(line(runner)))
    os.kill(child, signal.SIGSTOP)
    evict_at_once(url)
    assert line(runner) == "SIGTERM"
    assert runner.wait(PATIENCE) == 76


@pytest.mark.covers("L-31")
def test_a_replaced_lock_directory_stops_the_group_in_a_hurry(processes: Processes, url: str) -> None:
    """Others can take the key in the new directory already: no long grace here."""
    runner = processes.takehold("run", "-k", "k", "--grace", "30", "--", sys.executable, "-c", DEAF)
    child = processes.also_end(int(line(runner)))
    place = Path(url.removeprefix("file:"))
    began = time.monotonic()
    place.rename(place.with_name("elsewhere"))
    until(lambda: not alive(child))
    assert time.monotonic() - began < 1.0
    assert runner.wait(PATIENCE) == 76
    assert runner.stderr is not None
    assert "was lost: the lock directory" in runner.stderr.read()
