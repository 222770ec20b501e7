"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import ServerAway, ServerRefused
from rawko_state.model.entries import Turn
from tests.server.clients import SECRET, Client, _answers
from tests.support.machine import patience, wait_for
from tests.support.serving import Served, served


class TestRemote:
    def test_a_server_that_is_away_is_one_line_and_no_hang(self, tmp_path: Path) -> None:
        with pytest.raises(ServerAway, match="reach"):
            RemoteStore("http://127.0.0.1:1", root=tmp_path).summary("abc")

    def test_what_is_no_rawko_server(self, tmp_path: Path) -> None:
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "5")
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, *_: Any) -> None:
                pass

        other = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            store = RemoteStore(f"http://127.0.0.1:{other.server_port}", root=tmp_path)
            with pytest.raises(ServerRefused, match="rawko server"):
                store.hello()
            store.close()
        finally:
            other.shutdown()
            thread.join()
            other.server_close()

    def test_an_append_whose_answer_is_lost_is_stored_once(
        self, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The connection breaks after the request was sent: it is sent again, with its key."""
        store = RemoteStore(server.url, root=tmp_path)
        task = store.start("x", detached=True)
        genuine = http.client.HTTPConnection.getresponse
        broken = []

        def breaks(self: http.client.HTTPConnection) -> Any:
            found = genuine(self)
            if self._method == "POST" and not broken:  # type: ignore[attr-defined]
                broken.append(True)
                found.read()
                raise ConnectionResetError("cut")
            return found

        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", breaks)
        task.add_turn(Turn(number=1, agent="a", content="once"))
        assert broken
        assert store.summary(task.id).turns == 1
        task.add_turn(Turn(number=1, agent="a", content="twice"))
        assert store.summary(task.id).turns == 2
        store.close()

    def test_a_follower_comes_back_after_a_restart(self, project: Path, tmp_path: Path) -> None:
        with served(project) as one:
            port = one.port
            first = RemoteStore(one.url, root=tmp_path)
            task = first.start("x", detached=True)
            task.add_turn(Turn(number=1, agent="a", content="before"))
            texts: list[str] = []
            follower = RemoteStore(one.url, root=tmp_path)

            def follow() -> None:
                for event in follower.follow(task.id):
                    if event is not None and event.kind == "turn":
                        texts.append(event.text or "")
                follower.close()

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            wait_for(lambda: texts == ["before"])
            first.close()
        from rawko_state.server.run import Options, build

        server = build(Options(root=project), lambda message: None)
        import uvicorn

        running = uvicorn.Server(uvicorn.Config(server.app, host="127.0.0.1", port=port, log_config=None))
        serving = threading.Thread(target=running.run, daemon=True)
        serving.start()
        again = RemoteStore(f"http://127.0.0.1:{port}", root=tmp_path)
        wait_for(lambda: _answers(again))
        mine = again.attach(task.id)
        mine.add_turn(Turn(number=1, agent="a", content="after"))
        mine.finish("success")
        thread.join(patience(20))
        assert texts == ["before", "after"]
        again.close()
        server.hub.stop()
        running.should_exit = True
        serving.join(patience(10))

    def test_a_project_names_a_server_only_if_it_is_trusted(self, server: Served, tmp_path: Path) -> None:
        from rawko_state.backends.select import open_store
        from rawko_state.config.settings import files
        from rawko_state.errors import InvalidValue

        (tmp_path / ".rawko").mkdir()
        (tmp_path / ".rawko" / "config.yaml").write_text(f"remote-server: {server.url}\n")
        with pytest.raises(InvalidValue, match="trust"):
            open_store(tmp_path)
        assert isinstance(open_store(tmp_path, remote="local"), FileStore)
        mine = files(None)["user"]
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text(f"trusted-servers: [{server.url}]\n")
        store = open_store(tmp_path)
        assert isinstance(store, RemoteStore)
        store.close()

    def test_a_dead_client_loses_its_lease_and_its_draft_is_kept(self, any_server: Served, tmp_path: Path) -> None:
        store = RemoteStore(any_server.url, root=tmp_path)
        task = store.start("x", detached=True)
        ask = Client(any_server.port)
        token = ask("POST", f"tasks/{task.id}/lease", {"seconds": 1})[1]["token"]
        about = ask("GET", f"tasks/{task.id}")[1]
        head = {
            "agent": "dev",
            "started": "2026-01-01T00:00:00.5Z",
            "since": about["end"],
            "seal": about["seal"],
            "fields": {},
        }
        assert ask("PUT", f"tasks/{task.id}/draft?token={token}", raw=json.dumps(head).encode() + b"\n")[0] == 204
        line = json.dumps({"kind": "text", "text": f"half, with {SECRET}"}).encode() + b"\n"
        assert ask("POST", f"tasks/{task.id}/draft?token={token}", raw=line)[0] == 204
        assert ask("POST", f"tasks/{task.id}/draft?token={'0' * 32}", raw=line)[0] == 423
        with store.resume(task.id, wait=patience(60)) as again:  # until the lease has expired
            assert again.state.turns == 1
        left = store.turn(task.id, 1)
        assert left.status == "interrupted"
        assert (left.content or "").startswith("half, with [redacted:")
        store.close()
