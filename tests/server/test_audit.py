"""The audit: what was acknowledged has an entry."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.postgres.connection import Postgres
from rawko_state.backends.postgres.host import PostgresServerState
from rawko_state.errors import IndexTrouble, StorageError
from rawko_state.index.server_state import FileServerState
from rawko_state.server import audit
from rawko_state.server.run import _tidy_state
from rawko_state.store.hosting import AuditEntry, KeyedRequest
from tests.server.clients import Client
from tests.support.machine import wait_for
from tests.support.serving import Served, served

ENTRY = AuditEntry("me", "delete_task", None, "abc", 200, "local")


def _actions(state: Any) -> list[tuple[str, int]]:
    return [(row["action"], row["status"]) for row in state.audited(1000, None)]


class _Away:
    """A state whose database is away for the first ``times`` writes."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.rows: list[AuditEntry] = []
        self.keys: list[KeyedRequest] = []

    def finished(self, key: KeyedRequest | None, audit: Sequence[AuditEntry], *, durable: bool = True) -> None:
        self.times -= 1
        if self.times >= 0:
            raise StorageError("the database is away", "the database")
        self.rows += audit
        self.keys += [key] if key is not None else []

    def close(self) -> None: ...


class TestAcknowledged:
    def test_the_entry_is_there_when_the_answer_comes(self, any_server: Served) -> None:
        """Nothing is flushed: a reader of the database sees it at once."""
        ask = Client(any_server.port)
        state = any_server.server.workspaces.state
        task = ask.start()
        assert _actions(state) == [("start_task", 201)]
        ask("POST", f"tasks/{task}/turns", {"agent": "a"})
        ask("PUT", "kv/s/k", {"value": "v"})
        ask("DELETE", f"tasks/{task}")
        ask("POST", "trash/restore", {"id": task})
        ask("POST", f"tasks/{task}/erase", {})
        wanted = ["erase_task", "restore", "delete_task", "set_value", "append_turn", "start_task"]
        assert [action for action, _ in _actions(state)] == wanted
        assert [row["task"] for row in state.audited(1, None)] == [task]

    def test_on_postgres_a_record_and_its_entry_are_one_transaction(self, database: str, project: Path) -> None:
        with served(project, database) as running:
            ask = Client(running.port)
            task = ask.start()
            other = Postgres(database)
            other.connection.execute("ALTER TABLE rawko.audit RENAME TO elsewhere")
            status, _, _ = ask("POST", f"tasks/{task}/turns", {"agent": "a"})
            assert status == 503
            other.connection.execute("ALTER TABLE rawko.elsewhere RENAME TO audit")
            assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 0
            assert ask("POST", f"tasks/{task}/turns", {"agent": "a"})[0] == 201
            state = PostgresServerState(other)
            assert _actions(state).count(("append_turn", 201)) == 1
            other.close_all()

    def test_what_was_done_is_not_acknowledged_before_its_entry_is_there(
        self, client: Client, server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = client.start()
        state = server.server.workspaces.state
        away, written = threading.Event(), type(state).finished
        away.set()

        def finished(self: Any, *arguments: Any, **more: Any) -> None:
            if away.is_set():
                raise IndexTrouble("the disk is away")
            written(self, *arguments, **more)

        monkeypatch.setattr(type(state), "finished", finished)
        monkeypatch.setattr(audit, "_WAIT", 0.05)
        assert client("DELETE", f"tasks/{task}")[0] == 503
        away.clear()
        wait_for(lambda: ("delete_task", 200) in _actions(state), "the entry is written when the disk is back")

    def test_a_repeated_request_has_an_entry_too(self, any_server: Served) -> None:
        """The first one may have been cut off between the change and its entry."""
        ask = Client(any_server.port)
        task = ask.start()
        for _ in range(2):
            ask("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key="one")
        assert _actions(any_server.server.workspaces.state).count(("append_turn", 201)) == 2


class TestAuditor:
    def test_an_entry_is_written_until_it_is_there(self) -> None:
        state = _Away(3)
        auditor = audit.Auditor(state)  # type: ignore[arg-type]
        key = KeyedRequest("me", "k", "body", 200, "{}")
        auditor.add(ENTRY, key)
        assert (state.rows, state.keys) == ([ENTRY], [key])
        auditor.close()

    def test_rejected_requests_do_not_wait(self) -> None:
        state = _Away(0)
        auditor = audit.Auditor(state)  # type: ignore[arg-type]
        auditor.note(ENTRY._replace(status=403))
        auditor.flush()
        assert [row.status for row in state.rows] == [403]
        auditor.close()


class TestAge:
    def test_old_entries_go_if_a_setting_says_so(self, any_server: Served, project: Path) -> None:
        state = any_server.server.workspaces.state
        state.finished(None, [ENTRY])
        _tidy_state(any_server.server.workspaces, project)
        assert len(_actions(state)) == 1
        (project / ".rawko").mkdir(exist_ok=True)
        (project / ".rawko" / "config.yaml").write_text("server:\n  audit:\n    max_age: 0s\n")
        wait_for(lambda: (_tidy_state(any_server.server.workspaces, project), _actions(state))[1] == [])

    def test_other_projects_of_the_user_keep_theirs(self, project: Path, tmp_path: Path) -> None:
        mine, other = FileServerState(project), FileServerState(tmp_path)
        other.finished(None, [ENTRY])
        mine.tidy(0.0)
        assert len(_actions(other)) == 1
        mine.close()
        other.close()


class TestGroupCommit:
    def test_writes_that_wait_share_one_commit(self, project: Path) -> None:
        state = FileServerState(project)
        begun = state.group.commits
        threads = [threading.Thread(target=state.finished, args=(None, [ENTRY])) for _ in range(20)]
        with state.group._turn:  # as if another thread were syncing
            for thread in threads:
                thread.start()
            wait_for(lambda: len(state.group._waiting) == len(threads))
        for thread in threads:
            thread.join()
        assert state.group.commits - begun == 1
        assert len(_actions(state)) == len(threads)
        state.close()

    def test_one_that_fails_does_not_harm_the_others(self, project: Path) -> None:
        state = FileServerState(project)
        key = KeyedRequest("me", "k", "body", 201, "{}")
        state.with_record("abc", "1" * 16, key, None)
        with pytest.raises(IndexTrouble):
            state.with_record("abc", "2" * 16, key, ENTRY)
        assert _actions(state) == []
        state.finished(None, [ENTRY])
        found = state.request("me", "k")
        assert found is not None
        assert (found.seal, found.status) == ("1" * 16, None)
        state.close()
