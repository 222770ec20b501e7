"""Broken and odd sessions of six more agents: each is reported, the rest goes on, and nothing is written beside them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, Report
from rawko_state.exchange.sources import gemini, opencode, session_named
from rawko_state.exchange.turns import TurnBuilder
from rawko_state.model.entries import Result
from tests.exchange.sessions import bring, payload, turns
from tests.exchange.test_agents import AGENTS, REAL

PLACES = {
    "gemini": "tmp/gm/chats/session-2026-01-01T00-00-{}.jsonl",
    "qwen": "projects/-x/chats/{}.jsonl",
    "pi": "sessions/--x--/2026_{}.jsonl",
    "copilot": "session-state/{}/events.jsonl",
    "cline": "sessions/{0}/{0}.messages.json",
}
WRONG: list[object] = [None, 1, "x", [], {}, [[]], {"type": []}, {"a": {"b": {}}}, True, -1, 1e300, "\ud800"]


def imported(store: FileStore, agent: str, folder: Path) -> Report:
    return bring(store, agent, folder, belonging=Belonging((str(store.root), "/home/ann/src"), everywhere=True))


def state(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "project")


@pytest.mark.parametrize("agent", AGENTS)
def test_the_source_is_only_read(agent: str, store: FileStore, tmp_path: Path) -> None:
    shutil.copytree(REAL / agent, tmp_path / agent)
    before = state(tmp_path / agent)
    imported(store, agent, tmp_path / agent)
    assert state(tmp_path / agent) == before


@pytest.mark.parametrize("agent", PLACES)
def test_odd_files_do_not_keep_the_others_from_being_imported(agent: str, store: FileStore, tmp_path: Path) -> None:
    folder = tmp_path / agent
    shutil.copytree(REAL / agent, folder)
    count = len(store.by_source(f"{agent}:"))
    imported(store, agent, folder)
    count = len(store.by_source(f"{agent}:"))

    def place(name: str) -> Path:
        path = folder / PLACES[agent].format(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    place("aaaaaaaa").mkdir()
    place("bbbbbbbb").symlink_to(place("bbbbbbbb").name)
    (folder / "loop").symlink_to(folder)
    place("cccccccc").write_bytes(b"")
    place("dddddddd").write_bytes(b"\xff\xfe\x00 no JSON\n[1]\n")
    place("eeeeeeee").write_bytes(b'{"sessionId":"eeeeeeee","type":"user","uuid":')
    place("ffffffff").write_text("[" * 100_000)
    report = imported(store, agent, folder)
    assert any("a folder" in trouble.text for trouble in report.wrong)
    assert len(store.by_source(f"{agent}:")) >= count
    assert report.same >= count


@pytest.mark.parametrize("agent", ["gemini", "qwen", "pi", "copilot"])
def test_values_of_the_wrong_type_anywhere(agent: str, store: FileStore, tmp_path: Path) -> None:
    """Each record of the real sessions, with one value after another replaced by another type."""
    for number, path in enumerate(sorted((REAL / agent).rglob("*.jsonl"))):
        lines = path.read_text(encoding="utf-8").splitlines()
        odd = []
        for at, line in enumerate(lines[:40]):
            record = json.loads(line)
            for name in list(record):
                odd.append(json.dumps({**record, name: WRONG[(at + len(name)) % len(WRONG)]}))
                inner = record[name]
                if isinstance(inner, dict):
                    odd += [
                        json.dumps({**record, name: {**inner, key: WRONG[(at + len(key)) % len(WRONG)]}})
                        for key in inner
                    ]
        target = tmp_path / agent / PLACES[agent].format(f"{number:08}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join([lines[0], *odd, ""]), encoding="utf-8")
    report = imported(store, agent, tmp_path / agent)
    assert not report.wrong
    assert report.new


def test_messages_of_cline_of_the_wrong_type(store: FileStore, tmp_path: Path) -> None:
    key = "1794884981352_lpkp1"
    shutil.copytree(REAL / "cline" / "sessions" / key, tmp_path / "cline" / key)
    path = tmp_path / "cline" / key / f"{key}.messages.json"
    whole = json.loads(path.read_text())
    messages = [{**each, name: wrong} for each in whole["messages"] for name in each for wrong in WRONG[:10]]
    path.write_text(json.dumps({**whole, "messages": [*WRONG, *messages]}))
    (tmp_path / "cline" / key / f"{key}.json").write_text(json.dumps({"cwd": [], "status": {}, "metadata": "x"}))
    report = imported(store, "cline", tmp_path / "cline")
    assert not report.wrong
    assert report.new


def test_a_torn_last_line_is_left_for_next_time(store: FileStore, tmp_path: Path) -> None:
    shutil.copytree(REAL / "pi", tmp_path / "pi")
    (path,) = (tmp_path / "pi").rglob("*_01a1e775-612a*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    report = imported(store, "pi", tmp_path / "pi")
    assert ["skipped for now" in trouble.text for trouble in report.wrong] == [True]
    path.write_bytes(whole)
    assert len(imported(store, "pi", tmp_path / "pi").grown) == 1
    task = store.by_source("pi:")["pi:01a1e775-612a-75d8-9ff8-56dd9a0994d7"]
    assert payload(store, task).encode() == whole.rstrip(b"\n")


class TestDatabase:
    @pytest.fixture
    def database(self, tmp_path: Path) -> Path:
        folder = tmp_path / "opencode"
        shutil.copytree(REAL / "opencode", folder)
        return folder / "opencode.db"

    def test_empty_damaged_and_foreign_databases_are_reported(self, database: Path, store: FileStore) -> None:
        (database.parent / "opencode-empty.db").write_bytes(b"")
        (database.parent / "opencode-text.db").write_bytes(b"no database at all, but some text" * 100)
        (database.parent / "opencode-torn.db").write_bytes(database.read_bytes()[:5000])
        sqlite3.connect(database.parent / "opencode-other.db").execute("CREATE TABLE x (y)").connection.close()
        (database.parent / "opencode-folder.db").mkdir()
        report = imported(store, "opencode", database.parent)
        assert len({trouble.path.name for trouble in report.wrong}) == 5
        assert len(report.new) == 13

    def test_rows_of_the_wrong_type(self, database: Path, store: FileStore) -> None:
        with sqlite3.connect(database) as connection:
            ids = [key for (key,) in connection.execute("SELECT id FROM part ORDER BY id")]
            for number, key in enumerate(ids):
                data: object = json.dumps(WRONG[number % 11]) if number % 3 else (b"\xff\x00", 5, "{", "")[number % 4]
                connection.execute("UPDATE part SET data = ? WHERE id = ?", (data, key))
            connection.execute("UPDATE message SET time_created = 'x' WHERE id = (SELECT max(id) FROM message)")
            connection.execute("UPDATE message SET data = '[]' WHERE id = (SELECT min(id) FROM message)")
        connection.close()
        report = imported(store, "opencode", database.parent)
        assert not report.wrong
        assert len(report.new) == 13

    def test_a_log_that_was_left_behind_is_read_and_stays(self, database: Path, store: FileStore) -> None:
        writer = sqlite3.connect(database)
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE session SET title = 'From the log' WHERE id = 'ses_e189662b0fferdV2RcAcL7WnIj'")
        writer.commit()
        copy = database.parent.parent / "left"
        copy.mkdir()
        for suffix in ("", "-wal"):  # as a program leaves it that was killed
            shutil.copyfile(f"{database}{suffix}", f"{copy / 'opencode.db'}{suffix}")
        before = state(copy)
        imported(store, "opencode", copy)
        assert state(copy) == before
        writer.close()
        task = store.by_source("opencode:")["opencode:ses_e189662b0fferdV2RcAcL7WnIj"]
        assert store.summary(task).title == "From the log"

    def test_a_database_in_use_is_read(self, database: Path, store: FileStore) -> None:
        writer = sqlite3.connect(database)
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE session SET title = 'not yet'")
        before = state(database.parent)
        report = imported(store, "opencode", database.parent)
        assert not report.wrong
        assert len(report.new) == 13
        assert state(database.parent) == before
        writer.rollback()
        writer.close()

    def test_a_log_that_is_written_from_its_beginning_again_is_read_again(self, database: Path) -> None:
        def title() -> object:
            with opencode._opened(database) as opened:
                return opened.execute(
                    "SELECT title FROM session WHERE id = 'ses_e189662b0fferdV2RcAcL7WnIj'"
                ).fetchone()[0]

        log, size = Path(f"{database}-wal"), set[int]()
        writer = sqlite3.connect(database, isolation_level=None)
        writer.execute("PRAGMA journal_mode = WAL")
        for number in range(5):
            writer.execute(f"UPDATE session SET title = '{number}'")
        writer.execute("PRAGMA wal_checkpoint(RESTART)")
        for number in range(3):  # in the place of the five, so the log does not grow, and its header stays
            writer.execute(f"UPDATE session SET title = 'again {number}'")
            size.add(log.stat().st_size)
            os.utime(log, (number, number))  # as if some time had passed
            assert title() == f"again {number}"
        assert len(size) == 1
        writer.close()

    def test_a_locked_database_is_reported_soon(self, database: Path, store: FileStore) -> None:
        writer = sqlite3.connect(database)
        writer.execute("BEGIN EXCLUSIVE")
        report = imported(store, "opencode", database.parent)
        assert [trouble.text for trouble in report.wrong] == ["cannot be read: database is locked"]
        writer.rollback()
        writer.close()
        assert len(imported(store, "opencode", database.parent).new) == 13


def test_a_run_that_was_cut_off_stays_so_if_its_session_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    said = {"timestamp": "2026-11-19T10:00:00Z"}
    asked = {**said, "id": "00000000-0000-4000-8000-000000000001", "type": "user", "content": "slow"}
    answer = {**said, "id": "2", "type": "gemini", "content": "This takes a while."}
    path.write_text("".join(json.dumps(each) + "\n" for each in ({"sessionId": "s"}, asked, answer)))
    session = gemini._session(path)
    for start, expected in ((session.end(), "interrupted"), (0, "unknown")):
        before = {"place": start, "standing": {"spoken": True, "unsure": True}}
        builder = TurnBuilder(session, start, (), [], before=before)
        now = datetime(2026, 11, 19, tzinfo=timezone.utc)
        records = [entry for record in builder.more(now, running=True, interrupted=True) for entry in record]
        assert [entry.status for entry in records if isinstance(entry, Result)] == [expected]


class TestNamed:
    @pytest.mark.parametrize(
        ("agent", "variable", "below", "key"),
        [
            ("opencode", "XDG_DATA_HOME", "opencode", "ses_e189662b0fferdV2RcAcL7WnIj"),
            ("gemini", "GEMINI_CLI_HOME", ".gemini", "cf1e6af3-021e-4820-a4d9-48660f88aa14"),
            ("qwen", "QWEN_HOME", "", "c9557b5b-4b40-48bf-8130-105e96c10650"),
            ("pi", "PI_CODING_AGENT_DIR", "", "01a1e775-612a-75d8-9ff8-56dd9a0994d7"),
            ("copilot", "COPILOT_HOME", "", "b84eabc9-d47a-49dd-9cad-9691919df887"),
            ("cline", "CLINE_DATA_DIR", "", "1794884981352_lpkp1"),
        ],
    )
    def test_a_session_is_found_by_its_id_where_the_agent_was_told_to_keep_it(
        self, agent: str, variable: str, below: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(REAL / agent, tmp_path / below if below else tmp_path, dirs_exist_ok=True)
        monkeypatch.setenv(variable, str(tmp_path))
        session = session_named(agent, key)
        assert session is not None
        assert (session.source, session.key) == (agent, key)
        assert session.end() > 0
        assert session_named(agent, "nosuch") is None


def test_a_pi_edit_has_the_diff_that_it_showed(store: FileStore, tmp_path: Path) -> None:
    call = {"type": "toolCall", "id": "c1", "name": "edit", "arguments": {"path": "/p/a.py", "edits": []}}
    call["arguments"] = {"path": "/p/a.py", "edits": [{"oldText": "old", "newText": "new\nmore"}]}
    shown = "   ...\n  8 before\n- 9 old\n+ 9 new\n+10 more\n 10 after\n   ...\n-20 gone"
    records = [
        {"type": "session", "id": "s", "cwd": "/p"},
        {"type": "message", "id": "1", "message": {"role": "user", "content": "Edit it"}},
        {"type": "message", "id": "2", "message": {"role": "assistant", "content": [call], "stopReason": "toolUse"}},
        {
            "type": "message",
            "id": "3",
            "message": {"role": "toolResult", "toolCallId": "c1", "details": {"diff": shown}},
        },
    ]
    path = tmp_path / "pi" / "2026_s.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    imported(store, "pi", path)
    (turn,) = turns(store, store.by_source("pi:")["pi:s"])
    assert [diff.hunks.split("\n") for diff in turn.diffs] == [
        ["@@ -8,3 +8,4 @@", " before", "-old", "+new", "+more", " after", "@@ -20 +21,0 @@", "-gone"]
    ]


def test_no_folder_at_all_is_no_trouble(store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    for agent in AGENTS:
        report = bring(store, agent, belonging=Belonging((str(store.root),)))
        assert (report.new, report.wrong) == ([], []), agent
    assert not os.path.exists(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("diff", "nothing"),
    [
        ("Index: a.py\n===\n--- a.py\tCurrent\n+++ a.py\tProposed\n", True),
        ("Index: a.py\n===\n--- a.py\tCurrent\n+++ a.py\tProposed\n@@ -1 +1 @@\n-a\n+b\n", False),
        (None, False),
    ],
)
def test_a_diff_without_lines_says_that_the_file_was_written_as_it_was(diff: str | None, nothing: bool) -> None:
    assert gemini.shows_nothing({"fileDiff": diff, "fileName": "a.py"}) is nothing
