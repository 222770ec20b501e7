"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.model.entries import Turn
from rawko_state.server import reading
from rawko_state.server.app import PREFIX
from tests.server.clients import Client, _follow
from tests.support.machine import patience, slowness, wait_for
from tests.support.serving import Served, served


class TestLive:
    def test_the_first_message_says_how_things_stand(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        ask(
            "POST",
            f"tasks/{task}/questions",
            {"agent": "a", "text": "May I?", "choices": ["yes", "no"], "kind": "approval"},
        )
        hello = next(_follow(any_server.port, task))
        assert (hello["type"], hello["protocol"], hello["task"], hello["turns"]) == ("hello", 1, task, 1)
        assert (hello["status"], hello["question"], hello["approval"]["text"]) == ("waiting", None, "May I?")
        assert (hello["resume"], hello["isResume"], hello["resumedFromStorage"]) == ("warm", True, False)
        assert (hello["messageCount"], hello["hasPendingAsk"], hello["hasPendingApproval"]) == (2, False, True)

    def test_a_task_read_from_storage_is_cold(self, server: Served, project: Path) -> None:
        task = FileStore(project).start("x", detached=True)
        assert next(_follow(server.port, task.id))["isResume"] is False
        task.add_turn(Turn(number=1, agent="dev", content="y"))
        task.close()
        hello = next(_follow(server.port, task.id))
        assert (hello["resume"], hello["warm"], hello["busy"]) == ("cold", False, False)
        assert (hello["isResume"], hello["resumedFromStorage"]) == (True, True)

    def test_backlog_then_live_without_gap_or_double(self, any_server: Served) -> None:
        """Followers that come while it is written to, from every cursor: each sees each event once, in order."""
        ask = Client(any_server.port)
        task = ask.start()
        seen: dict[int, list[str]] = {}
        threads: list[threading.Thread] = []

        def follow(number: int, after: str | None) -> None:
            mine = seen[number] = []
            for message in _follow(any_server.port, task, after, until_over="true"):
                if message["type"] == "event" and message["kind"] == "turn":
                    mine.append(message["text"])

        total = 40
        for number in range(total):
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": f"turn {number}"})
            if number % 4 == 0:
                threads.append(threading.Thread(target=follow, args=(number, None)))
                threads[-1].start()
        ask("POST", f"tasks/{task}/finish", {})
        for thread in threads:
            thread.join(patience(30))
            assert not thread.is_alive()
        for number, mine in seen.items():
            assert mine == [f"turn {n}" for n in range(total)], number

    def test_coming_back_at_a_cursor(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        for number in range(5):
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": str(number)})
        ask("POST", f"tasks/{task}/finish", {})
        whole = [m for m in _follow(any_server.port, task, until_over="true") if m["type"] == "event"]
        for at in range(len(whole)):
            rest = [
                m
                for m in _follow(any_server.port, task, whole[at]["cursor"], until_over="true")
                if m["type"] == "event"
            ]
            assert rest == whole[at + 1 :]
        connection = http.client.HTTPConnection("127.0.0.1", any_server.port)
        connection.request(
            "GET", f"{PREFIX}/tasks/{task}/events/stream?until_over=true", headers={"Last-Event-ID": whole[2]["cursor"]}
        )
        text = connection.getresponse().read().decode()
        connection.close()
        ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
        assert ids == [message["cursor"] for message in whole[3:]]
        assert "event: bye" in text

    def test_a_cursor_that_is_none(self, client: Client) -> None:
        task = client.start()
        assert client("GET", f"tasks/{task}/events/stream?after=nonsense")[0] == 422

    def test_a_list_of_long_events_comes_in_parts(
        self, server: Served, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its events are as long as what was written, so their number alone does not bound an answer."""
        task = client.start()
        for number in range(5):
            client("POST", f"tasks/{task}/notes", {"text": f"{number}" * 3000})
        whole = client("GET", f"tasks/{task}/events")[1]
        assert (whole["events"][-1]["text"], whole["more"]) == ("4" * 3000, False)
        monkeypatch.setattr(reading, "_EVENTS_SIZE", 5000)
        found, sizes, more, after = [], [], True, ""
        while more:
            part = client("GET", f"tasks/{task}/events{after}")[1]
            found += part["events"]
            sizes.append(len(json.dumps(part["events"])))
            more, after = part["more"], f"?after={part['next']}"
        assert found == whole["events"]
        assert max(sizes) < 9000
        assert client("GET", f"tasks/{task}/events{after}")[1]["events"] == []
        with RemoteStore(server.url, root=tmp_path) as store:
            assert [event.cursor for event in store.events(task)] == [event["cursor"] for event in found]

    def test_what_others_write_past_the_server_is_seen(self, server: Served, project: Path) -> None:
        store = FileStore(project)
        task = store.start("x")
        messages = _follow(server.port, task.id)
        assert next(messages)["busy"] is True
        turn = task.turn("dev")
        turn.say("Hel")
        turn.say("lo")
        live: list[str] = []
        for message in messages:
            if message.get("kind") == "text":
                live.append(message["text"])
            if "".join(live) == "Hello":
                break
        turn.end()
        done = next(message for message in messages if message.get("kind") == "turn")
        assert (done["text"], done["replaces"]) == ("Hello", True)
        task.finish("success")
        messages.close()  # type: ignore[attr-defined]

    def test_a_slow_follower_is_cut_off_and_holds_up_nobody(
        self, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rawko_state.server.streams.SLOW", 2.0 * slowness())
        task = client.start()
        raw = _unread(server.port, task)
        texts: list[int] = []
        begun = threading.Event()

        def read_quickly() -> None:
            for message in _follow(server.port, task):
                begun.set()
                if message.get("kind") == "turn":
                    texts.append(int(message["text"].split()[0]))
                if len(texts) == 60:
                    return

        quick = threading.Thread(target=read_quickly)
        quick.start()
        assert begun.wait(patience(10))
        _say_much(client, task)
        quick.join(patience(30))
        assert texts == list(range(60))
        wait_for(lambda: not server.server.hub.followers, "the slow one is still there")
        raw.close()

    def test_a_stop_does_not_wait_for_who_does_not_read(self, project: Path) -> None:
        with served(project) as running:
            client = Client(running.port)
            task = client.start()
            raw = _unread(running.port, task)
            _say_much(client, task)
            assert running.uvicorn.server_state.connections
        assert not running.uvicorn.server_state.connections
        raw.close()

    def test_a_stop_ends_streams_with_a_code_to_come_back(self, project: Path) -> None:
        codes: list[tuple[int, str]] = []
        with served(project) as running:
            task = Client(running.port).start()
            ready = threading.Event()

            def follow() -> None:
                try:
                    with connect(f"ws://127.0.0.1:{running.port}{PREFIX}/tasks/{task}/events/socket") as socket_:
                        for message in socket_:
                            if json.loads(message).get("text") == "running":
                                ready.set()
                        codes.append((socket_.close_code or 0, socket_.close_reason or ""))
                except ConnectionClosed as closed:
                    codes.append((closed.rcvd.code if closed.rcvd else 0, closed.rcvd.reason if closed.rcvd else ""))

            thread = threading.Thread(target=follow)
            thread.start()
            assert ready.wait(patience(10))
        thread.join(patience(10))
        assert codes[0][0] == 1012
        # The reason names the cursor; a server in a hurry may close the socket before it can be given.
        assert not codes[0][1] or "come back after" in codes[0][1]

    def test_a_stream_ends_with_its_task_though_letting_go_is_no_event(
        self, server: Served, client: Client, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process finishes its task and lets go of it later: those who follow need not wait for a heartbeat to see that."""
        monkeypatch.setattr("rawko_state.server.feeds.HEARTBEAT", 3600.0)
        task = FileStore(project).start("x")
        store = RemoteStore(server.url, root=project)
        kinds: list[str] = []
        thread = threading.Thread(
            target=lambda: kinds.extend(event.kind for event in store.follow(task.id) if event is not None), daemon=True
        )
        thread.start()
        wait_for(lambda: kinds)
        with FileStore(project).attach(task.id) as other:
            other.finish("success")
        wait_for(lambda: "final" in kinds)
        task.close()
        thread.join(patience(60))
        assert not thread.is_alive()

    def test_two_servers_on_one_database(self, database: str, project: Path) -> None:
        """What is written through one is seen live through the other."""
        with served(project, database) as one, served(project, database) as two:
            task = Client(one.port).start()
            messages = _follow(two.port, task)
            next(messages)
            for number in range(5):
                Client(one.port)("POST", f"tasks/{task}/turns", {"agent": "a", "content": str(number)})
            found = []
            for message in messages:
                if message.get("kind") == "turn":
                    found.append(message["text"])
                if len(found) == 5:
                    break
            assert found == ["0", "1", "2", "3", "4"]
            messages.close()  # type: ignore[attr-defined]


class TestFeeds:
    def test_what_a_feed_missed_is_read_by_its_followers(
        self, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader of a feed fails, and begins anew further on: what came in between reaches everybody all the same."""
        from rawko_state.errors import StorageError
        from rawko_state.tasks.events import EventReader

        task = client.start()
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "one"})
        messages = _follow(server.port, task)
        seen: list[str] = []

        def until(text: str) -> None:
            for message in messages:
                if message.get("kind") == "turn":
                    seen.append(message["text"])
                    if message["text"] == text:
                        return

        until("one")
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "two"})
        until("two")
        genuine = EventReader.poll
        away = threading.Event()
        failures: list[bool] = []

        def fails(self: EventReader) -> Any:
            if threading.current_thread().name == "feeds" and away.is_set():
                failures.append(True)
                raise StorageError("away", "x")
            return genuine(self)

        monkeypatch.setattr(EventReader, "poll", fails)
        (feed,) = server.server.hub._feeds.values()
        away.set()
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "three"})
        wait_for(lambda: failures and feed.reader is None)
        away.clear()
        wait_for(lambda: feed.reader is not None, "a new reader, which begins after the third turn")
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "four"})
        until("four")
        assert seen == ["one", "two", "three", "four"]
        messages.close()  # type: ignore[attr-defined]


def _unread(port: int, task: str) -> socket.socket:
    """A follower that takes the first bytes and reads nothing more."""
    raw = socket.create_connection(("127.0.0.1", port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.sendall(
        f"GET {PREFIX}/tasks/{task}/events/socket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in raw.recv(200)
    return raw


def _say_much(client: Client, task: str) -> None:
    """More than the buffers of a connection hold."""
    for number in range(60):
        said = {"agent": "a", "content": f"{number} " + "x" * 300_000}
        assert client("POST", f"tasks/{task}/turns", said)[0] == 201
