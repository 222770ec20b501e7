"""How much work the main operations do: statements, system calls, requests, modules. Counted, so that no noise can fail them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.client import Http
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.exchange.importing import Belonging, import_sessions
from rawko_state.index.database import Index
from rawko_state.integrations.hook_event import LOCK
from rawko_state.lifecycle import context
from rawko_state.lifecycle.cleanup import planned
from rawko_state.lifecycle.retention import Policy
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.redact import redactor
from rawko_state.redact.redactor import Redactor, Span
from rawko_state.store import TaskFilter
from tests.support.faults import needs_strace
from tests.support.processes import rawko
from tests.support.serving import served


def turn(content: str = "said") -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=content)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every SQL statement that SQLite is given from now on."""
    found: list[str] = []
    connect = Index._connect

    def traced(self: Index) -> Any:
        made = connect(self)
        made.set_trace_callback(found.append)
        return made

    monkeypatch.setattr(Index, "_connect", traced)
    return found


def filled(root: Path, turns: int) -> str:
    with FileStore(root) as store, store.start("x") as task:
        for number in range(turns):
            task.add_turn(turn(f"turn {number}"))
        task.finish("success")
        return task.id


class TestFiles:
    def test_statements_of_an_append(self, tmp_path: Path, statements: list[str]) -> None:
        task = FileStore(tmp_path).start("x")
        task.add_turn(turn())
        statements.clear()
        task.add_turn(turn())
        assert [statement.split()[0] for statement in statements] == ["BEGIN", "UPDATE", "INSERT", "INSERT", "COMMIT"]

    def test_pages_of_an_append(self, tmp_path: Path) -> None:
        """Each page is written twice to the log's file: once as its number and checksum, once as its content."""
        store = FileStore(tmp_path)
        task = store.start("x")
        for number in range(30):
            task.add_turn(turn(f"turn {number}"))
        log = tmp_path / ".rawko/state/index.db-wal"
        store.sync.index().connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for number in range(10):
            task.add_turn(turn(f"more {number}"))
        assert log.stat().st_size / 4_120 / 10 <= 9  # now 6.5 to 8

    def test_functions_of_an_append(self, tmp_path: Path) -> None:
        """After each sync the caches of the processor are cold, so fewer functions beat faster ones."""
        task = FileStore(tmp_path).start("x")
        tools = tuple(ToolCall("filesystem.read", f"src/module_{n}.py", "2048 bytes", "10:30:05") for n in range(4))
        said = Turn(agent="dev", status="complete", content="nothing but ordinary words " * 60, tools=tools)
        for _ in range(3):
            task.add_turn(said)
        called: Counter[tuple[str, str]] = Counter()

        def count(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and "rawko_state" in frame.f_code.co_filename:
                called[frame.f_code.co_filename, frame.f_code.co_name] += 1

        sys.setprofile(count)
        try:
            task.add_turn(said)
        finally:
            sys.setprofile(None)
        assert sum(called.values()) <= 260, called.most_common(20)
        assert len(called) <= 155

    def test_an_index_that_is_rebuilt_is_not_sorted_in_memory(self, tmp_path: Path, statements: list[str]) -> None:
        """That would take 200 MB at a million turns."""
        filled(tmp_path, 3)
        store = FileStore(tmp_path)
        statements.clear()
        store.reindex()
        kept = ""
        for statement in statements:
            if statement.startswith("PRAGMA temp_store = "):
                kept = statement.rpartition(" ")[2]
            if statement.startswith("CREATE INDEX") and "FOR" not in statement:
                sorted_in = kept
        assert (sorted_in, kept) == ("file", "memory")

    def test_looks_for_a_secret_where_there_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is sorted, and no place is looked at twice."""
        task = FileStore(tmp_path).start("x")
        orders: list[int] = []
        order = redactor._in_order

        def counted(candidates: Any) -> Any:
            found = order(candidates)
            orders.append(len(found))
            return found

        monkeypatch.setattr(redactor, "_in_order", counted)
        task.add_turn(turn("the token check in auth ignores the key " * 50))
        assert orders == [0]
        task.add_turn(turn("password: hunter2-Zebra9 " + "the token check " * 50))
        assert max(orders) > 50

    def test_calls_of_an_import(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One look for secrets at each session that has none; and of those that are known, one look at the file's time."""
        project, sessions = tmp_path / "project", tmp_path / "sessions"
        project.mkdir()
        sessions.mkdir()
        for number in range(6):
            lines = [
                {
                    "type": kind,
                    "uuid": f"{number}-{n}",
                    "cwd": str(project),
                    "message": {"id": str(n), "content": "said"},
                }
                for n, kind in enumerate(("user", "assistant") * 10)
            ]
            (sessions / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        looks: list[int] = []
        spans = Redactor.spans

        def counting(own: Redactor, text: str) -> list[Span]:
            looks.append(len(text))
            return spans(own, text)

        monkeypatch.setattr(Redactor, "spans", counting)
        belonging = Belonging((str(project),))
        with FileStore(project) as store:
            assert len(import_sessions(store, "claude-code", [sessions], belonging=belonging).new) == 6
            assert len(looks) == 6
            stats: list[str] = []
            stat = os.stat

            def counted(path: Any, *more: Any, **options: Any) -> Any:
                stats.append(str(path))
                return stat(path, *more, **options)

            monkeypatch.setattr(os, "stat", counted)
            assert import_sessions(store, "claude-code", [sessions], belonging=belonging).same == 6
            assert sum(path.endswith(".jsonl") for path in stats) == 6

    @pytest.mark.parametrize("turns", [10, 200])
    def test_statements_of_reading(self, tmp_path: Path, statements: list[str], turns: int) -> None:
        """The same, however long the task is."""
        task_id = filled(tmp_path, turns)
        FileStore(tmp_path).history(TaskFilter())

        def count(ask: Callable[[FileStore], object]) -> int:
            with FileStore(tmp_path) as store:
                statements.clear()
                ask(store)
                return len(statements)

        def resume(store: FileStore) -> None:
            with store.reading():
                context.prompt(store, context.build(store, task_id))

        assert count(lambda store: store.history(TaskFilter(limit=20))) <= 5
        assert count(lambda store: store.summary(task_id)) <= 7
        assert count(lambda store: store.turn(task_id, 7)) <= 6
        assert count(resume) <= 13
        assert count(lambda store: store.search("turn")) <= 10

    def test_statements_of_reading_one_task_while_others_are_written(
        self, tmp_path: Path, statements: list[str]
    ) -> None:
        """A server reads one task while agents write to many."""
        task_id = filled(tmp_path, 3)
        with FileStore(tmp_path) as writers, FileStore(tmp_path) as store, contextlib.ExitStack() as running:
            for number in range(10):
                running.enter_context(writers.start(f"task {number}")).add_turn(turn())
            store.history(TaskFilter())
            for ask in (store.turn, lambda id, _: store.status(id), lambda id, _: store.source(id)):
                statements.clear()
                ask(task_id, 2)
                assert len(statements) <= 6

    @pytest.mark.parametrize("tasks", [5, 60])
    def test_statements_and_files_of_looking_at_a_whole_history(
        self, tmp_path: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch, tasks: int
    ) -> None:
        """The same, however many tasks there are: what a rebuild, sums and a plan for a cleanup ask the index."""
        store = FileStore(tmp_path)
        for number in range(tasks):
            with store.start(f"task {number}") as task:
                task.add_turn(turn(f"turn {number}"))
        opened: list[Path] = []
        real = type(store.journal).reader

        def reader(journal: Any, name: Any) -> Any:
            opened.append(name.id)
            return real(journal, name)

        def asked(ask: Callable[[], object]) -> list[str]:
            statements.clear()
            ask()
            return [each for each in statements if not each.startswith(("INSERT", "DELETE FROM tasks", "UPDATE", "--"))]

        rebuilt = asked(store.reindex)
        assert rebuilt.count("COMMIT") <= 10, rebuilt  # a batch of 256 tasks is one transaction
        monkeypatch.setattr(type(store.journal), "reader", reader)
        assert len(asked(lambda: store.stats(TaskFilter()))) <= 20
        again = asked(lambda: store.stats(TaskFilter()))
        assert not [each for each in again if "task_agents" in each or "task_files" in each], "the sums are remembered"
        assert len(asked(lambda: planned(store, Policy(max_age=1)))) <= 10
        assert opened == []

    def test_files_that_reading_a_context_opens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        task_id = filled(tmp_path, 50)
        store = FileStore(tmp_path)
        opened: list[str] = []
        real = type(store.journal).reader

        def reader(journal: Any, name: Any) -> Any:
            opened.append(name.id)
            return real(journal, name)

        monkeypatch.setattr(type(store.journal), "reader", reader)
        with store.reading():
            context.prompt(store, context.build(store, task_id))
        assert opened == [task_id]

    @needs_strace
    def test_system_calls_of_an_append(self, tmp_path: Path) -> None:
        """One write and one data sync, whatever else is asked of the system."""
        code = (
            "import os, sys; from rawko_state.backends.files.store import FileStore; from rawko_state.model.entries import Turn;"
            "t = FileStore(sys.argv[1]).start('x'); a = lambda: t.add_turn(Turn(number=1, agent='d', status='complete', content='z'));"
            "a(); os.access('/nonexistent-rawko-begin', 0); a(); os.access('/nonexistent-rawko-end', 0); os._exit(0)"
        )
        log = tmp_path / "trace"
        subprocess.run(
            ["strace", "-f", "-s", "9999", "-o", str(log), sys.executable, "-c", code, str(tmp_path / "p")], check=True
        )
        _, _, rest = log.read_text().rpartition("/nonexistent-rawko-begin")
        lines = rest.partition("/nonexistent-rawko-end")[0].splitlines()[1:-1]
        calls = Counter(line.split()[1].partition("(")[0] for line in lines)
        journal = [line for line in lines if "pwrite64(" in line and "[End " in line]
        assert (len(journal), calls["fdatasync"], calls["fsync"], calls["openat"]) == (1, 1, 0, 0)
        assert sum(calls.values()) <= 60, calls


class TestModules:
    """How many modules a command imports; one that loads more got slower."""

    @pytest.mark.parametrize(
        ("words", "most"),
        [
            ((), 45),
            (("history",), 44),
            (("history", "--search", "turn"), 74),
            (("show", "TASK"), 64),
            (("resume", "--dry-run", "TASK"), 66),
            (("stats",), 45),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_our_own(self, tmp_path: Path, words: tuple[str, ...], most: int) -> None:
        task_id = filled(tmp_path, 3)
        rawko(tmp_path, "history")
        named = [task_id if word == "TASK" else word for word in words]
        command = [sys.executable, "-X", "importtime", "-m", "rawko_state", "-C", str(tmp_path), *named]
        done = subprocess.run(command, capture_output=True, text=True)
        ours = [line for line in done.stderr.splitlines() if "| " in line and "rawko_state" in line]
        assert len(ours) <= most, "\n".join(ours)

    @pytest.mark.parametrize(
        "words", [(), ("history",), ("history", "--status", "failed"), ("history", "--file", "src")]
    )
    def test_a_list_loads_nothing_that_is_slow_to_load(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        """Peewee takes 10 ms, and hashlib with OpenSSL 3 ms; what platformdirs loads takes 8 ms."""
        filled(tmp_path, 1)
        rawko(tmp_path, "history")
        command = [sys.executable, "-X", "importtime", "-m", "rawko_state", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "| " in line}
        slow = {
            "peewee",
            "platformdirs",
            "hashlib",
            "dataclasses",
            "shutil",
            "tempfile",
            "whoosh",
            "yaml",
            "decimal",
            "difflib",
        }
        assert "rawko_state.index.queries" in loaded or not words
        assert not loaded & slow

    def test_no_garbage_is_looked_for_at_the_end(self, tmp_path: Path) -> None:
        """Python would look through all that is loaded, more than once: a sixth of the time that a search takes."""
        code = (
            "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects()), file=sys.stderr));"
            "from rawko_state.cli import main; main(['history'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        frozen, looked_at = map(int, done.stderr.split()[-2:])
        assert looked_at < frozen / 10

    def test_a_hook_loads_next_to_nothing(self, tmp_path: Path) -> None:
        """It runs at every tool call of an agent: little more than Python itself."""
        live = tmp_path / ".rawko/state/live"
        live.mkdir(parents=True)
        swept = (live / LOCK).open("w")
        fcntl.flock(swept, fcntl.LOCK_EX)  # as a sweeper does while it runs

        def loaded(*words: str) -> list[str]:
            command = [sys.executable, "-X", "importtime", *words]
            done = subprocess.run(command, capture_output=True, text=True, input="{}", cwd=tmp_path)
            return [
                line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
            ]

        hook = set(loaded("-m", "rawko_state", "hook", "run", "claude-code"))
        floor = set(loaded("-c", "import os, runpy, time, fcntl"))
        assert hook - floor <= {
            "__future__",
            "_json",
            "rawko_state",
            "rawko_state.version",
            "rawko_state.integrations",
            "rawko_state.integrations.hook_event",
        }
        assert not {"re", "json"} & (hook - floor)
        assert len(list(live.glob("hook-*.event"))) == 1
        swept.close()


class TestPostgres:
    @pytest.fixture
    def statements(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        psycopg = pytest.importorskip("psycopg")
        found: list[str] = []
        for name in ("execute", "executemany"):
            real = getattr(psycopg.Cursor, name)

            def traced(cursor: Any, query: Any, *more: Any, _real: Any = real, **options: Any) -> Any:
                if threading.current_thread() is threading.main_thread():  # notifications are sent by another
                    found.append(str(query))
                return _real(cursor, query, *more, **options)

            monkeypatch.setattr(psycopg.Cursor, name, traced)
        return found

    def test_statements_of_an_append_and_a_read(self, database: str, tmp_path: Path, statements: list[str]) -> None:
        store = PostgresStore(database, root=tmp_path)
        task = store.start("x", detached=True)
        task.add_turn(turn())
        statements.clear()
        task.add_turn(turn())
        assert len(statements) <= 8, statements
        statements.clear()
        store.turn(task.id, 1)
        assert len(statements) <= 4, statements
        task.close()
        store.close()


class TestRemote:
    @pytest.fixture
    def requests(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        found: list[str] = []
        real = Http._sent

        def sent(http: Http, method: str, path: str, *more: Any) -> Any:
            found.append(f"{method} {path}")
            return real(http, method, path, *more)

        monkeypatch.setattr(Http, "_sent", sent)
        return found

    def test_requests(self, tmp_path: Path, requests: list[str]) -> None:
        project = tmp_path / "project"
        project.mkdir()
        with served(project) as running, RemoteStore(running.url, root=tmp_path) as store:
            with store.start("x") as task:
                live = task.turn("dev")
                requests.clear()
                live.say("word ")
                assert len(requests) <= 2, requests
                live.end()
                for number in range(30):
                    task.add_turn(turn(f"{number} " + "x" * 1000))
                requests.clear()
                task.add_turn(turn())
                assert len(requests) == 1, requests
                task.note("a note", kind="mine")
                task.finish("success")
            requests.clear()
            note = store.last_note(task.id, "mine")
            assert note is not None
            assert note.content == "a note"
            assert len(requests) == 1, requests
            requests.clear()
            with store.reading():
                context.prompt(store, context.build(store, task.id))
            assert len(requests) <= 8, requests
