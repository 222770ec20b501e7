"""A task goes from Claude Code to Codex and back, with the real programs, against a model that is scripted here.

Needs both programs: RAWKO_TEST_CLIENTS names the folder with `claude` and `codex` in it (npm's `node_modules/.bin`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from tests.exchange.sessions import bring, turns
from tests.support.processes import rawko

CLIENTS = os.environ.get("RAWKO_TEST_CLIENTS", "")
pytestmark = pytest.mark.skipif(
    not all((Path(CLIENTS) / name).exists() for name in ("claude", "codex")) or not CLIENTS,
    reason="real clients: set RAWKO_TEST_CLIENTS to a folder with claude and codex",
)


class Model(BaseHTTPRequestHandler):
    """Answers each request with how many messages it was given, so that a test sees whether the history was there."""

    def log_message(self, *given: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(b'{"data": [], "models": []}', "application/json")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        text = "answer with history" if "FIRST WORD" in json.dumps(asked) else "answer without"
        events = _anthropic(text) if "messages" in self.path else _openai(text)
        data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self._send(data.encode(), "text/event-stream")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _anthropic(text: str) -> Iterator[dict[str, Any]]:
    used = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-8", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": used}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": used}
    yield {"type": "message_stop"}


def _openai(text: str) -> Iterator[dict[str, Any]]:
    said = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [said]}
    used = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": used}
    yield {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": answer}


@pytest.fixture
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_task_goes_to_codex_and_back(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / ".rawko").mkdir(parents=True)
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex/config.toml").write_text(
        'model = "gpt-5.5"\nmodel_provider = "here"\napproval_policy = "never"\n'
        f'[model_providers.here]\nname = "here"\nbase_url = "{model}/v1"\nwire_api = "responses"\nenv_key = "KEY"\n'
    )
    env = {
        "PATH": f"{CLIENTS}:{os.environ['PATH']}", "HOME": str(tmp_path), "KEY": "none", "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": model, "IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "CODEX_HOME": str(tmp_path / "codex"),
    }  # fmt: skip
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.setenv(name, env[name])
    store = FileStore(project)
    with store.start("FIRST WORD") as task:
        task.turn("dev").end(content="half done")
        task.finish("success")
    ways = (("claude", ()), ("codex", ("--skip-git-repo-check",)), ("claude", ()))
    for agent, words in ways:
        rawko(project, "resume", task.id, "--with", agent, "-m", f"now {agent}", "--", *words, cwd=project, **env)
    found = [(turn.agent, turn.content) for turn in turns(store, task.id)][1:]
    assert found == [(agent, "answer with history") for agent, _ in ways]
    assert [run.request for run in store.runs(task.id)][1:] == [f"now {agent}" for agent, _ in ways]
    for source in ("claude-code", "codex"):
        report = bring(store, source)
        assert (report.new, report.grown) == ([], [])
