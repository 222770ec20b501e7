"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import json
import threading
import uuid

import pytest

from rawko_state.store.hosting import KeyedRequest
from tests.server.clients import Client
from tests.support.serving import Served


class TestOnce:
    def test_a_repeated_append_is_stored_once(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        key = uuid.uuid4().hex
        answers = [
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "once"}, Idempotency_Key=key) for _ in range(3)
        ]
        assert len({json.dumps(each[1]) for each in answers}) == 1
        assert [each[2].get("idempotent-replay") for each in answers] == [None, "true", "true"]
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_the_same_key_with_another_body_is_refused(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        key = uuid.uuid4().hex
        assert ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "one"}, Idempotency_Key=key)[0] == 201
        status, problem, _ = ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "two"}, Idempotency_Key=key)
        assert (status, problem["title"]) == (422, "KeyUsed")
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_a_task_is_started_once(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        key = uuid.uuid4().hex
        first, second = (ask("POST", "tasks", {"request": "x"}, Idempotency_Key=key)[1]["task"] for _ in range(2))
        assert first == second

    def test_after_a_crash_it_is_known_whether_it_was_done(
        self, any_server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record was written, and the server died before it could answer: the answer is lost, the append is not doubled."""
        ask = Client(any_server.port)
        task = ask.start()
        db = any_server.server.workspaces.state
        key = uuid.uuid4().hex
        monkeypatch.setattr(type(db), "finished", lambda *_, **__: None)
        body = {"agent": "a", "content": "once"}
        first = ask("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)[1]
        again = ask("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)
        assert again[2]["idempotent-replay"] == "true"
        assert again[1]["seal"] == first["seal"]
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_what_was_intended_and_not_done_is_done(self, server: Served, client: Client) -> None:
        task = client.start()
        key = uuid.uuid4().hex
        body = {"agent": "a", "content": "at last"}
        db = server.server.workspaces.state
        client("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key="other")
        kept = db.request("/local", "other")
        assert kept is not None
        # As if the process had died between the intention and the write.
        probe = client("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)
        assert probe[0] == 201
        done = db.request("/local", key)
        assert done is not None
        db.forget_request("/local", key)
        db.with_record(task, "f" * 16, KeyedRequest("/local", key, done.body, 201, done.answer), None)
        assert client("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)[0] == 201
        assert client("GET", f"tasks/{task}")[1]["task"]["turns"] == 3

    def test_many_at_once_are_one(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        key = uuid.uuid4().hex
        answers: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(
                    ask("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key=key)[0]
                )
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) <= {201, 409}
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1
