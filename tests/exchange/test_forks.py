"""Forks of Claude Code that it made itself, with `/branch`, with `--fork-session` and after a compaction."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, start, task_id
from rawko_state.exchange.sources import claude_code
from tests.exchange.sessions import bring, turns
from tests.support.processes import ROOT

FORKS = ROOT / "fixtures" / "real" / "claude-forks"
ORIGINAL, BRANCH, SECOND = (
    "7a32bd3c-b0b3-4c02-8a08-005bfce57cdf",
    "0bced0fc-1b02-4cde-a784-6167db4703c8",
    "8332adea-8310-4819-9a09-8a34ff96e61c",
)
COMPACTED, AFTER_IT = "8063ed0e-5f1c-4656-b3cf-e58eb14e0e56", "77237758-07cc-4ccd-8392-a322072c09fd"


def task(session: str) -> str:
    return task_id("claude-code", session)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FORKS, tmp_path / "sessions"))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def everything(store: FileStore) -> Belonging:
    return Belonging((str(store.root),), everywhere=True)


def family(store: FileStore) -> dict[str, tuple[str | None, str | None, list[int]]]:
    return {
        session: (store.summary(task(session)).parent, store.summary(task(session)).request, numbers(store, session))
        for session in (ORIGINAL, BRANCH, SECOND, COMPACTED, AFTER_IT)
    }


def numbers(store: FileStore, session: str) -> list[int]:
    return [row.turn for row in store.turn_rows(task(session))[0]]


FAMILY = {
    ORIGINAL: (None, "REWRITE please", list(range(1, 14))),
    BRANCH: (f"{task(ORIGINAL)}@9", "FAILREAD in branch", [10, 11]),
    SECOND: (f"{task(BRANCH)}@11", "GREET in second branch", [12, 13, 14]),
    COMPACTED: (None, "MULTIWRITE please 日本語", list(range(1, 12))),
    AFTER_IT: (f"{task(COMPACTED)}@9", "FAILREAD fork", [10, 11]),
}


def test_each_fork_is_a_child_with_its_own_turns(store: FileStore, folder: Path) -> None:
    report = bring(store, "claude-code", folder, belonging=everything(store))
    assert not report.wrong
    assert family(store) == FAMILY


def test_they_are_whichever_comes_in_first(store: FileStore, folder: Path) -> None:
    for path in sorted(folder.iterdir(), reverse=True):
        (session,) = claude_code.found([path], folder, [])
        assert start(store, session, [], ended=True)
    assert family(store) == FAMILY


def test_a_fork_of_a_session_that_was_recorded_in_several_runs(store: FileStore, folder: Path) -> None:
    original = folder / f"{ORIGINAL}.jsonl"
    whole = original.read_text(encoding="utf-8").splitlines(keepends=True)
    prompts = [n for n, line in enumerate(whole) if '"promptSource"' in line and '"tool_result"' not in line]
    original.write_text("".join(whole[: prompts[1]]), encoding="utf-8")
    bring(store, "claude-code", original, belonging=everything(store))
    original.write_text("".join(whole), encoding="utf-8")
    bring(store, "claude-code", original, belonging=everything(store))
    assert store.summary(task(ORIGINAL)).runs == 2  # the second prompt is a request, so there is a turn less
    bring(store, "claude-code", folder, belonging=everything(store))
    assert (store.summary(task(BRANCH)).parent, numbers(store, BRANCH)) == (f"{task(ORIGINAL)}@8", [9, 10])


def test_a_copy_under_another_id_is_not_recorded_again(store: FileStore, folder: Path) -> None:
    for name in ("00000000-0000-4000-8000-000000000000", "ffffffff-ffff-4fff-8fff-ffffffffffff"):
        shutil.copyfile(folder / f"{ORIGINAL}.jsonl", folder / f"{name}.jsonl")
    report = bring(store, "claude-code", folder, belonging=everything(store))
    assert (len(report.new), report.same) == (8, 2)
    assert family(store) == FAMILY
    assert bring(store, "claude-code", folder, belonging=everything(store)).same == 10


def test_a_record_that_was_written_early_comes_after_the_one_it_follows(store: FileStore, folder: Path) -> None:
    """The result of the first tool stands before the first prompt in the file."""
    path = folder / f"{ORIGINAL}.jsonl"
    bring(store, "claude-code", path, belonging=everything(store))
    first = turns(store, task(ORIGINAL))[0]
    assert [(call.tool, call.result) for call in first.tools if not isinstance(call, str)] == [("Read", "118 bytes")]
    (session,) = claude_code.found([path], folder, [])
    for cut, _ in session.steps(0, []):
        again = [step.raw for place, step in session.steps(0, []) if place <= cut]
        again += [step.raw for _, step in session.steps(cut, [])]
        assert set(again) == set(path.read_text().splitlines()), cut  # whoever stops anywhere loses nothing


class TestWhatItSays:
    @pytest.fixture
    def imported(self, store: FileStore, folder: Path) -> FileStore:
        bring(store, "claude-code", folder, belonging=everything(store))
        return store

    def test_killed_between_a_result_and_the_answer_is_interrupted(self, imported: FileStore) -> None:
        assert imported.summary(task("5ee3529a-45a5-49ac-9a19-15c7b4f762da")).status == "interrupted"

    def test_a_notebook_has_its_diff(self, imported: FileStore) -> None:
        edit = turns(imported, task("a799f2ef-db84-46bc-956c-8f04f0b146ac"))[1]
        assert [(touch.operation, Path(touch.path).name) for touch in edit.files] == [("write", "nb.ipynb")]
        (diff,) = edit.diffs
        assert '+   "source": "print(2)"' in diff.hunks.splitlines()

    def test_what_the_program_tells_the_model_is_nobodys_prompt(self, imported: FileStore) -> None:
        found = turns(imported, task("111e8a1e-c579-4dca-931d-051b83f7e360"))
        assert [turn.agent for turn in found] == ["claude"] * 3
        said = [turn.content for turn in turns(imported, task(COMPACTED))]
        assert "No response requested." not in said

    def test_a_file_that_was_written_as_it_was_has_no_diff(self, imported: FileStore) -> None:
        (write,) = [turn for turn in turns(imported, task(SECOND)) if turn.tools and turn.number == 13]
        assert [(touch.operation, Path(touch.path).name) for touch in write.files] == [("write", "calc.py")]
        assert write.diffs == ()
