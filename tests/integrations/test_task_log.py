"""A task as a log of data, and the differences that adapters put into it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import rawko_state as rawko
from rawko_state.backends.files.store import FileStore
from rawko_state.backends.files.sync import Sync
from rawko_state.cli import cli
from rawko_state.index import queries
from rawko_state.index.database import Index
from rawko_state.integrations import task_log
from rawko_state.integrations.patches import difference, patched, to_bytes, to_text
from rawko_state.integrations.task_log import TaskLog, TaskLogs
from tests.support.machine import wait_for

SECRET = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"


class Values:
    def __init__(self) -> None:
        self.found: list[Any] = []

    def take(self, value: Any) -> None:
        self.found.append(value)

    def forget(self) -> None:
        self.found.clear()


def opened(root: Path, name: str = "t") -> tuple[TaskLog, list[Any]]:
    log, values = TaskLogs(rawko.open(root), "test:", "adapter", Values).of(name)
    return log, values.found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".rawko").mkdir()
    return tmp_path


def test_each_value_is_taken_once_and_exactly_whoever_appended_it(root: Path) -> None:
    (one, first), (two, second) = opened(root), opened(root)
    assert not one.catch_up()
    for number in range(4):
        (one, two)[number % 2].append([{"n": number, "secret": SECRET}, [number]])
    assert one.catch_up()
    assert two.catch_up()
    wanted = [value for number in range(4) for value in ({"n": number, "secret": SECRET}, [number])]
    assert first == second == wanted
    assert len(rawko.open(root).history(rawko.TaskFilter())) == 1


def test_what_depends_on_what_was_there_is_made_again_if_somebody_was_faster(root: Path) -> None:
    (one, first), (two, second) = opened(root), opened(root)
    one.append([1])
    made = 0

    def counted() -> list[Any]:
        nonlocal made
        made += 1
        if made == 1:
            two.append(["between"])
        return [len(first)]

    one.append_next(counted)
    assert (made, first) == (2, [1, "between", 2])
    one.append_next(list)
    two.catch_up()
    assert second == first


def test_a_task_that_another_process_deleted_is_forgotten(root: Path) -> None:
    (one, first), (two, second) = opened(root), opened(root)
    one.append(["old"])
    two.catch_up()
    two.delete()
    assert (one.catch_up(), first, second) == (False, [], [])
    one.append(["new"])
    assert two.catch_up()
    assert first == second == ["new"]
    one.close()
    assert one.catch_up()
    assert first == ["new"]


def test_what_is_appended_after_somebody_deleted_the_task_begins_a_new_one(root: Path) -> None:
    (one, first), (two, second) = opened(root), opened(root)
    one.append(["old"])
    two.delete()
    one.append(["new"])
    assert two.catch_up()
    assert first == second == ["new"]
    assert len(rawko.open(root).trash()) == 1


def test_a_task_that_was_rewritten_is_read_again(root: Path) -> None:
    store = rawko.open(root)
    logs = TaskLogs(store, "test:", "adapter", Values)
    log, values = logs.of("t")
    log.append([f"token {SECRET}"])
    log.append(["second"])
    assert store.redact(log_id(store)).changed == 1
    log.append(["third"])
    assert [SECRET in str(value) for value in values.found] == [False] * 3
    assert values.found[1:] == ["second", "third"]
    assert store.redact(log_id(store)).changed == 0
    assert log.catch_up()
    assert len(values.found) == 3


def log_id(store: rawko.Store) -> str:
    return store.by_source("test:")["test:t"]


def test_an_older_task_that_was_restored_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rawko.open(root)
    log, values = TaskLogs(store, "test:", "adapter", Values).of("t")
    log.append(["old"])
    old = log_id(store)
    store.delete(old)
    time.sleep(1.1)  # times of creation are in seconds
    log.append(["new"])
    store.restore(old)
    wait_for(lambda: log.catch_up() and values.found == ["old"])


def test_an_append_that_depends_on_what_was_there_reads_nothing_if_nobody_else_wrote(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_log, "_LOOK_EVERY", 1000)
    store = rawko.open(root)
    log, values = TaskLogs(store, "test:", "adapter", Values).of("t")
    log.append_next(lambda: [0])
    looks: list[str] = []
    for name in ("find_source", "reader"):
        real = getattr(store, name)
        monkeypatch.setattr(store, name, lambda *a, _real=real, _name=name: (looks.append(_name), _real(*a))[1])
    for _ in range(5):
        log.append_next(lambda: [len(values.found)])
    assert (values.found, looks) == ([0, 1, 2, 3, 4, 5], [])


def test_a_value_that_was_damaged_is_left_out(root: Path) -> None:
    log, _ = opened(root)
    log.append(["aaa"])
    log.append([2])
    log.close()
    (path,) = root.glob(".rawko/state/tasks/*.task")
    path.write_bytes(path.read_bytes().replace(b'"aaa"', b'"aa"a'))
    again, values = opened(root)
    assert again.catch_up()
    assert values == [2]


def test_a_query_looks_at_a_log_once_after_each_append(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rawko.open(root)
    logs = TaskLogs(store, "test:", "adapter", Values)
    looks: list[str] = []
    look = Sync._catch_up_marked

    def counted(self: Sync, index: Index, mark: str) -> None:
        looks.append(mark)
        look(self, index, mark)

    monkeypatch.setattr(Sync, "_catch_up_marked", counted)
    for number in range(5):
        logs.of(str(number))[0].append([number])
    looks.clear()
    for appended_to in ([], ["1"], ["2", "3", "2"]):
        store.find_source("test:none")
        looks.clear()
        for name in appended_to:
            logs.of(name)[0].append(["more"])
        store.find_source("test:none")
        assert len(looks) == len(set(appended_to))
    logs.close()


def test_what_is_appended_while_a_query_looks_is_in_the_next_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(root, warn=print)
    log, _ = TaskLogs(store, "test:", "adapter", Values).of("t")
    log.append([1])
    (task_id,) = store.by_source("test:").values()
    log.append([2])
    catch_up = Sync.catch_up

    def interrupted(self: Sync, *given: Any, **named: Any) -> None:
        catch_up(self, *given, **named)
        monkeypatch.setattr(Sync, "catch_up", catch_up)
        log.append([3])

    monkeypatch.setattr(Sync, "catch_up", interrupted)
    assert len(list(queries.note_places(store.sync.fresh(), task_id))) == 2
    assert len(list(queries.note_places(store.sync.fresh(), task_id))) == 3
    log.close()


def test_the_least_used_are_closed_and_go_on_where_they_were(root: Path) -> None:
    logs = TaskLogs(rawko.open(":memory:"), "test:", "adapter", Values)
    first, values = logs.of("0")
    for number in range(80):
        logs.of(str(number))[0].append([number])
    first.append(["again"])
    assert values.found == [0, "again"]
    assert logs.names().keys() == {str(number) for number in range(80)}
    found = logs.read("0")
    assert found is not None
    assert found.found == [0, "again"]


_PIECES = st.lists(
    st.sampled_from([b"abcdefghijklmnop", b"the quick brown fox ", b"\x93\x01", b"0", bytes(30)])
    | st.binary(max_size=40)
)


@given(_PIECES, _PIECES, _PIECES)
def test_a_difference_makes_the_new_of_the_old(before: list[bytes], middle: list[bytes], after: list[bytes]) -> None:
    shared = [b"x" * 200]
    old, new = b"".join([*before, *shared, *middle, *shared]), b"".join([*after, *shared, *before, *shared, *middle])
    for left, right in ((old, new), (new, old), (old, old + new), (b"", new), (old, b""), (old, old)):
        found = difference(left, right)
        if found is not None:
            data = bytearray(left)
            patched(data, found)
            assert bytes(data) == right


def test_a_list_that_grows_costs_what_was_added() -> None:
    def packed(count: int) -> bytes:  # as msgpack does: a header of one, three or five bytes, then the items
        head = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
        return head + b"".join(b"item %06d of the list, with some words in it" % n for n in range(count))

    for count in (3, 15, 16, 200):
        found = difference(packed(count), packed(count + 1))
        assert found is not None
        assert sum(len(text) for _, _, text in found) < 60


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")) | st.just(b"base64:AAAA"))
def test_bytes_as_text_come_back(data: bytes) -> None:
    assert to_bytes(to_text(data)) == data


def test_text_stays_readable() -> None:
    assert to_text(b"\x81\xa4said\xa5hello") == "\x81¤said¥hello"
    assert to_text(bytes(range(256))).startswith("base64:")


def test_what_a_program_keeps_is_counted_not_shown(root: Path) -> None:
    store = rawko.open(root)
    log, _ = TaskLogs(store, "test:", "adapter", Values).of("t")
    log.append([{"add": "zebra"}])
    log.close()
    shown = {
        flag: CliRunner().invoke(cli, ["-C", str(root), "show", log_id(store), flag]) for flag in ("--full", "--iso")
    }
    assert "Note (adapter-data)" in shown["--full"].output
    assert "16 bytes for the program" in shown["--full"].output
    assert "zebra" not in shown["--full"].output
    assert "adapter-data" not in shown["--iso"].output
    store.attach(log_id(store)).note("as a person says it", kind="my-data", data={"a": "wombat"})
    assert "wombat" in CliRunner().invoke(cli, ["-C", str(root), "show", log_id(store), "--full"]).output
