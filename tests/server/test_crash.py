"""Two servers on one directory, killed at random under load: what was acknowledged is there, and nothing by halves.

Every request carries an idempotency key and is sent again, to whichever server answers, until there is a definite
answer: so at the end every one of them must be there exactly if it was answered with success.
"""

from __future__ import annotations

import http.client
import logging
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lanes import scaled
from tests.server.http import SCHEMA, Answer, Http, change, key
from tests.server.replicas import Replica

SECONDS = scaled(60)
PATIENCE = 60.0
BROKEN = (OSError, http.client.HTTPException)
TABLES = "/v1/main/namespaces/n/tables"


@dataclass
class Field:
    """The servers, who asks them, and what they said."""

    replicas: list[Replica]
    until: float
    verdicts: dict[tuple[str, ...], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def ask(self, rng: random.Random, method: str, path: str, body: object = None) -> Answer:
        """Send it until the answer is definite."""
        sent = key()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(*BROKEN), Http(rng.choice(self.replicas).uri) as http:
                answer = http.ask(method, path, body, Idempotency_Key=sent)
                if answer.status < 500:
                    return answer
                self.counts[f"answered {answer.status}"] += 1
            self.counts["sent again"] += 1
            time.sleep(0.02)
        raise AssertionError(f"no definite answer to {method} {path} in {PATIENCE} s")

    def run(self, work: object, seed: int) -> None:
        """A thread's body: its failures are told."""
        rng = random.Random(seed)
        try:
            while time.monotonic() < self.until:
                work(rng)  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001
            self.problems.append(f"{error!r} (seed {seed})")

    def transact(self, rng: random.Random) -> None:
        """One property on both tables."""
        name = f"tx-{rng.getrandbits(40):x}"
        changes = [change("n", "a", **{name: "1"}), change("n", "b", **{name: "1"})]
        rng.shuffle(changes)
        answer = self.ask(rng, "POST", "/v1/main/transactions/commit", {"table-changes": changes})
        self.verdicts[name, "a", "b"] = answer.status

    def commit(self, rng: random.Random) -> None:
        """One property on one of them."""
        name, table = f"one-{rng.getrandbits(40):x}", rng.choice("ab")
        updates = [{"action": "set-properties", "updates": {name: "1"}}]
        answer = self.ask(rng, "POST", f"{TABLES}/{table}", {"requirements": [], "updates": updates})
        self.verdicts[name, table] = answer.status

    def look(self, rng: random.Random) -> None:
        """What is visible in the table that was read first is visible in the other one, which was read later."""
        with suppress(*BROKEN), Http(rng.choice(self.replicas).uri) as http:
            first, second = rng.sample("ab", 2)
            seen = [http.get(f"{TABLES}/{table}") for table in (first, second)]
            if [one.status for one in seen] == [200, 200]:
                sooner, later = (set(one.json["metadata"]["properties"]) for one in seen)
                if half := {name for name in sooner if name.startswith("tx-")} - later:
                    self.problems.append(f"half a transaction in {first}: {half}")
                self.counts["looks"] += 1

    def move(self, name: str) -> None:
        """Rename a table there and back; its name is always known."""

        def work(rng: random.Random) -> None:
            at = self.counts[name] % 2
            names = {
                "source": {"namespace": ["n"], "name": f"{name}{at}"},
                "destination": {"namespace": ["n"], "name": f"{name}{1 - at}"},
            }
            answer = self.ask(rng, "POST", "/v1/main/tables/rename", names)
            if answer.status != 204:
                raise AssertionError(f"rename: {answer}")
            self.counts[name] += 1

        self.run(work, hash(name))

    def create(self, rng: random.Random) -> None:
        """Make a table."""
        name = f"new-{rng.getrandbits(40):x}"
        answer = self.ask(rng, "POST", TABLES, {"name": name, "schema": SCHEMA})
        self.verdicts[name,] = answer.status


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.covers("M-48")
def test_servers_that_are_killed_lose_nothing_and_leave_nothing_half_done(tmp_path: Path) -> None:
    seed = 20
    rng = random.Random(seed)
    replicas = [Replica(f"{tmp_path}/lake") for _ in range(2)]
    with replicas[0], replicas[1]:
        with Http(replicas[0].uri) as http:
            http.namespace("n")
            for name in ("a", "b", "move0"):
                http.table("n", name)
        ground = Field(replicas, time.monotonic() + SECONDS)
        works = [ground.transact, ground.transact, ground.commit, ground.commit, ground.look, ground.create]
        threads = [threading.Thread(target=ground.run, args=(work, seed + number)) for number, work in enumerate(works)]
        threads.append(threading.Thread(target=ground.move, args=("move",)))
        for thread in threads:
            thread.start()
        kills = 0
        while time.monotonic() < ground.until:
            time.sleep(rng.uniform(0.2, 0.8))
            victim = rng.choice(replicas)
            victim.kill()
            kills += 1
            victim.start()
        for thread in threads:
            thread.join()
        check(ground, replicas, kills)


def check(ground: Field, replicas: list[Replica], kills: int) -> None:
    assert not ground.problems
    for replica in replicas:
        with Http(replica.uri) as http:
            held = {table: http.properties("n", table) for table in ("a", "b")}
            tables = {one["name"] for one in http.get(TABLES).json["identifiers"]}
            wrong = []
            for (name, *where), status in ground.verdicts.items():
                there = [name in held[table] for table in where] if where else [name in tables]
                if set(there) != {status in (200, 204)}:
                    wrong.append((name, where, status, there))
            assert not wrong, f"{len(wrong)} of {len(ground.verdicts)} after {kills} kills: {wrong[:5]}"
            at = ground.counts["move"] % 2
            assert f"move{at}" in tables
            assert f"move{1 - at}" not in tables
    statuses = Counter(ground.verdicts.values())
    assert statuses[204] >= kills, (statuses, ground.counts)
    assert kills >= 1
    logging.getLogger(__name__).info("%s", f"{kills} kills, {dict(statuses)}, {dict(ground.counts)}")
