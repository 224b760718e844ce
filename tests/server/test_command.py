"""`takehold serve` and `takehold iceberg`, as processes and inside this one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from takehold import UsageError, cli
from takehold.server import Serving
from takehold.server.opening import open_all, table_config, vended
from tests.server.http import Http
from tests.server.replicas import Replica


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(words)
    return code, capsys.readouterr().out


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, text = told(capsys, *words, "--json")
    assert code == 0, text
    return json.loads(text)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


class TestServe:
    @pytest.mark.slow
    def test_it_serves_until_it_is_told_to_stop_and_finishes_what_is_under_way(self, lake: str) -> None:
        with Replica(lake, "--log", "all") as server:
            with Http(server.uri) as http:
                http.namespace("n")
            assert server.stop() == 0
            events = [line.get("event") for line in server.lines]
            assert events[0] == "started"
            assert events[-1] == "stopped"
            request = next(line for line in server.lines if line.get("event") == "request")
            assert request["operation"] == "createNamespace"
            assert request["status"] == 200

    @pytest.mark.slow
    def test_it_says_what_to_try(self, lake: str) -> None:
        command = [sys.executable, "-u", "-m", "takehold", "serve", "--warehouse", lake, "--port", "0", "--name", "eu"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("http://127.0.0.1:")
            assert "warehouse 'eu' in file://" in first
            text = first
            while "Ctrl-C ends it" not in text:
                text += process.stdout.readline()
            process.terminate()
            assert process.wait(timeout=30) == 0
        uri = first.split()[0]
        assert f'load_catalog("lake", type="rest", uri="{uri}", warehouse="eu")' in text
        assert f"ATTACH 'eu' AS lake (TYPE ICEBERG, ENDPOINT '{uri}'" in text

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (["--host", "0.0.0.0"], "takes --token-file FILE"),
            (["--port", "x"], "'x' is not a port"),
            (["--port", "70000"], "is not a port"),
            (["--token-file", "/none"], "cannot be read"),
            (["--vend-credentials"], "the store is not on S3"),
            (["--log", "some"], "invalid choice"),
        ],
    )
    def test_a_mistake_is_one_line(
        self, lake: str, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["serve", "--warehouse", lake, *words]) == 2
        said = capsys.readouterr().err.strip()
        assert why in said
        assert "\n" not in said

    def test_help_has_examples(self, capsys: pytest.CaptureFixture[str]) -> None:
        for words in (["serve"], ["iceberg"], ["iceberg", "warehouse"], ["iceberg", "warehouse", "create"]):
            with pytest.raises(SystemExit):
                cli.main([*words, "--help"])
            assert "usage: takehold" in capsys.readouterr().out


class TestIceberg:
    @pytest.mark.covers("M-53")
    def test_warehouses(self, lake: str, capsys: pytest.CaptureFixture[str]) -> None:
        at = ("--warehouse", lake)
        made = answered(capsys, "iceberg", "warehouse", "create", "eu", *at)
        assert made["name"] == "eu"
        assert answered(capsys, "iceberg", "warehouse", "list", *at) == [made]
        assert answered(capsys, "iceberg", "warehouse", "show", "eu", *at) == made
        assert made["location"] in told(capsys, "iceberg", "warehouse", "list", *at)[1]
        assert cli.main(["iceberg", "warehouse", "create", "eu", *at]) == 1
        assert answered(capsys, "iceberg", "warehouse", "delete", "eu", *at) == {"deleted": "eu"}
        assert cli.main(["iceberg", "warehouse", "show", "eu", *at]) == 1
        assert "there are no warehouses" in told(capsys, "iceberg", "warehouse", "list", *at)[1]

    @pytest.mark.covers("M-53")
    def test_nothing_is_under_way_and_all_is_well(self, lake: str, capsys: pytest.CaptureFixture[str]) -> None:
        at = ("--warehouse", lake)
        answered(capsys, "iceberg", "warehouse", "create", "main", *at)
        for command in ("transactions", "recover", "fsck"):
            assert answered(capsys, "iceberg", command, *at) == []
        assert "1 warehouses, all is well" in told(capsys, "iceberg", "fsck", "main", *at)[1]
        assert cli.main(["iceberg", "fsck", "none", *at]) == 1

    def test_fsck_finds_what_is_missing(self, lake: str, capsys: pytest.CaptureFixture[str]) -> None:
        with Serving(lake) as server, Http(server.uri) as http:
            http.namespace("n")
            metadata = Path(http.table("n", "t")["metadata-location"].removeprefix("file://"))
        metadata.unlink()
        code, text = told(capsys, "iceberg", "fsck", "--warehouse", lake)
        assert code == 1
        assert "missing metadata" in text
        assert metadata.name in text

    @pytest.mark.covers("M-51")
    def test_contention_is_what_a_server_has_counted(
        self, lake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tokens = tmp_path / "tokens"
        tokens.write_text("read 0123456789abcdef0\n")
        tokens.chmod(0o600)
        with Serving(lake, token_file=str(tokens)) as server:
            asked = ("iceberg", "contention", "--server", server.uri)
            found = answered(capsys, *asked, "--token-file", str(tokens))
            assert set(found) >= {"warehouse registry", "namespace registry", "shard", "pointer locked", "pointer cas"}
            assert found["warehouse registry"]["grants"] >= 1
            assert "RESOURCE" in told(capsys, *asked, "--token-file", str(tokens))[1]
            assert cli.main(asked) == 69
        assert cli.main(asked) == 69
        assert cli.main(["iceberg", "contention", "--server", "file:///etc"]) == 2


class TestLocks:
    @pytest.mark.covers("M-2")
    def test_files_and_memory_are_local(self, lake: str) -> None:
        for store, locks in ((lake, None), (lake, f"file:{lake}-own"), ("memory:", None), ("memory:", "memory:x")):
            with Serving(store, locks=locks) as server, Http(server.uri) as http:
                assert http.get("/healthz").json["locks"] == "local"

    @pytest.mark.covers("M-2")
    def test_a_server_is_distributed_and_reads_are_coalesced_unless_switched_off(
        self, lake: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Serving(lake, locks=postgres_url) as server, Http(server.uri) as http:
            assert http.get("/healthz").json["locks"] == "distributed, reads coalesced"
            http.namespace("n")
            http.table("n", "t")
        monkeypatch.setenv("TAKEHOLD_COALESCED_LOCKS", "off")
        with Serving(lake, locks=postgres_url) as server, Http(server.uri) as http:
            assert http.get("/healthz").json["locks"] == "distributed"
            assert http.get("/v1/main/namespaces/n/tables/t").status == 200
        monkeypatch.setenv("TAKEHOLD_COALESCED_LOCKS", "maybe")
        with pytest.raises(UsageError, match="on or off"):
            asyncio.run(open_all(lake))


class TestBuckets:
    def test_clients_are_told_how_to_reach_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
            monkeypatch.delenv(name, raising=False)
        assert table_config("lake") == {}
        assert table_config("s3://b/p?endpoint=http://h:1&region=eu") == {
            "s3.region": "eu", "client.region": "eu", "s3.endpoint": "http://h:1", "s3.path-style-access": "true",
        }  # fmt: skip

    def test_keys_are_vended_only_from_the_environment(self) -> None:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
        assert vended("s3://b", keys) == {"s3.access-key-id": "a", "s3.secret-access-key": "s"}
        with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID"):
            vended("s3://b", {})


@pytest.mark.slow
def test_a_request_that_is_under_way_is_finished_when_the_server_stops(lake: str) -> None:
    answers = []
    with Serving(lake) as server:
        with Http(server.uri) as http:
            http.namespace("n")
            http.table("n", "t")

        def ask() -> None:
            with Http(server.uri) as own:
                for number in range(1000):
                    try:
                        answers.append(own.set("n", "t", **{f"p{number}": "1"}).status)
                    except OSError:
                        return

        thread = threading.Thread(target=ask)
        thread.start()
        while len(answers) < 3:
            time.sleep(0.001)
    thread.join()
    with Serving(lake) as server, Http(server.uri) as http:
        there = {name for name in http.properties("n", "t") if name.startswith("p")}
    assert set(answers) == {200}
    # One more may have been done whose answer was lost; none is missing.
    assert len(answers) <= len(there) <= len(answers) + 1


def test_the_fixture_is_a_catalog_for_pyiceberg(iceberg_catalog: Serving) -> None:
    catalog = load_catalog("lake", **iceberg_catalog.properties)
    catalog.create_namespace("shop")
    assert catalog.list_namespaces() == [("shop",)]
