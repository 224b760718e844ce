"""What all commands share: help, exit codes, one-line errors, URLs; and the small commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import takehold as package
from takehold import Locks
from takehold.cli import main
from takehold.cli.command import COMMANDS
from tests.cli.conftest import RunTakehold


@pytest.fixture(autouse=True)
def no_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `run` that succeeds by mistake would end this very process, and the tests with it, as if all were well."""

    def refuse(code: int) -> None:
        pytest.fail(f"the command was run, with exit code {code}")

    monkeypatch.setattr("takehold.cli.run._leave", refuse)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and message of a command that fails: one line, nothing on stdout."""
    code = main(words)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("takehold: ")
    assert err.count("\n") == 1
    return code, err


BELOW = {
    "fragments": ("run", "status", "retry"),
    "iceberg": ("transactions", "recover", "fsck", "contention"),
}


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `--help` prints."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_its_exit_codes(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = help_of(capsys, name)
    assert f"examples:\n  takehold {name}" in text
    assert "exit codes: " in text
    # A command of commands says in each of theirs where it works, and in what form it answers.
    for one in [help_of(capsys, name, below) for below in BELOW[name]] if name in BELOW else [text]:
        assert "--json" in one
        assert "--server" in one or "--url" in one or ("--warehouse" in one and "--locks" in one)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_documentation_has_a_section_for_every_command(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert f"\n## `takehold {name}" in text


def test_the_top_level_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(f"takehold {name} " in text for name in COMMANDS)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"takehold {package.__version__}\n"


@pytest.mark.covers("L-32")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say what to do: run, ls, who, evict, doctor, init, bench"),
        (["lock"], "there is no command 'lock'; commands: run, "),
        (["--nonsense"], "unrecognized arguments: --nonsense (see: takehold --help)"),
        (["run", "--", "true"], "required: -k/--key (see: takehold run --help)"),
        (["run", "-k", "k"], "put the command after --"),
        (["run", "-k", "k", "--"], "put the command after --"),
        (["run", "-k", "k", "true"], "unrecognized arguments: true"),
        (["run", "-k", "", "--", "true"], "a key is empty"),
        (["run", "-k", "x" * 1025, "--", "true"], "a key is at most 1024 bytes"),
        (["run", "-k", "\udcff", "--", "true"], "not valid Unicode"),
        (["run", "-k", "k", "--timeout", "-1", "--", "true"], "'-1' is neither seconds (0: one attempt) nor 'none'"),
        (["run", "-k", "k", "--timeout", "soon", "--", "true"], "'soon' is neither seconds"),
        (["run", "-k", "k", "--timeout", "nan", "--", "true"], "'nan' is neither seconds"),
        (["run", "-k", "k", "--grace", "-1", "--", "true"], "'-1' is not a number of seconds, 0 or more"),
        (["run", "-k", "k", "--label", "", "--", "true"], "a label is empty"),
        (["run", "-k", "k", "--url", "redis://x", "--", "true"], "'redis://x' has no scheme known here"),
        (["run", "-k", "k", "--url", "", "--", "true"], "'' has no scheme known here"),
        (["run", "-k", "k", "--url", "memory:", "--", "true"], "memory locks live inside one process"),
        (["ls", "--url", "memory:x"], "--url is 'memory:x', and memory locks live inside one process"),
        (["who", "k", "--url", "memory:"], "memory locks live inside one process"),
        (["evict", "x", "--url", "memory:"], "memory locks live inside one process"),
        (["init", "memory:"], "needs no preparation"),
        (["who"], "required: key"),
        (["ls", "a", "b"], "unrecognized arguments: b"),
        (["ls", "--", "a"], "only `takehold run` takes a command after --"),
        (["ls", "--top", "--json"], "--top is for people"),
        (["evict"], "one of the arguments HOLD_ID --key --pid is required"),
        (["evict", "x", "--key", "k"], "not allowed with"),
        (["evict", "--pid", "many"], "invalid int value: 'many'"),
        (["init", "file:/a", "--url", "file:/b"], "two URLs"),
        (["doctor", "postgresql://u:sesame@h/a", "--url", "postgresql://u:sesame@h/b"], "two URLs: 'postgresql://u:***@h/a'"),
        (["doctor", "--stuck-after", "soon"], "'soon' is not a number of seconds"),
        (["init", "--fence-from", "-1"], "--fence-from takes 0 .. 2**62-1, not -1"),
        (["init", "--fence-from", str(2**63)], "--fence-from takes 0 .. 2**62-1"),
        (["bench", "--seconds", "0"], "--seconds takes more than 0 and at most 60"),
        (["bench", "--seconds", "1e9"], "--seconds takes more than 0 and at most 60"),
    ],
)  # fmt: skip
def test_wrong_usage_is_2_and_one_line_that_says_what_is_accepted(
    url: str, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code, err = refused(capsys, *words)
    assert code == 2
    assert sentence in err


@pytest.mark.covers("L-32")
@pytest.mark.parametrize("words", [["run", "-k", "k", "--", "true"], ["ls"], ["init"], ["evict", "--key", "k"]])
def test_a_backend_that_cannot_be_used_is_69(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "file").write_text("not a directory")
    name, *rest = words
    code, err = refused(capsys, name, "--url", f"file:{tmp_path / 'file'}", *rest)
    assert code == 69
    assert str(tmp_path / "file") in err


def test_a_backend_that_refuses_is_69(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o777)
    code, err = refused(capsys, "run", "-k", "k", "--url", f"file:{tmp_path}", "--", "true")
    assert code == 69
    assert "writable by everybody" in err


@pytest.mark.covers("L-32")
def test_the_memory_url_of_the_environment_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAKEHOLD_URL", "memory:app")
    code, err = refused(capsys, "ls")
    assert code == 2
    assert "TAKEHOLD_URL is 'memory:app'" in err


@pytest.mark.slow
def test_an_error_of_a_real_process_is_one_line_without_a_traceback(takehold: RunTakehold) -> None:
    done = takehold("run", "-k", "k", "--url", "redis://x", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("takehold: 'redis://x' has no scheme known here; use one of: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_installed_script_is_the_same_command(url: str) -> None:
    script = Path(sys.executable).with_name("takehold")
    done = subprocess.run([script, "run", "-k", "k", "--", "sh", "-c", "exit 9"], timeout=20, check=False)
    assert done.returncode == 9


# -- init and bench ----------------------------------------------------------------------------------


def test_init_says_what_was_done_and_twice_does_no_harm(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = url.removeprefix("file:")
    for _ in range(2):
        assert main(["init"]) == 0
        assert capsys.readouterr().out == f"{place} is ready\n"
    assert main(["init", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"url": url, "done": f"{place} is ready"}


def test_init_raises_fences_above_those_of_a_former_backend(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    above = 2**61
    assert main(["init", "--fence-from", str(above)]) == 0
    assert f"fences start above {above}" in capsys.readouterr().out
    with Locks(url).lock("k") as hold:
        assert hold.fence > above


@pytest.mark.slow
def test_bench_measures_four_questions_says_under_which_conditions_and_leaves_nothing(
    takehold: RunTakehold, url: str
) -> None:
    done = takehold("bench", "--seconds", "0.1", "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["conditions"].keys() == {"url", "python", "system", "processors", "load", "note"}
    assert [one["question"].partition(" (")[0] for one in told["results"]] == [
        "lock and release, one key",
        "lock and release, fresh keys",
        "the same with 1,000 held",
        "hand-over between two processes",
    ]
    assert all(0 < one["p50_us"] <= one["max_us"] and one["times"] > 0 for one in told["results"])
    assert Locks(url).who() == []


@pytest.mark.slow
def test_bench_prints_a_table_also_for_memory(takehold: RunTakehold) -> None:
    done = takehold("bench", "--seconds", "0.01", "--url", "memory:")
    assert done.returncode == 0
    assert done.stdout.startswith("url: memory:\npython: ")
    assert "QUESTION" in done.stdout
    assert "hand-over" not in done.stdout
