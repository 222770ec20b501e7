"""What a task says of where it was started, without being asked to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import rawko_state
from rawko_state.backends.files.store import FileStore
from rawko_state.backends.select import user_state
from rawko_state.config.project import remotes, worktrees
from rawko_state.config.repository import Repository, without_credentials
from rawko_state.config.surroundings import look_around, runtime
from rawko_state.model.entries import TaskHeader
from tests.support.processes import rawko


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=trunk", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with a commit, on a branch of its own."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "-q")
    (origin / "a").write_text("a")
    git(origin, "add", "a")
    git(origin, "commit", "-qm", "a")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    git(clone, "checkout", "-qb", "feature/x")
    git(clone, "remote", "set-url", "origin", "https://bob:hunter2secret@example.com/team/app.git")
    return clone


def header_of(root: Path, task_id: str) -> TaskHeader:
    (header,) = [entry for _, entry in FileStore(root).entries(task_id) if isinstance(entry, TaskHeader)]
    return header


class TestRepository:
    def test_it_says_what_git_says(self, clone: Path) -> None:
        found = Repository.around(clone / "no" / "such" / "folder")
        assert found is not None
        assert found.top == clone
        assert found.branch == git(clone, "branch", "--show-current")
        assert found.commit == git(clone, "rev-parse", "HEAD")
        assert found.default_branch == "trunk"
        assert found.remotes == ["https://example.com/team/app.git"]
        git(clone, "pack-refs", "--all")
        assert found.commit == git(clone, "rev-parse", "HEAD")
        git(clone, "checkout", "-q", "--detach")
        assert (found.branch, found.commit) == (None, git(clone, "rev-parse", "HEAD"))

    def test_linked_work_trees(self, clone: Path, tmp_path: Path) -> None:
        git(clone, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
        found = Repository.around(tmp_path / "other")
        assert found is not None
        assert (found.branch, found.commit) == ("other", git(clone, "rev-parse", "HEAD"))
        assert found.remotes == ["https://example.com/team/app.git"]
        assert set(worktrees(clone)) == {str(clone), str(tmp_path / "other")}
        (clone / "sub").mkdir()
        assert set(worktrees(clone / "sub")) == {str(clone / "sub"), str(tmp_path / "other" / "sub")}

    def test_work_trees_that_are_named_relatively(self, clone: Path, tmp_path: Path) -> None:
        git(clone, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
        mark = clone / ".git/worktrees/other/gitdir"
        mark.write_text("../../../../other/.git\n")
        assert set(worktrees(clone)) == {str(clone), str(tmp_path / "other")}

    def test_several_remotes_and_odd_ones(self, clone: Path) -> None:
        git(clone, "remote", "add", "backup", "ssh://git@host/x.git")
        git(clone, "remote", "add", "odd.name", "/somewhere")
        assert remotes(clone) == ["https://example.com/team/app.git", "ssh://git@host/x.git", "/somewhere"]

    def test_none_at_all_and_a_broken_one(self, tmp_path: Path) -> None:
        assert (
            Repository.around(tmp_path / "x") is None
            or tmp_path not in (Repository.around(tmp_path / "x") or ()).top.parents
        )  # type: ignore[union-attr]
        (tmp_path / ".git").mkdir()
        (tmp_path / ".git" / "HEAD").write_bytes(b"\xff\x00")
        found = Repository.around(tmp_path)
        assert found is not None
        assert (found.branch, found.commit, found.default_branch, found.remotes) == (None, None, None, [])

    @pytest.mark.parametrize(
        ("url", "plain"),
        [
            ("https://bob:pw@host/x", "https://host/x"),
            ("https://ghp_token@host/x", "https://host/x"),
            ("ssh://git:pw@host/x", "ssh://git@host/x"),
            ("git@host:team/x.git", "git@host:team/x.git"),
            ("/a/b@c", "/a/b@c"),
        ],
    )
    def test_credentials_are_cut(self, url: str, plain: str) -> None:
        assert without_credentials(url) == plain


class TestTasks:
    def test_a_task_says_where_it_was_started(self, clone: Path) -> None:
        task = rawko(None, "task", "start", "x", cwd=clone).stdout.strip()
        header = header_of(clone, task)
        assert header.repo == "https://example.com/team/app.git"
        assert (header.branch, header.commit) == ("feature/x", git(clone, "rev-parse", "HEAD"))
        assert header.cwd == str(clone)
        assert header.runtime == runtime()
        with rawko_state.open(clone).start("through the API") as again:
            pass
        assert header_of(clone, again.id).commit == header.commit

    def test_what_is_given_counts(self, clone: Path) -> None:
        given = (
            "--repo",
            "r",
            "--branch",
            "b",
            "--commit",
            "c",
            "--cwd",
            "/d",
            "--runtime",
            "nosandbox",
            "--agent",
            "a",
        )
        words = ("task", "start", "x", *given, "--field", "Ticket=42", "--by", "ann")
        header = header_of(clone, rawko(None, *words, cwd=clone).stdout.strip())
        assert (header.repo, header.branch, header.commit, header.cwd) == ("r", "b", "c", "/d")
        assert (header.runtime, header.agent) == ("nosandbox", "a")
        assert [(field.name, field.value) for field in header.extra] == [("X-Ticket", "42")]

    def test_a_setting_turns_it_off(self, clone: Path) -> None:
        rawko(clone, "config", "set", "--project", "record.surroundings", "no")
        header = header_of(clone, rawko(clone, "task", "start", "x").stdout.strip())
        assert (header.repo, header.branch, header.commit, header.cwd, header.runtime) == (None,) * 5

    def test_the_lists_of_the_user_are_filled(self, clone: Path) -> None:
        rawko(None, "task", "start", "x", cwd=clone, CLAUDECODE="1")
        with user_state() as user:
            (project,) = user.projects()
            assert project.root == str(clone)
            assert project.remote == "https://example.com/team/app.git"
            assert project.branch == "trunk"  # the default one, not the one that is checked out
            assert [row["type"] for row in user.runtimes()] == [runtime()]
            assert ("claude", "") in user.agents()

    def test_what_the_environment_tells(self, tmp_path: Path) -> None:
        assert runtime({"REMOTE_CONTAINERS": "true"}) == "devcontainer"
        assert runtime({"container": "podman"}) == "container"
        assert look_around(tmp_path, {"GEMINI_CLI": "1"}).agent == "gemini"
        assert look_around(tmp_path, {}).agent is None

    def test_turns_take_more(self, clone: Path) -> None:
        task = rawko(clone, "task", "start", "x").stdout.strip()
        words = ("--agent", "dev", "--duration", "1.5", "--by", "ann", "--field", "Step=3")
        rawko(clone, "task", "turn", task, "y", *words)
        turn = FileStore(clone).turn(task, 1)
        assert (turn.duration_ms, turn.by) == (1500, "ann")
        assert [(field.name, field.value) for field in turn.extra] == [("X-Step", "3")]
