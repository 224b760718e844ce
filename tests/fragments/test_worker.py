"""What one replica does with a corpus."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

import takehold
from takehold.fragments import SPLITTERS, AsyncWorker, Folder, Fragment, Look, Pipeline, Worker
from takehold.fragments.fragment import locks_of
from takehold.fragments.worker import PREPARING
from tests.fragments.site import Background, Gate, Site, prepare, remove, until, write


@pytest.mark.covers("R-5")
def test_the_keys_are_held_from_before_the_extraction_until_after_the_write(site: Site) -> None:
    site.document("a.md", one="1")
    steps: list[tuple[str, int]] = []

    def note(step: str) -> None:
        with takehold.Locks(site.url) as locks:
            steps.append((step, len(locks.who("*corpus/a.md#one"))))

    recorder = site.recorder(during=lambda _: note("extract"), writing=lambda _: note("write"))
    pipeline = replace(recorder.pipeline(), validate=lambda *_: note("validate"))
    assert Worker(pipeline, site.corpus, site.url).run().done == 1
    note("end")
    assert steps == [("extract", 2), ("validate", 2), ("write", 2), ("end", 0)]


@pytest.mark.covers("R-6")
def test_every_fragment_is_extracted_once_and_its_result_is_there_once(site: Site, face: str) -> None:
    count = site.documents(4, 10)
    counts = site.run(face, concurrency=4)
    assert (counts.done, counts.extracted, counts.complete) == (count, count, True)
    assert site.results() == site.expected()
    assert set(site.diary.extracted().values()) == {1}


def test_a_second_run_over_an_unchanged_corpus_extracts_nothing(site: Site, face: str) -> None:
    count = site.documents(2, 10)
    site.run(face)
    counts = site.run(face)
    assert (counts.unchanged, counts.done, counts.extracted) == (count, 0, 0)
    assert site.results() == site.expected()


@pytest.mark.covers("R-14")
def test_a_changed_document_has_only_its_changed_fragments_extracted_again(site: Site) -> None:
    site.document("a.md", one="1", two="2", three="3")
    site.document("b.md", one="other")
    site.run()
    site.document("a.md", one="1", two="two", four="4")
    counts = site.run()
    assert (counts.done, counts.removed, counts.unchanged) == (2, 1, 2)
    assert site.results() == site.expected()
    assert site.diary.extracted()["corpus/a.md#one"] == 1
    assert site.diary.extracted()["corpus/a.md#two"] == 2
    known = site.query("SELECT f.identity FROM takehold_fragments f JOIN takehold_fragment_runs r ON r.fragment = f.id")
    assert sorted(identity for (identity,) in known) == sorted(site.expected())


def test_a_document_that_is_changed_back_is_extracted_again(site: Site) -> None:
    for body in ("old", "new", "old"):
        site.document("a.md", one=body)
        assert site.run().done == 1
    assert site.results() == site.expected()


def test_the_results_of_a_document_that_is_gone_go_too(site: Site) -> None:
    site.documents(2, 3)
    site.run()
    (site.folder / "d0001.md").unlink()
    assert site.run().removed == 3
    assert site.results() == site.expected()
    assert len(site.query("SELECT * FROM takehold_fragments")) == 3


def test_an_empty_corpus_removes_nothing(site: Site) -> None:
    """A folder that is not mounted looks empty."""
    site.documents(1, 3)
    site.run()
    there = site.results()
    (site.folder / "d0000.md").rename(site.folder / "d0000.off")
    assert site.run().removed == 0
    assert site.results() == there


def test_a_fragment_that_fails_is_recorded_and_does_not_stop_the_rest(site: Site, face: str) -> None:
    site.document("a.md", one="1", two="FAIL", three="3", four="INVALID")
    counts = site.run(face, attempts=3)
    assert (counts.done, counts.failed, counts.complete) == (2, 2, True)
    assert site.diary.extracted()["corpus/a.md#two"] == 3
    assert sorted(site.results()) == ["corpus/a.md#one", "corpus/a.md#three"]
    failed = {one.identity: one for one in Look(site.url).failures()}
    assert failed["corpus/a.md#two"].error == "ValueError: two cannot be extracted"
    assert failed["corpus/a.md#four"].error == "ValueError: it does not conform"
    assert failed["corpus/a.md#two"].attempts == 3
    # Not tried again before somebody says so; the run says what failed all the same.
    again = site.run(face, attempts=3)
    assert (again.extracted, again.failed, len(again.failures)) == (0, 2, 2)
    assert Look(site.url).retry() == 2
    assert site.run(face, attempts=3).extracted == 6


class Exit(BaseException):
    """Like SystemExit, of somebody else."""


def extraction(steps: Callable[[Fragment], object], face: str) -> Any:
    """A plain function, or a coroutine function, that takes these steps."""

    def plain(fragment: Fragment) -> str:
        steps(fragment)
        return fragment.content

    async def coroutine(fragment: Fragment) -> str:
        return plain(fragment)

    return coroutine if face == "coroutines" else plain


@pytest.mark.parametrize("face", ["threads", "asyncio", "coroutines"])
@pytest.mark.parametrize("step", ["extract", "validate", "write"])
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("inner"), Exit("out")], ids=repr)
def test_an_exit_out_of_a_pipeline_is_a_failure_of_its_fragment(
    file_site: Site, face: str, step: str, error: BaseException
) -> None:
    count = file_site.documents(1, 12)

    def leave(where: str, *names: str) -> None:
        if where == step and "s3" in names:
            raise error

    def stored(connection: Connection, results: Sequence[tuple[Fragment, str]]) -> None:
        write(connection, results)
        leave("write", *(fragment.name for fragment, _ in results))

    pipeline = Pipeline(
        "text/1",
        extraction(lambda fragment: leave("extract", fragment.name), face),
        stored,
        remove,
        validate=lambda fragment, _: leave("validate", fragment.name),
        prepare=prepare,
    )
    if face == "threads":
        counts = Worker(pipeline, file_site.corpus, file_site.url, concurrency=2, attempts=2).run()
    else:
        counts = asyncio.run(AsyncWorker(pipeline, file_site.corpus, file_site.url, concurrency=2, attempts=2).run())
    assert (counts.done, counts.failed, counts.complete) == (count - 1, 1, True)
    [failure] = counts.failures
    assert (failure.identity, failure.attempts) == ("corpus/d0000.md#s3", 2)
    assert failure.error == f"{type(error).__name__}: {error}"
    assert len(file_site.results()) == count - 1


def test_a_cancelled_worker_ends_and_records_no_failure(file_site: Site) -> None:
    file_site.documents(1, 6)
    begun = asyncio.Event()

    async def extract(_: Fragment) -> str:
        begun.set()
        await asyncio.sleep(60)
        return ""

    async def go() -> None:
        pipeline = Pipeline("text/1", extract, write, remove, prepare=prepare)
        running = asyncio.create_task(AsyncWorker(pipeline, file_site.corpus, file_site.url).run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(go())
    assert Look(file_site.url).failures() == []
    assert Look(file_site.url).in_hand() == []
    assert file_site.run().done == 6


def test_a_failing_write_fails_alone(site: Site) -> None:
    site.document("a.md", one="1", two="2", three="3")
    together = threading.Barrier(3, timeout=20)
    attempts: list[list[str]] = []

    def writing(identities: list[str]) -> None:
        attempts.append(identities)
        if "corpus/a.md#two" in identities:
            raise RuntimeError("not this one")

    recorder = site.recorder(during=lambda _: together.wait(), writing=writing)
    counts = site.run(recorder=recorder, concurrency=3, attempts=1)
    assert attempts.count(["corpus/a.md#two"]) == 1
    assert (counts.done, counts.failed) == (2, 1)
    assert sorted(site.results()) == ["corpus/a.md#one", "corpus/a.md#three"]


@pytest.mark.covers("R-15")
def test_two_workers_of_one_process_never_have_one_fragment_at_once(site: Site, face: str) -> None:
    count = site.documents(1, 8)
    recorder = site.recorder(wait=0.02)
    others = [Background(lambda: site.run(face, recorder, concurrency=4)) for _ in range(2)]
    counts = [other.join() for other in others]
    assert site.results() == site.expected()
    assert sum(one.done for one in counts) == count
    assert set(site.diary.extracted().values()) == {1}
    assert site.diary.overlaps() == []


@pytest.mark.covers("R-9")
def test_fragments_of_one_document_are_worked_on_at_the_same_time(site: Site, face: str) -> None:
    site.document("a.md", one="1", two="2", three="3")
    together = threading.Barrier(3, timeout=20)
    recorder = site.recorder(during=lambda _: together.wait())
    assert site.run(face, recorder, concurrency=3).done == 3


@pytest.mark.covers("R-4", "R-20")
def test_a_held_fragment_is_skipped_counts_as_pending_and_is_offered_again(site: Site, face: str) -> None:
    site.document("a.md", one="1", two="2")
    held = site.corpus.fragments("a.md")[0]
    with takehold.Locks(site.url) as locks:
        hold = locks.lock(*locks_of(held.identity, held.hash)).acquire()
        counts = site.run(face, patience=0.3)
        assert (counts.done, counts.pending, counts.held, counts.complete) == (1, 1, 1, False)
        assert counts.failed == 0
        assert counts.skipped > 1
        assert held.identity not in site.diary.extracted()
        running = Background(lambda: site.run(face))
        until(lambda: not running._thread.is_alive() or len(Look(site.url).in_hand()) >= 1)
        hold.release()
        counts = running.join()
    assert (counts.done, counts.unchanged, counts.complete) == (1, 1, True)
    assert site.results() == site.expected()


@pytest.mark.covers("R-14")
def test_what_another_replica_did_meanwhile_is_not_done_again(site: Site, face: str) -> None:
    """Both have looked before either began: the second finds it done after it took the locks."""
    site.document("a.md", one="1")
    gate = Gate()
    late = Background(lambda: site.run(face, site.recorder(during=gate)))
    assert gate.reached.wait(20)
    worker = site.worker()
    other = Background(worker.run)
    until(lambda: worker.counts.skipped)
    gate.open.set()
    assert (late.join().done, other.join().done) == (1, 0)
    assert site.diary.extracted() == {"corpus/a.md#one": 1}


@pytest.mark.covers("R-14")
def test_what_changes_before_its_turn_is_extracted_as_it_is_then(site: Site, face: str) -> None:

    def during(fragment: Fragment) -> None:
        if len(site.diary.lines("begin")) == 1:
            site.document("a.md", **{name: "1" if name == fragment.name else "new" for name in ("first", "second")})

    site.document("a.md", first="1", second="1")
    assert site.run(face, site.recorder(during=during), concurrency=1).done == 2
    assert site.results() == site.expected()
    assert sum(site.diary.extracted().values()) == 2


def test_force_makes_everything_due_once_more(site: Site) -> None:
    count = site.documents(1, 4)
    site.run()
    assert site.run(force=True).done == count
    assert set(site.diary.extracted().values()) == {2}
    assert site.results() == site.expected()


def test_another_kind_of_result_is_another_run(site: Site) -> None:
    count = site.documents(1, 4)
    profiles = ("text/1", "text/x", "texts/1", "text/more/1", "text1")
    for profile in profiles:
        recorder = site.recorder()
        aside = replace(recorder.pipeline(profile=profile), write=lambda *_: None, remove=lambda *_: 1 / 0)
        assert Worker(aside, site.corpus, site.url).run().done == count
    assert {one.profile: one.count for one in Look(site.url).tallies()} == dict.fromkeys(profiles, count)


@pytest.mark.parametrize("old", ["text/1", "text", "text/0.9"])
def test_another_version_of_a_profile_replaces_every_result_of_the_first(site: Site, old: str) -> None:
    site.documents(2, 2)
    site.worker(profile=old).run()
    # One is gone, one has changed, and the rest is as it was.
    site.document("d0001.md", s0="changed")
    for profile, removed in (("text/2", 1), (old, 0)):
        counts = site.worker(profile=profile, attempts=1).run()
        assert (counts.done, counts.extracted, counts.failed, counts.removed) == (3, 3, 0, removed)
        assert site.results() == site.expected()
        assert {one.profile: one.count for one in Look(site.url).tallies()} == {profile: 3}
    (site.folder / "d0001.md").unlink()
    assert site.worker(profile="text/3").run().removed == 1
    assert site.results() == site.expected()


def test_what_fails_in_a_new_version_keeps_its_old_result(site: Site) -> None:
    site.document("a.md", one="1", two="2")
    site.run()

    def during(fragment: Fragment) -> None:
        if fragment.name == "two":
            raise ValueError("not in this version")

    counts = site.worker(site.recorder(during=during), profile="text/2", attempts=1).run()
    assert (counts.done, counts.failed) == (1, 1)
    assert site.results() == site.expected()
    # Back again: what is still there of the first version need not be extracted.
    counts = site.run()
    assert (counts.done, counts.unchanged) == (1, 1)
    assert site.results() == site.expected()


def test_the_same_text_in_two_places_is_done_for_both(site: Site) -> None:
    site.document("a.md", one="same")
    site.document("b.md", one="same")
    assert site.run(concurrency=2).done == 2
    assert site.results() == site.expected()


def test_a_document_that_cannot_be_read_is_reported_and_keeps_its_results(site: Site) -> None:
    site.document("a.md", one="1")
    site.document("b.md", one="2")
    site.run()
    there = site.results()
    (site.folder / "a.md").write_bytes(b"\xff\xfe\x00broken")
    counts = site.run()
    assert (counts.unchanged, counts.removed) == (1, 0)
    assert [failure.identity for failure in counts.failures] == ["corpus/a.md"]
    assert site.results() == there


def test_a_link_that_leads_nowhere_is_reported_and_keeps_its_results(site: Site, face: str) -> None:
    site.document("a.md", one="1")
    away = site.folder.parent / "away.md"
    away.write_text("# two\n\n2\n")
    (site.folder / "b.md").symlink_to(away)
    site.run(face)
    there = site.results()
    assert len(there) == 2
    away.unlink()
    (site.folder / "loop.md").symlink_to("loop.md")
    counts = site.run(face)
    assert (counts.unchanged, counts.removed) == (1, 0)
    assert sorted(failure.identity for failure in counts.failures) == ["corpus/b.md", "corpus/loop.md"]
    assert site.results() == there


@pytest.mark.parametrize("content", [b"\xff\xfe\x00broken", None], ids=["bytes", "a loop"])
def test_a_document_that_breaks_during_the_run_does_not_end_it(site: Site, face: str, content: bytes | None) -> None:
    site.documents(4, 2)

    def during(fragment: Fragment) -> None:
        path = site.folder / ("d0001.md" if fragment.document == "d0000.md" else "d0000.md")
        if len(site.diary.lines("begin")) == 1:
            path.unlink()
            if content is None:
                path.symlink_to(path.name)
            else:
                path.write_bytes(content)

    counts = site.run(face, site.recorder(during=during), concurrency=1)
    [failure] = counts.failures
    assert failure.identity in ("corpus/d0000.md", "corpus/d0001.md")
    assert (counts.done, counts.pending, counts.failed) == (6, 0, 0)
    assert len(site.results()) == 6


def test_two_fragments_of_one_name_are_a_failure_of_their_document(file_site: Site) -> None:
    file_site.document("a.md", one="1")
    (file_site.folder / "b.twice").write_text("x")
    splitters = {**SPLITTERS, ".twice": lambda _: [("same", "one"), ("other", "two"), ("same", "three")]}
    corpus = Folder(file_site.folder, splitters=splitters)
    counts = Worker(file_site.recorder().pipeline(), corpus, file_site.url).run()
    assert (counts.done, counts.seen) == (1, 1)
    [failure] = counts.failures
    assert failure.identity == "corpus/b.twice"
    assert failure.error == "UsageError: two fragments of one document have the same name, 'same'"


def test_only_regular_files_are_documents(file_site: Site) -> None:
    """Nobody writes into this pipe: to open it would take for ever."""
    file_site.document("a.md", one="1")
    file_site.document("b.md", one="2")
    assert file_site.run().done == 2
    os.mkfifo(file_site.folder / "pipe.md")
    (file_site.folder / "b.md").unlink()
    os.mkfifo(file_site.folder / "b.md")
    (file_site.folder / "device.md").symlink_to("/dev/zero")
    counts = Background(file_site.run).join()
    assert (counts.documents, counts.unchanged, counts.removed, counts.failures) == (1, 1, 1, [])
    with pytest.raises(OSError, match="no regular file"):
        file_site.corpus.fragments("pipe.md")


@pytest.mark.covers("R-18")
def test_a_fragment_that_takes_too_long_is_flagged(site: Site, face: str, caplog: pytest.LogCaptureFixture) -> None:
    site.document("a.md", one="1", two="2")
    gate = Gate()
    recorder = site.recorder(during=gate)
    with caplog.at_level(logging.WARNING):
        running = Background(lambda: site.run(face, recorder, stuck_after=0.2))
        assert gate.reached.wait(20)
        until(lambda: any(one.stuck for one in Look(site.url).in_hand(stuck_after=0.2)))
        [stuck] = Look(site.url).in_hand(stuck_after=0.2)
        until(lambda: any("stuck?" in record.message for record in caplog.records))
        gate.open.set()
        running.join()
    assert stuck.identity in site.expected()
    assert stuck.seconds > 0.2
    flagged = [record for record in caplog.records if "stuck?" in record.message]
    assert [stuck.identity in record.message for record in flagged] == [True]


@pytest.mark.covers("R-16")
def test_a_worker_that_is_told_to_stop_finishes_what_it_has_begun(site: Site, face: str) -> None:
    site.documents(1, 20)
    recorder = site.recorder()
    worker = site.worker(recorder, concurrency=2)
    recorder.during = lambda _: worker.stop()
    counts = worker.run()
    assert counts.drained
    assert 1 <= counts.done <= 2
    assert counts.done + counts.pending == 20
    assert len(site.results()) == counts.done == len(site.diary.lines("begin"))


@pytest.mark.covers("R-16")
@pytest.mark.parametrize("made", [Worker, AsyncWorker])
def test_a_worker_that_waits_for_its_turn_to_prepare_stops_when_told(site: Site, made: Any) -> None:
    site.document("a.md", one="1")
    worker = made(site.recorder().pipeline(), site.corpus, site.url)
    with takehold.Locks(site.url) as locks:
        locks.init()
        with locks.lock(PREPARING):
            running = Background(worker.run if made is Worker else lambda: asyncio.run(worker.run()))
            until(lambda: [one for one in locks.who(PREPARING) if one.state != "held"])
            worker.stop()
            counts = running.join()
    assert (counts.drained, counts.done, counts.complete) == (True, 0, False)
    assert site.run().done == 1


@pytest.mark.covers("R-16")
def test_what_does_not_finish_in_time_is_released_and_not_written(site: Site) -> None:
    site.document("a.md", one="1")
    gate = Gate()
    worker = site.worker(site.recorder(during=gate), grace=0.2)
    running = Background(worker.run)
    assert gate.reached.wait(20)
    worker.stop()
    counts = running.join()
    assert (counts.done, counts.drained) == (0, True)
    assert Look(site.url).in_hand() == []
    assert site.run().done == 1
    gate.open.set()
    assert site.results() == site.expected()
