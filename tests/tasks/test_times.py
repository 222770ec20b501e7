"""What is written says when, whichever way it came in; and what was done last stands first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.memory.store import MemoryStore
from rawko_state.errors import InvalidValue
from rawko_state.index import queries
from rawko_state.lifecycle.retention import Policy, plan
from rawko_state.model.entries import Question, Turn
from rawko_state.store import TaskFilter
from rawko_state.tasks.lines import Recorder
from tests.support.processes import rawko

LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def _events_without_a_time(store: FileStore, task: str) -> list[str]:
    return [f"{event.kind} {event.text}" for event in store.events(task) if event.at is None]


class TestEveryEntryHasATime:
    def test_through_the_api(self, store: FileStore) -> None:
        with store.start("Fix it") as task:
            task.decide(selected="dev")
            task.add_turn(Turn(number=1, agent="dev", status="complete", content="x", duration_ms=90_000))
            task.ask("dev", Question("Which?"))
            task.answer("this")
            task.say("more")
            task.note("x")
            with task.turn("dev") as live:
                live.tool("shell.exec", "ls", "exit 0")
                live.progress("half way")
            task.finish("success")
        assert _events_without_a_time(store, task.id) == []
        ended = store.turn(task.id, 2)
        assert ended.started is not None
        spent = datetime.now(timezone.utc) - ended.started
        assert timedelta(seconds=89) < spent < timedelta(hours=1)  # it took a minute and a half, and has just ended

    def test_through_a_pipe_and_the_shell(self, tmp_path: Path) -> None:
        lines = [
            {"type": "start", "request": "x"},
            {"type": "turn", "agent": "dev", "content": "y", "tools": [{"tool": "shell.exec"}]},
            {"type": "decision", "selected": "qa"},
            {"type": "ask", "agent": "dev", "text": "?"},
            {"type": "answer", "text": "z"},
            {"type": "note", "text": "n"},
            {"type": "result"},
        ]
        told = rawko(tmp_path, "record", given="".join(json.dumps(line) + "\n" for line in lines)).stdout
        piped = json.loads(told.splitlines()[0])["task"]
        shell = rawko(tmp_path, "task", "start", "x").stdout.strip()
        rawko(tmp_path, "task", "turn", shell, "--agent", "dev", "hello")
        rawko(tmp_path, "task", "decide", shell, "--select", "qa")
        rawko(tmp_path, "task", "finish", shell)
        store = FileStore(tmp_path)
        assert _events_without_a_time(store, piped) == []
        assert _events_without_a_time(store, shell) == []

    def test_a_tool_call_has_the_turns_day_and_its_own_hour(self, store: FileStore) -> None:
        late = datetime(2024, 1, 1, 23, 59, 50, tzinfo=timezone.utc)
        from rawko_state.model.entries import ToolCall

        with store.start("x", created=late) as task:
            calls = (ToolCall("a", time="23:59:55"), ToolCall("b", time="00:00:05"), ToolCall("c"))
            task.add_turn(Turn(number=1, agent="dev", started=late, tools=calls))
        found = [event.at for event in store.events(task.id) if event.kind == "tool"]
        assert found == ["2024-01-01T23:59:55Z", "2024-01-02T00:00:05Z", "2024-01-01T23:59:50Z"]


class TestCancelled:
    def test_says_when_and_how_long(self, store: FileStore) -> None:
        task = store.start("x", created=LONG_AGO)
        with store.attach(task.id) as other:
            other.set_status("cancelled", by="ann", reason="enough")
        task.close()
        found = store.summary(task.id)
        assert found.status == "cancelled"
        assert (found.completed or "") > "2024"
        assert (found.duration_ms or 0) > 10**11
        text = Path(store.root, found.file).read_text()
        assert "=== RESULT ===\nStatus: cancelled\nCompleted: " in text
        assert "Reason: enough\nBy: ann\n" in text
        (run,) = store.runs(task.id)
        assert run.completed == found.completed

    def test_a_note_of_an_earlier_version_says_so_too(self, tmp_path: Path) -> None:
        tasks = tmp_path / ".rawko/state/tasks"
        tasks.mkdir(parents=True)
        (tasks / "2024-01-01T00-00-00-old.task").write_text(
            "=== TASK old ===\nCreated: 2024-01-01T00:00:00Z\nStatus: running\n\n=== REQUEST ===\nUser: x\n\n"
            "=== EXECUTION ===\n\n=== NOTE ===\nAt: 2024-01-01T00:01:00Z\nStatus: cancelled\n"
        )
        found = FileStore(tmp_path).summary("old")
        assert (found.completed, found.duration_ms) == ("2024-01-01T00:01:00Z", 60_000)

    def test_retention_counts_from_then(self, store: FileStore) -> None:
        """It was begun long ago, and cancelled today: a year has not passed since."""
        task = store.start("x", created=LONG_AGO)
        task.set_status("cancelled")
        task.close()
        old = store.start("y", created=LONG_AGO)
        old.finish("success", completed=LONG_AGO)
        taken = plan(store.retention_rows(), Policy(max_age=365 * 86_400), datetime.now(timezone.utc)).removals
        assert [row.id for row, _ in taken] == [old.id]

    def test_resumed_today_is_not_taken_for_its_age(self, store: FileStore) -> None:
        task = store.start("y", created=LONG_AGO)
        task.finish("success", completed=LONG_AGO)
        with store.resume(task.id) as again:
            again.finish("success", completed=LONG_AGO + timedelta(days=1))  # whatever it says of its end
        assert plan(store.retention_rows(), Policy(max_age=86_400), datetime.now(timezone.utc)).removals == ()


class TestUpdated:
    @pytest.fixture
    def two(self, store: FileStore) -> list[str]:
        made = []
        for day in range(2):
            task = store.start(f"x {day}", created=LONG_AGO + timedelta(days=day))
            task.finish("success", completed=LONG_AGO + timedelta(days=day))
            made.append(task.id)
        with store.resume(made[0]) as task:
            task.finish("success")
        return made

    def test_what_was_resumed_today_is_on_top(self, store: FileStore, two: list[str]) -> None:
        assert [each.id for each in store.history(TaskFilter())] == two
        assert [each.id for each in store.history(TaskFilter(sort="created"))] == two[::-1]
        shown = rawko(store.root, "history", "--ids").stdout.split()
        assert shown == two
        assert rawko(store.root, "history", "--ids", "--sort", "created").stdout.split() == two[::-1]

    def test_since_and_until_follow_the_sort_key(self, store: FileStore, two: list[str]) -> None:
        day = LONG_AGO + timedelta(hours=1)
        now = datetime.now(timezone.utc) - timedelta(hours=1)
        assert [each.id for each in store.history(TaskFilter(since=now))] == two[:1]
        assert [each.id for each in store.history(TaskFilter(since=day, sort="created"))] == two[1:]
        assert rawko(store.root, "history", "--ids", "--since", "1h").stdout.split() == two[:1]

    def test_it_is_a_column_with_an_index_and_the_same_after_a_rebuild(self, store: FileStore, two: list[str]) -> None:
        def rows() -> list[tuple[str, str]]:
            found = store.sync.fresh().connection.execute("SELECT id, updated_at FROM tasks ORDER BY id")
            return [(row[0], row[1]) for row in found]

        before = rows()
        assert all(updated for _, updated in before)
        store.reindex()
        assert rows() == before
        steps = store.sync.index().connection.execute(
            "EXPLAIN QUERY PLAN SELECT * FROM tasks ORDER BY updated_at DESC, id DESC LIMIT 20"
        )
        assert "idx_tasks_updated" in str([tuple(row) for row in steps])

    @pytest.mark.parametrize(
        ("status", "used"), [("completed", "updated"), ("interrupted", "updated"), ("waiting", "status")]
    )
    def test_a_status_that_most_tasks_have_is_found_in_the_order_of_the_list(
        self, store: FileStore, two: list[str], monkeypatch: pytest.MonkeyPatch, status: str, used: str
    ) -> None:
        index = store.sync.fresh()
        asked: list[tuple[str, Sequence[Any]]] = []

        def read(self: object, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            asked.append((text, values))
            return []

        monkeypatch.setattr(type(index), "read", read)
        queries.history(index, TaskFilter(status=(status,), limit=50), ())
        ((text, values),) = asked
        steps = index.connection.execute(f"EXPLAIN QUERY PLAN {text}", values)
        assert f"idx_tasks_{used}" in str([tuple(row) for row in steps])

    def test_the_latest_time_counts_whatever_the_order(self, store: FileStore) -> None:
        task = store.start("x", created=LONG_AGO)
        task.add_turn(Turn(number=1, agent="a", started=LONG_AGO + timedelta(days=9)))
        task.add_turn(Turn(number=1, agent="a", started=LONG_AGO + timedelta(days=3, milliseconds=5)))
        task.close()
        assert store.summary(task.id).updated == "2020-01-10T00:00:00.000Z"


class TestBadValues:
    def test_filters(self) -> None:
        with pytest.raises(InvalidValue, match="Did you mean created"):
            TaskFilter(sort="creatd")
        with pytest.raises(InvalidValue, match="Did you mean running"):
            TaskFilter(status=("runing",))

    def test_turns_and_results(self, store: FileStore) -> None:
        task = store.start("x")
        with pytest.raises(InvalidValue, match="Not a turn status: 'compleet'"):
            task.add_turn(Turn(number=1, agent="a", status="compleet"))
        with pytest.raises(InvalidValue, match="Not a result: 'sucess'"):
            task.finish("sucess")
        task.add_turn(Turn(number=1, agent="a", status="completed"))
        task.add_turn(Turn(number=1, agent="a", status="failure"))
        assert [store.turn(task.id, number).status for number in (1, 2)] == ["complete", "failed"]
        task.finish("completed")
        assert store.summary(task.id).status == "completed"
        other = store.start("y")
        other.finish("failed")
        assert store.summary(other.id).status == "failed"

    def test_names_that_are_no_text(self, store: FileStore) -> None:
        task = store.start("x")
        for data in ({1: 2}, {"a": [{None: 1}]}):
            with pytest.raises(InvalidValue, match="is not text"):
                task.note(data=data)
            with pytest.raises(InvalidValue, match="is not text"):
                task.add_turn(Turn(number=1, agent="a", state=data))
        assert task.state.turns == 0

    def test_an_empty_request(self, store: FileStore) -> None:
        for empty in ("", " \n"):
            with pytest.raises(InvalidValue, match="empty"):
                store.start(empty)
        assert store.history(TaskFilter()) == []
        assert rawko(store.root, "task", "start", "", code=2).stderr.count("\n") == 1

    def test_a_misspelt_key_of_a_question_is_named(self) -> None:
        recorder = Recorder(MemoryStore())
        recorder.do("start", {"request": "x"})
        assert recorder.do("ask", {"agent": "a", "text": "?", "chioces": ["b"]})["unknown"] == ["chioces"]
        recorder.close()

    def test_over_every_way_in(self) -> None:
        recorder = Recorder(MemoryStore())
        recorder.do("start", {"request": "x"})
        with pytest.raises(InvalidValue, match="Not a turn status: 'compleet'"):
            recorder.do("turn", {"agent": "a", "status": "compleet"})
        recorder.close()
