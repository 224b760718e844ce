"""A corpus, a database and a pipeline that notes what it does: what every test of fragments works with."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from takehold.fragments import AsyncWorker, Counts, Folder, Fragment, Pipeline, Worker
from takehold.fragments.ledger.place import place_of

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0
PARTS = 3
"""Rows per result: a result with fewer was written by half."""

CREATE = text("CREATE TABLE IF NOT EXISTS results (fragment text NOT NULL, part int NOT NULL, content text NOT NULL)")
INSERT = text("INSERT INTO results (fragment, part, content) VALUES (:fragment, :part, :content)")
DELETE = text("DELETE FROM results WHERE fragment = :fragment")
TABLES = ("takehold_fragment_runs", "takehold_fragments", "takehold_fragment_format", "results")


def prepare(connection: Connection) -> None:
    connection.execute(CREATE)


def write(connection: Connection, results: Sequence[tuple[Fragment, str]]) -> None:
    rows = [
        {"fragment": fragment.identity, "part": part, "content": result}
        for fragment, result in results
        for part in range(PARTS)
    ]
    connection.execute(INSERT, rows)


def remove(connection: Connection, identities: Sequence[str]) -> None:
    connection.execute(DELETE, [{"fragment": identity} for identity in identities])


class Diary:
    """A file to which every process appends a line for each extraction; short lines do not mix."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, word: str, identity: str) -> None:
        line = f"{word} {os.getpid()} {time.monotonic_ns()} {identity}\n".encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)

    def lines(self, word: str) -> list[list[str]]:
        if not self.path.exists():
            return []
        found = [line.split(" ", 3) for line in self.path.read_text().splitlines()]
        return [line for line in found if line[0] == word]

    def extracted(self) -> Counter[str]:
        """How often each was begun."""
        return Counter(line[3] for line in self.lines("begin"))

    def overlaps(self) -> list[str]:
        """Those that two were at, at the same time. Who was killed is taken to have ended with its last line."""
        ends = {(line[1], line[3]): int(line[2]) for line in self.lines("end")}
        seen: dict[str, int] = {}
        found = []
        for _, pid, at, identity in sorted(self.lines("begin"), key=lambda line: int(line[2])):
            if int(at) < seen.get(identity, 0):
                found.append(identity)
            seen[identity] = max(seen.get(identity, 0), ends.get((pid, identity), 0))
        return found


@dataclass
class Recorder:
    """What a pipeline does: notes it, waits a little, does what a test wants it to do in between."""

    diary: Diary
    wait: float = 0.0
    during: Callable[[Fragment], object] | None = None
    writing: Callable[[list[str]], object] | None = None

    def extract(self, fragment: Fragment) -> str:
        self.diary.note("begin", fragment.identity)
        if self.wait:
            time.sleep(self.wait)
        if self.during is not None:
            self.during(fragment)
        if "FAIL" in fragment.content:
            raise ValueError(f"{fragment.name} cannot be extracted")
        self.diary.note("end", fragment.identity)
        return fragment.content

    async def extract_async(self, fragment: Fragment) -> str:
        self.diary.note("begin", fragment.identity)
        await asyncio.sleep(self.wait)
        if self.during is not None:
            await asyncio.to_thread(self.during, fragment)
        if "FAIL" in fragment.content:
            raise ValueError(f"{fragment.name} cannot be extracted")
        self.diary.note("end", fragment.identity)
        return fragment.content

    def validate(self, fragment: Fragment, result: str) -> None:
        if "INVALID" in result:
            raise ValueError("it does not conform")

    def write(self, connection: Connection, results: Sequence[tuple[Fragment, str]]) -> None:
        write(connection, results)
        if self.writing is not None:
            self.writing([fragment.identity for fragment, _ in results])

    def pipeline(self, *, asynchronous: bool = False, profile: str = "text/1") -> Pipeline[str]:
        extract: Any = self.extract_async if asynchronous else self.extract
        return Pipeline(profile, extract, self.write, remove, validate=self.validate, prepare=prepare)


@dataclass
class Site:
    """One database, with a corpus beside it."""

    name: str
    url: str
    folder: Path
    diary: Diary
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def corpus(self) -> Folder:
        return Folder(self.folder)

    def document(self, name: str, **sections: str) -> None:
        """Write a Markdown document; each section is a fragment."""
        self.folder.mkdir(exist_ok=True)
        content = "".join(f"# {title}\n\n{body}\n\n" for title, body in sections.items())
        (self.folder / name).write_text(content)

    def documents(self, count: int, each: int) -> int:
        for number in range(count):
            self.document(f"d{number:04}.md", **{f"s{one}": f"text {one} of {number}" for one in range(each)})
        return count * each

    def query(self, sql: str, **facts: Any) -> list[tuple[Any, ...]]:
        engine = place_of(self.url).engine()
        try:
            with engine.begin() as connection:
                answer = connection.execute(text(sql), facts)
                return [tuple(row) for row in answer] if answer.returns_rows else []
        finally:
            engine.dispose()

    def results(self) -> dict[str, set[str]]:
        """Contents by fragment; a result that is there twice, or by half, is a failure."""
        found: dict[str, list[tuple[int, str]]] = {}
        for identity, part, content in self.query("SELECT fragment, part, content FROM results"):
            found.setdefault(identity, []).append((part, content))
        for identity, rows in found.items():
            assert sorted(part for part, _ in rows) == list(range(PARTS)), (identity, rows)
        return {identity: {content for _, content in rows} for identity, rows in found.items()}

    def expected(self) -> dict[str, set[str]]:
        corpus = self.corpus
        return {
            fragment.identity: {fragment.content}
            for document in corpus.documents()
            for fragment in corpus.fragments(document)
        }

    def recorder(self, **options: Any) -> Recorder:
        return Recorder(self.diary, **options)

    def worker(self, recorder: Recorder | None = None, *, profile: str = "text/1", **options: Any) -> Worker:
        return Worker((recorder or self.recorder()).pipeline(profile=profile), self.corpus, self.url, **options)

    def run(self, face: str = "threads", recorder: Recorder | None = None, **options: Any) -> Counts:
        """One run of one replica to its end."""
        recorder = recorder or self.recorder()
        if face == "threads":
            return self.worker(recorder, **options).run()
        pipeline = recorder.pipeline(asynchronous=True)

        async def go() -> Counts:
            return await AsyncWorker(pipeline, self.corpus, self.url, **options).run()

        return asyncio.run(go())

    def replica(self, face: str = "threads", **options: Any) -> subprocess.Popen[str]:
        """Another process; it says `working` when it has begun, and its counts as JSON at the end."""
        command = [
            sys.executable,
            "-m",
            "tests.fragments.replica",
            self.url,
            str(self.folder),
            str(self.diary.path),
            face,
        ]
        process = subprocess.Popen(
            [*command, json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def counts_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a replica said at its end."""
    out, _ = process.communicate(timeout=PATIENCE * 3)
    assert process.returncode == 0, (process.returncode, out)
    counts: dict[str, Any] = json.loads(out.splitlines()[-1])
    return counts


class Gate:
    """Where one party waits until another has come, and is let on."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.armed = True

    def __call__(self, *_: object) -> None:
        """The first who comes waits, everybody after that passes."""
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.open.wait(PATIENCE)


def until(condition: Callable[[], object]) -> None:
    """Look again and again until it is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


class Background:
    """A call in a thread; `join` gives its result or raises its error."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._outcome: list[Any] = []
        self._error: BaseException | None = None

        def go() -> None:
            try:
                self._outcome.append(function())
            except BaseException as error:  # noqa: BLE001 - `join` raises it
                self._error = error

        self._thread = threading.Thread(target=go, daemon=True)
        self._thread.start()

    def join(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._outcome[0]
