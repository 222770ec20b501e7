"""Connections to databases: closed with their threads and their store, bounded in number, whichever thread opened them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.index.database import Index
from rawko_state.store import TaskFilter


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED HERE: needs /proc")


@needs_proc
def test_short_lived_threads_leave_no_descriptors(tmp_path: Path) -> None:
    with_one = FileStore(tmp_path)
    with_one.start("x").close()
    with_one.history(TaskFilter())
    before = descriptors()
    for _ in range(12):
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda _: with_one.history(TaskFilter()), range(60)))
    assert len(with_one.sync.index()._connections) <= 22
    with_one.history(TaskFilter())
    with_one.close()
    assert descriptors() <= before


def test_a_store_that_is_dropped_closes_what_its_threads_opened(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = FileStore(tmp_path)
        store.start("x").close()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.history, TaskFilter()).result()
        connections = store.sync.index()._connections
        assert len(connections) == 2
        opened = [connection for _, connection in connections._open]
        del store, connections, pool
        gc.collect()
        for connection in opened:
            with pytest.raises(Exception, match="closed"):
                connection.execute("SELECT 1")  # type: ignore[attr-defined]


def test_an_index_in_memory_is_the_same_for_all_threads() -> None:
    index = Index(None)
    with index.transaction():
        index.set_meta("a", "b")
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(index.meta("a")))
    thread.start()
    thread.join()
    assert found == ["b"]
    index.close()


def test_connections_to_postgres_end_with_their_threads(database: str, tmp_path: Path) -> None:
    store = PostgresStore(database, root=tmp_path)
    store.start("x").close()
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: store.history(TaskFilter()), range(24)))
    store.history(TaskFilter())
    assert len(store.postgres._connections) <= 10
    store.close()
