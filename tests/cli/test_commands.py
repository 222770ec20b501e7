"""The commands, from the outside: what they print, what they exit with, and what they say when used wrongly."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rawko_state.backends.files.store import FileStore
from rawko_state.cli import COMMANDS, cli
from rawko_state.cli.init_cmd import GITIGNORE
from rawko_state.model.entries import FileTouch, ToolCall, Turn
from tests.support.processes import ROOT, rawko_bytes

_NO_MISUSE = ("rawko resume --open abc123", "is already completed", "No task starts with", "is not a folder")
"""What these say is no fault of the command line: it did not work."""


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code, self.raw = done.returncode, done.stdout
        self.out, self.err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


@pytest.fixture
def rawko(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs the real command in a process of its own, in the folder of the test."""

    def run(*words: str, stdin: str | bytes = b"", cwd: Path = tmp_path, env: dict[str, str] | None = None) -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = rawko_bytes(*words, given=data, cwd=cwd, env=env)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return Ran(done)

    (tmp_path / ".git").mkdir()
    return run


@pytest.fixture
def filled(tmp_path: Path, fixtures: Path) -> Path:
    """A project with a few tasks of every sort."""
    store = FileStore(tmp_path)
    store.journal.layout.make()
    tasks = store.journal.layout.tasks
    for name, task_id in (
        ("rfc-example", "abc123"),
        ("hostile", "h0st1e"),
        ("torn-tail", "k3f9a1"),
        ("damaged-body", "dam001"),
    ):
        shutil.copy(fixtures / "format" / f"{name}.task", tasks / f"2024-01-15T10-30-00-{task_id}.task")
        (tasks / f"2024-01-15T10-30-00-{task_id}.task").chmod(0o600)
    return tmp_path


class TestTaskCommands:
    def test_a_task_from_a_shell_script(self, rawko, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        started = rawko("task", "start", "Fix the tests", "--label", "team=auth", "--title", "tests")
        assert re.fullmatch(r"[0-9a-z]{6}\n", started.out)
        task_id = started.out.strip()
        assert rawko("task", "decide", task_id, "--select", "developer", "--reason", "small").out == "1\n"
        turn = rawko(
            "task", "turn", task_id[:5], "-", "--agent", "developer", "--tool", "shell.exec ls -> exit 0",
            "--file", "write:tests/a.py", "--tokens", "in=3 out=4", "--cost", "0.01", stdin="I fixed them.\n",
        )  # fmt: skip
        assert turn.out == "2\n"
        assert rawko("task", "note", task_id, "a note", "--pin").code == 0
        assert rawko("task", "finish", task_id, "--summary", "done", "--file", "tests/a.py").code == 0
        shown = rawko("history", "show", task_id).out
        for part in (
            "I fixed them.",
            "$ ls  → exit 0",
            "1 arbiter → developer: small",
            "✓ success",
            "pinned",
            "team=auth",
        ):
            assert part in shown
        assert rawko("verify").code == 0

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("task", "turn", "nope", "--agent", "a"), "No task starts with 'nope'"),
            (("task", "start", "x", "--label", "no equals"), "Write NAME=VALUE"),
            (("task", "turn"), "Missing"),
            (("task", "note", "abc123"), "Nothing to record"),
            (("task", "decide", "abc123"), "A decision needs"),
            (("task", "turn", "abc123", "--agent", "a", "--file", "chmod:x"), "read:PATH, write:PATH or delete:PATH"),
            (("task", "turn", "abc123", "--agent", "a", "--tokens", "lots"), "in=1200 out=300"),
            (("task", "turn", "abc123", "--agent", "a", "--cost", "much"), "decimal number"),
            (("task", "turn", "h0st1e", "--agent", "a\nb"), "Not a valid turn"),
            (("task", "turn", "abc123", "x", "--agent", "a"), "rawko resume --open abc123"),
            (("task", "finish", "abc123"), "is already completed"),
            (("history", "show", "../../etc/passwd"), "No task starts with"),
            (("history", "show", "abc123", "--turns", "x"), "Write 4, 3-7"),
            (("history", "show", "abc123", "--turn", "99"), "turn 99"),
            (("history", "--status", "faild"), "Did you mean failed?"),
            (("history", "--status", "succes"), "Did you mean completed?"),
            (("history", "--since", "someday"), "Not a date or time"),
            (("history", "export", "abc123", "h0st1e", "--format", "task"), "need a folder"),
            (("export", "abc123", "--brief"), "--brief needs --format md or html"),
            (("export", "abc123", "--redact", "--as-is"), "Use --redact or --as-is, not both"),
            (("export", "abc123", "--format", "task", "--redact"), "rawko redact ID"),
            (("histroy",), "Did you mean history?"),
            (("history", "--color", "never"), "rawko --color WHEN history"),
            (("history", "--statsu", "x"), "Did you mean --status?"),
            (("show", "abc123", "--format", "x"), "Unknown option: --format.\n"),
            (("history", "--sort", "size"), "--sort takes updated, created,"),
            (("history", "--limit", "x"), "--limit takes a whole number, 0 or more, not 'x'."),
            (("stats", "--days", "0"), "--days takes a whole number from 1 to 3650, not '0'."),
            (("import", "claude"), "Unknown agent: 'claude'. Did you mean claude-code?"),
            (("import", "notes"), "Unknown agent: 'notes'. Known: claude-code, codex,"),
            (("import", "./.git"), "Name the agent before the path."),
            (("-C", "/nonexistent", "history"), "is not a folder"),
            (("import", "rawko", "pyproject.toml"), "does not exist"),
        ],
    )
    def test_wrong_use_is_one_clear_line(self, rawko, filled: Path, words: tuple[str, ...], message: str) -> None:  # type: ignore[no-untyped-def]
        done = rawko(*words)
        assert done.code == (1 if message.startswith(_NO_MISUSE) else 2)
        assert message in done.err
        assert done.err.startswith("rawko: ")
        assert all(line.startswith("  ") for line in done.err.splitlines()[1:])
        assert done.err.count("\n") <= 2
        assert done.out == ""

    @pytest.mark.parametrize(
        "words",
        [
            ("history", "show", "\udcff"), ("history", "--agent", "\udcff"), ("history", "--file", "\udcff"),
            ("history", "--label", "a=\udcff"), ("history", "-n", "9" * 20), ("history", "show", "abc123", "--turn", "9" * 20),
            ("kv", "get", "\udcff", "x"), ("history", "show", "abc123", "--turns", "5-3"),
            ("history", "show", "abc123", "--raw", "--turn", "1"),
        ],
    )  # fmt: skip
    def test_odd_words_end_in_no_traceback(self, rawko, filled: Path, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
        done = rawko(*words)
        assert done.code in (0, 1, 2)
        assert done.err.count("\n") <= 2

    def test_a_status_from_a_file_is_not_obeyed_by_a_terminal(self, filled: Path) -> None:
        path = filled / ".rawko/state/tasks/2024-01-18T10-30-00-evil01.task"
        path.write_text("=== TASK evil01 ===\n\n=== RESULT ===\nStatus: \x1b]0;owned\x07X\n")
        for words in (["history"], ["history", "show", "evil01"]):
            assert "\x1b]0" not in _in_terminal(filled, words, {})

    def test_outside_of_any_project(self, rawko) -> None:  # type: ignore[no-untyped-def]
        done = rawko("history", cwd=Path("/"))
        assert done.code == 1
        assert "Not in a project" in done.err


class TestRecord:
    def lines(self, *objects: object) -> str:
        return "".join(json.dumps(item) + "\n" for item in objects)

    def test_every_type_and_its_acknowledgement(self, rawko) -> None:  # type: ignore[no-untyped-def]
        done = rawko(
            "record",
            stdin=self.lines(
                {"type": "start", "request": "r", "labels": {"a": "b"}, "fields": {"Delivery": "pr"}},
                {"type": "decision", "selected": "dev", "reason": "x"},
                {"type": "turn", "agent": "dev", "open": True, "model": "m"},
                {"type": "text", "text": "hello "},
                {"type": "tool", "id": "1", "tool": "sh", "args": "ls", "running": True},
                {"type": "tool", "id": "1", "result": "exit 0", "output": "a\nb"},
                {"type": "progress", "text": "half"},
                {"type": "file", "operation": "write", "path": "a.py"},
                {"type": "end", "tokens": {"in": 1}, "cost": "0.5"},
                {"type": "turn", "agent": "dev", "content": "whole", "tools": [{"tool": "t", "args": "x"}]},
                {"type": "note", "title": "t"},
                {"type": "ask", "agent": "dev", "text": "Which?", "choices": ["a", "b"]},
                {"type": "answer", "text": "a", "by": "ann"},
                {"type": "result", "status": "success", "summary": "s", "files": ["a.py"]},
            ),
        )
        assert done.code == 0, done.err
        answers = [json.loads(line) for line in done.out.splitlines()]
        assert [answer["seq"] for answer in answers] == list(range(1, 15))
        assert len({answer["task"] for answer in answers}) == 1
        turn = json.loads(rawko("history", "show", answers[0]["task"], "--turn", "2", "--json").out)
        assert turn["content"] == "hello "
        assert turn["tools"][0] == {
            "tool": "sh", "args": "ls", "result": "exit 0", "time": turn["tools"][0]["time"], "output": "a\nb", "more": {"id": "1"},
        }  # fmt: skip
        assert rawko("verify").code == 0

    def test_bad_lines_are_answered_and_the_others_go_on(self, rawko) -> None:  # type: ignore[no-untyped-def]
        bad = [
            "not json", "[]", '{"type": "nothing"}', '{"type": "text", "text": "no turn"}', '{"type": "start"}', '{"type": "turn"}',
            '{"type": "turn", "agent": "a", "content": 5}', '{"type": "turn", "agent": "a\\nb"}', '{"type": "turn", "agent": "a", "cost": "x"}',
            '{"type": "turn", "agent": "a", "tokens": {"IN": 1}}', '{"type": "turn", "agent": "a", "tools": [1]}',
            '{"type": "turn", "agent": "a", "files": [{"operation": "chmod"}]}', '{"type": "result", "status": "maybe"}', "\ufeff{}",
            '{"type": "turn", "agent": "a", "state": NaN}', "[" * 100_000,
        ]  # fmt: skip
        start = self.lines({"type": "start", "request": "r"})
        end = self.lines({"type": "result"})
        done = rawko("record", stdin=start + "\n".join(bad) + "\n" + end)
        answers = [json.loads(line) for line in done.out.splitlines()]
        assert done.code == 1
        assert [("error" in answer) for answer in answers] == [False] + [True] * len(bad) + [False]
        assert rawko("verify").code == 0

    def test_the_end_of_the_input_interrupts_an_open_turn(self, rawko) -> None:  # type: ignore[no-untyped-def]
        done = rawko(
            "record",
            stdin=self.lines(
                {"type": "start", "request": "r"},
                {"type": "turn", "agent": "dev", "open": True},
                {"type": "text", "text": "so far"},
            ),
        )
        task_id = json.loads(done.out.splitlines()[0])["task"]
        shown = rawko("history", "show", task_id).out
        assert "so far" in shown
        assert "interrupted" in shown
        again = rawko("record", stdin=self.lines({"type": "resume", "task": task_id}, {"type": "result"}))
        assert again.code == 0
        assert rawko("history", "--json").out.count('"completed"') >= 1


class TestHistory:
    def test_the_table(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        shown = _in_terminal(filled, ["history"], {"COLUMNS": "100", "NO_COLOR": "1"})
        lines = shown.splitlines()
        assert lines[0].split() == ["ID", "WHEN", "STATUS", "TOOK", "AGENT", "REQUEST"]
        assert len(lines) == 5
        assert all(len(line) <= 100 for line in lines)
        narrow = _in_terminal(filled, ["history"], {"COLUMNS": "50", "NO_COLOR": "1"}).splitlines()
        assert narrow[0].split() == ["ID", "STATUS", "REQUEST"]
        assert all(len(line) <= 50 for line in narrow)

    @pytest.mark.parametrize(
        ("words", "footer"),
        [
            (("history", "-n", "3"), "3 of 4 tasks"),
            (("history", "-n", "1", "--status", "completed"), "1 of 2 tasks"),
            (("history", "-n", "1", "--all-projects"), "1 of 4 tasks"),
            (("history", "-n", "4"), ""),
            (("search", "clock skew", "-n", "2"), "2 tasks shown, more match"),
            (("search", "clock skew", "-n", "1", "--turns"), "1 turn shown, more match"),
            (("search", "clock skew", "-n", "3"), ""),
            (("history", "-n", "1", "--file", "auth/mod.rs"), ""),
        ],
    )
    def test_a_list_that_is_cut_says_how_long_it_is(
        self, rawko, filled: Path, words: tuple[str, ...], footer: str
    ) -> None:  # type: ignore[no-untyped-def]
        rawko("projects", "add", str(filled))
        shown = _in_terminal(filled, list(words), {"NO_COLOR": "1"})
        lines = [line for line in shown.replace("\r", "").splitlines() if not line.startswith("  rawko show ")]
        last = lines[-1]
        assert last.endswith("--limit 0 lists all") == bool(footer)
        assert last.startswith(footer)
        piped = rawko(*words)
        assert " of " not in piped.err

    def test_in_a_pipe_columns_are_tabs_and_nothing_is_cut(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        long = "word " * 60
        rawko("task", "start", long)
        done = rawko("history", env={"COLUMNS": "40"})
        rows = [line.split("\t") for line in done.out.splitlines()]
        assert {len(row) for row in rows} == {6}
        assert rows[0][1] == "running"
        assert rows[0][5] == long.strip()
        assert "\x1b" not in done.out

    def test_ids_and_nothing_else(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        assert sorted(rawko("history", "--ids").out.split()) == ["abc123", "dam001", "h0st1e", "k3f9a1"]
        none = rawko("history", "--ids", "--agent", "nobody")
        assert (none.code, none.out, none.err) == (0, "", "")

    def test_filters_combine(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        def found(*words: str) -> list[str]:
            return sorted(rawko("history", "--ids", *words).out.split())

        assert found("--status", "completed") == ["abc123", "dam001"]
        assert found("--status", "completed,interrupted", "--agent", "developer") == ["abc123", "dam001", "k3f9a1"]
        assert found("--file", "auth/mod.rs") == ["abc123"]
        assert found("--search", "clock SKEW") == ["abc123", "dam001", "h0st1e"]
        assert found("--search", "clock skew", "--status", "completed", "--limit", "1") in (["abc123"], ["dam001"])
        assert found("--since", "2024-01-16") == []
        assert found("--until", "2024-01-16", "--label", "area") == ["h0st1e"]

    def test_json_has_a_version_and_every_key(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        whole = json.loads(rawko("history", "--json").out)
        assert whole["version"] == 1
        documented = set(
            re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "reference" / "json.md").read_text(), re.MULTILINE)
        )
        assert set(whole["tasks"][0]) == documented
        lines = [json.loads(line) for line in rawko("history", "--jsonl").out.splitlines()]
        assert [{k: v for k, v in line.items() if k != "version"} for line in lines] == whole["tasks"]

    def test_a_file_says_how_it_was_touched(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        out = rawko("history", "--file", "auth/mod.rs").out
        assert re.search(r"read +auth/mod.rs", out)

    def test_in_a_terminal_it_is_coloured_unless_told_otherwise(self, filled: Path) -> None:
        assert "\x1b[" in _in_terminal(filled, ["history", "--limit", "2"], {})
        assert "\x1b[" not in _in_terminal(filled, ["history", "--limit", "2"], {"NO_COLOR": "1"})

    def test_output_that_is_not_read_to_the_end_is_no_error(self, filled: Path) -> None:
        command = (
            f"{sys.executable} -c 'from rawko_state.cli import main; main()' history show abc123 --raw | head -n 1"
        )
        done = subprocess.run(["bash", "-c", command], cwd=filled, capture_output=True, text=True)
        assert done.stdout == "=== TASK abc123 ===\n"
        assert done.stderr == ""


def _in_terminal(folder: Path, words: list[str], env: dict[str, str]) -> str:
    """What the command prints when its output is a terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update({**env, "TERM": "xterm", "PAGER": "cat"})
        os.execv(sys.executable, [sys.executable, "-c", "from rawko_state.cli import main; main()", *words])
    output = b""
    try:
        while piece := os.read(master, 65536):
            output += piece
    except OSError:
        pass
    os.waitpid(pid, 0)
    os.close(master)
    return output.decode("utf-8", "replace")


class TestShow:
    def test_raw_is_the_exact_bytes(self, rawko, filled: Path, fixtures: Path) -> None:  # type: ignore[no-untyped-def]
        assert rawko("history", "show", "h0st1e", "--raw").raw == (fixtures / "format" / "hostile.task").read_bytes()

    def test_terminal_escapes_are_shown_not_obeyed(self, rawko, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil"
        with FileStore(tmp_path).start(evil, title=evil, labels={"k": evil}) as task:
            task.add_turn(Turn(number=1, agent="dev", content=evil, files=(FileTouch("write", evil),)))
            task.finish("success", evil, files=[evil])
        for words in (
            ("history",),
            ("history", "show", task.id),
            ("history", "--file", "*evil"),
            ("stats",),
            ("doctor",),
        ):
            out = rawko(*words).out
            assert not set("\x1b\x07\x9b\u202e") & set(out), words

    def test_a_torn_turn_is_never_shown_as_complete(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        out = rawko("history", "show", "k3f9a1").out
        assert re.search(r"^2 reviewer +interrupted", out, re.MULTILINE)
        assert "63 bytes of an unfinished write" in out

    def test_turns_by_number_and_span(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        assert "Code review passed" in rawko("history", "show", "abc", "--turn", "6").out
        out = rawko("history", "show", "abc", "--turns", "2-3").out
        assert "planner" in out
        assert "Plan is clear" in out
        assert "Code review" not in out

    def test_json_is_one_object_of_decoded_values(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        task = json.loads(rawko("history", "show", "abc", "--json").out)
        assert task["turns"][1]["duration_ms"] == 8300
        assert task["results"][0]["files_modified"] == ["auth/sso.rs", "tests/auth_test.rs"]


class TestExport:
    @pytest.mark.parametrize("form", ["json", "jsonl"])
    def test_json_comes_back_byte_for_byte(self, rawko, filled: Path, tmp_path_factory, form: str) -> None:  # type: ignore[no-untyped-def]
        ids = rawko("history", "--ids").out.split()
        assert rawko("history", "export", *ids, "--format", form, "-o", "all.json").code == 0
        other = tmp_path_factory.mktemp("other")
        done = rawko("-C", str(other), "import", "rawko", "all.json")
        assert done.out == "Imported 4 tasks.\n"
        for path in (filled / ".rawko" / "state" / "tasks").iterdir():
            assert (other / ".rawko" / "state" / "tasks" / path.name).read_bytes() == path.read_bytes()
        assert rawko("-C", str(other), "import", "rawko", "all.json").out == "Imported no tasks (4 unchanged).\n"
        assert rawko("-C", str(other), "history", "--ids").out.split() == ids

    def test_a_dry_run_writes_nothing_and_a_folder_stops_nobody(self, rawko, filled: Path, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
        ids = rawko("history", "--ids").out.split()
        rawko("history", "export", *ids, "--format", "jsonl", "-o", "all.jsonl")
        (filled / "folder").mkdir()
        other = tmp_path_factory.mktemp("other")
        done = rawko("-C", str(other), "import", "rawko", "folder", "all.jsonl", "--dry-run")
        assert (done.code, done.out) == (1, "Would import 4 tasks (1 file could not be read).\n")
        assert not (other / ".rawko").exists()
        with open(filled / "all.jsonl", "a") as stream:
            stream.write('{"version": 1, "id"')
        done = rawko("-C", str(other), "import", "rawko", "folder", "all.jsonl")
        assert (done.code, done.out) == (1, "Imported 4 tasks (2 files could not be read).\n")
        assert "line 5" in done.err
        assert rawko("import", "rawko", "all.jsonl", "-n").out.startswith("Would import no tasks (4 unchanged, ")

    def test_an_import_never_overwrites(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        rawko("history", "export", "abc123", "-o", "a.json")
        rawko("task", "note", "abc123", "grown since")
        done = rawko("import", "rawko", "a.json")
        assert done.code == 1
        assert "Another task already has the id abc123" in done.err

    def test_deep_values_are_shown_and_exported(self, rawko, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        deep = json.loads("[" * 200 + "1" + "]" * 200)
        with FileStore(tmp_path).start("x") as task:
            task.add_turn(Turn(number=1, agent="d", state=deep))
        assert rawko("history", "show", task.id, "--json").code == 0
        assert rawko("history", "export", task.id, "-o", "deep.json").code == 0

    def test_long_output_comes_along(self, rawko, tmp_path: Path, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
        with FileStore(tmp_path).start("x") as task:
            task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("a", output="long " * 10_000),)))
        rawko("history", "export", task.id, "-o", "a.json")
        other = tmp_path_factory.mktemp("other")
        assert rawko("-C", str(other), "import", "rawko", "a.json").code == 0
        assert rawko("-C", str(other), "verify").code == 0
        assert "50.0 kB of output, in blob" in rawko("history", "export", task.id, "--format", "md").out

    def test_an_export_that_was_changed_is_refused(self, rawko, filled: Path, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
        rawko("history", "export", "h0st1e", "-o", "a.json")
        other = str(tmp_path_factory.mktemp("other"))
        task = json.loads((filled / "a.json").read_text())
        for change in ("marker", "seal", "type"):
            changed = json.loads(json.dumps(task))
            if change == "marker":
                changed["records"][1]["blocks"][0]["marker"] = "oops"
            elif change == "seal":
                changed["records"][1]["seal"] = 5
            else:
                changed["records"][1]["blocks"] = [[]]
            (filled / "b.json").write_text(json.dumps(changed))
            done = rawko("-C", other, "import", "rawko", "b.json")
            assert (done.code, done.out) == (1, "Imported no tasks (1 file could not be read).\n")

    def test_hostile_exports_are_refused(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        task = {"version": 1, "id": "x", "file": "../../../evil.task", "records": []}
        for content in (json.dumps(task), "{}", "[1]", "nonsense", json.dumps({**task, "version": 9})):
            (filled / "bad.json").write_text(content)
            done = rawko("import", "rawko", "bad.json")
            assert done.code == 1
            assert done.err.count("\n") == 1

    def test_a_folder_gets_one_file_a_task(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        (filled / "out").mkdir()
        done = rawko("history", "export", "abc123", "h0st1e", "--format", "task", "-o", "out")
        assert done.code == 0
        assert sorted(p.name for p in (filled / "out").iterdir()) == sorted(
            p.name for p in (filled / ".rawko/state/tasks").iterdir() if "abc123" in p.name or "h0st1e" in p.name
        )


class TestOtherCommands:
    def test_verify_names_the_bad_record_and_repairs_what_it_can(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        done = rawko("verify")
        assert done.code == 1
        assert "dam001  line 37: the record ending in seal" in done.out
        assert "1 file has no seals" in done.out
        before = (filled / ".rawko/state/tasks/2024-01-15T10-30-00-k3f9a1.task").read_bytes()
        repaired = rawko("verify", "--repair", "k3f9a1")
        assert repaired.code == 0
        assert "marked an unfinished write of 63 bytes" in repaired.out
        after = (filled / ".rawko/state/tasks/2024-01-15T10-30-00-k3f9a1.task").read_bytes()
        assert after.startswith(before)
        assert rawko("verify", "k3f9a1").code == 0

    def test_reindex_reports_what_it_could_not_read(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        done = rawko("reindex")
        assert done.code == 1
        assert "Indexed 4 tasks. Files with problems: 2." in done.out
        assert "dam001" in done.err

    def test_stats_and_doctor(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        assert json.loads(rawko("stats", "--json").out)["tasks"] == 4
        assert "4 tasks" in rawko("stats").out
        assert not re.search(r"\b0\.0s", rawko("stats").out)  # no time was recorded: that is unknown, not nothing
        done = rawko("doctor")
        assert done.code == 1
        assert "dam001: 1 damaged record" in done.out
        assert "k3f9a1: the end of its file is unfinished" in done.out
        (filled / ".rawko/state/tasks/stray.txt").write_text("x")
        (filled / ".rawko/state").chmod(0o777)
        done = rawko("doctor")
        assert done.code == 1
        assert f"  chmod o-w {filled}/.rawko/state   Permissions\n" in done.out
        assert "chmod o-w" in rawko("history").err
        (filled / ".rawko/state").chmod(0o770)
        done = rawko("doctor")
        assert done.code == 1
        assert "stray.txt" in done.out
        assert "chmod go-w" in done.out

    def test_init(self, rawko, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        assert ".rawko/state/" in rawko("init").out
        assert not (tmp_path / ".gitignore").exists()
        assert "is already a project. Nothing was changed." in rawko("init").out
        rawko("init", "--gitignore")
        rawko("init", "--gitignore")
        assert (tmp_path / ".gitignore").read_text() == GITIGNORE
        assert (tmp_path / ".rawko" / "config.yaml").exists()

    def test_kv(self, rawko) -> None:  # type: ignore[no-untyped-def]
        assert rawko("kv", "get", "user", "theme").code == 1
        assert rawko("kv", "set", "user", "theme", "dark").code == 0
        assert rawko("kv", "get", "user", "theme").out == "dark\n"
        assert rawko("kv", "list").out == "user\ttheme\tdark\n"
        assert rawko("kv", "delete", "user", "theme").code == 0
        assert rawko("kv", "list").out == ""

    def test_completion_offers_ids_with_their_requests(self, rawko, filled: Path) -> None:  # type: ignore[no-untyped-def]
        for shell in ("bash", "zsh", "fish"):
            assert "_RAWKO_COMPLETE" in rawko("completion", shell).out
        words = {"COMP_WORDS": "rawko history show ab", "COMP_CWORD": "ab", "_RAWKO_COMPLETE": "fish_complete"}
        out = rawko(env=words).out
        assert "abc123" in out
        assert "Fix the login bug" in out

    def test_the_demo(self, rawko, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
        done = rawko("demo")
        assert done.code == 0
        assert "Killed process" in done.out
        assert "marked as interrupted" in done.out
        assert "every seal matches" in done.out
        assert re.search(r"completed  SSO login\n +result: .*clock skew", done.out)
        assert "write auth/sso.rs" in done.out


class TestTheHouse:
    def test_the_gitignore_template_is_what_init_offers(self) -> None:
        assert (ROOT / "docs").exists()
        template = ROOT / ".gitignore.template"
        if template.exists():  # not in the wheel's copy of the tests
            assert template.read_text() == GITIGNORE

    def test_every_command_has_help_and_is_documented(self) -> None:
        documented = (ROOT / "docs" / "reference" / "commands.md").read_text()
        runner = CliRunner()
        for name in COMMANDS:
            done = runner.invoke(cli, [name, "--help"])
            assert done.exit_code == 0, name
            assert len(done.output) > 100
            assert f"\n## rawko {name}\n" in documented

    def test_help_fits_a_terminal_of_80_columns(self) -> None:
        def pages(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
            yield context.command_path, command.get_help(context)
            for name in command.list_commands(context) if isinstance(command, click.Group) else ():
                inner = command.get_command(context, name)
                assert inner is not None
                yield from pages(inner, click.Context(inner, info_name=name, parent=context))

        for path, text in pages(cli, click.Context(cli, info_name="rawko", terminal_width=80)):
            options = text.partition("Options:")[2]
            assert [line for line in text.splitlines() if len(line) > 80] == [], path
            assert not re.search(r"^  \[?[A-Z]+\]?(\.\.\.)?$", options, re.MULTILINE), path
            assert "<=x" not in text, path

    @pytest.mark.parametrize(
        ("code", "unwanted"),
        [
            ("import rawko_state", ("peewee", "click", "yaml", "rawko_state.backends")),
            (
                "from rawko_state.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
                ("peewee", "sqlite3", "yaml"),
            ),
            (
                "from rawko_state.cli import main\ntry: main(['-C', '.', 'history'])\nexcept SystemExit: pass",
                (
                    "psycopg",
                    "whoosh",
                    "starlette",
                    "uvicorn",
                    "ssl",
                    "asyncio",
                    "rawko_state.server",
                ),
            ),
        ],
    )
    def test_what_is_imported_at_start_up(self, code: str, unwanted: tuple[str, ...], tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        loaded = done.stderr.split()
        assert "rawko_state" in loaded
        assert not [name for name in loaded if name.startswith(unwanted)]

    def test_the_public_names_are_there(self) -> None:
        import rawko_state

        for name in rawko_state.__all__:
            assert getattr(rawko_state, name) is not None
        with pytest.raises(AttributeError):
            _ = rawko_state.nothing
