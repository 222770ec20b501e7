"""Tests for what programs read: records after a cursor, the last turns, notes by kind, the newest state."""

from __future__ import annotations

from typing import Any

import pytest

from rawko_state.errors import ChainMoved, InvalidValue, TaskNotFound
from rawko_state.model.entries import Entry, Note, Request, TaskHeader, Turn
from rawko_state.store.contract import Store


def _said(text: str, **more: Any) -> Turn:
    return Turn(agent="dev", number=1, content=text, **more)


class ReadConformance:
    """Part of StoreConformance."""

    def test_records_after_a_cursor(self, store: Store, another: Store) -> None:
        with store.open_task("k:1", "x") as task:
            task.add([_said("one"), _said("two")])
            first, second = another.records(task.id)
            assert [type(entry) for entry in first.entries][:2] == [TaskHeader, Request]
            assert [entry.content for entry in second.entries if isinstance(entry, Turn)] == ["one", "two"]
            assert second.kind == "sealed"
            assert list(another.records(task.id, first.cursor)) == [second]
            assert list(another.records(task.id, second.cursor)) == []
            task.add_turn(_said("three"))
            (third,) = another.records(task.id, second.cursor)
            assert [entry.number for entry in third.entries if isinstance(entry, Turn)] == [3]

    def test_a_cursor_of_something_else_is_refused(self, store: Store) -> None:
        with store.open_task("k:1", "x") as task:
            task.add_turn(_said("one"))
        with pytest.raises(InvalidValue):
            list(store.records(task.id, "nonsense"))
        with pytest.raises(ChainMoved):
            list(store.records(task.id, "17-01234567"))
        with pytest.raises(TaskNotFound):
            list(store.records("nowhere"))

    def test_the_last_turns(self, store: Store, another: Store) -> None:
        with store.open_task("k:1", "x") as task:
            assert list(another.turns(task.id)) == []
            assert list(another.turns(task.id, last=3)) == []
            for number in range(1, 8):
                task.add_turn(_said(str(number)))
        everything = [str(number) for number in range(1, 8)]
        assert [turn.content for turn in another.turns(task.id)] == everything
        assert [turn.content for turn in another.turns(task.id, after=4)] == everything[4:]
        assert [turn.content for turn in another.turns(task.id, last=2)] == everything[-2:]
        assert [turn.content for turn in another.turns(task.id, last=99)] == everything
        assert list(another.turns(task.id, last=0)) == []
        assert [row.turn for row in another.turn_page(task.id, limit=2)] == [1, 2]
        assert [row.turn for row in another.turn_page(task.id, limit=2, newest=True)] == [6, 7]

    def test_notes_by_kind(self, store: Store, another: Store) -> None:
        with store.open_task("k:1", "x") as task:
            for number in range(4):
                task.note(kind="even" if number % 2 == 0 else "odd", data=number)
                task.add_turn(_said("between"))
        assert [note.data for note in another.notes(task.id)] == [0, 1, 2, 3]
        assert [note.data for note in another.notes(task.id, "even")] == [0, 2]
        assert [note.data for note in another.notes(task.id, "odd", last=1)] == [3]
        assert list(another.notes(task.id, "none")) == []

    def test_the_newest_state(self, store: Store, another: Store) -> None:
        with store.open_task("k:1", "x") as task:
            assert another.latest_state(task.id) is None
            task.add_turn(_said("one", state={"step": [1]}))
            task.add_turn(_said("two"))
            got = another.latest_state(task.id)
            assert got == {"step": [1]}
            got["step"].append("changed by the caller")
            assert another.latest_state(task.id) == {"step": [1]}
            task.add_turn(_said("three", state={"step": [2]}))
            assert (another.latest_state(task.id), store.latest_state(task.id)) == ({"step": [2]}, {"step": [2]})

    def test_a_fold_sees_each_entry_once(self, store: Store, another: Store) -> None:
        seen: list[Entry] = []

        def step(total: int, entry: Entry) -> int:
            seen.append(entry)
            return total + (entry.data if isinstance(entry, Note) else 0)

        with store.open_task("k:1", "x") as task:
            totals = []
            for number in range(1, 5):
                task.note(kind="add", data=number)
                totals += [another.folded(task.id, "sum", lambda: 0, step) for _ in range(2)]
        assert totals == [1, 1, 3, 3, 6, 6, 10, 10]
        assert [entry.data for entry in seen if isinstance(entry, Note)] == [1, 2, 3, 4]

    def test_a_fold_that_fails_starts_over(self, store: Store) -> None:
        def step(found: list[int], entry: Entry) -> list[int]:
            if isinstance(entry, Note):
                found.append(entry.data)
                if fails:
                    raise ZeroDivisionError
            return found

        with store.open_task("k:1", "x") as task:
            task.note(kind="add", data=1)
            fails = True
            with pytest.raises(ZeroDivisionError):
                store.folded(task.id, "all", list, step)
            fails = False
            assert store.folded(task.id, "all", list, step) == [1]
