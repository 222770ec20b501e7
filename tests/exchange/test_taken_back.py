"""What was popped from a session of OpenAI's SDK is in no read and in no export, and each export can be imported and used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawko_state as rawko
from rawko_state.exchange.exporting import EXACT, exported, redacted_object
from rawko_state.exchange.json_form import records_bytes
from rawko_state.format.json_form import plain
from rawko_state.format.taken_back import KIND, WITHHELD
from rawko_state.store.contract import Store
from tests.support.serving import served


def kept(store: Store) -> str:
    """A task with items, of which the third, the second and a later one were popped."""
    task = store.open_task("openai-agents:s", "Where do yaks live?", exact=True)
    for data in (
        {"add": ["yak", "zebra 1"]},
        {"add": ["zebra 2"]},
        {"pop": 1},
        {"pop": 1},
        {"add": ["zebra 3"]},
        {"pop": 1},
        {"add": ["gnu"]},
    ):
        task.note(kind=KIND, data=data)
    task.note(kind="other-data", data={"add": ["ibex"]})
    task.note(kind="other-data", data={"pop": 1})
    task.close()
    return task.id


@pytest.fixture(params=["files", "memory", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield rawko.open(":memory:")
        return
    (tmp_path / ".rawko").mkdir()
    if request.param == "files":
        yield rawko.open(tmp_path)
        return
    with served(tmp_path) as server, rawko.open(remote=server.url) as remote:
        yield remote


def test_no_read_and_no_export_has_what_was_popped(store: Store, tmp_path: Path) -> None:
    task_id = kept(store)
    left = [["yak", WITHHELD], [WITHHELD], [WITHHELD], ["gnu"]]
    found = {
        "entries": [entry for _, entry in store.entries(task_id)],
        "records": [entry for record in store.records(task_id) for entry in record.entries],
        "notes": list(store.notes(task_id)),
        "kind": list(store.notes(task_id, KIND)),
        "last": list(store.notes(task_id, KIND, last=3)),
    }
    for name, entries in found.items():
        text = json.dumps([plain(entry) for entry in entries])
        assert "zebra" not in text, name
        assert "gnu" in text, name
    assert [note.data["add"] for note in found["kind"] if "add" in note.data] == left
    assert [note.data for note in store.notes(task_id, "other-data")] == [{"add": ["ibex"]}, {"pop": 1}]
    last = store.last_note(task_id, KIND)
    assert last is not None
    assert last.data == {"add": ["gnu"]}
    assert "zebra" not in json.dumps(redacted_object(store, task_id))
    assert "zebra" not in str(list(store.events(task_id)))

    data = {form: b"".join(exported(store, task_id, form)) for form in EXACT}
    assert all(b"zebra" not in each and b"popped, and are not in this export: 3" in each for each in data.values())
    assert records_bytes(json.loads(data["json"])) == records_bytes(json.loads(data["jsonl"])) == data["task"]

    other = rawko.open(":memory:")
    other.add_file(store.find(task_id).filename, data["task"])
    assert [verdict for verdict in other.verify() if verdict.faults or verdict.warnings] == []
    assert [note.data["add"] for note in other.notes(task_id, KIND) if "add" in note.data] == left
    assert {form: b"".join(exported(other, task_id, form)) for form in EXACT} == data


def test_a_task_from_which_nothing_was_popped_is_exported_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    store = rawko.open(tmp_path)
    task = store.open_task("openai-agents:s", "Where do yaks live?", exact=True)
    task.note(kind=KIND, data={"add": ["yak"]})
    task.close()
    with store.reader(task.id) as reader:
        whole = reader.fetch(0, reader.size)
    assert b"".join(exported(store, task.id, "task")) == whole
    assert records_bytes(json.loads(b"".join(exported(store, task.id, "json")))) == whole


def test_an_export_with_an_append_that_did_not_finish_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    task_id = kept(rawko.open(tmp_path))
    (path,) = tmp_path.glob(".rawko/state/tasks/*.task")
    with open(path, "ab") as file:
        file.write(b"=== NOTE ===\nKind: " + KIND.encode() + b'\n\n[Data]\n{"add": ["emu')
    data = b"".join(exported(rawko.open(tmp_path), task_id, "task"))
    assert b"zebra" not in data
    assert data.endswith(b'["emu')
    other = rawko.open(":memory:")
    other.add_file(path.name, data)
    assert [verdict.faults for verdict in other.verify()] == [v.faults for v in rawko.open(tmp_path).verify()]
    other.attach(task_id).note(kind=KIND, data={"add": ["eland"]})
    assert [note.data for note in other.notes(task_id, KIND)][-2:] == [{"add": ["gnu"]}, {"add": ["eland"]}]
