"""Nothing leaks, nothing surprises: commands outside of any project, odd settings files, closed pipes, and what doctor sees."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.config.change import put
from rawko_state.config.settings import load
from rawko_state.errors import TaskBusy, UnsafePath
from rawko_state.model.entries import Turn
from tests.server.clients import Client
from tests.support.machine import patience
from tests.support.processes import RAWKO, rawko
from tests.support.serving import served

SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


class TestFiles:
    @pytest.mark.parametrize(
        ("given", "folder"),
        [
            ("auth/sso.rs", "."),
            ("./auth/sso.rs", "."),
            ("auth//sso.rs", "."),
            ("auth/", "."),
            ("{root}/auth/sso.rs", "other"),
            ("../auth/sso.rs", "other"),
            ("./sso.rs", "auth"),
            ("sso.rs", "auth"),
            ("auth/sso.rs", "auth"),
            ("auth/*.rs", "other"),
        ],
    )
    def test_a_file_is_found_however_it_is_named(self, tmp_path: Path, given: str, folder: str) -> None:
        for name in ("auth", "other"):
            (tmp_path / name).mkdir()
        (tmp_path / "auth/sso.rs").write_text("x")
        with FileStore(tmp_path).start("Add SSO") as task, task.turn("dev") as turn:
            turn.touch("write", "auth/sso.rs")
        path = given.format(root=tmp_path)
        assert rawko(None, "history", "--ids", "--file", path, cwd=tmp_path / folder).stdout.split() == [task.id]
        assert rawko(None, "history", "--ids", "--file", "./none.rs", cwd=tmp_path / folder).stdout == ""


class TestAnywhere:
    """What needs no project works where there is none."""

    @pytest.fixture
    def nowhere(self, tmp_path: Path) -> Path:
        folder = tmp_path / "nowhere"
        folder.mkdir()
        return folder

    def test_with_a_server(self, tmp_path: Path, nowhere: Path) -> None:
        project = tmp_path / "project"
        project.mkdir()
        with FileStore(project).start("on the server") as task:
            pass
        with served(project) as server:
            remote = ("--remote", server.url)
            assert task.id in rawko(None, *remote, "history", cwd=nowhere).stdout
            new = rawko(None, *remote, "task", "start", "from nowhere", cwd=nowhere).stdout.strip()
            rawko(None, *remote, "task", "turn", new, "x", "--agent", "dev", cwd=nowhere)
            assert str(nowhere) not in rawko(None, "projects", cwd=nowhere).stdout
            for words in (
                ("history", "show", new),
                ("resume", new),
                ("stats",),
                ("verify",),
                ("history", "--search", "nowhere"),
            ):
                rawko(None, *remote, *words, cwd=nowhere)
            assert new in rawko(None, "history", "--ids", cwd=nowhere, RAWKO_REMOTE_SERVER=server.url).stdout
        assert list(nowhere.iterdir()) == []

    def test_values_are_the_servers(self, tmp_path: Path, nowhere: Path) -> None:
        mine = {"XDG_STATE_HOME": str(tmp_path / "mine")}
        (tmp_path / "project").mkdir()
        with served(tmp_path / "project") as server:
            kv = ("--remote", server.url, "kv")
            rawko(None, *kv, "set", "user", "theme", "dark", cwd=nowhere, **mine)
            assert rawko(None, *kv, "get", "user", "theme", cwd=nowhere, **mine).stdout == "dark\n"
            assert rawko(None, *kv, "list", cwd=nowhere, **mine).stdout == "user\ttheme\tdark\n"
            assert rawko(None, "kv", "list", cwd=nowhere, **mine).stdout == ""
            rawko(None, *kv, "delete", "user", "theme", cwd=nowhere, **mine)
            rawko(None, *kv, "delete", "user", "theme", cwd=nowhere, code=1, **mine)
            rawko(None, *kv, "get", "user", "theme", cwd=nowhere, code=1, **mine)
            ask = Client(server.port)
            assert ask("PUT", "kv/user/password", {"value": "hunter2horse"})[0] == 422
            assert ask("GET", "kv")[1]["values"] == []

    @pytest.mark.parametrize(
        ("word", "status"), [("succeeded", "completed"), ("error", "failed"), ("completed", "completed")]
    )
    def test_rest_understands_other_words_for_a_status(self, tmp_path: Path, word: str, status: str) -> None:
        with served(tmp_path) as server:
            ask = Client(server.port)
            task = ask.start()
            assert ask("POST", f"tasks/{task}/finish", {"status": "active"})[0] == 422
            assert ask("POST", f"tasks/{task}/finish", {"status": word})[0] in (200, 201)
            assert [each["status"] for each in ask("GET", f"tasks?status={word}")[1]["tasks"]] == [status]

    def test_with_a_database(self, tmp_path: Path, nowhere: Path, database: str) -> None:
        project = tmp_path / "project"
        project.mkdir()
        with FileStore(project).start("x") as task:
            pass
        rawko(None, "workspace", "create", "team", "--database", database, cwd=nowhere)
        rawko(project, "pg", "push", "--database", database, "--workspace", "team")
        assert rawko(None, "pg", "push", "--database", database, cwd=nowhere).stdout == "0 new\n"
        rawko(None, "pg", "pull", "--database", database, "--workspace", "team", cwd=nowhere)
        assert rawko(None, "history", "--ids", cwd=nowhere).stdout.split() == [task.id]
        assert "rawko_" in rawko(None, "token", "create", "--role", "read", "--database", database, cwd=nowhere).stdout

    def test_a_server_on_a_database(self, nowhere: Path, database: str) -> None:
        process = subprocess.Popen(
            [*RAWKO, "serve", "--port", "0", "--database", database], cwd=nowhere, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert "http://127.0.0.1" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.wait(patience(30))

    def test_what_needs_one_says_so(self, nowhere: Path) -> None:
        assert "Not in a project" in rawko(None, "history", cwd=nowhere, code=1).stderr
        assert "Not in a project" in rawko(None, "history", cwd=nowhere, code=1, RAWKO_REMOTE_SERVER="local").stderr

    def test_local_means_local(self, tmp_path: Path) -> None:
        task = rawko(tmp_path, "task", "start", "x", RAWKO_REMOTE_SERVER="local").stdout.strip()
        assert rawko(tmp_path, "history", "--ids", RAWKO_REMOTE_SERVER="local").stdout.strip() == task

    def test_a_workspace_is_for_servers(self, tmp_path: Path) -> None:
        FileStore(tmp_path).start("x").close()
        for words, env in ((("--workspace", "a", "history"), {}), (("history",), {"RAWKO_WORKSPACE": "a"})):
            assert "is for servers" in rawko(tmp_path, *words, code=2, **env).stderr

    def test_a_missing_token_is_named(self, tmp_path: Path) -> None:
        rawko(tmp_path, "token", "create", "--role", "read")
        with served(tmp_path) as server:
            said = rawko(tmp_path, "--remote", server.url, "history", code=1).stderr
        assert "RAWKO_REMOTE_TOKEN" in said
        assert f"rawko token save {server.url}" in said


class TestSettingsFiles:
    @pytest.mark.parametrize("name", ["config.yaml", "config.user.yaml", "config.cue"])
    @pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder"])
    def test_of_a_project_are_files(self, tmp_path: Path, name: str, kind: str) -> None:
        FileStore(tmp_path).start("x").close()
        path = tmp_path / ".rawko" / name
        if kind == "link":
            (tmp_path / "elsewhere").write_text("")
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        with pytest.raises(UnsafePath, match="not a regular file"):
            load(tmp_path)

    def test_every_command_refuses_at_once(self, tmp_path: Path) -> None:
        task = rawko(tmp_path, "task", "start", "x").stdout.strip()
        (tmp_path / ".rawko/config.yaml").symlink_to("/dev/zero")
        for words in (
            ("history",),
            ("history", "show", task),
            ("resume", task),
            ("task", "start", "y"),
            ("stats",),
            ("cleanup",),
        ):
            assert "not a regular file" in rawko(tmp_path, *words, code=1).stderr, words

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (
                "state:\n  retention:\n    max_age: 30d # why\n    min_keep: 3\nworkspace: x\n",
                "state:\n  retention:\n    min_keep: 3\nworkspace: x\n",
            ),
            ("state:\n  retention:\n    max_age: 30d\n# end\nworkspace: x\n", "# end\nworkspace: x\n"),
            ("{state: {retention: {max_age: 30d}}, workspace: x}\n", "workspace: x\n"),
            ('"state":\n  "retention":\n    "max_age": "3d"\n', ""),
            ("# mine\nstate: {retention: {max_age: 3d}}\n", "# mine\n"),
        ],
    )
    def test_unset_leaves_no_empty_parent(self, tmp_path: Path, before: str, after: str) -> None:
        path = tmp_path / "config.yaml"
        path.write_text(before)
        put(path, "state.retention.max_age", None)
        assert path.read_text() == after

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "# c\n",
            "{workspace: x}\n",
            "---\nworkspace: x\n...\n",
            "state: {share: git} # c\nworkspace: x\n",
            "state:\n  retention:\n",
        ],
    )
    def test_set_works_on_every_valid_file(self, tmp_path: Path, text: str) -> None:
        (tmp_path / ".rawko").mkdir()
        path = tmp_path / ".rawko/config.yaml"
        path.write_text(text)
        earlier = load(tmp_path)
        put(path, "state.retention.max_age", "7d")
        found = load(tmp_path)
        assert found["state.retention.max_age"] == 7 * 86_400
        assert not found.problems
        assert (found["workspace"], found["state.share"]) == (earlier["workspace"], earlier["state.share"])

    def test_text_that_looks_like_a_number_stays_text(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko").mkdir()
        path = tmp_path / ".rawko/config.yaml"
        for key, text in (("user.name", "123"), ("workspace", "42"), ("redact.env", "5"), ("resume.budget", "500")):
            put(path, key, text)
        found = load(tmp_path)
        assert not found.problems
        assert (found["user.name"], found["workspace"], found["redact.env"], found["resume.budget"]) == (
            "123",
            "42",
            ("5",),
            500,
        )


class TestSmallThings:
    def test_a_closed_pipe_ends_as_after_sigpipe(self, tmp_path: Path) -> None:
        with FileStore(tmp_path).start("x") as task:
            task.add_turn(Turn(number=1, agent="dev", content="word\n" * 200_000))
        process = subprocess.Popen(
            [*RAWKO, "-C", str(tmp_path), "history", "show", task.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(patience(60)) == -signal.SIGPIPE
        assert process.stderr is not None
        assert process.stderr.read() == b""

    def test_import_jsonl_asks_for_a_file(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko").mkdir()
        assert "needs a file" in rawko(tmp_path, "import", "jsonl", code=2).stderr

    def test_a_secret_is_not_kept_as_a_value(self, tmp_path: Path) -> None:
        assert "secret" in rawko(tmp_path, "kv", "set", "user", "token", SECRET, code=2).stderr
        assert rawko(tmp_path, "kv", "list").stdout == ""
        rawko(tmp_path, "kv", "set", "user", "theme", "dark")

    def test_a_newer_index_says_who_made_it_and_that_it_may_go(self, tmp_path: Path) -> None:
        FileStore(tmp_path).start("x").close()
        path = tmp_path / ".rawko/state/index.db"
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE index_meta SET v = '9.8.7' WHERE k = 'made_by'")
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        said = rawko(tmp_path, "history", code=1).stderr
        assert "made by rawko 9.8.7" in said
        assert "delete the file" in said
        path.unlink()
        rawko(tmp_path, "history")

    def test_nothing_is_said_of_the_dead_process_of_a_cancelled_task(self, tmp_path: Path) -> None:
        code = (
            "import os, sys; from rawko_state.backends.files.store import FileStore\n"
            "task = FileStore(sys.argv[1]).start('x'); task.turn('dev').say('half'); task.set_status('cancelled')\n"
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([RAWKO[0], "-c", code, str(tmp_path)], capture_output=True)
        assert rawko(tmp_path, "history").stderr == ""

    def test_a_detached_task_runs_for_all_alike(self, tmp_path: Path) -> None:
        task = rawko(tmp_path, "task", "start", "x").stdout.strip()
        assert "\trunning\t" in rawko(tmp_path, "history").stdout
        assert f"✓ Running       1 task: {task}\n" in rawko(tmp_path, "doctor").stdout
        process = subprocess.Popen(
            [*RAWKO, "-C", str(tmp_path), "watch"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert process.stderr is not None
        assert process.stderr.readline() == "Watching 1 task. New ones appear as they start; ^C stops.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(patience(30)) == 130

    def test_errors_carry_a_reason(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path, warn=lambda message: None)
        task = store.start("x")
        with pytest.raises(TaskBusy) as busy:
            store.delete(task.id)
        assert (busy.value.task, busy.value.holder, busy.value.reason) == (task.id, None, "changed")
        with pytest.raises(TaskBusy) as busy:
            store.resume(task.id)
        assert busy.value.reason == "run"
        assert str(os.getpid()) in (busy.value.holder or "")
        task.close()


class TestErase:
    def _traces(self, root: Path, word: bytes) -> list[str]:
        return [str(path) for path in (root / ".rawko").rglob("*") if path.is_file() and word in path.read_bytes()]

    @pytest.mark.parametrize("in_trash", [False, True])
    def test_nothing_is_left_but_a_line_that_says_so(self, tmp_path: Path, in_trash: bool) -> None:
        store = FileStore(tmp_path)
        long_output = "xylophone quartz " * 2_000
        with store.start("keep this one, it says marmalade") as other:
            other.add_turn(Turn(number=1, agent="dev", content="marmalade"))
        with store.start("erase the xylophone") as task, task.turn("dev") as turn:
            turn.say("xylophone")
            turn.tool("shell.exec", "x", "ok", output=long_output)
        store.flush(wait=True)
        store.close()
        assert self._traces(tmp_path, b"xylophone")
        if in_trash:
            rawko(tmp_path, "task", "delete", task.id)
        assert "--yes" in rawko(tmp_path, "task", "erase", task.id, code=2).stderr
        assert f"Erased {task.id}." in rawko(tmp_path, "task", "erase", task.id, "--yes").stderr
        assert self._traces(tmp_path, b"xylophone") == []
        assert list((tmp_path / ".rawko/state/blobs").iterdir()) == []
        assert rawko(tmp_path, "history", "--ids").stdout.split() == [other.id]
        assert rawko(tmp_path, "history", "--search", "xylophone", "--ids", code=None).stdout == ""
        assert rawko(tmp_path, "history", "--search", "marmalade", "--ids").stdout.split() == [other.id]
        log = (tmp_path / ".rawko/state/trash/log.jsonl").read_text()
        assert '"rule": "erased"' in log
        assert task.id in log
        assert "No task" in rawko(tmp_path, "task", "erase", task.id, "--yes", code=1).stderr
        assert "No problems found" in rawko(tmp_path, "doctor").stdout


class TestDoctor:
    def test_git_and_what_it_would_take(self, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        rawko(tmp_path, "task", "start", "x")
        assert "No problems found" in rawko(tmp_path, "doctor").stdout
        (tmp_path / ".rawko/state/.gitignore").unlink()
        assert "git does not ignore" in rawko(tmp_path, "doctor", code=1).stdout
        (tmp_path / ".gitignore").write_text(".rawko/state/\n")
        assert "No problems found" in rawko(tmp_path, "doctor").stdout
        (tmp_path / ".rawko/config.yaml").write_text("state:\n  share: git\n")
        assert "line endings" in rawko(tmp_path, "doctor", code=1).stdout
        rawko(tmp_path, "config", "set", "--project", "state.share", "git")
        assert ".gitignore excludes the task files" in rawko(tmp_path, "doctor", code=1).stdout
        (tmp_path / ".gitignore").unlink()
        assert "No problems found" in rawko(tmp_path, "doctor").stdout

    def test_a_project_that_was_moved(self, tmp_path: Path) -> None:
        (tmp_path / "old").mkdir()
        rawko(tmp_path / "old", "task", "start", "x")
        rawko(tmp_path / "old", "history")
        (tmp_path / "old").rename(tmp_path / "new")
        assert f"Place         moved from {tmp_path / 'old'}" in rawko(tmp_path / "new", "doctor").stdout


class TestTrial:
    """What an independent trial found."""

    def test_a_finished_task_is_not_reopened_by_a_pipe(self, tmp_path: Path) -> None:
        with FileStore(tmp_path).start("x") as task:
            pass
        before = task.seal
        assert "rawko resume --open" in rawko(tmp_path, "record", task.id, code=1).stderr
        assert FileStore(tmp_path).position(task.id).seal == before

    def test_durations_are_counted_once(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        task = store.start("x")
        task.finish("success", duration_ms=5_000)
        rawko(tmp_path, "resume", task.id, "--open")
        rawko(tmp_path, "task", "finish", task.id)
        assert (store.summary(task.id).duration_ms or 0) < 6_000

    def test_no_duration_is_not_a_number(self, tmp_path: Path) -> None:
        task = rawko(tmp_path, "task", "start", "x").stdout.strip()
        assert (
            "number of seconds"
            in rawko(tmp_path, "task", "turn", task, "--agent", "a", "--duration", "nan", "x", code=2).stderr
        )

    def test_a_refused_erasure_leaves_no_trace(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        task = store.start("x")
        rawko(tmp_path, "task", "erase", task.id, "--yes", code=1)
        assert not (tmp_path / ".rawko/state/live/reindex.due").exists()
        assert not (tmp_path / ".rawko/state/trash").exists()
        task.close()

    def test_erasing_takes_every_file_of_the_task(self, tmp_path: Path) -> None:
        with FileStore(tmp_path).start("xylophone") as task:
            pass
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        path.with_name(f"2020-01-01T00-00-00-{task.id}.task").write_bytes(path.read_bytes())
        rawko(tmp_path, "task", "erase", task.id, "--yes")
        assert list((tmp_path / ".rawko/state/tasks").iterdir()) == []
