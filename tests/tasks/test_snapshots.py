"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import json

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import InvalidValue
from rawko_state.lifecycle.resuming import snapshot_at
from rawko_state.model.entries import Section
from tests.support.processes import rawko
from tests.tasks.lives import a_turn, git


class TestSnapshots:
    def test_git(self, store: FileStore, tmp_path_factory: pytest.TempPathFactory) -> None:
        root = store.root
        git(root, "init", "-q", "-b", "main")
        (root / ".gitignore").write_text("ignored\n")
        (root / "a.txt").write_text("one")
        git(root, "add", ".")
        git(root, "commit", "-qm", "first")
        (root / "a.txt").write_text("two")
        (root / "staged.txt").write_text("staged")
        git(root, "add", "staged.txt")
        (root / "ünew file.txt").write_text("untracked")
        (root / "ignored").write_text("no")
        task = store.start("x")
        before = (
            git(root, "status", "--porcelain=v2", "--untracked-files=no"),
            git(root, "rev-parse", "HEAD"),
            git(root, "ls-files", "-s"),
        )
        with task.turn("dev") as turn:
            turn.say("done")
            turn.end(snapshot="git")
        after = (
            git(root, "status", "--porcelain=v2", "--untracked-files=no"),
            git(root, "rev-parse", "HEAD"),
            git(root, "ls-files", "-s"),
        )
        assert before == after
        (root / "a.txt").write_text("three")
        task.add_turn(a_turn("later"))
        task.finish("success")
        found = snapshot_at(store, task.id, 2)
        assert found is not None
        assert (found["provider"], found["turn"]) == ("git", 1)
        assert git(root, "for-each-ref", "refs/rawko/").count(found["ref"]) == 1
        target = tmp_path_factory.mktemp("restored") / "here"
        rawko(root, "resume", task.id, "--at-turn", "2", "--restore", str(target))
        assert sorted(path.name for path in target.iterdir()) == [".gitignore", "a.txt", "staged.txt", "ünew file.txt"]
        assert (target / "a.txt").read_text() == "two"
        assert "not an empty folder" in rawko(root, "resume", task.id, "--restore", str(target), code=1).stderr
        store.reindex()
        assert snapshot_at(store, task.id, 2) == found

    def test_an_empty_repository(self, store: FileStore) -> None:
        git(store.root, "init", "-q")
        (store.root / "a").write_text("x")
        with store.start("x") as task:
            task.add_turn(a_turn(), snapshot="git")
        found = snapshot_at(store, task.id, 1)
        assert found is not None
        assert found["parent"] is None

    def test_what_others_made_is_recorded(self, store: FileStore) -> None:
        with store.start("x") as task:
            task.add_turn(a_turn(), snapshot={"provider": "zfs", "ref": "pool/home@rawko-1", "metadata": {"size": 3}})
        found = snapshot_at(store, task.id, 1)
        assert found is not None
        assert (found["provider"], found["ref"]) == ("zfs", "pool/home@rawko-1")
        assert (
            "can restore this snapshot"
            in rawko(store.root, "resume", task.id, "--restore", str(store.root / "t"), code=1).stderr
        )

    def test_used_wrongly(self, store: FileStore) -> None:
        task = store.start("x")
        for wrong in ("svn", {}, {"provider": "x"}, {"provider": "x", "ref": "y", "other": 1}, ["git"]):
            with pytest.raises(InvalidValue):
                task.add_turn(a_turn(), snapshot=wrong)
        assert task.state.turns == 0
        task.add_turn(a_turn(), snapshot="git")  # the turn has happened all the same
        assert "not a git repository" in store.turn(task.id, 1).sections[0].text
        task.close()
        assert (
            "has no snapshot" in rawko(store.root, "resume", task.id, "--restore", str(store.root / "t"), code=1).stderr
        )

    def test_an_option_posing_as_a_commit(self, store: FileStore) -> None:
        git(store.root, "init", "-q")
        with store.start("x") as task:
            turn = a_turn(sections=(Section("Snapshot", json.dumps({"provider": "git", "ref": "--output=evil"})),))
            task.add_turn(turn)
        assert "Not a commit" in rawko(store.root, "resume", task.id, "--restore", str(store.root / "t"), code=1).stderr
