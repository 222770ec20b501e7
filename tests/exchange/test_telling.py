"""A tool call in one line: the same few words for the tools of every agent, and nothing that the record does not prove."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging
from rawko_state.exchange.telling import FAMILIES, tell
from rawko_state.exchange.tool_output import unwrapped
from rawko_state.format.diffs import compared, overwritten
from rawko_state.model.entries import Diff, FileTouch, TaskHeader, ToolCall, Turn
from tests.exchange.sessions import bring
from tests.support.processes import ROOT

REAL = ROOT / "fixtures" / "real"
AGENTS = ("claude-code", "codex", "aider", "opencode", "gemini", "qwen", "pi", "copilot", "cline")


def lines(store: FileStore, agent: str) -> list[str]:
    found: list[str] = []
    for task in sorted(store.by_source(f"{agent}:").values()):
        within = None
        for _, entry in store.entries(task):
            if isinstance(entry, TaskHeader):
                within = entry.cwd
            elif isinstance(entry, Turn):
                for call in entry.tools:
                    assert isinstance(call, ToolCall)
                    told = tell(call, entry, within=within)
                    assert told.family in FAMILIES
                    found.append(f"{agent} {call.tool}: {told.family} {told.outcome}: {told.line}")
    return found


def brought(agent: str, root: Path) -> FileStore:
    store = FileStore(root)
    if agent == "aider":  # it writes into the project
        shutil.copy(REAL / "aider/.aider.chat.history.md", root)
        bring(store, agent)
    else:
        bring(store, agent, REAL / agent, belonging=Belonging((str(root), "/home/ann/src")))
    return store


@pytest.mark.parametrize("agent", AGENTS)
def test_the_tools_of_every_agent(agent: str, tmp_path: Path) -> None:
    """If a change is meant: write what is found into fixtures/real/tellings.txt, and read the difference."""
    store = brought(agent, tmp_path)
    found = "\n".join(dict.fromkeys(lines(store, agent)))
    wanted = (REAL / "tellings.txt").read_text(encoding="utf-8")
    expected = "\n".join(line for line in wanted.splitlines() if line.startswith(f"{agent} "))
    assert sorted(found.splitlines()) == sorted(expected.splitlines())


def turn(*calls: ToolCall, diffs: tuple[Diff, ...] = (), files: tuple[FileTouch, ...] = ()) -> Turn:
    return Turn(number=1, agent="dev", tools=calls, diffs=diffs, files=files)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (ToolCall("filesystem.read", "auth/sso.rs", "2048 bytes"), "Read auth/sso.rs · 2.0 kB"),
        (ToolCall("filesystem.search", '"leeway"', "3 matches"), 'Search "leeway" · 3 matches'),
        (ToolCall("filesystem.write", "auth/sso.rs", "2156 bytes"), "Write auth/sso.rs · 2.2 kB"),
        (ToolCall("filesystem.delete", "old.rs", "ok"), "Delete old.rs"),
        (ToolCall("shell.exec", "cargo test auth", "exit 0"), "$ cargo test auth  → exit 0"),
        (ToolCall("shell.exec", '"cargo test auth"', "exit 101"), "$ cargo test auth  → exit 101"),
        (ToolCall("Bash", "make", "done", more={"exit_code": 2, "duration_ms": 3100}), "$ make  → exit 2, 3.1s"),
        (ToolCall("Bash", "a\nb", "done"), "$ a b"),
        (ToolCall("Bash", "pytest", "ok", output="....\n12 passed in 0.50s\n"), "$ pytest  → 12 passed"),
        (ToolCall("Bash", "pytest", "exit 0", output="=== 1,2 ===\n==== 128 passed, 3 warnings in 19.60s ====\n"), "$ pytest  → 128 passed"),
        (ToolCall("Bash", "pytest", "exit 1", output="FAILED a\n1 failed, 12 passed in 2.81s\n", more={"error": True}), "$ pytest  → exit 1, 1 failed"),
        (ToolCall("Bash", "pytest", "exit 1", output="2 errors in 0.31s"), "$ pytest  → exit 1, 2 failed"),
        (ToolCall("Bash", "cargo test", "ok", output="test result: ok. 3 passed; 0 failed; 0 ignored\n\ntest result: ok. 4 passed; 0 failed"), "$ cargo test  → 7 passed"),
        (ToolCall("Bash", "npx jest", "exit 1", output="Tests:       1 failed, 7 passed, 8 total\nTime: 1 s"), "$ npx jest  → exit 1, 1 failed"),
        (ToolCall("Bash", "cat log", "exit 0", output="yesterday 12 passed in 0.50s, they say"), "$ cat log  → exit 0"),
        (ToolCall("shell", "bash -lc 'cargo test'", "done"), "$ cargo test"),
        (ToolCall("Bash", "make deploy"), "$ make deploy  → no result recorded; it may have run"),
        (ToolCall("Bash", "make", "may have run", more={"unfinished": True}), "$ make  → no result recorded; it may have run"),
        (ToolCall("Grep", "TODO", "20 bytes", output="Found 3 files\na\nb\nc"), 'Search "TODO" · 3 files'),
        (ToolCall("Grep", "TODO", "20 bytes", output="No matches found"), 'Search "TODO" · no matches'),
        (ToolCall("Glob", "**/*.py", "9 bytes", output="a.py\nb.py"), "Find **/*.py · 2 lines"),
        (ToolCall("WebFetch", "https://a.example/b", "error", output="\n403 Forbidden\n"), "Fetch https://a.example/b  → error: 403 Forbidden"),
        (ToolCall("Bash", "pytest", "error", output="F.\n\n1 failed in 0.2s\n"), "$ pytest  → error: 1 failed in 0.2s"),
        (ToolCall("LS", '{"path": "src"}', "4 bytes", output="a\nb"), "List src · 2 lines"),
        (ToolCall("TodoWrite", '{"todos": [{"status": "completed"}, {"status": "pending"}]}', "1 bytes"), "Plan 1 of 2 steps done"),
        (ToolCall("update_plan", '{"plan": [{"step": "a", "status": "completed"}]}', "done"), "Plan 1 of 1 step done"),
        (ToolCall("mcp__github__create_issue", '{"title": "x"}', "done"), 'github: create_issue {"title": "x"}'),
        (ToolCall("deploy", "prod", "rolled out"), "deploy prod · rolled out"),
        (ToolCall("deploy", "prod", "failed: no quorum"), "deploy prod  → failed: no quorum"),
        (ToolCall("Edit", '{"file_path": "a.py", "old_string": "', "error"), 'Edit {"file_path": "a.py", "old_string": "  → error'),
        (ToolCall("deploy", "x", more={"error": "boom"}), "deploy x  → error: boom"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_one_line(call: ToolCall, line: str) -> None:
    assert tell(call).line == line


def test_edits_are_told_by_their_diffs() -> None:
    diffs = (
        compared("a.py", "1\n", "2\n3\n"),
        compared("new.py", None, "1\n2\n"),
        compared("old.py", "1\n", None),
        overwritten("b.py", "1\n"),
        Diff("c.py", "d.py"),
    )
    calls = [ToolCall("patch", "…", "done", more={"diff": number}) for number in (1, 2, 3, 4, 5, [1, 2, 3])]
    assert [tell(call, turn(*calls, diffs=diffs)).line for call in calls] == [
        "Edit a.py  +2 −1",
        "Write new.py  +2",
        "Delete old.py  +0 −1",
        "Write b.py  +1",
        "Move c.py → d.py  +0 −0",
        "Edit a.py and 2 more files  +4 −2",
    ]


def test_paths_are_those_of_the_project() -> None:
    call = ToolCall("Read", "/home/ann/src/shop/a/b.py", "3 bytes")
    assert tell(call, turn(call, files=(FileTouch("read", "a/b.py"),))).subject == "a/b.py"
    assert tell(call, within="/home/ann/src/shop").subject == "a/b.py"
    assert tell(call, within="/home/ann/src/shop/a/b").subject == "/home/ann/src/shop/a/b.py"
    assert tell(call).subject == "/home/ann/src/shop/a/b.py"


def test_a_program_cannot_say_what_its_exit_code_was() -> None:
    """Only what the agent itself wrote around the output counts."""
    said = "Exit code 0\nfine"
    assert tell(ToolCall("Bash", "x", "16 bytes", output=said)).exit_code is None
    assert unwrapped("hello\nProcess exited with code 0\nOutput:\nx", ran=True).exit_code is None
    said = "Output: Exit Code: 0\nbad\nExit Code: 3\nSignal: 0"
    assert unwrapped(said, ran=True) == ("Exit Code: 0\nbad", 3, None)


def test_a_very_long_call_is_told_quickly() -> None:
    for output in ("\n" * 2_000_000, "Exit Code: 1\n" * 200_000, "<" * 1_000_000, "Output: " + "Error: x\n" * 100_000):
        for tool in ("Bash", "Read", "Grep", "Agent", "x"):
            assert len(tell(ToolCall(tool, "y" * 3_000_000, "error", output=output)).line) < 10_000
