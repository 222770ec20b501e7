"""A primary that dies under load, and a standby that takes over."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from rawko_state.backends.postgres.host import PostgresServerState
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.store import RemoteStore
from tests.server.clients import Client
from tests.server.test_faults import TestFaults as Faults
from tests.support.cluster import Pair
from tests.support.machine import patience, wait_for


@pytest.mark.every
def test_nothing_acknowledged_is_lost_in_a_failover(project: Path, tmp_path: Path) -> None:
    pair, faults = Pair(), Faults()
    process, port = faults._serve(project, pair.uri)
    lines: list[str] = []
    assert process.stderr is not None
    log = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    log.start()
    stop, written, tasks = threading.Event(), threading.Event(), [Client(port).start() for _ in range(4)]
    followed: list[str] = []

    def follow() -> None:
        store = RemoteStore(f"http://127.0.0.1:{port}", root=tmp_path)
        for event in store.follow(tasks[0], until=lambda: written.is_set() and len(followed) >= len(ledger[tasks[0]])):
            if event is not None and event.kind == "turn":
                followed.append(event.text or "")
        store.close()

    ledger = faults._load([port], tasks, stop, tmp_path)
    follower = threading.Thread(target=follow)
    follower.start()
    try:
        faults._grown(ledger)
        # The standby may be there before anyone has looked.
        pair.fail_over(
            lambda: wait_for(lambda: any("requests get 503" in line for line in lines), "the line in the log")
        )
        faults._grown(ledger)
    finally:
        stop.set()
        for thread in faults._threads:
            thread.join(patience(90))
        written.set()  # the follower waits for the last of them
        follower.join(patience(90))
        process.terminate()
        process.wait(patience(30))
        log.join(patience(10))
        process.stderr.close()
    store = PostgresStore(pair.uri, root=tmp_path)
    faults._check(store, ledger)
    faults._check_audit(PostgresServerState(store.postgres), ledger)
    store.close()
    pair.stop()
    assert [text for text in followed if text in set(ledger[tasks[0]])] == ledger[tasks[0]]
    assert len(followed) == len(set(followed))
    said = [json.loads(line)["message"] for line in lines if '"message"' in line]
    assert 1 <= sum("requests get 503" in message for message in said) <= 2, said
