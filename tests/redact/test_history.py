"""Redacting a whole history: counted first, resumed after an interruption, and nothing of it left anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.errors import RawkoError
from rawko_state.journal import trash
from rawko_state.store import TaskFilter
from tests.lifecycle.retention import SECRET, nowhere, written_with_secrets
from tests.redact.test_canaries import nowhere as nowhere_at_all
from tests.support.faults import quiet
from tests.support.processes import rawko


class TestWholeHistory:
    def test_a_dry_run_counts_by_rule_and_task(self, tmp_path: Path) -> None:
        first = written_with_secrets(quiet(tmp_path), tmp_path)
        said = json.loads(rawko(tmp_path, "redact", "--dry-run", "--json").stdout)
        assert [each["id"] for each in said["tasks"]] == [first]
        assert said["rules"]["github-token"] == said["tasks"][0]["secrets"]["github-token"] >= 4

    def test_packed_trashed_and_unfinished_tasks(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        packed = written_with_secrets(store, tmp_path)
        assert store.pack(store.retention_rows(packed)[0])
        store.delete(written_with_secrets(store, tmp_path))
        twice = written_with_secrets(store, tmp_path)
        store.delete(twice)
        draft = store.start("unfinished")
        turn = draft.turn("dev")
        turn._draft.add({"kind": "text", "text": f"said {SECRET}"})
        draft.close()
        said = json.loads(rawko(tmp_path, "redact", "--dry-run", "--json").stdout)
        assert {each["id"] for each in said["tasks"]} == {packed, draft.id}
        assert len(said["trash"]) == 2
        done = rawko(tmp_path, "redact")
        assert "In the trash, 2 tasks had secrets" in done.stderr
        nowhere(tmp_path)
        nowhere_at_all(tmp_path)
        again = json.loads(rawko(tmp_path, "redact", "--dry-run", "--json").stdout)
        assert (again["tasks"], again["trash"]) == ([], [])
        store = quiet(tmp_path)
        assert "said [redacted:" in (store.turn(draft.id, 1).content or "")  # type: ignore[union-attr]
        store.restore()
        assert [verdict.faults for verdict in store.verify()] == [[]] * 4
        output = store.turn_output(store.turn(twice, 2).tools[0])  # type: ignore[union-attr,arg-type]
        assert "[redacted:github-token:" in (output or "")
        assert not store.search(SECRET, TaskFilter(sort="relevance")).hits

    def test_an_interrupted_run_goes_on_where_it_stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = quiet(tmp_path)
        tasks = sorted(written_with_secrets(store, tmp_path) for _ in range(3))
        store.begin_redacting()
        store.redact(tasks[0])
        store.mark_redacted(tasks[0])
        assert store.redacted_so_far() == {tasks[0]}
        done = rawko(tmp_path, "redact")
        assert "An earlier run, which was interrupted, had finished 1 task." in done.stderr
        assert "2 of 3 tasks had secrets" in done.stderr
        nowhere(tmp_path)
        assert quiet(tmp_path).redacted_so_far() == set()

    def test_a_run_that_was_killed_in_the_trash_leaves_no_output_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = quiet(tmp_path)
        store.delete(written_with_secrets(store, tmp_path))
        aside = tmp_path / ".rawko/state/index.db.broken-20260101T000000-1"
        aside.write_text(SECRET)
        store.begin_redacting()
        with monkeypatch.context() as patched:
            patched.setattr("rawko_state.backends.files.redaction._drop", lambda *given: None)  # killed before
            store.redact_rest()
        assert any(SECRET.encode() in path.read_bytes() for path in (tmp_path / ".rawko/state/trash/blobs").iterdir())
        rawko(tmp_path, "redact")
        nowhere(tmp_path)
        assert not aside.exists()

    def test_a_task_that_changed_since_is_not_skipped(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task = written_with_secrets(store, tmp_path)
        store.begin_redacting()
        store.mark_redacted(task)
        with store.attach(task) as open_task:
            open_task.note("more")
        assert store.redacted_so_far() == set()

    def test_in_postgres(self, tmp_path: Path, database: str) -> None:
        files = quiet(tmp_path / "a")
        store = PostgresStore(database, root=tmp_path)
        names = []
        for _ in range(2):
            name = files.find(written_with_secrets(files, tmp_path / "a"))
            names.append(name)
            blobs = [path.read_bytes() for path in files.journal.layout.blobs.iterdir()]
            store.add_file(name.filename, files.journal.layout.path(name).read_bytes(), blobs)
        store.delete(names[1].id)
        assert [found.rules["github-token"] >= 4 for found in store.redact_rest(dry_run=True)] == [True]
        assert store.redact(names[0].id).changed
        assert [found.changed for found in store.redact_rest()] == [3]
        assert SECRET not in _dumped(store)
        store.restore()
        assert [verdict.faults for verdict in store.verify()] == [[], []]
        store.close()


def _dumped(store: PostgresStore) -> str:
    """Every value of every table of the workspace."""
    with store.postgres.transaction() as connection:
        schema = connection.execute("SELECT current_schema()").fetchone()
        tables = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        assert schema
        assert len(tables) > 5
        said = ""
        for place, name in tables:
            for row in connection.execute(f'SELECT * FROM "{place}"."{name}"').fetchall():
                said += " ".join(
                    bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, memoryview)) else str(value)
                    for value in row
                )
    return said


class TestExplaining:
    def test_it_names_rule_place_and_surroundings(self, tmp_path: Path) -> None:
        with FileStore(tmp_path).start("Deploy it") as task, task.turn("dev") as turn:
            turn.say(f"I used the token {SECRET} for the upload.")
        said = json.loads(rawko(tmp_path, "redact", "--explain", "--json", task.id).stdout)["redactions"]
        (one,) = said
        assert (one["rule"], one["removed"]) == ("github-token", True)
        assert one["place"].startswith("turn 1, at byte ")
        assert one["before"].endswith("I used the token ")
        assert one["after"].startswith(" for the upload.")
        assert SECRET not in json.dumps(said)

    def test_a_value_is_allowed_by_its_tag(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = FileStore(tmp_path)
        tag = store.redactor.text(SECRET).removeprefix("[redacted:").removesuffix("]")
        monkeypatch.setenv("RAWKO_REDACT_ALLOW", tag)
        allowing = FileStore(tmp_path).redactor
        other = SECRET[:-1] + "x"
        assert allowing.text(SECRET) == SECRET
        assert other not in allowing.text(other)
        assert allowing.text(f"{SECRET} {other}").startswith(SECRET)

    def test_a_tag_must_look_like_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAWKO_REDACT_ALLOW", "everything")
        told: list[str] = []
        store = FileStore(tmp_path, warn=told.append)
        assert SECRET not in store.redactor.text(SECRET)
        assert "github-token:3f2a" in told[0]


def test_the_trash_log_names_the_new_outputs(tmp_path: Path) -> None:
    store = quiet(tmp_path)
    store.delete(written_with_secrets(store, tmp_path))
    (before,) = trash.listed(store.journal.layout)
    store.redact_rest()
    (after,) = trash.listed(store.journal.layout)
    assert before.blobs
    assert set(after.blobs).isdisjoint(before.blobs)
    assert after.at == before.at
    with pytest.raises(RawkoError):
        store.find(before.name.id)
