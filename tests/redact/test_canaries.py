"""A canary: one secret goes through every way in and out, and is nowhere on the disk afterwards."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import RawkoError
from rawko_state.model.entries import Question, ToolCall, Turn
from rawko_state.store import TaskFilter
from tests.server.clients import Client
from tests.support.processes import rawko
from tests.support.serving import served

CANARY = "ghp_" + "Q7cAnArY2z" * 3 + "9fKw4T"
PASSWORD = "!Zebra-canary-2024"
SAID = f"token {CANARY} and DB_PASSWORD={PASSWORD} here"


def nowhere(*roots: Path) -> None:
    """Not in any file, whatever its form: plain, escaped, in small letters, or packed."""
    import gzip

    for root in roots:
        for path in root.rglob("*"):
            if not path.is_file():
                continue
            data = path.read_bytes()
            if path.suffix == ".gz":
                data += gzip.decompress(data)
            small = data.lower()
            for secret in (CANARY, PASSWORD):
                assert secret.lower().encode() not in small, (path, secret)
                assert secret.lower().encode()[4:] not in small, (path, secret)
                assert secret.lower().encode("utf-16-le") not in small, path


def home() -> list[Path]:
    return [
        Path(os.environ[name]) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME") if name in os.environ
    ]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


class TestWaysIn:
    def test_the_python_interface(self, project: Path) -> None:
        store = FileStore(project)
        with store.start(
            SAID, title=SAID, labels={"a": SAID}, fields={"Note": SAID}, sections={"More": SAID}, cwd=SAID, by=SAID
        ) as task:
            task.decide(selected="dev", reason=SAID, guidance=SAID)
            with task.turn("dev") as turn:
                for at in range(0, len(SAID), 3):
                    turn.say(SAID[at : at + 3])
                turn.tool("shell.exec", SAID, SAID, output=SAID)
                turn.tool("shell.exec", "x", "ok", output=f"{SAID}\n" * 2000)
                turn.progress(SAID)
                turn.touch("write", f"src/{CANARY}.py")
                nowhere(project)
                turn.end(state={"password": PASSWORD, "x": [SAID]}, payload=SAID)
            with task.turn(f"agent {CANARY}") as turn:
                turn.say("x")
            task.ask("dev", Question(SAID, (SAID, "no"), default=SAID))
            task.answer("no", by=SAID)
            task.note(SAID, title=SAID, data={"k": SAID, "db_password": PASSWORD}, kind="k")
            task.finish("failure", SAID, error=SAID, output={"a": SAID}, files=[f"{CANARY}.txt"])
        store.search("redacted", TaskFilter(sort="relevance"))
        store.flush()
        store.reindex()
        nowhere(project, *home())

    def test_the_shell(self, project: Path) -> None:
        task = rawko(project, "task", "start", SAID, "--title", SAID, "--label", f"a={SAID}").stdout.split()[0]
        rawko(project, "task", "turn", task, "--agent", f"dev {CANARY}", SAID, "--file", f"write:src/{CANARY}.py")
        rawko(project, "task", "note", task, SAID)
        rawko(project, "task", "finish", task, "--summary", SAID)
        rawko(project, "kv", "set", "project", "x", SAID, code=None)
        assert CANARY not in rawko(project, "kv", "set", "project", CANARY, "x", code=None).stderr
        rawko(project, "history", "--search", "canary")
        nowhere(project, *home())

    def test_the_pipe(self, project: Path) -> None:
        lines = [
            {"type": "start", "request": SAID, "title": SAID},
            {"type": "turn", "agent": f"dev {CANARY}"},
            *({"type": "text", "text": SAID[at : at + 3]} for at in range(0, len(SAID), 3)),
            {"type": "tool", "tool": "x", "args": SAID, "result": SAID, "output": SAID},
            {"type": "end"},
            {"type": "note", "content": SAID},
        ]
        rawko(project, "record", given="".join(json.dumps(line) + "\n" for line in lines), code=None)
        # Without an end, and with what is no line of the protocol: errors must not repeat it.
        rawko(project, "record", given="".join(json.dumps(line) + "\n" for line in lines[:6]) + SAID + "\n", code=None)
        nowhere(project, *home())

    def test_imports_and_hooks(self, project: Path, tmp_path: Path, fixtures: Path) -> None:
        source = next(path for path in sorted((fixtures / "agents/claude-code").rglob("*.jsonl")))
        session = tmp_path / "sessions" / "0c0ffee0-0000-4000-8000-000000000000.jsonl"
        session.parent.mkdir()
        lines = []
        for line in source.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            message = record.get("message")
            if isinstance(message, dict) and isinstance(message.get("content"), str):
                message["content"] = SAID
            lines.append(json.dumps({**record, "cwd": str(project), "extra": SAID}))
        session.write_text("\n".join(lines) + "\n", encoding="utf-8")
        rawko(project, "import", "claude-code", str(session), code=None)
        event = {
            "hook_event_name": "Stop",
            "session_id": session.stem,
            "transcript_path": str(session),
            "cwd": str(project),
        }
        rawko(project, "hook", "run", "claude-code", given=json.dumps({**event, "prompt": SAID}), code=None)
        rawko(project, "hook", "run", "claude-code", given=f"no JSON {SAID}", code=None)
        assert list((project / ".rawko/state/tasks").iterdir())
        nowhere(project, *home())

    def test_rest(self, project: Path) -> None:
        with served(project) as server:
            ask = Client(server.port)
            task = ask.start(SAID)
            turn = {"agent": f"dev {CANARY}", "content": SAID, "payload": SAID, "state": {"db_password": PASSWORD}}
            ask("POST", f"tasks/{task}/turns", turn)
            ask("POST", f"tasks/{task}/notes", {"content": SAID})
            ask("PUT", "kv/project/x", {"value": SAID})
            assert CANARY not in str(ask("PUT", f"kv/project/{CANARY}", {"value": "x"}))
            ask(
                "POST",
                "repos",
                {"vcs": "git", "remote_url": f"https://bob:{CANARY}@example.org/x", "default_branch": "main"},
            )
            lease = ask("POST", f"tasks/{task}/lease", {})[1]
            ask("GET", f"tasks?search={CANARY}")
            blob = SAID.encode()
            assert ask("PUT", f"blobs/{hashlib.sha256(blob).hexdigest()}", raw=blob)[0] == 422
            assert lease
            nowhere(project, *home())


class TestUploads:
    DATA = f"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: {SAID}\n".encode()

    def test_nothing_is_stored_before_it_is_clean(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every file that the store writes is looked at when it is put in place: a server may be killed right after."""
        from rawko_state.journal import disk

        renamed = disk.rename

        def rename(source: Path, target: Path) -> None:
            assert CANARY.encode() not in Path(source).read_bytes()
            renamed(source, target)

        monkeypatch.setattr(disk, "rename", rename)
        real = disk.write_temporary

        def write(folder: Path, *given: object, **more: object) -> Path:
            made: Path = real(folder, *given, **more)  # type: ignore[arg-type]
            assert CANARY.encode() not in made.read_bytes()
            return made

        monkeypatch.setattr(disk, "write_temporary", write)
        with served(project) as server:
            ask = Client(server.port)
            for _ in range(2):  # again, as a client does that got no answer
                status, placed, _ = ask("PUT", "files/2024-01-15T10-30-00-abc123.task", raw=self.DATA)
                assert (status, placed["redacted"]) == (200, 1)
            other = self.DATA.replace(b"completed", b"failed")
            assert ask("PUT", "files/2024-01-15T10-30-00-abc123.task", raw=other)[0] == 409
        nowhere(project)


class TestWaysOut:
    def test_exports_and_errors(self, project: Path, tmp_path: Path) -> None:
        path = project / ".rawko/state/tasks/2024-01-15T10-30-00-abc123.task"
        path.parent.mkdir(parents=True)
        path.write_bytes(TestUploads.DATA)
        for form in ("md", "html", "json", "text"):
            done = rawko(project, "history", "export", "abc123", "--format", form, code=None)
            assert CANARY not in done.stdout + done.stderr, form
        out = rawko(project, "redact", "--explain").stdout
        assert CANARY not in out
        assert PASSWORD not in out
        assert "github-token:" in out
        with pytest.raises(RawkoError) as raised:
            FileStore(project).add_file(f"{CANARY}.task", b"")
        assert raised.value is not None
        rawko(project, "redact")
        nowhere(project)

    def test_a_bundle(self, project: Path) -> None:
        with FileStore(project).start(SAID) as task:
            task.add_turn(Turn(number=1, agent="dev", content=SAID, tools=(ToolCall("x", output=SAID * 300),)))
            task.finish("success", SAID)
        done = rawko(project, "history", "export", task.id, "--format", "json", code=None)
        assert CANARY not in done.stdout
