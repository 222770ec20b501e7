"""What is said of sessions that real agents wrote: how they ended, and what they did to files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.model.entries import Note, ToolCall, Turn, own_diffs
from rawko_state.store import TaskFilter
from tests.exchange.sessions import bring, turns
from tests.support.processes import ROOT

REAL = ROOT / "fixtures" / "real"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(REAL, root / "real")
    store = FileStore(root)
    for source in ("claude-code", "codex", "aider"):
        report = bring(store, source, root / "real" / source, belonging=Belonging((str(store.root),), everywhere=True))
        assert not report.wrong
        assert not report.unknown, source
    return store


class TestHowItEnded:
    def test_an_answer_is_a_success_and_nothing_else_is(self, imported: FileStore) -> None:
        found = {
            (task.request or "")[:20]: task.status
            for task in imported.history(TaskFilter())
            if "aider" not in task.agents
        }
        assert found == {
            "FIXBUG in calc.py, p": "completed",
            "FIXBUG in calc.py: a": "completed",
            "FIXBUG in calc.py wi": "completed",
            "FIXBUG: add is still": "completed",
            "FAILREAD in a fork": "completed",
            "SUBAGENT: let a sub-": "completed",
            "SUBREAD please count": "completed",
            "FIXBUG in calc.py pl": "interrupted",  # killed while the model answered its last prompt
            "APIERR please": "failed",
            "HANG please": "interrupted",  # a prompt that nobody answered
            "SLOW live kill": "interrupted",  # killed inside a tool
            "FAILCMD please": "completed",
            "EDITMISS please": "completed",
            "TWOEDITS please": "completed",
            "HANG": "interrupted",
            "SLOW two": "cancelled",  # by the user
            "(a session without a": "unknown",  # of aider, without a prompt
        }

    def test_a_failure_says_why_in_its_own_words(self, imported: FileStore) -> None:
        claude = imported.runs(task_id("claude-code", "6f45989e-5d5d-4eb2-a191-fe8b3a3095f6"))[-1]
        assert (claude.status, claude.error) == ("failed", "API Error: 400 scripted error")
        codex = imported.runs(task_id("codex", "01a1e765-7470-7442-ba9b-ba5b9548f7da"))[-1]
        assert (codex.status, codex.error) == ("failed", "scripted error")
        aider = [task for task in imported.history(TaskFilter(status=("failed",))) if task.request == "APIERR please"]
        errors = {imported.runs(task.id)[-1].error for task in aider}
        assert "litellm.BadRequestError: OpenAIException - scripted error" in errors

    def test_what_does_not_say_is_unknown(self, imported: FileStore) -> None:
        (empty,) = imported.history(TaskFilter(status=("unknown",)))
        assert empty.turns == 0

    def test_a_turn_that_was_cut_off_is_interrupted(self, imported: FileStore) -> None:
        task = task_id("claude-code", "8b1f3bdf-ae9c-4098-a343-035ebc4d90e2")
        assert imported.turn(task, 1).status == "interrupted"
        assert imported.status(task) == "interrupted"


class TestFiles:
    def test_what_was_refused_or_failed_is_not_touched(self, imported: FileStore) -> None:
        task = task_id("claude-code", "b896e1ad-1d29-453c-9be0-59ceb5462d6d")
        assert [(operation, Path(path).name) for _, operation, path in imported.files(task)] == [
            ("read", "calc.py"),
            ("write", "notes.md"),
        ]
        edit = imported.turn(task, 2)
        assert [call.result for call in edit.tools if not isinstance(call, str)] == ["error"]

    def test_codex_in_code_mode_reads_and_writes(self, imported: FileStore) -> None:
        task = task_id("codex", "01a1e781-0978-7a93-9ce8-16e55552b409")
        assert [(operation, Path(path).name) for _, operation, path in imported.files(task)] == [
            ("read", "calc.py"),
            ("write", "calc.py"),
        ]

    def test_a_failed_command_is_an_error(self, imported: FileStore) -> None:
        task = task_id("codex", "01a1e765-5965-7181-bd18-96292fd2ab13")
        (call,) = imported.turn(task, 1).tools
        assert not isinstance(call, str)
        assert call.result == "error"


class TestForks:
    def test_a_forked_session_is_a_child_with_only_its_own_turns(self, imported: FileStore) -> None:
        parent = task_id("claude-code", "7ae06a6b-4b6b-4af9-a00f-1efa19404b31")
        child = task_id("claude-code", "248452df-6bb3-4331-9b28-6bd1926d2b1e")
        summary = imported.summary(child)
        assert (summary.parent, summary.request) == (f"{parent}@4", "FAILREAD in a fork")
        assert [row.turn for row in imported.turn_rows(child)[0]] == [5, 6]
        assert imported.children(parent) == [(child, 4, "FAILREAD in a fork")]

    def test_a_fork_that_grows_adds_only_what_is_new(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        source = REAL / "claude-code/248452df-6bb3-4331-9b28-6bd1926d2b1e.jsonl"
        lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
        folder = tmp_path / "sessions"
        folder.mkdir()
        shutil.copy(REAL / "claude-code/7ae06a6b-4b6b-4af9-a00f-1efa19404b31.jsonl", folder)
        everywhere = Belonging((str(store.root),), everywhere=True)
        (folder / source.name).write_text("".join(lines[:18]), encoding="utf-8")
        bring(store, "claude-code", folder, belonging=everywhere)
        (folder / source.name).write_text("".join(lines), encoding="utf-8")
        report = bring(store, "claude-code", folder, belonging=everywhere)
        (child,) = report.grown
        assert store.summary(child).turns == 6
        assert len(store.history(TaskFilter())) == 2

    def test_a_sub_agent_is_a_child_that_names_the_call(self, imported: FileStore) -> None:
        child = task_id("claude-code", "894b5f6a-bfc3-4fcf-be6b-5927039f1665/agent-a7e6d2d0f7764d8c4")
        summary = imported.summary(child)
        assert summary.parent == task_id("claude-code", "894b5f6a-bfc3-4fcf-be6b-5927039f1665")
        assert (summary.title, summary.agents) == ("Count the functions", ("general-purpose",))
        header = next(entry for _, entry in imported.entries(child))
        assert ("X-Parent-Call", "toolu_fake0000151") in [(field.name, field.value) for field in header.extra]


class TestWhatWasChanged:
    @pytest.mark.parametrize(
        ("source", "key", "path"),
        [
            ("claude-code", "7ae06a6b-4b6b-4af9-a00f-1efa19404b31", "/home/ann/src/cc/calc.py"),
            ("codex", "01a1e765-3f90-7732-859d-934f09e72a5f", "/home/ann/src/cx/calc.py"),
            ("codex", "01a1e781-0978-7a93-9ce8-16e55552b409", "/home/ann/src/cx6/calc.py"),
        ],
    )
    def test_an_edit_is_a_diff_of_the_call_that_made_it(
        self, imported: FileStore, source: str, key: str, path: str
    ) -> None:
        task = task_id(source, key)
        found = [turn for _, turn in imported.entries(task) if isinstance(turn, Turn) and turn.diffs]
        first = found[0]
        assert (first.diffs[0].path, first.diffs[0].added, first.diffs[0].removed) == (path, 1, 1)
        assert "+    return a + b  # add" in first.diffs[0].hunks.split("\n")
        assert any(isinstance(call, ToolCall) and own_diffs(call, first.diffs) for call in first.tools)
        assert task in {hit.task.id for hit in imported.search('added:"return a + b"').hits}

    def test_aider_edits_count_once_they_are_applied(self, imported: FileStore) -> None:
        hits = imported.search('added:"Zebrafinch marker line" agent:aider').hits
        assert {hit.task.request for hit in hits} == {"WRITEDOC please", "WRITEDOC again"}
        assert not imported.search("added:quokka agent:aider").hits

    def test_a_failed_edit_has_no_diff(self, imported: FileStore) -> None:
        task = task_id("claude-code", "b896e1ad-1d29-453c-9be0-59ceb5462d6d")
        for _, entry in imported.entries(task):
            for call in entry.tools if isinstance(entry, Turn) else ():
                if isinstance(call, ToolCall) and call.tool == "Edit":
                    assert call.result == "error"
                    assert "diff" not in call.more

    def test_compaction_is_a_note(self, imported: FileStore) -> None:
        task = task_id("claude-code", "90b0d115-4b4d-4870-a574-fafd05e01ba9")
        notes = [entry for _, entry in imported.entries(task) if isinstance(entry, Note) and entry.kind == "compacted"]
        assert [note.content for note in notes] == ["The conversation was compacted by /compact from 2,250 tokens."]

    def test_tokens_are_comparable(self, imported: FileStore) -> None:
        codex = imported.turn(task_id("codex", "01a1e781-0978-7a93-9ce8-16e55552b409"), 1)
        assert codex.tokens == {"in": 403, "out": 33, "cache_read": 600, "cache_write": 0, "reasoning": 7}
        claude = imported.turn(task_id("claude-code", "7ae06a6b-4b6b-4af9-a00f-1efa19404b31"), 1)
        assert claude.tokens == {"in": 101, "out": 21, "cache_read": 2000, "cache_write": 50}

    def test_aider_says_when_and_what_it_cost(self, imported: FileStore) -> None:
        (task,) = imported.search('"FIXBUG in calc.py please" agent:aider').hits
        turn = imported.turn(task.task.id, 1)
        assert (str(turn.cost and turn.cost.amount), dict(turn.tokens)) == ("0.0069", {"in": 2600, "out": 44})

    def test_the_models_own_headings_and_quotes_are_its_answer(self, imported: FileStore) -> None:
        (hit,) = imported.search('"PARALLEL please" agent:aider').hits
        assert hit.task.turns == 1
        answer = imported.turn(hit.task.id, 1).content or ""
        assert "#### A level-4 heading in my answer" in answer
        assert "> a quote in my answer" in answer


class TestCodexEdits:
    """Sessions of Codex 0.166.0 in which an edit or a command fails, with its patch tool and in code mode."""

    @staticmethod
    def brought(tmp_path: Path, session: str) -> list[Turn]:
        store = FileStore(tmp_path)
        (path,) = (REAL / "codex").glob(f"*{session}.jsonl")
        (task,) = bring(store, "codex", path, belonging=Belonging((str(tmp_path),), everywhere=True)).new
        return turns(store, task)

    def test_a_patch_that_does_not_apply_touches_nothing(self, tmp_path: Path) -> None:
        found = self.brought(tmp_path, "01a1ee8c-a313-74d2-a28e-9d59a8729408")
        (call,) = found[1].tools
        assert isinstance(call, ToolCall)
        assert (call.tool, call.args, call.result) == ("apply_patch", "calc.py", "error")
        assert (found[1].files, found[1].diffs) == ((), ())

    def test_each_script_has_its_own_diff(self, tmp_path: Path) -> None:
        found = self.brought(tmp_path, "01a1ee8d-15a6-7611-b992-d33185e765fe")
        assert [call.more["diff"] for call in found[1].tools if isinstance(call, ToolCall)] == [1, 2]

    def test_a_command_that_fails_inside_a_script_is_a_failed_call(self, tmp_path: Path) -> None:
        found = self.brought(tmp_path, "01a1ee8d-1b79-7783-8352-63b4b22c0811")
        assert [call.result for call in found[0].tools if isinstance(call, ToolCall)] == ["error"]

    def test_a_fork_that_names_its_base_continues_at_the_right_turn(self, tmp_path: Path) -> None:
        """As Codex 0.166.0 writes it: nothing is copied; the first record says where in which session the fork was made."""

        def said(role: str, text: str) -> str:
            kind = "input_text" if role == "user" else "output_text"
            message = {"type": "message", "role": role, "id": f"m-{text}", "content": [{"type": kind, "text": text}]}
            return json.dumps({"type": "response_item", "payload": message}) + "\n"

        def write(name: str, base: tuple[str, int] | None, *texts: str) -> int:
            about = {"thread_id": base[0], "end_byte_offset": base[1]} if base else None
            meta = {
                "id": name,
                "cwd": str(tmp_path),
                **({"forked_from_id": base[0], "history_base": about} if base else {}),
            }
            lines = [json.dumps({"type": "session_meta", "payload": meta}) + "\n"]
            lines += [said("user" if number % 2 == 0 else "assistant", text) for number, text in enumerate(texts)]
            (tmp_path / f"rollout-2026-11-18T12-00-00-{name}.jsonl").write_text("".join(lines))
            return len("".join(lines[:3]))

        ids = [f"01a1ee8c-a8a6-73b0-a1a1-00000000000{number}" for number in range(4)]
        place = write(ids[0], None, "one", "done one", "two", "done two")
        place = write(ids[1], (ids[0], place), "other", "done other", "more", "done more")
        write(ids[2], (ids[1], place), "last", "done last")
        write(ids[3], ("01a1ee8c-a8a6-73b0-a1a1-000000000009", 5), "orphan", "done")
        store = FileStore(tmp_path)
        bring(store, "codex", *sorted(tmp_path.glob("rollout-*")))
        tasks = [task_id("codex", each) for each in ids]
        parents = [store.summary(task).parent for task in tasks]
        gone = task_id("codex", "01a1ee8c-a8a6-73b0-a1a1-000000000009")
        assert parents == [None, f"{tasks[0]}@1", f"{tasks[1]}@2", gone]
        assert [turn.content for turn in turns(store, tasks[2])] == ["done last"]


def test_a_turn_does_not_last_until_the_next_prompt(imported: FileStore) -> None:
    """Claude Code notes the next prompt before it is asked, in a record that belongs to no turn; Codex notes that it begins."""
    spent = {
        task.id: max((turn.duration_ms or 0 for turn in turns(imported, task.id)), default=0)
        for task in imported.history(TaskFilter())
    }
    assert max(spent.values()) < 30_000, spent


def test_an_error_before_the_agent_went_on_is_a_note(store: FileStore, tmp_path: Path) -> None:
    def item(role: str, text: str) -> dict[str, object]:
        return {"type": "response_item", "payload": {"type": "message", "role": role, "content": [{"text": text}]}}

    def event(**payload: object) -> dict[str, object]:
        return {"type": "event_msg", "payload": payload}

    path = tmp_path / "rollout-2026-11-19T01-00-00-7ae06a6b-4b6b-4af9-a00f-1efa19404b31.jsonl"
    records = [
        item("user", "fix it"),
        item("assistant", "I look."),
        event(type="task_complete", error={"message": "out of tokens"}),
        item("user", "again"),
        item("assistant", "Done."),
        event(type="task_complete"),
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    bring(store, "codex", path, belonging=Belonging((str(store.root),), everywhere=True))
    (task,) = store.history(TaskFilter())
    notes = [entry.content for _, entry in store.entries(task.id) if isinstance(entry, Note) and entry.kind == "error"]
    assert (task.status, notes) == ("completed", ["out of tokens"])
