"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.store import TaskFilter
from tests.exchange.sessions import agrees, bring, payload
from tests.support.faults import quiet
from tests.support.machine import wait_for
from tests.support.processes import ROOT, rawko


class TestAgain:
    def test_nothing_new_nothing_done(self, store: FileStore, sessions: Path, project: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        before = {path.name: path.read_bytes() for path in (project / ".rawko/state/tasks").iterdir()}
        source = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sessions.rglob("*") if path.is_file()}
        report = bring(store, "claude-code", sessions / "claude-code")
        assert (report.new, report.grown, report.same) == ([], [], 3)
        assert {path.name: path.read_bytes() for path in (project / ".rawko/state/tasks").iterdir()} == before
        assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source} == source

    def test_without_its_memory_too(self, store: FileStore, sessions: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        for path in Path(os.environ["XDG_STATE_HOME"]).rglob("state.db*"):
            path.unlink()
        report = bring(store, "claude-code", sessions / "claude-code")
        assert (report.new, report.grown, report.same) == ([], [], 3)

    @settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.integers(1, 16), min_size=1, max_size=6, unique=True))
    def test_growing_at_any_lines(self, sessions: Path, tmp_path: Path, cuts: list[int]) -> None:
        """However a file grows, in the end all of its records are there, in order, once."""
        folder = tmp_path / hashlib.sha256(repr(cuts).encode()).hexdigest()[:8]
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        (tmp_path / "project").mkdir(exist_ok=True)
        store = quiet(folder / "p" if (folder / "p").mkdir() is None else folder)
        lines = (sessions / "claude-code/session-2.0.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        path = folder / "session-2.0.jsonl"
        belonging = Belonging((str(store.root), str(tmp_path / "project")))
        for cut in [*sorted(cuts), len(lines)]:
            path.write_text("\n".join(lines[:cut]) + "\n", encoding="utf-8")
            bring(store, "claude-code", path, belonging=belonging)
        (task,) = [summary.id for summary in store.history(TaskFilter())] or [""]
        assert payload(store, task) == "\n".join(lines)
        assert store.summary(task).status == "completed"
        agrees(store)
        store.close()

    def test_a_last_record_without_a_line_end_comes_in_and_what_is_added_after_it_too(
        self, store: FileStore, sessions: Path
    ) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        whole = path.read_bytes().replace(b"tests", b"t\xffsts")
        path.write_bytes(whole[:-1])
        report = bring(store, "claude-code", path)
        assert not report.wrong
        more = b'\n{"type":"user","message":{"role":"user","content":"and now"}}'
        path.write_bytes(whole[:-1] + more)
        assert bring(store, "claude-code", path).grown == report.new
        assert payload(store, report.new[0]).encode("utf-8", "surrogateescape") == whole[:-1] + more
        agrees(store)

    def test_a_torn_last_line_waits_for_its_end(self, store: FileStore, sessions: Path) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        text = path.read_text()
        path.write_text(text[:-40])
        report = bring(store, "claude-code", path)
        assert "is incomplete" in report.wrong[0].text
        path.write_text(text)
        report = bring(store, "claude-code", path)
        assert report.grown == [task_id("claude-code", "session-1.0")]
        assert payload(store, report.grown[0]) + "\n" == text
        assert store.summary(report.grown[0]).status == "cancelled"

    def test_killed_again_and_again_then_run_to_its_end(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        folder = tmp_path / "many"
        folder.mkdir()
        text = (sessions / "claude-code/session-2.0.jsonl").read_text(encoding="utf-8")
        many = 160  # some batches, as those of one become durable together
        for number in range(many):
            (folder / f"s{number}.jsonl").write_text(text, encoding="utf-8")
        (project / ".rawko").mkdir()
        chance = random.Random(7)
        command = [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(folder)]

        def count() -> int:
            return len(list(project.glob(".rawko/state/tasks/*.task")))

        killed = 0
        for _ in range(4):
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            wanted = count() + chance.randrange(1, 8)
            wait_for(lambda process=process, wanted=wanted: process.poll() is not None or count() >= wanted)
            killed += process.poll() is None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert killed > 1
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        store = quiet(project)
        found = store.history(TaskFilter(limit=None))
        assert len(found) == many
        assert all(payload(store, summary.id) + "\n" == text for summary in found)
        agrees(store)


class TestSeveralFilesOfOneSession:
    """They would be tasks of one id, of which only one is seen."""

    def test_the_fullest_one_comes_in_and_another_one_is_told_of(self, store: FileStore, sessions: Path) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        copies = [sessions / f"claude-code/{name}/session-1.0.jsonl" for name in ("copy", "other")]
        lines = path.read_text().splitlines(True)
        for copy, part in zip(copies, (lines[:3], lines[2:]), strict=True):
            copy.parent.mkdir()
            copy.write_text("".join(part))
        for report in (bring(store, "claude-code", sessions / "claude-code") for _ in range(2)):
            assert [trouble.path for trouble in report.wrong] == [copies[1]]
        assert payload(store, task_id("claude-code", "session-1.0")) == path.read_text().rstrip("\n")
        assert len(store.history(TaskFilter())) == 3
        agrees(store)

    def test_a_rollout_and_its_packed_form_and_a_file_named_twice(self, store: FileStore, sessions: Path) -> None:
        path = next((sessions / "codex").glob("*-old1.jsonl"))
        path.with_name(path.name + ".zst").write_bytes(b"packed")
        report = bring(store, "codex", path.parent, path)
        assert (len(report.new), report.wrong) == (2, [])


class TestBelonging:
    def test_other_projects_stay_out(self, store: FileStore, sessions: Path, tmp_path: Path) -> None:
        elsewhere = Belonging((str(tmp_path / "projec"),))
        report = bring(store, "claude-code", sessions / "claude-code", belonging=elsewhere)
        assert (report.new, report.elsewhere) == ([], 3)
        assert bring(store, "claude-code", sessions / "claude-code", belonging=elsewhere).elsewhere == 3

    def test_all_projects_each_into_its_own(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        (other / ".rawko").mkdir(parents=True)
        (project / ".rawko").mkdir()
        moved = sessions / "claude-code/session-1.0.jsonl"
        moved.write_text(moved.read_text().replace(f"{project}/sub", str(other)))
        gone = sessions / "codex/rollout-2025-05-01T09-00-00-old1.jsonl"
        gone.write_text(gone.read_text().replace(str(project), "/not/there"))
        store = quiet(project)
        everywhere = Belonging((str(project),), everywhere=True)
        bring(store, "claude-code", sessions / "claude-code", belonging=everywhere)
        bring(store, "codex", sessions / "codex", belonging=everywhere)
        assert [s.request for s in quiet(other).history(TaskFilter())] == ["Rename the module"]
        assert len(store.history(TaskFilter())) == 4

    def test_worktrees_and_a_project_that_was_moved(self, tmp_path: Path, sessions: Path) -> None:
        def git(*words: str, cwd: Path) -> None:
            subprocess.run(
                ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=cwd, check=True, capture_output=True
            )

        repo, tree = tmp_path / "repo", tmp_path / "tree"
        repo.mkdir()
        git("init", "-q", cwd=repo)
        git("commit", "-q", "--allow-empty", "-m", "x", cwd=repo)
        git("remote", "add", "origin", "git@github.com:acme/app.git", cwd=repo)
        git("worktree", "add", "-q", str(tree), cwd=repo)
        path = sessions / "claude-code/session-2.0.jsonl"
        path.write_text(path.read_text().replace(str(tmp_path / "project"), str(tree)))
        done = rawko(repo, "import", "claude-code", str(path))
        assert "Imported 1 session" in done.stdout
        store = quiet(repo)
        assert [s.id for s in store.history(TaskFilter(file="auth/sso.py"))] == [task_id("claude-code", "session-2.0")]
        # Moved: known by its remote, and the old folder is gone.
        rawko(repo, "projects", "add", str(repo))
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=repo, check=True)
        new = tmp_path / "new-place"
        repo.rename(new)
        old = sessions / "claude-code/session-1.0.jsonl"
        old.write_text(old.read_text().replace(f"{tmp_path / 'project'}/sub", str(repo)))
        assert "Imported 1 session" in rawko(new, "import", "claude-code", str(old)).stdout

    def test_a_project_that_was_moved_and_has_no_remote(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        rawko(project, "task", "start", "x")
        copy, moved = tmp_path / "copy", tmp_path / "moved"
        shutil.copytree(project, copy)
        path = str(sessions / "claude-code/session-2.0.jsonl")
        assert "1 from other projects" in rawko(copy, "import", "claude-code", path).stdout
        project.rename(moved)
        assert "Imported 1 session" in rawko(moved, "import", "claude-code", path).stdout
        assert quiet(moved).history(TaskFilter(file="auth/sso.py"))


@pytest.mark.parametrize(
    ("agent", "pattern"),
    [
        ("claude-code", "7ae06a6b*.jsonl"),
        ("codex", "*-3f90-*.jsonl"),
        ("pi", "**/*39a0*.jsonl"),
        ("qwen", "**/c9557b5b*.jsonl"),
    ],
)
def test_a_copy_with_another_name_is_the_same_session(agent: str, pattern: str, tmp_path: Path) -> None:
    """Its records say which session it is."""
    real = next(iter(sorted((ROOT / "fixtures/real" / agent).glob(pattern))))
    folder = tmp_path / "chats"
    folder.mkdir()
    for name in (real.name, f"{real.stem} (copy).jsonl", f"{real.stem.split('_')[0]}_backup.jsonl"):
        shutil.copy(real, folder / name)
    store = FileStore(tmp_path / "project")
    everywhere = Belonging((str(store.root),), everywhere=True)
    paths = sorted(folder.glob("*.jsonl"))
    first = bring(store, agent, *paths, belonging=everywhere)
    assert (len(first.new), first.wrong) == (1, [])
    assert bring(store, agent, paths[0], belonging=everywhere).new == []
