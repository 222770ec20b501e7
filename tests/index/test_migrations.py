"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.index.database import Index
from rawko_state.index.migrations import MIGRATIONS, VERSION
from tests.index.indexes import ids, turn


class TestModels:
    def test_the_models_are_the_tables_of_a_real_index(self, tmp_path: Path) -> None:
        index = Index(tmp_path / "index.db")
        tables = index.tables
        for model in (*tables.derived, tables.meta):
            meta = model._meta
            key = [meta.fields[name].column_name for name in meta.primary_key.field_names] if meta.composite_key else []
            keys = key or [meta.primary_key.column_name]
            real = {row[1]: row for row in index.connection.execute(f"PRAGMA table_info({meta.table_name})")}
            assert set(real) == set(meta.columns), meta.table_name
            for name, field in meta.columns.items():
                kind, required, default, place = real[name][2:6]
                assert kind == {"INT": "INTEGER"}.get(field.field_type, field.field_type) or name == "task_id", name
                assert bool(place) == (name in keys), name
                assert bool(required) == (not field.null and name != "id"), (meta.table_name, name)
                assert (None if default is None else int(default)) == field.default, name
        names = {row[0] for row in index.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert names == {model._meta.table_name for model in (*tables.derived, tables.meta)}
        index.close()


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
