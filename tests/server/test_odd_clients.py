"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.index.server_state import FileServerState
from rawko_state.model.entries import Turn
from rawko_state.server.app import PREFIX
from tests.server.clients import Client, _follow
from tests.support.serving import Served, served


class TestOddClients:
    def test_an_odd_draft_stops_nobody(self, server: Served, client: Client) -> None:
        odd, other = client.start(), client.start()
        token = client("POST", f"tasks/{odd}/lease", {})[1]["token"]
        for head in (
            {"agent": "a", "started": "2024-01-01T00:00:00Z", "since": 1, "seal": "\ud800"},
            {"agent": "a", "started": "soon\nid: evil", "since": 0, "seal": "0" * 16},
            {"agent": "a", "started": "2024-01-01T00:00:00Z", "since": -1, "seal": "0" * 16},
            {"agent": 7, "started": "2024-01-01T00:00:00Z", "since": 0, "seal": "0" * 16},
        ):
            assert client("PUT", f"tasks/{odd}/draft?token={token}", raw=json.dumps(head).encode() + b"\n")[0] == 422
        # And if one were there all the same, those who follow other tasks go on.
        path = server.server.workspaces.get(None).store.journal.layout.draft(odd)
        path.write_text(
            json.dumps({"agent": "a", "started": "2024-01-01T00:00:00Z", "since": 1, "seal": "\ud800"}) + "\n"
        )
        with contextlib.suppress(ConnectionClosed):
            next(_follow(server.port, odd))
        messages = _follow(server.port, other)
        next(messages)
        time.sleep(0.6)
        client("POST", f"tasks/{other}/turns", {"agent": "a", "content": "seen"})
        assert next(message for message in messages if message.get("kind") == "turn")["text"] == "seen"
        messages.close()  # type: ignore[attr-defined]

    def test_a_live_turn_goes_on_after_a_restart(self, server: Served, tmp_path: Path) -> None:
        """The server has forgotten the lease and the draft: the client sends them again."""
        store = RemoteStore(server.url, root=tmp_path)
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("one ")
        local = server.server.workspaces.get(None).store
        local.lent._loans.pop(task.id).lease.release()
        turn.say("two ")
        local.journal.layout.draft(task.id).unlink()
        turn.say("three")
        live = [event.text for event in store.events(task.id) if event.kind == "text"]
        assert live == ["one ", "two ", "three"]
        turn.end()
        task.finish("success")
        assert store.turn(task.id, 1).content == "one two three"
        store.close()

    def test_who_lost_his_lease_does_not_write_into_the_work_of_the_next(self, database: str, tmp_path: Path) -> None:
        from rawko_state.errors import StorageError, TaskBusy

        one, two = (PostgresStore(database, root=tmp_path) for _ in range(2))
        first = one.start("x")
        stale = first.turn("dev")
        stale.say("old ")
        one.postgres.connection.execute(f"UPDATE {one.tasks.rows.at('leases')} SET expires = now() - interval '1 s'")
        second = two.resume(first.id)
        fresh = second.turn("dev")
        fresh.say("new")
        with pytest.raises(StorageError, match="another process took over"):
            stale.say("late")
        with pytest.raises(TaskBusy):
            first.add_turn(Turn(number=1, agent="a"))
        fresh.end()
        second.finish("success")
        assert [two.turn(first.id, n).content for n in (1, 2)] == ["old ", "new"]
        first._writer.release_lease()
        one.close()
        two.close()

    def test_the_same_key_at_two_servers_at_once(self, database: str, project: Path) -> None:
        with served(project, database) as one, served(project, database) as two:
            task = Client(one.port).start()
            for number in range(10):
                key, found = uuid.uuid4().hex, []
                threads = [
                    threading.Thread(
                        target=lambda port=port, key=key, found=found: found.append(
                            Client(port)("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key=key)
                        )
                    )
                    for port in (one.port, two.port)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert {status for status, *_ in found} <= {201, 409}, found
                assert Client(one.port)("GET", f"tasks/{task}")[1]["task"]["turns"] == number + 1

    def test_streams_leave_no_connections_behind(self, database: str, project: Path) -> None:
        with served(project, database) as running:
            ask = Client(running.port)
            task = ask.start("x" * 3_000_000)
            for _ in range(30):
                ask("GET", f"tasks/{task}/file")
            assert len(running.server.workspaces.host.postgres._connections) <= 16  # type: ignore[attr-defined]

    def test_who_is_not_admitted_sends_nothing_long(self, server: Served, project: Path) -> None:
        db = FileServerState(project)
        db.create_token("read")
        db.close()
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(f"POST {PREFIX}/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        assert b"401" in raw.recv(200)
        raw.close()

    def test_very_long_names(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        path = "".join(uuid.uuid4().hex for _ in range(300))
        turn = {"agent": "a" * 500, "files": [{"operation": "write", "path": path}]}
        assert ask("POST", f"tasks/{task}/turns", turn)[0] == 201
        assert ask("GET", f"tasks/{task}/turns/1")[1]["files"][0]["path"] == path
        assert ask("PUT", f"kv/s/{'k' * 1000}", {"value": "v"})[0] == 204

    def test_what_belongs_to_other_projects_is_not_shown(self, client: Client, project: Path) -> None:
        from rawko_state.index.userdb import UserState

        with UserState() as user:
            user.saw_project("/home/bob/secret", "git", "https://x/secret", None)
            user.set("user", "mine", "private")
        assert "secret" not in str(client("GET", "repos")[1])
        assert client("GET", "kv")[1]["values"] == []
        assert client("GET", "kv/user/mine")[0] == 404

    def test_conditions_hold_for_every_change(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        for path, body in (
            ("turns", {"agent": "a"}),
            ("notes", {"text": "n"}),
            ("decisions", {"selected": "a"}),
            ("messages", {"text": "m"}),
            ("questions", {"agent": "a", "text": "q"}),
            ("pause", {}),
            ("cancel", {}),
            ("finish", {}),
            ("resume", {}),
        ):
            assert ask("POST", f"tasks/{task}/{path}", body, If_Match='"0000000000000000"')[0] == 412, path
        seal = ask("GET", f"tasks/{task}")[1]["seal"]
        assert ask("POST", f"tasks/{task}/notes", {"text": "n"}, If_Match=f'"{seal}"')[0] == 201

    def test_a_revoked_token_does_not_go_on_reading(
        self, server: Served, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rawko_state.server.feeds.HEARTBEAT", 0.3)
        db = FileServerState(project)
        token = db.create_token("write")
        task = Client(server.port, token).start()
        url = f"ws://127.0.0.1:{server.port}{PREFIX}/tasks/{task}/events/socket"
        with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as stream:
            stream.recv()
            db.revoke_token(token.split("_")[1])
            with contextlib.suppress(ConnectionClosed):
                for _ in stream:
                    pass
        assert stream.close_code == 4001
        db.close()
