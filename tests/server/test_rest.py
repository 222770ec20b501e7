"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import TaskNotFound
from rawko_state.model.entries import Turn
from rawko_state.server.app import OPERATIONS
from tests.server.clients import SECRET, Client, _follow, _pieces
from tests.support.serving import Served, served


class TestRest:
    def test_the_life_of_a_task(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start("Fix it", labels={"team": "auth"})
        assert ask("POST", f"tasks/{task}/decisions", {"selected": "dev", "reason": "small"})[0] == 201
        status, done, _ = ask(
            "POST", f"tasks/{task}/turns", {"agent": "dev", "content": "Fixed.", "tools": [{"tool": "ls"}]}
        )
        assert (status, done["turn"], done["status"]) == (201, 2, "running")
        assert (
            ask("POST", f"tasks/{task}/questions", {"agent": "dev", "text": "Which?", "choices": ["a", "b"]})[1][
                "status"
            ]
            == "waiting"
        )
        assert ask("GET", f"tasks/{task}/question")[1]["question"]["choices"] == ["a", "b"]
        assert ask("POST", f"tasks/{task}/answers", {"text": "2"})[1]["status"] == "running"
        assert ask("POST", f"tasks/{task}/pause", {"reason": "lunch"})[1]["status"] == "paused"
        assert ask("POST", f"tasks/{task}/resume", {})[1]["status"] == "running"
        assert ask("POST", f"tasks/{task}/messages", {"text": "go on"})[0] == 201
        assert ask("POST", f"tasks/{task}/notes", {"title": "Better", "pinned": True})[0] == 201
        assert ask("POST", f"tasks/{task}/finish", {"summary": "ok", "files": ["a.py"]})[1]["status"] == "completed"
        status, fork, _ = ask("POST", f"tasks/{task}/fork", {"turn": 2, "message": "otherwise"})
        assert (status, fork["parent"]) == (201, f"{task}@2")
        assert ask("POST", f"tasks/{fork['task']}/cancel", {})[1]["status"] == "cancelled"
        status, about, _ = ask("GET", f"tasks/{task}")
        assert (about["task"]["title"], about["task"]["pinned"], about["task"]["turns"]) == ("Better", True, 5)
        assert ask("GET", f"tasks/{task}/runs")[1]["runs"][0]["summary"] == "ok"
        assert ask("GET", f"tasks/{task}/files")[1]["files"] == [{"turn": 0, "operation": "write", "path": "a.py"}]
        assert ask("GET", f"tasks/{task}/children")[1]["children"][0]["id"] == fork["task"]
        assert ask("GET", "search?q=fixed")[1]["tasks"][0]["id"] == task
        assert ask("GET", f"tasks/{task}/messages")[1]["messages"][0] == {"role": "user", "content": "Fix it"}
        assert ask("GET", f"tasks/{task}/events")[1]["events"][-1]["kind"] == "final"
        first = ask("GET", "tasks?limit=1")[1]
        second = ask("GET", f"tasks?limit=1&after={first['next']}")[1]
        assert {first["tasks"][0]["id"], second["tasks"][0]["id"]} == {task, fork["task"]}
        for form in ("json", "md", "html", "task"):
            assert ask("GET", f"tasks/{task}/export?format={form}")[0] == 200
        assert ask("DELETE", f"tasks/{task}")[0] == 200
        assert ask("GET", f"tasks/{task}")[0] == 404
        assert ask("POST", "trash/restore", {"id": task})[1]["restored"] == [task]

    def test_an_unknown_id_is_an_error_and_not_a_new_task(self, client: Client) -> None:
        for method, path in (
            ("GET", "tasks/nosuch"),
            ("POST", "tasks/nosuch/turns"),
            ("GET", "tasks/nosuch/events/stream"),
        ):
            status, problem, headers = client(method, path, {"agent": "a"} if method == "POST" else None)
            assert status == 404
            assert headers["content-type"] == "application/problem+json"
            assert problem["title"] == "TaskNotFound"
        assert client("GET", "tasks")[1]["tasks"] == []

    def test_conditional_appends(self, client: Client) -> None:
        task = client.start()
        seal = client("GET", f"tasks/{task}")[1]["seal"]
        assert client("POST", f"tasks/{task}/turns", {"agent": "a"}, If_Match=f'"{seal}"')[0] == 201
        status, problem, _ = client("POST", f"tasks/{task}/turns", {"agent": "a"}, If_Match=f'"{seal}"')
        assert (status, problem["title"]) == (412, "ChainMoved")
        assert client("POST", f"tasks/{task}/notes", {"text": "n"}, If_Match=f'"{seal}"')[0] == 412
        assert client("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_looking_at_a_packed_task_leaves_it_packed(self, client: Client, project: Path) -> None:
        store = FileStore(project)
        with store.start("x") as task:
            task.add_turn(Turn(number=1, agent="a", status="complete", content="y"))
        assert store.pack(store.retention_rows(task.id)[0])
        for path in (
            "",
            "/turns",
            "/turns/1",
            "/events",
            "/file",
            "/export?format=md",
            "/verify",
            f"/records/{'0' * 16}",
        ):
            assert client("GET", f"tasks/{task.id}{path}")[0] == 200, path
        assert store.find(task.id).packed
        assert client("POST", f"tasks/{task.id}/notes", {"text": "n"})[0] == 201

    def test_problems_tell_no_paths_of_the_machine(self, client: Client, project: Path) -> None:
        task = client.start()
        _, problem, _ = client("POST", f"tasks/{task}/turns", {"agent": "a"}, If_Match='"0000000000000000"')
        assert str(project) not in json.dumps(problem)

    def test_parts_of_a_file(self, client: Client) -> None:
        task = client.start("x" * 5000)
        whole = client("GET", f"tasks/{task}/file")[1]
        status, part, headers = client("GET", f"tasks/{task}/file", Range="bytes=100-199")
        assert (status, part) == (206, whole[100:200])
        assert headers["content-range"] == f"bytes 100-199/{len(whole)}"
        assert client("GET", f"tasks/{task}/file", Range=f"bytes={len(whole)}-")[0] == 416

    def test_wrong_bodies_get_one_clear_line(self, client: Client) -> None:
        task = client.start()
        for path, data, word in (
            ("tasks", {}, "request"),
            ("tasks", {"request": "x", "colour": "red"}, "colour"),
            (f"tasks/{task}/turns", {"agent": ""}, "must not be empty"),
            (f"tasks/{task}/turns", {"agent": "a", "tokens": {"in": -1}}, "at least 0"),
            (f"tasks/{task}/turns", {"agent": "a", "files": [{"operation": "eat", "path": "x"}]}, "one of"),
            (f"tasks/{task}/finish", {"status": "perhaps"}, "one of"),
            (f"tasks/{task}/answers", {"text": "x"}, "is not waiting for an answer"),
            (f"tasks/{task}/fork", {"turn": 99}, "no turn"),
        ):
            status, problem, _ = client("POST", path, data)
            assert 400 <= status < 500, path
            assert word in problem["detail"]
            assert "\n" not in problem["detail"]
        for raw in (b"{", b"[]", b"\xff", b'{"request": NaN}', b"[" * 100_000):
            assert client("POST", "tasks", raw=raw)[0] == 422
        assert client("GET", "tasks?limit=many")[0] == 422
        assert client("GET", "tasks?colour=red")[0] == 422
        assert client("PATCH", "tasks")[0] == 405
        assert client("GET", "nothing")[0] == 404

    def test_requests_have_a_limit(self, project: Path) -> None:
        with served(project) as running:
            running.server._largest = 10_000
            ask = Client(running.port)
            assert ask("POST", "tasks", {"request": "x" * 20_000})[0] == 413
            assert ask("POST", "tasks", {"request": "x" * 5_000})[0] == 201

    def test_large_tasks_come_and_go_piece_by_piece(self, any_server: Served, project: Path, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        with store.start("large") as task:
            for _ in range(30):
                task.add_turn(Turn(number=1, agent="a", status="complete", content="y" * 300_000))
        with store.reader(task.id) as reader:
            data = reader.fetch(0, reader.size)
        remote = RemoteStore(any_server.url, root=tmp_path)
        name = store.find(task.id)
        assert (
            remote.add_file(name.filename, (data[at : at + 100_000] for at in range(0, len(data), 100_000))) is not None
        )
        with remote.reader(task.id) as reader:
            assert b"".join(iter(_pieces(reader.fetch), b"")) == data
        remote.close()

    def test_secrets_are_taken_out_by_the_server_too(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start(f"use {SECRET}")
        ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": SECRET, "payload": SECRET, "state": {"k": SECRET}})
        assert SECRET.encode() not in ask("GET", f"tasks/{task}/file")[1]
        data = f"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: {SECRET}\n".encode()
        status, placed, _ = ask("PUT", "files/2024-01-15T10-30-00-abc123.task", raw=data)
        assert (status, placed["redacted"]) == (200, 1)
        assert SECRET.encode() not in ask("GET", "tasks/abc123/file")[1]
        import hashlib

        blob = SECRET.encode()
        assert ask("PUT", f"blobs/{hashlib.sha256(blob).hexdigest()}", raw=blob)[0] == 422

    def test_values_repositories_agents_and_runtimes(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        assert ask("PUT", "kv/project/colour", {"value": "red"})[0] == 204
        assert ask("GET", "kv/project/colour")[1]["value"] == "red"
        assert ask("PUT", "kv/project/colour", {"value": "blue"})[0] == 204
        assert {"scope": "project", "key": "colour", "value": "blue"} in ask("GET", "kv?scope=project")[1]["values"]
        assert ask("DELETE", "kv/project/colour")[0] == 204
        assert ask("GET", "kv/project/colour")[0] == 404
        assert ask("POST", "repos", {"vcs": "git", "remote_url": "https://x/y", "default_branch": "main"})[0] == 204
        assert "https://x/y" in [repo["remote_url"] for repo in ask("GET", "repos")[1]["repos"]]
        assert ask("POST", "agents", {"name": "claude-code", "version": "2.0", "metadata": {"a": 1}})[0] == 204
        assert ask("GET", "agents")[1]["agents"][0]["metadata"] == {"a": 1}
        assert ask("POST", "runtimes", {"type": "devcontainer", "devcontainer_path": ".devcontainer"})[0] == 204
        assert ask("GET", "runtimes")[1]["runtimes"][0]["type"] == "devcontainer"

    def test_operations(self, client: Client, server: Served) -> None:
        client.start()
        assert client("GET", "/healthz")[1] == {"status": "ok"}
        assert client("GET", "/readyz")[0] == 200
        assert b"rawko_requests_total" in client("GET", "/metrics")[1]
        document = client("GET", "/openapi.json")[1]
        named = [each["operationId"] for path in document["paths"].values() for each in path.values()]
        assert len(named) == len(set(named)) == len(OPERATIONS)

    def test_the_audit_says_who_did_what(self, client: Client, server: Served) -> None:
        task = client.start()
        client("POST", f"tasks/{task}/turns", {"agent": "a"})
        client("DELETE", "tasks/nosuch")
        server.server.auditor.flush()
        rows = client("GET", "audit")[1]["audit"]
        assert [(row["action"], row["status"]) for row in rows] == [
            ("delete_task", 404),
            ("append_turn", 201),
            ("start_task", 201),
        ]
        assert rows[1]["task"] == task


class TestNoTask:
    def test_a_deleted_task_ends_its_streams(self, client: Client, server: Served) -> None:
        task = client.start()
        messages = _follow(server.port, task)
        next(messages)
        client("DELETE", f"tasks/{task}")
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                if message.get("kind") == "gap":
                    break
        store = RemoteStore(server.url)
        with pytest.raises(TaskNotFound):
            store.summary(task)
        store.close()
