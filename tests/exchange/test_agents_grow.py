"""Sessions of six more agents that are imported while they grow: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, Report
from tests.exchange.sessions import bring, payload, told, turns
from tests.exchange.test_agents import REAL, brought

LINES = [
    (agent, path) for agent in ("gemini", "qwen", "pi", "copilot") for path in sorted((REAL / agent).rglob("*.jsonl"))
]


def grown(store: FileStore, agent: str, folder: Path) -> Report:
    return bring(store, agent, folder, belonging=Belonging((str(store.root), "/home/ann/src")))


def facts(store: FileStore, agent: str) -> dict[str, object]:
    """What must be the same, however often it was imported in between: each record once and in order, and what they say."""
    found: dict[str, object] = {}
    for key, task in store.by_source(f"{agent}:").items():
        all_turns = turns(store, task)
        found[key] = (
            store.status(task),
            [line for line in payload(store, task).split("\n") if '"table": "session"' not in line],
            [text for turn in all_turns for text in (turn.thinking, turn.content) if text],
            [
                call.tool
                for turn in all_turns
                for call in turn.tools
                if not isinstance(call, str) and call.result is not None
            ],
            sorted({(touch.operation, touch.path) for turn in all_turns for touch in turn.files}),
            [(diff.new, diff.hunks) for turn in all_turns for diff in turn.diffs],
        )
    return found


def some(places: range, every: bool) -> list[int]:
    """Three of the places, other ones in each run; with --every, all of them."""
    return list(places) if every else sorted(random.sample(list(places), min(3, len(places))))


@pytest.mark.parametrize(
    ("agent", "path"), LINES, ids=lambda value: value if isinstance(value, str) else value.stem[-8:]
)
def test_a_file_of_lines(agent: str, path: Path, tmp_path: Path, every: bool) -> None:
    folder = tmp_path / agent
    shutil.copytree(REAL / agent, folder)
    for other in folder.rglob("*.jsonl"):
        if other.relative_to(folder) != path.relative_to(REAL / agent):
            other.unlink()
    copy = folder / path.relative_to(REAL / agent)
    lines = path.read_bytes().splitlines(keepends=True)
    whole = FileStore(tmp_path / "whole")
    assert not grown(whole, agent, folder).wrong
    for number in some(range(1, len(lines)), every):
        store = FileStore(tmp_path / f"project{number}")
        for upto in (number, min(number + 2, len(lines)), len(lines)):
            copy.write_bytes(b"".join(lines[:upto]))
            assert not grown(store, agent, folder).wrong
        _agree(facts(store, agent), facts(whole, agent))


def _agree(found: dict[str, object], whole: dict[str, object]) -> None:
    assert found.keys() == whole.keys()
    for key in whole:
        # A prompt that came later is a request of its own, and no turn. Its text is in the records.
        assert _without_prompts(found[key]) == _without_prompts(whole[key])


def _without_prompts(facts_of: object) -> object:
    status, records, texts, *rest = facts_of  # type: ignore[misc]
    return status, records, [text for text in texts if not text.strip('"').startswith(("Now ", "SUBAGENT"))], *rest


class TestOpencode:
    def _earlier(self, target: Path, session: str, keep: int) -> int:
        """The database as it was after some rows of a session."""
        shutil.copyfile(REAL / "opencode" / "opencode.db", target)
        with sqlite3.connect(target) as database:
            rows = database.execute(
                "SELECT time_created, 'message', id FROM message WHERE session_id = ?1 "
                "UNION ALL SELECT time_created, 'part', id FROM part WHERE session_id = ?1 ORDER BY 1, 2, 3",
                (session,),
            ).fetchall()
            for _, table, key in rows[keep:]:
                database.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
        database.close()
        return len(rows)

    @pytest.mark.parametrize("session", ["ses_e188929a5ffeNuSftibN4J5bMG", "ses_e1895621dffev7x1SbG6L0Irex"])
    def test_rows_that_are_added(self, session: str, tmp_path: Path, every: bool) -> None:
        whole = brought(tmp_path / "whole", "opencode")
        folder = tmp_path / "opencode"
        folder.mkdir()
        length = self._earlier(folder / "opencode.db", session, 0)
        for number in some(range(2, length), every):
            store = FileStore(tmp_path / f"project{number}")
            for upto in (number, min(number + 3, length), length):
                self._earlier(folder / "opencode.db", session, upto)
                assert not grown(store, "opencode", folder).wrong
            _agree(facts(store, "opencode"), facts(whole, "opencode"))

    def test_a_call_that_ends_later(self, tmp_path: Path) -> None:
        folder, key = tmp_path / "opencode", "ses_e12a58d76ffe47w3WBHP2FdQyE"
        shutil.copytree(REAL / "opencode", folder)
        store = FileStore(tmp_path / "project")
        grown(store, "opencode", folder)
        task = store.by_source("opencode:")[f"opencode:{key}"]
        assert store.status(task) == "interrupted"
        with sqlite3.connect(folder / "opencode.db") as database:
            ((part, data),) = database.execute(
                "SELECT id, data FROM part WHERE session_id = ? AND data LIKE '%running%'", (key,)
            ).fetchall()
            ended = json.loads(data)
            ended["state"] |= {
                "status": "completed",
                "output": "ended-slow",
                "time": {"start": 1, "end": 1794983520000},
            }
            database.execute(
                "UPDATE part SET data = ?, time_updated = 1794983520000 WHERE id = ?", (json.dumps(ended), part)
            )
        database.close()
        assert grown(store, "opencode", folder).grown == [task]
        *_, last = turns(store, task)
        assert [(call.tool, call.result) for call in last.tools if not isinstance(call, str)] == [("bash", "10 bytes")]
        assert last.content is None  # what had ended before is not told again
        assert grown(store, "opencode", folder).grown == []

    def test_messages_that_were_taken_back_are_reported(self, tmp_path: Path) -> None:
        folder, session = tmp_path / "opencode", "ses_e188929a5ffeNuSftibN4J5bMG"
        shutil.copytree(REAL / "opencode", folder)
        store = FileStore(tmp_path / "project")
        grown(store, "opencode", folder)
        with sqlite3.connect(folder / "opencode.db") as database:
            database.execute("DELETE FROM part WHERE session_id = ? AND time_created > 1794884763000", (session,))
            database.execute("DELETE FROM message WHERE session_id = ? AND time_created > 1794884763000", (session,))
            database.execute(
                "INSERT INTO message VALUES ('msg_2', ?, 1794884900000, 1794884900000, ?)",
                (session, '{"role":"user","time":{"created":1794884900000}}'),
            )
            database.execute(
                "INSERT INTO part VALUES ('prt_2', 'msg_2', ?, 1794884900001, 1794884900001, ?)",
                (session, '{"type":"text","text":"Go another way"}'),
            )
        database.close()
        report = grown(store, "opencode", folder)
        assert [trouble.text for trouble in report.wrong] == [
            "messages from before the last import were removed or changed; what is new is added"
        ]
        task = store.by_source("opencode:")[f"opencode:{session}"]
        assert "Go another way" in payload(store, task)
        assert store.status(task) == "interrupted"


class TestCline:
    def _versions(self, folder: Path, key: str) -> Iterator[None]:
        """The files as they are written, one message after another; the end of the session comes last."""
        messages, about = (REAL / "cline" / "sessions" / key / f"{key}{name}" for name in (".messages.json", ".json"))
        whole, ended = json.loads(messages.read_text()), json.loads(about.read_text())
        (folder / key).mkdir(parents=True)
        for upto in (0, 1, 2, 3, len(whole["messages"])):
            (folder / key / messages.name).write_text(json.dumps({**whole, "messages": whole["messages"][:upto]}))
            (folder / key / about.name).write_text(json.dumps({**ended, "status": "running", "exit_code": None}))
            yield
        (folder / key / about.name).write_text(json.dumps(ended))
        yield

    @pytest.mark.parametrize(
        ("key", "status"), [("1794884981352_lpkp1", "completed"), ("1794983473907_vblyu", "failed")]
    )
    def test_files_that_are_written_anew(self, key: str, status: str, tmp_path: Path) -> None:
        whole = FileStore(tmp_path / "whole")
        grown(whole, "cline", REAL / "cline" / "sessions" / key)
        store = FileStore(tmp_path / "project")
        for _ in self._versions(tmp_path / "sessions", key):
            assert not grown(store, "cline", tmp_path / "sessions").wrong
        (task,) = store.by_source("cline:").values()
        assert store.status(task) == status
        assert store.summary(task).request == whole.summary(task).request
        assert [turn.content for turn in turns(store, task)] == [turn.content for turn in turns(whole, task)]
        assert not grown(store, "cline", tmp_path / "sessions").grown

    def test_messages_that_were_removed_are_reported(self, tmp_path: Path) -> None:
        key = "1794884981352_lpkp1"
        shutil.copytree(REAL / "cline", tmp_path / "cline")
        store = FileStore(tmp_path / "project")
        grown(store, "cline", tmp_path / "cline")
        before = told(store, "cline")
        path = tmp_path / "cline" / "sessions" / key / f"{key}.messages.json"
        whole = json.loads(path.read_text())
        path.write_text(json.dumps({**whole, "messages": whole["messages"][2:]}))
        assert [trouble.text for trouble in grown(store, "cline", tmp_path / "cline").wrong] == [
            "messages from before the last import were removed or changed; what is new is added"
        ]
        assert told(store, "cline") == before
