"""The commands against a server: the same output and exit codes as with files; and the commands that are about servers."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Question, Turn
from tests.support import processes
from tests.support.machine import patience


def rawko(
    *words: str, given: str | None = None, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """With whatever exit status: it is compared."""
    return processes.rawko(None, *words, code=None, given=given, cwd=cwd, **(env or {}))


@contextlib.contextmanager
def serving(root: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [*processes.RAWKO, "-C", str(root), "serve", "--port", "0", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "serving" in line, line + process.stderr.read()
    try:
        yield line.split()[-1], process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(patience(20))
        process.stderr.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "server").mkdir()
    return filled(tmp_path / "server")


def filled(root: Path) -> Path:
    """A few tasks of every kind."""
    store = FileStore(root)
    with store.start("Fix the login", labels={"team": "auth"}, branch="main") as task:
        task.decide(selected="dev", reason="small")
        with task.turn("dev") as turn:
            turn.say("The clock skew is ignored.")
            turn.tool("shell.exec", "make", "exit 0", output="long " * 10_000)
            turn.touch("write", "auth/sso.rs")
        task.finish("success", "Fixed", files=["auth/sso.rs"])
    waiting = store.start("Which database?", detached=True)
    waiting.ask("dev", Question("Which?", ("sqlite", "postgres")))
    waiting.close()
    failed = store.start("Broken", detached=True)
    failed.add_turn(Turn(number=1, agent="dev", status="failed", content="no"))
    failed.finish("failure", error="it broke")
    with store.fork(task.id, 1, message="otherwise"):
        pass
    store.close()
    return root


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(home))
        root = filled(tmp_path_factory.mktemp("shared"))
        first = FileStore(root).search("skew").hits[0].task.id
        with serving(root, "--quiet") as (url, _):
            yield root, url, first


class TestTheSame:
    @pytest.mark.parametrize(
        "words",
        [
            ("history",),
            ("history", "--json"),
            ("history", "--status", "failed", "--ids"),
            ("history", "--file", "auth", "--agent", "dev"),
            ("history", "--label", "team=auth", "--jsonl"),
            ("history", "--search", "skew"),
            ("history", "--search", "skew OR broken", "--json", "--turns"),
            ("history", "--search", "nothinglikeit"),
            ("history", "show", "FIRST"),
            ("history", "show", "FIRST", "--json"),
            ("history", "show", "FIRST", "--raw"),
            ("history", "show", "FIRST", "--turn", "2"),
            ("history", "show", "FIRST", "--turn", "9"),
            ("history", "show", "FIRST", "--turns", "1-"),
            ("history", "show", "nosuch"),
            ("history", "export", "FIRST", "--format", "json"),
            ("history", "export", "FIRST", "--format", "md"),
            ("history", "export", "FIRST", "--format", "html"),
            ("history", "export", "FIRST", "--format", "task"),
            ("watch", "FIRST", "--json"),
            ("watch", "FIRST"),
            ("resume", "FIRST", "--dry-run"),
            ("resume", "FIRST", "--dry-run", "--format", "messages"),
            ("resume", "FIRST", "--dry-run", "--format", "json", "--budget", "2000"),
            ("answer", "FIRST", "x"),
            ("answer",),
            ("verify",),
            ("verify", "--json", "FIRST"),
            ("stats", "--json"),
            ("cleanup", "--dry-run"),
            ("cleanup", "--trash"),
            ("redact", "--dry-run"),
            ("pause", "nosuch"),
            ("task", "turn", "FIRST", "--agent", "a", "after the end"),
            ("history", "--status", "perhaps"),
        ],
        ids=" ".join,
    )
    def test_output_and_exit_code(self, shared: tuple[Path, str, str], words: tuple[str, ...], tmp_path: Path) -> None:
        root, url, first = shared
        words = tuple(first if word == "FIRST" else word for word in words)
        here = rawko("-C", str(root), *words)
        there = rawko("-C", str(tmp_path), "--remote", url, *words)
        assert there.returncode == here.returncode, there.stderr
        assert _plain(there.stdout) == _plain(here.stdout)
        assert "Traceback" not in there.stderr
        assert _plain(there.stderr) == _plain(here.stderr)


def _plain(text: str) -> str:
    """Without what differs from one moment to the next."""
    text = re.sub(r"No task (in|on) \S+ matches", "No task matches", text)
    text = re.sub(r'"(index|search|score)": [0-9.]+', r'"\1": 0', text)
    return re.sub(r"/[^ :]*/\.rawko/state/tasks/", "", text)


class TestWriting:
    def test_the_life_of_a_task(self, project: Path, tmp_path: Path) -> None:
        with serving(project, "--quiet") as (url, _):
            ask = lambda *words, given=None: rawko("-C", str(tmp_path), "--remote", url, *words, given=given)  # noqa: E731
            task = ask("task", "start", "From afar").stdout.strip()
            assert ask("task", "turn", task, "--agent", "dev", "done", "--file", "write:a.py").returncode == 0
            assert ask("pause", task).returncode == 0
            assert ask("cancel", task).returncode == 0
            assert "cancelled" in ask("history", "show", task).stdout
            lines = [
                {"type": "start", "request": "piped"},
                {"type": "turn", "agent": "a", "open": True},
                {"type": "text", "text": "Hel"},
                {"type": "tool", "tool": "ls", "id": "1", "running": True},
                {"type": "tool", "id": "1", "result": "ok"},
                {"type": "text", "text": "lo"},
                {"type": "end", "tokens": {"in": 1, "out": 2}},
                {"type": "result", "summary": "ok"},
            ]
            done = ask("record", given="".join(json.dumps(line) + "\n" for line in lines))
            assert done.returncode == 0, done.stderr
            piped = json.loads(done.stdout.splitlines()[0])["task"]
            assert "Hello" in ask("history", "show", piped, "--turn", "1").stdout
            assert ask("task", "delete", piped).returncode == 0
            assert ask("cleanup", "--restore", piped).stdout.strip() == piped
            ran = ask("run", "count", "--", sys.executable, "-c", "print(6 * 7); raise SystemExit(3)")
            assert (ran.returncode, ran.stdout.strip()) == (3, "42")
            assert ask("history", "--status", "failed", "--limit", "1").returncode == 0
            resumed = ask("resume", task, "-m", "and again")
            assert resumed.returncode == 0, resumed.stderr
        assert not (tmp_path / ".rawko" / "state" / "tasks").exists(), "something was written to the files here"
        assert FileStore(project).summary(piped).status == "completed"

    def test_imports_go_to_the_server(self, project: Path, tmp_path: Path, fixtures: Path) -> None:
        (tmp_path / ".git").mkdir()
        with serving(project, "--quiet") as (url, _):
            done = rawko(
                "-C",
                str(tmp_path),
                "--remote",
                url,
                "import",
                "jsonl",
                str(fixtures / "agents" / "jsonl" / "chat.jsonl"),
                "--json",
            )
            assert done.returncode == 0, done.stderr
            (task,) = json.loads(done.stdout)["new"]
            again = rawko(
                "-C",
                str(tmp_path),
                "--remote",
                url,
                "import",
                "jsonl",
                str(fixtures / "agents" / "jsonl" / "chat.jsonl"),
                "--json",
            )
            assert json.loads(again.stdout)["new"] == []
        store = FileStore(project)
        assert store.summary(task).turns > 0
        (verdict,) = store.verify(task)
        assert verdict.faults == []

    def test_when_the_server_is_away(self, tmp_path: Path) -> None:
        (tmp_path / ".git").mkdir()
        away = "http://127.0.0.1:1"
        for words in (
            ("history",),
            ("task", "start", "x"),
            ("watch", "abc"),
            ("resume",),
            ("import", "jsonl", __file__),
        ):
            done = rawko("-C", str(tmp_path), "--remote", away, *words)
            assert done.returncode == 1, words
            assert done.stderr.endswith(
                f"\n  Is the server running? Use this project's files: rawko --remote local {words[0]}\n"
            )
            assert "reach" in done.stderr
        done = rawko("-C", str(tmp_path), "--remote", away, "record", given='{"type": "start", "request": "kept"}\n')
        assert done.returncode == 0
        assert "Recording to this project's files" in done.stderr
        assert [task.request for task in FileStore(tmp_path).history(_everything())] == ["kept"]

    def test_files_have_no_workspaces(self, tmp_path: Path) -> None:
        done = rawko("-C", str(tmp_path), "--workspace", "web", "history")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "workspace" in done.stderr


def _everything() -> object:
    from rawko_state.store import TaskFilter

    return TaskFilter()


class TestServe:
    def test_logs_tell_nothing_of_what_was_said(self, project: Path, tmp_path: Path) -> None:
        with serving(project) as (url, process):
            task = rawko("-C", str(tmp_path), "--remote", url, "task", "start", "a very private matter").stdout.strip()
            rawko("-C", str(tmp_path), "--remote", url, "history", "--search", "private")
            process.terminate()
            assert process.stderr is not None
            logged = process.stderr.read()
        lines = [json.loads(line) for line in logged.splitlines()]
        assert {"create_record", "search_tasks"} <= {line["operation"] for line in lines}
        assert "private" not in logged
        assert task not in logged

    def test_a_port_that_is_taken_is_one_line(self, project: Path) -> None:
        with serving(project, "--quiet") as (url, _):
            done = rawko("-C", str(project), "serve", "--port", url.rsplit(":", 1)[1])
            assert done.returncode == 1
            assert "Traceback" not in done.stderr

    def test_elsewhere_is_refused_without_a_token(self, project: Path) -> None:
        done = rawko("-C", str(project), "serve", "--host", "0.0.0.0", "--port", "0")
        assert (done.returncode, done.stderr.count("\n")) == (2, 2)
        assert "rawko token create" in done.stderr

    def test_retention_is_carried_out(self, project: Path) -> None:
        """All that is over goes, whichever was last: only the waiting one counts as the one that is kept."""
        (project / ".rawko" / "config.yaml").write_text(
            "state:\n  retention:\n    max_count: 1\n    keep_failed: false\n"
        )
        before = len(FileStore(project).history(_everything()))  # type: ignore[arg-type]
        with serving(project, "--quiet") as (_, process):
            assert process.stderr is not None
            assert "moved 3 tasks to the trash" in process.stderr.readline()
        assert len(FileStore(project).history(_everything())) < before  # type: ignore[arg-type]


class TestTokens:
    def test_the_token_and_nothing_else(self, project: Path, tmp_path: Path) -> None:
        with serving(project, "--quiet") as (url, _):
            made = rawko("-C", str(project), "token", "create", "--role", "read", "--note", "ann")
            assert re.fullmatch(r"rawko_[0-9a-f]{12}_[0-9A-Za-z_-]{43}\n", made.stdout)
            assert made.stderr == ""
            token = made.stdout.strip()
            assert rawko("-C", str(tmp_path), "--remote", url, "history").returncode == 1
            with_token = {"RAWKO_REMOTE_TOKEN": token}
            assert rawko("-C", str(tmp_path), "--remote", url, "history", env=with_token).returncode == 0
            refused = rawko("-C", str(tmp_path), "--remote", url, "task", "start", "x", env=with_token)
            assert refused.returncode == 1
            assert "role write" in refused.stderr
            listed = rawko("-C", str(project), "token", "list").stdout
            assert "ann" in listed
            assert token.split("_", 2)[2] not in listed
            assert rawko("-C", str(project), "token", "revoke", token.split("_")[1]).returncode == 0
            assert rawko("-C", str(tmp_path), "--remote", url, "history", env=with_token).returncode == 1
            assert rawko("-C", str(project), "token", "revoke", "nosuch").returncode == 1

    def test_from_the_keyring(self, project: Path, tmp_path: Path) -> None:
        pytest.importorskip("keyring", reason="the keyring package is not installed")
        (tmp_path / "filering.py").write_text(
            "import json, pathlib, os\n"
            "from keyring.backend import KeyringBackend\n"
            "P = pathlib.Path(os.environ['FILERING'])\n"
            "class Ring(KeyringBackend):\n"
            "    priority = 1\n"
            "    def _all(self): return json.loads(P.read_text()) if P.exists() else {}\n"
            "    def get_password(self, s, u): return self._all().get(s + ' ' + u)\n"
            "    def set_password(self, s, u, p): P.write_text(json.dumps({**self._all(), s + ' ' + u: p}))\n"
            "    def delete_password(self, s, u): P.write_text(json.dumps({k: v for k, v in self._all().items() if k != s + ' ' + u}))\n"
        )
        ring = {
            "PYTHON_KEYRING_BACKEND": "filering.Ring",
            "PYTHONPATH": str(tmp_path),
            "FILERING": str(tmp_path / "ring.json"),
        }
        token = rawko("-C", str(project), "token", "create", "--role", "read").stdout
        with serving(project, "--quiet") as (url, _):
            assert rawko("-C", str(tmp_path), "--remote", url, "history", env=ring).returncode == 1
            assert rawko("token", "save", url, given=token, env=ring).returncode == 0
            assert rawko("-C", str(tmp_path), "--remote", url, "history", env=ring).returncode == 0
            assert rawko("token", "forget", url, env=ring).returncode == 0
            assert rawko("-C", str(tmp_path), "--remote", url, "history", env=ring).returncode == 1


class TestPg:
    def test_push_pull_and_serve(self, project: Path, tmp_path: Path, database: str) -> None:
        done = rawko("-C", str(project), "pg", "push", "--database", database, "--workspace", "web", "--json")
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["new"]) == 4
        again = rawko("-C", str(project), "pg", "push", "--database", database, "--workspace", "web", "--json")
        assert json.loads(again.stdout)["same"] == 4
        (tmp_path / "copy").mkdir()
        assert (
            rawko("-C", str(tmp_path / "copy"), "pg", "pull", "--database", database, "--workspace", "web").returncode
            == 0
        )
        mine, copy = (sorted((root / ".rawko/state/tasks").iterdir()) for root in (project, tmp_path / "copy"))
        assert [(path.name, path.read_bytes()) for path in mine] == [(path.name, path.read_bytes()) for path in copy]
        assert rawko("workspace", "list", "--database", database).stdout.split() == ["web"]
        with serving(tmp_path / "copy", "--quiet", "--database", database) as (url, _):
            found = rawko("-C", str(tmp_path), "--remote", url, "--workspace", "web", "history", "--ids").stdout
            assert sorted(found.split()) == sorted(path.name.split("-")[-1].removesuffix(".task") for path in mine)
            none = rawko("-C", str(tmp_path), "--remote", url, "--workspace", "nosuch", "history")
            assert none.returncode == 1
            assert "no workspace 'nosuch'" in none.stderr
        assert rawko("workspace", "create", "web", "--database", database).returncode == 1
        assert rawko("workspace", "drop", "web", "--yes", "--database", database).returncode == 0
        assert rawko("pg", "push", "--database", "mysql://x", cwd=project).returncode == 2
