"""Each session is recorded once, whatever the ways it comes in; and ends as it ended, also when nobody says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.exchange.sources import copilot
from rawko_state.exchange.sources.claude_code import step_of
from rawko_state.integrations.hook_event import note_event, process_stat
from rawko_state.integrations.hooks import LOG, end_abandoned, sweep
from rawko_state.integrations.recording import Recording
from rawko_state.integrations.steps import Steps
from rawko_state.model.entries import Turn, own_diffs
from rawko_state.store import TaskFilter
from tests.exchange.sessions import bring, turns
from tests.support.processes import ROOT, rawko

REAL = ROOT / "fixtures" / "real"
STREAMS = REAL / "streams"
FIXED = "7ae06a6b-4b6b-4af9-a00f-1efa19404b31"
SUB = "894b5f6a-bfc3-4fcf-be6b-5927039f1665"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claude Code's folder, with the sessions of a real one."""
    folder = tmp_path / "claude"
    shutil.copytree(REAL / "claude-code", folder / "projects" / "x")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    (tmp_path / "p" / ".rawko").mkdir(parents=True)
    return FileStore(tmp_path / "p")


def everything(store: FileStore, path: Path) -> object:
    return bring(store, "claude-code", path, belonging=Belonging((str(store.root),), everywhere=True))


def played(store: FileStore, stream: Path, request: str = "fix it") -> str:
    """Runs a command that prints a recorded stream."""
    code = f"import sys; sys.stdout.write(open({str(stream)!r}, encoding='utf-8').read())"
    rawko(store.root, "run", request, "--", sys.executable, "-c", code)
    return next(task.id for task in store.history(TaskFilter()) if task.request == request)


class TestRunThenImport:
    def test_a_session_that_ran_here_is_not_imported_again(self, store: FileStore, home: Path) -> None:
        lines = (home / "projects/x" / f"{FIXED}.jsonl").read_text(encoding="utf-8").splitlines()
        said = [json.loads(line) for line in lines]
        stream = home / "stream.jsonl"
        kept = [record for record in said if record["type"] in ("user", "assistant")]
        for record in kept:
            record["session_id"] = record.pop("sessionId")
        stream.write_text("".join(json.dumps(record) + "\n" for record in kept[1:]), encoding="utf-8")
        task = played(store, stream)
        assert store.source(task) == f"claude-code:{FIXED}"
        report = everything(store, home / "projects/x" / f"{FIXED}.jsonl")
        assert (report.new, report.grown) == ([], [])  # type: ignore[attr-defined]

    def test_what_it_does_later_is_added_to_the_same_task(self, store: FileStore, home: Path) -> None:
        path = home / "projects/x" / f"{FIXED}.jsonl"
        whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
        stream = home / "stream.jsonl"
        answered = json.loads(whole[5])
        answered["session_id"] = answered.pop("sessionId")
        stream.write_text(json.dumps(answered) + "\n", encoding="utf-8")
        path.write_text("".join(whole[:6]), encoding="utf-8")
        task = played(store, stream)
        path.write_text("".join(whole), encoding="utf-8")
        report = everything(store, path)
        assert (report.new, report.grown) == ([], [task])  # type: ignore[attr-defined]
        assert "Fixed: add()" in (store.turn(task, store.summary(task).turns).content or "")

    def test_a_run_that_was_killed_inside_a_tool_has_the_turn_once(self, store: FileStore, home: Path) -> None:
        """All that is left of the turn is its draft: what was said, and the call that had begun."""
        path = home / "projects/x/8b1f3bdf-ae9c-4098-a343-035ebc4d90e2.jsonl"
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        pid = os.fork()
        if pid == 0:
            task = store.start("slow")
            steps = Steps(store, task, "claude", "claude-code")
            for record in records:
                if record["type"] == "assistant":
                    steps.take(step_of(json.dumps({**record, "session_id": path.stem}), "claude"))
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        assert len(store.reconcile()) == 1  # as every command does
        report = everything(store, path)
        assert report.new == []  # type: ignore[attr-defined]
        (task,) = store.history(TaskFilter())
        found = [entry for _, entry in store.entries(task.id) if isinstance(entry, Turn)]
        assert [(turn.status, turn.content) for turn in found] == [("interrupted", "This takes a while.")]
        assert task.status == "interrupted"

    def test_a_session_that_is_written_while_its_stream_is_silent_is_known_then(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Copilot CLI, in its first tool. Its stream does not tell either what was used."""
        session = "b84eabc9-d47a-49dd-9cad-9691919df887"
        whole = (REAL / f"copilot/session-state/{session}/events.jsonl").read_bytes()
        task = store.start("fix it")
        recording = Recording(store, task, "copilot", terminal=False)
        monkeypatch.setenv("COPILOT_HOME", str(tmp_path / "copilot"))
        recording.take(b"".join((STREAMS / "copilot-fixbug.jsonl").read_bytes().splitlines(keepends=True)[:-1]))
        recording.idle()
        assert store.source(task.id) is None
        path = tmp_path / f"copilot/session-state/{session}/events.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(whole.replace(b'"timestamp":"2026-', b'"timestamp":"9026-'))
        monkeypatch.setattr(copilot, "_PAUSE", 0)
        recording.idle()
        assert store.source(task.id) == f"copilot:{session}"
        recording.finish()
        used = {"in": 3871, "out": 1281, "cache_read": 4200, "cache_write": 0}
        assert recording.steps.whole().tokens == used

    def test_a_stream_that_names_its_session_at_its_end_is_known_by_its_events(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Copilot CLI, killed inside a tool: its stream ends before the line with the session."""
        real = ROOT / "fixtures" / "real"
        whole = (real / "copilot/session-state/b84eabc9-d47a-49dd-9cad-9691919df887/events.jsonl").read_text("utf-8")
        lines = (real / "streams/copilot-fixbug.jsonl").read_text("utf-8").splitlines()
        begun = [at for at, line in enumerate(lines) if json.loads(line)["type"] == "tool.execution_start"][1]
        kept = whole[: whole.index(json.loads(lines[begun])["id"])].rpartition("\n")[0] + "\n"
        path = tmp_path / "copilot/session-state/b84eabc9-d47a-49dd-9cad-9691919df887/events.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(kept, "utf-8")
        monkeypatch.setenv("COPILOT_HOME", str(tmp_path / "copilot"))
        if (pid := os.fork()) == 0:
            recording = Recording(store, store.start("fix it"), "copilot", terminal=False)
            recording.take("".join(f"{line}\n" for line in lines[: begun + 1]).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        (task,) = store.reconcile()
        for _ in range(2):
            report = bring(store, "copilot", path, belonging=Belonging((str(store.root),), everywhere=True))
            assert report.new == []
            assert store.summary(task).status == "interrupted"
            calls = [call.more["id"] for turn in turns(store, task) for call in turn.tools if not isinstance(call, str)]
            assert len(calls) == len(set(calls)) == 2

    def test_a_stream_with_a_sub_agent(self, store: FileStore, home: Path) -> None:
        task = played(store, STREAMS / "claude-subagent.jsonl", "count")
        ((child, turn, request),) = store.children(task)
        assert (turn, request) == (None, "SUBREAD please count the functions in calc.py")
        assert store.summary(child).agents == ("general-purpose",)
        assert store.source(child) == f"claude-code:{SUB}/agent-a7e6d2d0f7764d8c4"
        # This version leaves the last words of a sub-agent out of the stream: they are in its own session.
        said = [turn.content for turn in turns(store, child)]
        assert said == [None, "There are two functions: add and sub (wombat report)."]
        before = len(list(store.entries(child)))
        summary = store.summary(task)
        # As the last line of the stream says, sub-agents included; the lines before only have counts of when a message began.
        assert (summary.tokens_in, summary.tokens_out, summary.cost) == (466, 146, "0.01123")
        everything(store, home / "projects/x" / SUB)
        assert len(store.history(TaskFilter())) == 2
        assert len(list(store.entries(child))) == before

    def test_a_streams_edit_is_a_diff_and_its_error_is_its_own(self, store: FileStore, home: Path) -> None:
        task = played(store, STREAMS / "claude-fixbug.jsonl")
        edited = next(entry for _, entry in store.entries(task) if isinstance(entry, Turn) and entry.diffs)
        assert own_diffs(edited.tools[0], edited.diffs)[0].added == 1  # type: ignore[arg-type]
        failed = played(store, STREAMS / "claude-api-error.jsonl", "fail")
        run = store.runs(failed)[-1]
        assert (run.status, run.error) == ("failed", "API Error: 400 scripted error")

    def test_codex_texts_are_separate_and_what_runs_is_shown(self, store: FileStore, home: Path) -> None:
        task = played(store, STREAMS / "codex-sigint.jsonl", "slow")
        (turn,) = [entry for _, entry in store.entries(task) if isinstance(entry, Turn)]
        assert turn.content == "This takes a while."
        assert turn.tools[0].result == "may have run"  # type: ignore[union-attr]
        task = played(store, STREAMS / "codex-fixbug.jsonl", "fix")
        texts = [entry.content for _, entry in store.entries(task) if isinstance(entry, Turn) and entry.content]
        assert texts == [
            "I will look at calc.py first.",
            "The add function subtracts. Fixing it.",
            "Fixed: add() in calc.py subtracted instead of adding. The check passes now.",
        ]


def event(name: str, session: str, home: Path, store: FileStore) -> dict[str, object]:
    path = home / "projects/x" / f"{session}.jsonl"
    return {"hook_event_name": name, "session_id": session, "transcript_path": str(path), "cwd": str(store.root)}


class TestHooks:
    def test_a_run_and_its_hooks_make_one_task(
        self, store: FileStore, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with store.start("run") as task:
            monkeypatch.setenv("RAWKO_TASK", task.id)
            note_event("claude-code", event("Stop", FIXED, home, store), sweeper=False)
            sweep(store, idle=0.01)
            assert [each.id for each in store.history(TaskFilter())] == [task.id]
            assert store.source(task.id) == f"claude-code:{FIXED}"

    def test_only_the_agents_own_transcripts_are_read(self, store: FileStore, home: Path, tmp_path: Path) -> None:
        secret = tmp_path / "passwd.jsonl"
        shutil.copy(home / "projects/x" / f"{FIXED}.jsonl", secret)
        (home / "projects/x/link.jsonl").symlink_to(secret)
        for path in (secret, home / "projects/x/link.jsonl", Path("/etc/passwd")):
            said = {**event("Stop", FIXED, home, store), "transcript_path": str(path)}
            note_event("claude-code", said, sweeper=False)
        sweep(store, idle=0.01)
        assert not store.history(TaskFilter())
        assert "is not in" in (store.state_folder / "live" / LOG).read_text()

    def test_bookkeeping_after_the_end_opens_nothing(self, store: FileStore, home: Path) -> None:
        path = home / "projects/x" / f"{FIXED}.jsonl"
        whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
        assert json.loads(whole[-1])["type"] == "last-prompt"
        path.write_text("".join(whole[:-1]), encoding="utf-8")
        for name, lines in (("Stop", whole[:-1]), ("SessionEnd", whole)):
            path.write_text("".join(lines), encoding="utf-8")
            note_event("claude-code", event(name, FIXED, home, store), sweeper=False)
            sweep(store, idle=0.01)
        text = store.journal.layout.path(store.find(task_id("claude-code", FIXED))).read_text(encoding="utf-8")
        assert text.count("=== RESULT ===") == 1
        assert "RESUMED" not in text
        assert "last-prompt" in text
        # From the first record to the last, not only since the last event.
        assert store.summary(task_id("claude-code", FIXED)).duration_ms == 3032

    def test_a_session_whose_agent_died_is_interrupted(self, store: FileStore, home: Path) -> None:
        session = "8b1f3bdf-ae9c-4098-a343-035ebc4d90e2"  # killed inside a tool
        note_event("claude-code", event("PreToolUse", session, home, store), sweeper=False)
        sweep(store, idle=0.01)
        task = task_id("claude-code", session)
        assert store.status(task) == "running"
        assert end_abandoned(store) == []  # we are the process that noted it
        watched = store.state_folder / "live" / "hooks.sessions"
        data = json.loads(watched.read_text())
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        data[f"claude-code:{session}"]["process"] = [pid, 1]
        watched.write_text(json.dumps(data))
        done = rawko(store.root, "history")
        assert f"The agent of task {task} ended unexpectedly." in done.stderr
        assert store.status(task) == "interrupted"
        assert not watched.exists()
        assert rawko(store.root, "history").stderr == ""

    def test_an_unanswered_prompt_is_no_success_when_its_session_ends(self, store: FileStore, home: Path) -> None:
        session = "dcec5709-ac2f-4e30-8f87-1d05705ccd5f"  # killed before an answer
        for name in ("UserPromptSubmit", "SessionEnd"):
            note_event("claude-code", event(name, session, home, store), sweeper=False)
            sweep(store, idle=0.01)
        assert store.status(task_id("claude-code", session)) == "interrupted"

    @pytest.mark.parametrize(
        ("agent", "session", "stops"),
        [
            ("claude-code", FIXED, "Stop"),
            ("codex", "01a1e765-3f90-7732-859d-934f09e72a5f", "agent-turn-complete"),
        ],
    )
    def test_an_agent_that_stops_before_it_has_written_all_is_not_interrupted(
        self, store: FileStore, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        agent: str, session: str, stops: str,
    ) -> None:  # fmt: skip
        codex = tmp_path / "codex"
        shutil.copytree(REAL / "codex", codex / "sessions")
        monkeypatch.setenv("CODEX_HOME", str(codex))
        here = codex / "sessions" if agent == "codex" else home / "projects/x"
        (path,) = here.glob(f"*{session}.jsonl")
        whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
        tools = [n for n, line in enumerate(whole) if '"tool_result"' in line or "call_output" in line]
        for name, lines in (
            ("UserPromptSubmit", whole[: tools[0]]),
            *(("PostToolUse", whole[: tool + 1]) for tool in tools),
            (stops, whole[: tools[-1] + 1]),  # what it says in the end is not there yet
            ("SessionEnd", whole),
        ):
            path.write_text("".join(lines), encoding="utf-8")
            said = {"hook_event_name": name, "session_id": session, "cwd": str(store.root)}
            note_event(agent, {**said, "transcript_path": str(path)}, sweeper=False)
            sweep(store, idle=0.01)
            if name == stops:
                assert store.status(task_id(agent, session)) == "running"
        text = store.journal.layout.path(store.find(task_id(agent, session))).read_text(encoding="utf-8")
        assert "Status: interrupted" not in text
        # The same as an import of the whole: nothing of what was used is left out.
        (tmp_path / "other/.rawko").mkdir(parents=True)
        other = FileStore(tmp_path / "other")
        (task,) = bring(other, agent, path, belonging=Belonging((str(other.root),), everywhere=True)).new
        assert store.summary(task_id(agent, session)).tokens_in == other.summary(task).tokens_in

    def test_a_process_is_known_by_when_it_began(self) -> None:
        mine = process_stat(os.getpid())
        assert mine is not None
        assert mine[1] == os.getppid()
        assert process_stat(2**22 + 1) is None


class TestARunThatPrintsText:
    """Agents print text unless they are asked for a stream. Their own session has what they did."""

    AGENT = """#!{python}
import datetime, json, os, sys
now = datetime.datetime.now(datetime.timezone.utc).isoformat()
key = "0000000{which}-0000-4000-8000-000000000000"
folder = os.path.join(os.environ["CLAUDE_CONFIG_DIR"], "projects", "x")
os.makedirs(folder, exist_ok=True)
def record(uuid, kind, content):
    return {{"type": kind, "uuid": uuid, "sessionId": key, "cwd": os.getcwd(), "timestamp": now,
             "message": {{"id": uuid, "role": kind, "content": content}}}}
call = {{"type": "tool_use", "id": "t1", "name": "Bash", "input": {{"command": "ls"}}}}
said = {{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}}
with open(os.path.join(folder, key + ".jsonl"), "w") as stream:
    for each in (record("1", "user", "fix it"), record("2", "assistant", [call]), record("3", "user", [said]),
                 record("4", "assistant", [{{"type": "text", "text": "Done."}}])):
        stream.write(json.dumps(each) + "\\n")
print("Done.")
"""

    def run(self, store: FileStore, folder: Path, which: int) -> str:
        agent = folder / "bin" / "claude"
        agent.parent.mkdir(exist_ok=True)
        agent.write_text(self.AGENT.format(python=sys.executable, which=which), encoding="utf-8")
        agent.chmod(0o755)
        return rawko(store.root, "run", "--", str(agent), "-p", "fix it", cwd=store.root).stdout

    def test_is_recorded_as_its_session_tells_and_only_once(self, store: FileStore, home: Path, tmp_path: Path) -> None:
        assert self.run(store, tmp_path, 1) == "Done.\n"
        (task,) = store.history(TaskFilter())
        assert (task.request, task.status) == ("fix it", "completed")
        told = [(turn.content, [getattr(call, "args", call) for call in turn.tools]) for turn in turns(store, task.id)]
        assert told == [(None, ["ls"]), ("Done.", [])]
        assert everything(store, home / "projects" / "x" / "00000001-0000-4000-8000-000000000000.jsonl").new == []  # type: ignore[attr-defined]

    def test_keeps_what_it_printed_if_the_session_is_known_already(
        self, store: FileStore, home: Path, tmp_path: Path
    ) -> None:
        self.run(store, tmp_path, 2)
        self.run(store, tmp_path, 2)  # the same session: it belongs to the first run
        assert sorted(task.turns for task in store.history(TaskFilter())) == [1, 2]


def test_a_sub_agent_of_codex_is_a_child_though_the_stream_only_says_that_it_started(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = FIXED, SUB
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    folder = tmp_path / "codex" / "sessions" / "2026"
    folder.mkdir(parents=True)
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "count"}]}
    meta = {"id": child, "cwd": str(store.root), "parent_thread_id": parent}
    records = [{"type": "session_meta", "payload": meta}, {"type": "response_item", "payload": asked}]
    path = folder / f"rollout-2026-11-19T01-00-00-{child}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    item = {"id": "i", "type": "collab_tool_call", "tool": "spawn_agent", "prompt": "count", "status": "completed"}
    stream = tmp_path / "stream.jsonl"
    lines = [
        {"type": "thread.started", "thread_id": parent},
        {"type": "item.completed", "item": {**item, "receiver_thread_ids": [child, "not-there"]}},
        {"type": "turn.completed", "usage": {}},
    ]
    stream.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    task = played(store, stream)
    assert [(each, request) for each, _, request in store.children(task)] == [(task_id("codex", child), "count")]


def test_a_file_that_codex_moves_and_its_model_are_told_by_its_own_session(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    folder = tmp_path / "codex" / "sessions" / "2026"
    folder.mkdir(parents=True)
    before, after = (str(store.root / name) for name in ("a.py", "b.py"))
    change = {"type": "update", "unified_diff": "@@ -1 +1 @@\n-x = 1\n+x = 2\n", "move_path": after}
    item = {"type": "FileChange", "id": "c1", "changes": {before: change}, "status": "completed"}
    records = [
        {"type": "session_meta", "payload": {"id": FIXED, "cwd": str(store.root)}},
        {"type": "turn_context", "payload": {"cwd": str(store.root), "model": "gpt-5.5"}},
        {"type": "event_msg", "payload": {"type": "item_completed", "item": item}},
    ]
    path = folder / f"rollout-2026-11-19T01-00-00-{FIXED}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    told = {"id": "i", "type": "file_change", "changes": [{"path": before, "kind": "update"}], "status": "completed"}
    stream = tmp_path / "stream.jsonl"
    lines = [
        {"type": "thread.started", "thread_id": FIXED},
        {"type": "item.completed", "item": told},
        {"type": "turn.completed", "usage": {"input_tokens": 5, "output_tokens": 1}},
    ]
    stream.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (turn,) = turns(store, played(store, stream))
    assert (turn.model, [(diff.old, diff.new) for diff in turn.diffs]) == ("gpt-5.5", [("a.py", "b.py")])
    assert {(file.operation, file.path) for file in turn.files} == {("write", "b.py"), ("delete", "a.py")}


def test_sub_agents_of_copilot_are_not_imported_again(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream names the session last, when the tasks of its sub-agents are there already."""
    monkeypatch.setenv("COPILOT_HOME", str(tmp_path / "copilot"))
    request = {"toolCallId": "t1", "name": "task", "arguments": {"description": "Count", "prompt": "count"}}

    def event(number: int, kind: str, agent: str | None = None, **data: object) -> dict[str, object]:
        by = {} if agent is None else {"agentId": agent}
        return {"type": kind, "id": f"e{number}", "timestamp": f"2026-11-19T10:00:{number:02}.000Z", "data": data, **by}

    events = [
        event(1, "user.message", content="fix it"),
        event(2, "assistant.message", messageId="m1", content="I ask a helper.", toolRequests=[request]),
        event(3, "subagent.started", "a1", toolCallId="t1", agentName="explore"),
        event(4, "user.message", "a1", content="count", source="agent-explore"),
        event(5, "assistant.message", "a1", messageId="m2", content="Two.", toolRequests=[]),
        event(6, "subagent.completed", "a1", toolCallId="t1"),
        event(7, "tool.execution_complete", toolCallId="t1", success=True, result={"content": "Two."}),
        event(8, "assistant.message", messageId="m3", content="There are two.", toolRequests=[]),
    ]
    stream = "".join(json.dumps(each) + "\n" for each in [*events, {"type": "result", "sessionId": FIXED}])
    task = store.start("fix it")
    recording = Recording(store, task, "copilot", terminal=False)
    recording.take(stream.encode())
    recording.finish()
    task.finish("success")
    path = tmp_path / "copilot/session-state" / FIXED / "events.jsonl"
    path.parent.mkdir(parents=True)
    begin = event(0, "session.start", sessionId=FIXED, context={"cwd": str(store.root)})
    lines = (json.dumps(each, separators=(",", ":")) for each in [begin, *events])
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    recording.steps.settle()
    report = bring(store, "copilot", path, belonging=Belonging((str(store.root),), everywhere=True))
    assert (report.new, report.grown) == ([], [])
    assert [request for _, _, request in store.children(task.id)] == ["count"]
