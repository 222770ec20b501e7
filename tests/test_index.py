"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files import sync as catalogue_module
from rawko_state.backends.files.store import FileStore
from rawko_state.errors import IndexNewer, IndexTrouble
from rawko_state.index.database import Index
from rawko_state.index.schema import MIGRATIONS, VERSION
from rawko_state.model.entries import FileTouch, Parent, Turn
from rawko_state.store import TaskFilter
from tests.support.machine import patience

from .faults import needs_root

DRIVER = str(Path(__file__).parent / "index_driver.py")
ALL = TaskFilter()


class Told(list[str]):
    def __call__(self, message: str) -> None:
        self.append(message)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path, told: Told) -> FileStore:
    return FileStore(tmp_path, warn=told)


def turn(content: str = "x", *files: str) -> Turn:
    touched = tuple(FileTouch("write", path) for path in files)
    return Turn(number=1, agent="dev", status="complete", content=content, files=touched)


def rebuilt(root: Path) -> dict[str, list[tuple[object, ...]]]:
    """What a fresh index of the same files holds."""
    other = root / "rebuilt"
    shutil.rmtree(other, ignore_errors=True)
    (other / ".rawko" / "state").mkdir(parents=True)
    shutil.copytree(
        root / ".rawko" / "state" / "tasks", other / ".rawko" / "state" / "tasks", copy_function=shutil.copy2
    )
    fresh = FileStore(other)
    fresh.sync.fresh()
    dump = fresh.sync.index().dump()
    fresh.close()
    shutil.rmtree(other)
    return dump


def ids(store: FileStore, wanted: TaskFilter = ALL) -> list[str]:
    return [summary.id for summary in store.history(wanted)]


class TestLiveEqualsRebuilt:
    @pytest.mark.parametrize("seed", range(4))
    def test_after_any_sequence_of_operations_by_several_processes(self, tmp_path: Path, seed: int) -> None:
        commands = [[sys.executable, DRIVER, str(tmp_path), str(seed * 10 + n), "40"] for n in range(3)]
        writers = [subprocess.Popen(command) for command in commands]
        if seed % 2:
            writers[0].kill()
        for writer in writers:
            writer.wait(patience(100))
        store = FileStore(tmp_path)
        live = store.sync.fresh().dump()
        expected = rebuilt(tmp_path)
        for table in expected:
            differing = [pair for pair in zip(live[table], expected[table], strict=True) if pair[0] != pair[1]]
            assert not differing, table
        assert len(live["tasks"]) > 5
        assert store.sync.index().check() == []
        store.reindex()
        assert store.sync.index().dump() == expected

    def test_golden_files_and_all(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        for number, path in enumerate(sorted((fixtures / "format").glob("*.task"))):
            shutil.copy(path, store.journal.layout.tasks / f"2024-01-15T10-30-{number:02d}-gold{number:02d}.task")
        live = store.sync.fresh().dump()
        assert live == rebuilt(store.root)
        by_id = {summary.id: summary for summary in store.history(ALL)}
        assert len(by_id) == number + 1

    def test_torn_tails_and_adopted_files(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        tasks = store.journal.layout.tasks
        shutil.copy(fixtures / "format" / "torn-tail.task", tasks / "2024-01-15T10-30-00-k3f9a1.task")
        shutil.copy(fixtures / "format" / "rfc-example.task", tasks / "2024-01-15T10-30-00-abc123.task")
        ids(store)
        for task_id in ("k3f9a1", "abc123"):
            task = store.resume(task_id)
            task.add_turn(turn("more"))
            task.add_turn(turn("and more"))
            task.finish("success")
        assert store.sync.fresh().dump() == rebuilt(store.root)

    def test_a_repair_is_known_to_the_index(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        shutil.copy(
            fixtures / "format" / "torn-tail.task", store.journal.layout.tasks / "2024-01-15T10-30-00-k3f9a1.task"
        )
        ids(store)
        assert [verdict.repaired for verdict in store.verify(repair=True)] == [["marked a torn tail of 63 bytes"]]
        assert store.sync.fresh().dump() == rebuilt(store.root)


class TestTheRfc:
    def test_its_sql_runs_unchanged(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        shutil.copy(
            fixtures / "format" / "rfc-example.task", store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        )
        ids(store)
        with sqlite3.connect(store.sync.path) as connection:
            row = connection.execute(
                "SELECT id, created_at, completed_at, status, duration_ms, request, result_summary, file_path FROM tasks"
            ).fetchone()
            assert row == (
                "abc123", "2024-01-15T10:30:00Z", None, "completed", 45_200,
                "Fix the login bug where users can't authenticate with SSO",
                "Fixed SSO authentication by correcting token validation timing",
                ".rawko/state/tasks/2024-01-15T10-30-00-abc123.task",
            )  # fmt: skip
            turns = connection.execute(
                "SELECT task_id, turn, agent, status, duration_ms, tool_calls FROM task_agents ORDER BY turn"
            ).fetchall()
            assert turns[1] == ("abc123", 2, "planner", "complete", 8300, 5)
            assert len(turns) == 7
            joined = connection.execute(
                "SELECT DISTINCT t.id FROM tasks t JOIN task_files f ON f.task_id = t.id "
                "WHERE f.file_path = 'auth/sso.rs' AND f.operation = 'write' AND t.created_at > '2024-01-01'"
            ).fetchall()
            assert joined == [("abc123",)]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
            assert {"idx_tasks_created", "idx_tasks_status", "idx_task_files_path"} <= names
        connection.close()

    def test_one_header_a_task_and_one_child_a_record_are_kept_by_the_database(self, store: FileStore) -> None:
        task = store.start("x")
        task.add_turn(turn())
        task.close()
        connection = sqlite3.connect(store.sync.path)
        connection.execute("PRAGMA foreign_keys = ON")
        parent = connection.execute("SELECT parent FROM task_records WHERE parent IS NOT NULL").fetchone()[0]
        insert = (
            "INSERT INTO task_records (task_id, offset, length, kind, seal, parent) VALUES (?, ?, 1, 'sealed', 's', ?)"
        )
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(insert, (task.id, 99_999, parent))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(insert, (task.id, 99_999, None))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(insert, ("nobody", 0, None))
        connection.close()


class TestFreshness:
    def test_a_turn_is_there_when_its_append_returned(self, store: FileStore, tmp_path: Path) -> None:
        task = store.start("x")
        other = FileStore(tmp_path)
        for number in range(1, 4):
            task.add_turn(turn())
            assert other.history(ALL)[0].turns == number
        assert other.history(ALL)[0].status == "running"
        task.finish("success", "done")
        assert (other.history(ALL)[0].status, other.history(ALL)[0].summary) == ("completed", "done")

    def test_a_file_that_was_copied_in_or_removed(self, store: FileStore, tmp_path: Path, fixtures: Path) -> None:
        store.start("x", detached=True).close()
        assert len(ids(store)) == 1
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        shutil.copy2(fixtures / "format" / "rfc-example.task", path)
        os.utime(path, (0, 0))
        assert "abc123" in ids(store)
        path.unlink()
        assert "abc123" not in ids(store)

    def test_a_file_that_was_replaced_as_git_does(self, store: FileStore) -> None:
        with store.start("first") as task:
            task.add_turn(turn())
        path = store.root / store.history(ALL)[0].file
        other = path.with_name("elsewhere")
        other.write_bytes(path.read_bytes().replace(b"User: first", b"User: other"))
        os.utime(other, ns=(0, 0))
        os.replace(other, path)
        (found,) = store.history(ALL)
        assert (found.request, found.damaged, found.status) == ("other", 1, "completed")

    def test_a_writer_that_died_before_it_indexed(self, store: FileStore, tmp_path: Path) -> None:
        code = (
            "import sys, os; from rawko_state.backends.files.store import FileStore; from rawko_state.model.entries import Turn;"
            "s = FileStore(sys.argv[1]); t = s.start('x'); t.add_turn(Turn(number=1, agent='a', content='one'));"
            "s.sync.appended = lambda *a: None;"
            "t.add_turn(Turn(number=1, agent='a', content='two')); os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        assert [name for name in os.listdir(store.journal.layout.live) if name.endswith(".mark")]
        (summary,) = store.history(ALL)
        assert (summary.turns, summary.status) == (2, "interrupted")
        assert not [name for name in os.listdir(store.journal.layout.live) if name.endswith(".mark")]

    def test_a_finished_file_edited_in_place_is_noticed_by_show(self, store: FileStore) -> None:
        with store.start("first") as task:
            task.add_turn(turn())
        path = store.root / store.history(ALL)[0].file
        with open(path, "r+b") as stream:
            data = stream.read()
            stream.seek(0)
            stream.write(data.replace(b"User: first", b"User: edits"))
        found = store.summary(task.id)
        assert (found.request, found.damaged) == ("edits", 1)

    def test_looking_reads_no_task_file_when_nothing_has_changed(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            store.start("x", detached=True).close()
        ids(store)
        opened: list[object] = []
        monkeypatch.setattr(type(store.journal), "reader", lambda self, name: opened.append(name))
        monkeypatch.setattr(catalogue_module.Sync, "_sweep", lambda *a: opened.append("sweep"))
        assert len(ids(store)) == 3
        assert opened == []

    def test_a_new_task_does_not_cost_a_look_at_all_others(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not catalogue_module._fine_stamps():
            pytest.skip("NOT TESTED HERE: the times of folders are too coarse on this system")
        ids(store)
        store.start("x", detached=True).close()
        ids(store)
        monkeypatch.setattr(catalogue_module.Sync, "_sweep", lambda *a: pytest.fail("swept"))
        store.start("y", detached=True).close()
        assert len(ids(store)) == 2

    def test_deleting_the_index_changes_no_answer(self, store: FileStore, tmp_path: Path) -> None:
        for number in range(5):
            with store.start(f"request {number}", labels={"n": str(number)}) as task:
                task.add_turn(turn("x", f"src/{number}.py"))
        before = store.history(ALL)
        store.close()
        for path in store.journal.layout.state.glob("index.db*"):
            path.unlink()
        assert FileStore(tmp_path).history(ALL) == before

    def test_a_file_that_could_not_be_read_is_looked_at_again(
        self, store: FileStore, told: Told, tmp_path: Path
    ) -> None:
        with store.start("x") as task:
            task.add_turn(turn())
        path = store.root / store.history(ALL)[0].file
        store.close()
        for index in store.journal.layout.state.glob("index.db*"):
            index.unlink()
        os.link(path, tmp_path / "second name")
        again = FileStore(tmp_path, warn=told)
        assert ids(again) == []
        assert "could not be read" in told[0]
        (tmp_path / "second name").unlink()
        assert ids(again) == [task.id]

    def test_a_mark_stays_until_its_file_was_read(self, store: FileStore, told: Told, tmp_path: Path) -> None:
        task = store.start("x", detached=True)
        store.history(ALL)
        store.sync.appended = lambda *a: None  # type: ignore[method-assign]
        task.note(title="renamed")
        assert task._writer._mark is not None
        task._writer._mark.leave()  # as if the process had died
        path = store.journal.layout.path(store.find(task.id))
        os.link(path, tmp_path / "second name")
        again = FileStore(tmp_path, warn=told)
        assert again.history(ALL)[0].title is None
        (tmp_path / "second name").unlink()
        assert again.history(ALL)[0].title == "renamed"

    def test_two_files_with_one_id_the_first_counts(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        source = fixtures / "format" / "rfc-example.task"
        shutil.copy(source, store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task")
        shutil.copy(source, store.journal.layout.tasks / "2024-01-16T10-30-00-abc123.task")
        (summary,) = store.history(ALL)
        assert summary.file.endswith("2024-01-15T10-30-00-abc123.task")
        assert [bool(verdict.faults) for verdict in store.verify()] == [False, True]


class TestTrouble:
    def _filled(self, store: FileStore) -> list[str]:
        for number in range(30):
            with store.start(f"request {number}") as task:
                task.add_turn(turn("x" * 500, f"src/{number}.py"))
        found = ids(store)
        store.close()
        return found

    @pytest.mark.parametrize("damage", ["random", "truncated", "zeroed", "zeroed pages", "foreign", "text", "empty"])
    def test_a_broken_index_is_moved_aside_and_rebuilt(
        self, store: FileStore, told: Told, damage: str, tmp_path: Path
    ) -> None:
        expected = self._filled(store)
        path = store.sync.path
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        data = bytearray(path.read_bytes())
        if damage == "random":
            data = bytearray(random.Random(1).randbytes(len(data)))
        elif damage == "truncated":
            data = data[: len(data) // 2]
        elif damage == "zeroed":
            data = bytearray(len(data))
        elif damage == "zeroed pages":
            for page in range(3, len(data) // 4096, 2):
                data[page * 4096 : page * 4096 + 4096] = bytes(4096)
        elif damage == "text":
            data = bytearray(b"hello\n")
        elif damage == "empty":
            data = bytearray()
        path.write_bytes(data)
        if damage == "foreign":
            path.unlink()
            connection = sqlite3.connect(path)
            connection.execute("CREATE TABLE cats (name TEXT)")
            connection.commit()
            connection.close()
        again = FileStore(tmp_path, warn=told)
        assert ids(again) == expected
        assert again.history(TaskFilter(file="src/3.py"))
        if damage != "empty":
            assert len(told) == 1
            assert "moved to index.db.broken-" in told[0]
            assert list(path.parent.glob("index.db.broken-*"))

    def test_a_newer_index_is_refused_by_name_and_not_touched(
        self, store: FileStore, told: Told, tmp_path: Path
    ) -> None:
        self._filled(store)
        path = store.sync.path
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        before = path.read_bytes()
        again = FileStore(tmp_path, warn=told)
        with pytest.raises(IndexNewer, match=r"index\.db is of version"):
            again.history(ALL)
        with again.start("appends go on") as task:
            task.add_turn(turn())
        assert again.status(task.id) == "completed"
        assert path.read_bytes() == before
        assert len(told) >= 1

    def test_an_index_that_cannot_be_written_fails_no_append(self, store: FileStore, told: Told) -> None:
        task = store.start("x")
        task.add_turn(turn())
        other = sqlite3.connect(store.sync.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        store.sync.index().connection.execute("PRAGMA busy_timeout = 50")
        task.add_turn(turn("while the index is locked"))
        other.execute("ROLLBACK")
        other.close()
        assert told
        assert store.history(ALL)[0].turns == 2
        task.add_turn(turn())
        task.finish("success")
        assert store.sync.fresh().dump() == rebuilt(store.root)

    def test_deleting_the_index_under_writers_harms_nothing(self, tmp_path: Path) -> None:
        writers = [subprocess.Popen([sys.executable, DRIVER, str(tmp_path), str(seed), "30"]) for seed in (51, 52, 53)]
        while any(writer.poll() is None for writer in writers):
            for path in tmp_path.glob(".rawko/state/index.db*"):
                path.unlink(missing_ok=True)
            time.sleep(0.05)
        assert [writer.returncode for writer in writers] == [0, 0, 0]
        assert FileStore(tmp_path).sync.fresh().dump() == rebuilt(tmp_path)

    def test_a_last_append_that_the_index_missed_is_caught_up_on(
        self, store: FileStore, told: Told, tmp_path: Path
    ) -> None:
        task = store.start("x")
        task.add_turn(turn())
        store.history(ALL)  # from here on the folder's stamp is known, and nothing but a mark tells
        store.sync.appended = lambda *a: None  # type: ignore[method-assign]  # as after any trouble with the index
        task.finish("failure", "which the index does not hear of")
        assert FileStore(tmp_path).history(ALL)[0].status == "failed"

    @pytest.mark.parametrize("thing", ["folder", "link", "dangling link"])
    def test_something_else_in_place_of_the_index_is_moved_aside(
        self, store: FileStore, told: Told, tmp_path: Path, thing: str
    ) -> None:
        store.journal.layout.make()
        target = tmp_path / "target"
        if thing == "folder":
            store.sync.path.mkdir()
        else:
            store.sync.path.symlink_to(target)
        if thing == "link":
            target.write_bytes(b"precious")
        with store.start("x") as task:
            task.add_turn(turn())
        assert ids(store) == [task.id]
        assert len(told) == 1
        assert not target.exists() or target.read_bytes() == b"precious"

    def test_an_index_that_cannot_be_used_at_all_is_done_without(
        self, store: FileStore, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what is written meanwhile is marked, so that the next one who can use it catches up."""
        expected = self._filled(store)
        broken = FileStore(tmp_path, warn=told)
        real = catalogue_module.Index

        def refuse(path: Path | None) -> Index:
            if path is not None:
                raise IndexTrouble(f"{path}: disk I/O error")
            return real(path)

        monkeypatch.setattr(catalogue_module, "Index", refuse)
        assert ids(broken) == expected
        task = broken.start("meanwhile", detached=True)
        task.add_turn(turn())
        task.close()
        assert task.id in ids(broken)
        monkeypatch.undo()
        again = FileStore(tmp_path, warn=told)
        assert again.summary(task.id).turns == 1
        assert again.sync.fresh().dump() == rebuilt(tmp_path)

    @needs_root
    def test_a_read_only_project_is_answered_from_elsewhere(self, store: FileStore, told: Told, tmp_path: Path) -> None:
        expected = self._filled(store)
        view = tmp_path / "view"
        view.mkdir()
        subprocess.run(["mount", "--bind", str(tmp_path), str(view)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
            again = FileStore(view, warn=told)
            assert ids(again) == expected
            assert again.turn(expected[0], 1).content == "x" * 500
            again.close()
        finally:
            subprocess.run(["umount", "--lazy", str(view)], check=True)

    def test_asking_where_nothing_was_recorded_makes_no_folder(self, store: FileStore) -> None:
        assert ids(store) == []
        assert not (store.root / ".rawko").exists()

    def test_one_process_can_open_two_projects(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        one, two = FileStore(tmp_path / "a"), FileStore(tmp_path / "b")
        first = one.start("in a", detached=True)
        second = two.start("in b", detached=True)
        assert (ids(one), ids(two)) == ([first.id], [second.id])

    def test_the_index_is_private(self, store: FileStore) -> None:
        store.start("x").add_turn(turn())
        for path in store.journal.layout.state.glob("index.db*"):
            assert path.stat().st_mode & 0o777 == 0o600


class TestReindex:
    def test_killed_at_any_moment_leaves_the_old_index(self, store: FileStore, tmp_path: Path) -> None:
        for number in range(40):
            with store.start(f"request {number}") as task:
                task.add_turn(turn())
        expected = store.sync.fresh().dump()
        code = "import sys; from rawko_state.backends.files.store import FileStore; FileStore(sys.argv[1]).reindex()"
        for delay in (0.15, 0.2, 0.25, 0.3, 0.35, 0.4):
            worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
            try:
                worker.wait(delay)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert FileStore(tmp_path).sync.fresh().dump() == expected
        store.reindex()
        assert not list(store.journal.layout.state.glob("index.db.new-*"))

    def test_what_is_settled_while_the_new_index_takes_its_place_is_not_missed(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = store.start("x", detached=True)
        task.add_turn(turn())
        task.close()
        real = Index.replace_with

        def replace_with(index: Index, other: Index) -> None:
            with FileStore(tmp_path).attach(task.id) as late:  # its mark is gone when it is closed
                late.add_turn(turn("late"))
            real(index, other)

        monkeypatch.setattr(Index, "replace_with", replace_with)
        store.reindex()
        assert [summary.turns for summary in store.history(ALL)] == [2]

    def test_writers_go_on_meanwhile(self, store: FileStore, tmp_path: Path) -> None:
        for number in range(20):
            store.start(f"request {number}", detached=True).close()
        writer = subprocess.Popen([sys.executable, DRIVER, str(tmp_path), "77", "60"])
        while writer.poll() is None:
            FileStore(tmp_path).reindex()
        again = FileStore(tmp_path)
        assert again.sync.fresh().dump() == rebuilt(tmp_path)

    def test_files_that_cannot_be_read_are_reported(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        tasks = store.journal.layout.tasks
        shutil.copy(fixtures / "format" / "damaged-body.task", tasks / "2024-01-15T10-30-00-bad001.task")
        (tasks / "2024-01-15T10-30-00-link01.task").symlink_to("/etc/passwd")
        problems = dict(store.reindex())
        assert "does not match" in problems["bad001"]
        assert "not a regular file" in problems["link01"]


class TestMigrations:
    def test_each_is_applied_to_a_database_of_the_version_before(self, tmp_path: Path) -> None:
        assert [migration.number for migration in MIGRATIONS] == list(range(1, VERSION + 1))
        path = tmp_path / "index.db"
        connection = sqlite3.connect(path, isolation_level=None)
        MIGRATIONS[0].apply(connection)
        connection.execute("INSERT INTO tasks (id, request) VALUES ('abc123', 'x')")
        connection.execute("INSERT INTO task_agents (task_id, turn, agent) VALUES ('abc123', 1, 'dev')")
        connection.execute("INSERT INTO task_files VALUES ('abc123', 'a.py', 'write')")
        connection.execute("PRAGMA user_version = 1")
        connection.close()
        index = Index(path)
        assert index.count() == 0, "positions are not known, so the rows come back from the files"
        assert index.check() == []
        index.close()

    def test_an_old_index_is_filled_again_from_the_files(self, store: FileStore, tmp_path: Path) -> None:
        with store.start("x") as task:
            task.add_turn(turn())
        store.close()
        for path in store.journal.layout.state.glob("index.db*"):
            path.unlink()
        connection = sqlite3.connect(store.sync.path, isolation_level=None)
        MIGRATIONS[0].apply(connection)
        connection.execute("INSERT INTO tasks (id, request) VALUES ('zzzzzz', 'not in the files')")
        connection.execute("PRAGMA user_version = 1")
        connection.close()
        assert ids(FileStore(tmp_path)) == [task.id]

    def test_the_models_have_the_columns_of_the_tables(self, tmp_path: Path) -> None:
        index = Index(tmp_path / "index.db")
        for model in (*index.tables.derived, index.tables.meta):
            columns = {row[1] for row in index.connection.execute(f"PRAGMA table_info({model._meta.table_name})")}
            assert columns == set(model._meta.columns), model._meta.table_name
        index.close()


class TestQueries:
    @pytest.fixture
    def filled(self, store: FileStore) -> FileStore:
        base = datetime(2024, 1, 1, tzinfo=timezone.utc)
        for number in range(6):
            task = store.start(
                f"request {number}",
                created=base + timedelta(days=number),
                labels={"area": "auth" if number % 2 else "ui, new", "n": str(number)},
            )
            task.add_turn(turn("x", f"src/auth/{number}.py", "README.md"))
            task.add_turn(Turn(number=1, agent="reviewer" if number < 2 else "planner", status="complete"))
            if number < 4:
                task.finish("success" if number else "failure", duration_ms=number * 1000)
            else:
                task.close()
        return store

    def _numbers(self, store: FileStore, **wanted: object) -> list[str]:
        return [s.labels["n"] for s in store.history(TaskFilter(**wanted))]  # type: ignore[arg-type]

    def test_filters_and_their_combination(self, filled: FileStore) -> None:
        day = datetime(2024, 1, 3, tzinfo=timezone.utc)
        numbers = self._numbers
        assert numbers(filled) == ["5", "4", "3", "2", "1", "0"]
        assert numbers(filled, limit=2) == ["5", "4"]
        assert numbers(filled, reverse=True, limit=1) == ["0"]
        assert numbers(filled, status=("failed",)) == ["0"]
        assert numbers(filled, status=("interrupted",)) == ["5", "4"]
        assert numbers(filled, status=("running",)) == []
        assert numbers(filled, status=("failed", "interrupted")) == ["5", "4", "0"]
        assert numbers(filled, agent="reviewer") == ["1", "0"]
        assert numbers(filled, since=day) == ["5", "4", "3", "2"]
        assert numbers(filled, until=day) == ["1", "0"]
        assert numbers(filled, labels=(("area", "auth"),)) == ["5", "3", "1"]
        assert numbers(filled, labels=(("area", "ui, new"),)) == ["4", "2", "0"]
        assert numbers(filled, labels=(("n", None),), limit=1) == ["5"]
        assert numbers(filled, labels=(("a", None),)) == []
        assert numbers(filled, sort="duration", limit=2) == ["3", "2"]
        assert numbers(filled, agent="planner", status=("completed",), labels=(("area", "auth"),)) == ["3"]

    def test_files_by_path_folder_and_glob(self, filled: FileStore) -> None:
        numbers = self._numbers
        assert numbers(filled, file="src/auth/3.py") == ["3"]
        assert numbers(filled, file="src/auth") == ["5", "4", "3", "2", "1", "0"]
        assert numbers(filled, file="src/aut") == []
        assert numbers(filled, file="*/[12].py") == ["2", "1"]
        (found,) = filled.history(TaskFilter(file="src/auth/3.py"))
        assert found.touched == (("write", "src/auth/3.py"),)

    def test_brackets_in_paths_and_commas_in_labels_are_only_text(self, store: FileStore) -> None:
        with store.start("x", labels={"x": "foo, a=1, z\na=1\n"}) as task:
            task.add_turn(turn("x", "app/[id]/page.tsx"))
        assert ids(store, TaskFilter(file="app/[id]/page.tsx")) == [task.id]
        assert ids(store, TaskFilter(file="app/[id]")) == [task.id]
        assert ids(store, TaskFilter(labels=(("a", None),))) == []
        assert ids(store, TaskFilter(labels=(("a", "1"),))) == []
        assert ids(store, TaskFilter(labels=(("x", "foo, a=1, z\na=1\n"),))) == [task.id]

    def test_stats(self, filled: FileStore) -> None:
        stats = filled.stats(ALL)
        assert (stats.tasks, stats.turns) == (6, 12)
        assert stats.by_status == {"completed": 3, "failed": 1, "interrupted": 2}
        assert stats.by_agent["dev"][0] == 6
        assert stats.by_file["README.md"] == 6
        assert stats.by_day["2024-01-01"] == 1
        assert stats.disk["tasks"] > 1000

    def test_one_turn_of_a_huge_file_is_one_seek(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task = store.start("x")
        for number in range(50):
            task.add_turn(turn(f"turn {number} " + "y" * 50_000))
        task.close()
        store.history(ALL)
        read = 0
        original = type(store.reader(task.id)).fetch

        def counting(self: object, offset: int, length: int) -> bytes:
            nonlocal read
            read += length
            return original(self, offset, length)  # type: ignore[arg-type]

        monkeypatch.setattr("rawko_state.format.reader.TaskReader.fetch", counting)
        assert (store.turn(task.id, 42).content or "").startswith("turn 41 ")
        assert read < 120_000

    def test_children_of_a_task(self, store: FileStore) -> None:
        parent = store.start("parent", detached=True)
        child = store.start("child", parent=Parent(parent.id, 4), detached=True)
        assert store.children(parent.id) == [(child.id, 4, "child")]
        assert store.summary(child.id).parent == f"{parent.id}@4"
