"""`examples/` on every database: what their pages promise, with several workers at once."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import pytest
from sqlalchemy import func, select

from examples import ingest, junction, leased_worker, names
from takehold import rows
from takehold.rows import clean
from tests.lanes import scaled
from tests.rows.faces import Face, Handle
from tests.rows.places import Place
from tests.rows.processes import run_processes

pytestmark = pytest.mark.slow
sync_only = pytest.mark.parametrize("face", ["sync"], indirect=True)


@sync_only
@pytest.mark.covers("N-4", "N-22")
def test_pairs_that_many_add_in_any_order_are_there_once(face: Face, place: Place) -> None:
    place.fresh(junction.Base)
    with place.maker.begin() as session:
        rows.insert_missing(session, junction.Custodian, [{"id": n, "name": f"c{n}"} for n in range(1, 9)], key="id")
        rows.insert_missing(session, junction.Exhibit, [{"id": n, "title": f"e{n}"} for n in range(1, 9)], key="id")
    everything = [(exhibit, custodian) for exhibit in range(1, 9) for custodian in range(1, 9)]

    def body(_s: Handle, number: int) -> int:
        rng = random.Random(number)
        added = 0
        for _ in range(scaled(40)):
            pairs = rng.sample(everything, 12)
            added += rows.transaction(place.maker, functools.partial(junction.assign, pairs=pairs))
        return added

    added = sum(face.workers(4, body))
    with place.maker() as session:
        there = session.execute(select(junction.Custody.exhibit_id, junction.Custody.custodian_id)).all()
    assert added == len(there) == len(set(there)) > 0
    again = [(exhibit, custodian) for exhibit, custodian in there]
    assert rows.transaction(place.maker, lambda session: junction.assign(session, again)) == 0


@sync_only
@pytest.mark.covers("D-19")
def test_names_of_one_project_are_distinct(face: Face, place: Place) -> None:
    place.fresh(names.Base)

    def body(_: Handle, number: int) -> str:
        with place.maker.begin() as session:
            return names.create(session, "main").name

    made = face.workers(10, body)
    assert len(set(made)) == 10


def drain(place: Place, number: int) -> int:
    return leased_worker.drain(place.maker, lease_seconds=5.0)


@pytest.mark.crash
def test_every_job_is_applied_once(place: Place) -> None:
    place.fresh(leased_worker.Base)
    with place.maker.begin() as session:
        session.add_all([leased_worker.Job() for _ in range(40)])
    assert sum(run_processes(3, f"{__name__}:drain", place)) == 40
    with place.maker() as session:
        jobs = session.scalars(select(leased_worker.Job)).all()
    assert {(job.status, job.applied, job.result == job.id**2) for job in jobs} == {("done", 1, True)}


@pytest.mark.crash
@pytest.mark.covers("N-22", "N-24")
def test_a_messy_corpus_is_loaded_from_many_processes_and_every_loss_is_listed(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.fresh(ingest.Base)
    processes, documents = (8 if place.name == "mariadb" else 3), 120
    argv = [place.url, "--processes", str(processes), "--documents", str(documents), "--json"]
    assert ingest.main(argv) == 0
    report = json.loads(capsys.readouterr().out)

    deliveries = [list(ingest.corpus(documents, seed)) for seed in range(processes)]
    expected: dict[str, int] = {}
    for delivery in deliveries:
        for one in delivery:
            for what in losses_of(one):
                expected[what] = expected.get(what, 0) + 1
    numbers = {one["control_number"] for delivery in deliveries for one in delivery}
    assert report["losses"] == expected
    assert report["added"] == report["documents"] == len(numbers)
    with place.maker() as session:
        assert session.scalar(select(func.count()).select_from(ingest.Custodian)) == len(
            {clean.text(name, notify=lambda _: None) for name in ingest.NAMES} - {None}
        )


def losses_of(one: dict[str, Any]) -> list[str]:
    """What the tables cannot take of one document, said once more in other words."""
    found = []
    if "\N{DOUGHNUT}" in one["custodian"]:
        found.append("custodians.name stripped")
    if len(one["properties"]["text"]) > 60_000:
        found.append("documents.properties dropped")
    if "\N{PARTY POPPER}" in one["title"]:
        found.append("documents.title stripped")
    if "\ud83c" in one["title"]:
        found.append("documents.title replaced")
    if len(one["title"]) > 60:
        found.append("documents.title truncated")
    return found
