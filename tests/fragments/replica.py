"""One replica as a process: ``python -m tests.fragments.replica URL FOLDER DIARY FACE OPTIONS``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from takehold.fragments import AsyncWorker, Counts, Folder, Worker
from tests.fragments.site import Diary, Recorder


def main(url: str, folder: str, diary: str, face: str, options: str) -> None:
    given = json.loads(options)
    recorder = Recorder(Diary(Path(diary)), wait=given.pop("wait", 0.0))
    if pause := given.pop("write_wait", 0.0):
        recorder.writing = lambda _: time.sleep(pause)
    if face == "hanging":

        def hang(identities: list[str]) -> None:
            recorder.diary.note("written", identities[0])
            time.sleep(60)

        recorder.writing = hang
    said = False

    def progress(counts: Counts) -> None:
        nonlocal said
        if counts.extracted and not said:
            said = True
            print("working", flush=True)  # noqa: T201

    pipeline = recorder.pipeline(asynchronous=face == "asyncio")
    if face == "asyncio":
        counts = asyncio.run(AsyncWorker(pipeline, Folder(folder), url, **given).run(progress))
    else:
        counts = Worker(pipeline, Folder(folder), url, **given).run(progress)
    print(json.dumps(counts.as_dict()))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
