"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.cli.watch_cmd import View
from rawko_state.model.entries import Question
from rawko_state.model.events import Event
from tests.support.machine import patience, wait_for
from tests.support.processes import rawko
from tests.tasks.lives import a_turn


class TestWatch:
    def test_one_task_as_json(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        with store.start("do it") as task:
            task.add_turn(a_turn("evil \x1b[31m"))
        lines = [json.loads(line) for line in rawko(tmp_path, "watch", task.id, "--json").stdout.splitlines()]
        assert [line["kind"] for line in lines] == ["status", "request", "status", "turn", "final"]
        rest = rawko(tmp_path, "watch", task.id, "--json", "--after", lines[2]["cursor"]).stdout.splitlines()
        assert [json.loads(line) for line in rest] == lines[3:]
        shown = rawko(tmp_path, "watch", task.id).stdout
        assert "\x1b" not in shown
        assert shown.splitlines()[:3] == ["┃ do it", "", "1 dev"]
        assert rawko(tmp_path, "history", "show", task.id, "--follow").stdout.count("evil") == 1
        assert "Not a cursor" in rawko(tmp_path, "watch", task.id, "--after", "rubbish", code=2).stderr
        store.close()

    def test_tool_calls_and_edits_are_told_as_show_tells_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = View()
        for text, data in (
            ("Bash", {"args": '{"command": "make test"}', "result": "exit 1"}),
            ("Read", {"args": '{"file_path": "calc.py"}', "running": True}),
            (None, {"result": "24 lines"}),
        ):
            view.take(Event("abc123", "", "tool", text=text, data=data))
        view.take(Event("abc123", "", "edit", text="calc.py", data={"added": 2, "removed": 1}))
        assert capsys.readouterr().out.splitlines() == [
            "  $ make test  → exit 1",
            "  Read calc.py",
            "  → 24 lines",
            "  Edit calc.py  +2 −1",
        ]

    def test_a_live_turn_is_told_as_it_is_said_with_its_figures_at_the_end(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        view = View()
        view._width = 30
        for kind, text, more in (
            ("status", "pending", {}),
            ("request", "Fix the login of all users who came before", {}),
            ("status", "running", {}),
            ("text", "The token check ignores ", {"live": True}),
            ("text", "clock skew.\n\nI fix it", {"live": True}),
            ("tool", "Read", {"live": True, "data": {"args": '{"file_path": "a.py"}', "result": "3 lines"}}),
            (
                "turn",
                "…",
                {"replaces": True, "turn": 1, "data": {"duration_ms": 2000, "tokens": {"in": 1200, "out": 9}}},
            ),
            ("final", "completed", {"data": {"duration_ms": 3000, "summary": "Done"}}),
        ):
            agent = "dev" if kind in ("text", "tool", "turn") else None
            view.take(Event("abc123", "", kind, text=text, agent=agent, **more))
        assert capsys.readouterr().out.splitlines() == [
            "┃ Fix the login of all users",
            "┃ who came before",
            "",
            "dev",
            "  The token check ignores ",
            "  clock skew.",
            "",
            "  I fix it",
            "  Read a.py · 3 lines",
            "  turn 1 · 2.0s · 1.2k in · 9 out",
            "",
            "✓ completed · took 3.0s · Done",
        ]

    def test_what_a_turn_did_stands_below_its_head(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = View()
        view.take(Event("abc123", "", "tool", turn=2, text="Bash", data={"args": '{"command": "ls"}'}))
        view.take(Event("abc123", "", "turn", turn=2, agent="dev", text="I looked.", data={"status": "failed"}))
        assert capsys.readouterr().out.splitlines() == ["", "2 dev  failed", "  I looked.", "  $ ls"]

    def test_of_several_tasks_each_is_named_and_counted(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = View(many=True, statuses={"abc123": "running", "def456": "waiting"})
        view.take(Event("abc123", "", "text", agent="dev", text="one\ntwo", live=True))
        view.take(Event("def456", "", "status", text="waiting", data={"question": "Which?", "choices": ["a"]}))
        view.take(Event("abc123", "", "text", agent="dev", text=" three", live=True))
        assert capsys.readouterr().out.splitlines() == [
            "abc123  dev",
            "        one",
            "        two",
            "def456  ? Which?",
            "            1  a",
            "abc123  dev",
            "         three",
        ]
        assert list(view._facts()) == ["1 running", "1 waiting for you", "^C stops"]

    def test_how_to_answer_is_said_only_while_a_question_is_open(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What has been answered is shown with its answer."""
        view = View()
        asked = Event("abc123", "", "status", text="waiting", data={"question": "Which?", "choices": ["a"]})
        view.take(asked)
        view.take(Event("abc123", "", "turn", turn=2, agent="user", text="a"))
        view.take(Event("abc123", "", "status", turn=2, text="running"))
        view.idle()
        assert capsys.readouterr().out.splitlines() == ["? Which?", "    1  a", "┃ a"]
        view.take(asked)
        view.idle()
        view.idle()
        said = capsys.readouterr().out.splitlines()
        assert said == ["? Which?", "    1  a", "  Answer from anywhere: rawko answer abc123 1"]

    def test_what_programs_note_for_themselves_is_not_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        view = View()
        view.take(Event("abc123", "", "note", data={"kind": "imported-before", "context": "out", "labels": {}}))
        view.take(Event("abc123", "", "note", data={"by": "ann", "labels": {"team": "auth"}, "pinned": True}))
        assert capsys.readouterr().out == "Note by ann: team=auth, pinned\n"

    def test_live_in_another_process(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        task = store.start("do it")
        watching = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from rawko_state.cli import main; main()",
                "-C",
                str(tmp_path),
                "watch",
                task.id,
                "--json",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        for _ in range(3):
            watching.stdout.readline()
        with task.turn("dev") as turn:
            for number in range(20):
                turn.progress(f"step {number}")
                event = json.loads(watching.stdout.readline())
                assert (event["kind"], event["text"], event["live"]) == ("progress", f"step {number}", True)
        task.finish("success")
        rest = [json.loads(line)["kind"] for line in watching.stdout]
        assert rest == ["turn", "final"]
        assert watching.wait(patience(20)) == 0
        watching.stdout.close()
        store.close()

    def test_what_waits_already_is_told_with_its_question(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store, store.start("Pick a database") as task:
            task.ask("developer", Question("Which one?", ("postgres", "sqlite")))
            shown = tmp_path / "shown"
            with open(shown, "w") as out:
                watching = subprocess.Popen(
                    [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(tmp_path), "watch"],
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                )
            try:
                wait_for(lambda: shown.read_text().count("\n") >= 4)
            finally:
                watching.terminate()
                watching.wait()
            told = shown.read_text().splitlines()
            assert told[0] == f"{task.id}  ? Which one?"
            assert [line.split() for line in told[1:3]] == [["1", "postgres"], ["2", "sqlite"]]
            assert f"rawko answer {task.id} 1" in told[3]
            task.answer("1")

    def test_all_that_run(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        before = store.start("old")
        before.add_turn(a_turn("long ago"))
        watching = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(tmp_path), "watch", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        reading = threading.Thread(target=lambda: [lines.put(line) for line in watching.stdout or ()], daemon=True)
        reading.start()

        def event() -> dict[str, object]:
            return dict(json.loads(lines.get(timeout=patience(30))))

        number = 0
        while lines.empty():  # until it is there, and looks
            number += 1
            before.add_turn(a_turn(f"now {number}"))
            time.sleep(0.1)
        first = event()
        assert first["task"] == before.id
        assert str(first["text"]).startswith("now")
        new = store.start("new")
        found = event()
        while found["task"] == before.id:
            found = event()
        assert (found["task"], found["kind"]) == (new.id, "status")
        watching.terminate()
        watching.wait()
        reading.join()
        watching.stdout.close()
        before.close()
        new.close()
        store.close()
