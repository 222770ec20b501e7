"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import task_id
from rawko_state.exchange.sources import claude_code, codex
from tests.exchange.sessions import agrees, bring, payload, turns
from tests.support.faults import quiet


class TestBroken:
    def test_odd_files_are_told_of_and_the_rest_goes_on(self, store: FileStore, sessions: Path, project: Path) -> None:
        folder = sessions / "claude-code"
        good = (folder / "session-2.0.jsonl").read_text(encoding="utf-8")
        (folder / "empty.jsonl").write_bytes(b"")
        (folder / "folder.jsonl").mkdir()
        (folder / "junk.jsonl").write_bytes(b"\x00\xff\xfe junk\n" * 3)
        (folder / "latin.jsonl").write_bytes(
            good.replace("Fix the login", "Fix the lögin").encode("latin-1", "replace")
        )
        cycle = good.replace('"parentUuid":null', '"parentUuid":"u11"')
        (folder / "cycle.jsonl").write_text(cycle, encoding="utf-8")
        report = bring(store, "claude-code", folder)
        assert report.empty == [folder / "empty.jsonl"]
        assert [(each.path, each.text.split(",")[0]) for each in report.wrong] == [
            (folder / "folder.jsonl", "Expected a session file")
        ]
        assert len(report.new) == 5
        assert payload(store, task_id("claude-code", "cycle")) + "\n" == cycle
        latin = payload(store, task_id("claude-code", "latin")) + "\n"
        assert latin.encode("utf-8", "surrogateescape") == (folder / "latin.jsonl").read_bytes()
        agrees(store)

    def test_a_line_that_is_too_long_is_left_out(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.exchange import transcript as neutral

        monkeypatch.setattr(neutral, "LONGEST_LINE", 5000)
        path = sessions / "claude-code/session-1.0.jsonl"
        path.write_text(
            path.read_text()
            + json.dumps({"type": "user", "x": "y" * 20_000})
            + "\n"
            + '{"type":"user","message":{"role":"user","content":"after"}}\n'
        )
        report = bring(store, "claude-code", path)
        assert "skipped a line" in report.wrong[0].text
        assert [turn.content for turn in turns(store, report.new[0])][-1] == "after"

    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["type", "text", "content", "id", "name", "input", "usage", "model", "role"]),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=8,
    )

    @given(
        st.sampled_from(["user", "assistant", "system", "summary", "custom-title", "x"]),
        st.dictionaries(
            st.sampled_from(
                [
                    "message",
                    "timestamp",
                    "cwd",
                    "sessionId",
                    "uuid",
                    "requestId",
                    "subtype",
                    "isSidechain",
                    "agentId",
                    "customTitle",
                    "version",
                ]
            ),
            values,
        ),
    )
    def test_whatever_a_record_of_claude_code_holds(self, kind: str, record: dict[str, object]) -> None:
        line = json.dumps({"type": kind, **record})
        assert claude_code.step_of(line).raw == line

    @given(
        st.sampled_from(
            ["session_meta", "turn_context", "response_item", "event_msg", "item.completed", "turn.completed"]
        ),
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "call_id",
                    "name",
                    "arguments",
                    "input",
                    "output",
                    "info",
                    "changes",
                    "git",
                    "id",
                    "cwd",
                    "action",
                    "summary",
                    "model",
                ]
            ),
            st.one_of(
                values,
                st.sampled_from(
                    ["message", "function_call", "custom_tool_call", "patch_apply_end", "token_count", "reasoning"]
                ),
            ),
        ),
    )
    def test_whatever_a_record_of_codex_holds(self, kind: str, inner: dict[str, object]) -> None:
        line = json.dumps({"type": kind, "timestamp": 3, "payload": inner, "item": inner})
        assert codex.Reader().step_of(line).raw == line

    def test_a_patch_of_codex_whose_call_is_no_name(self) -> None:
        line = json.dumps({"type": "event_msg", "payload": {"type": "patch_apply_end", "call_id": [], "changes": {}}})
        assert codex.Reader().step_of(line).raw == line

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), values), min_size=1, max_size=5))
    def test_odd_sessions_come_in_whole(self, tmp_path: Path, records: list[tuple[str, object]]) -> None:
        folder = tmp_path / hashlib.sha256(repr(records).encode()).hexdigest()[:10]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lines = [
            json.dumps(
                {
                    "type": kind,
                    "cwd": str(folder),
                    "message": {"id": str(n), "content": value, "model": value, "usage": value},
                }
            )
            for n, (kind, value) in enumerate(records)
        ]
        (folder / "odd.jsonl").write_text("\n".join(lines) + "\n")
        store = quiet(folder)
        report = bring(store, "claude-code", folder / "odd.jsonl")
        assert report.wrong == []
        assert payload(store, report.new[0]) == "\n".join(lines)
        agrees(store)
        store.close()
