"""The streams behind the live page: pieces of HTML and text, from a cursor on, for those who may read."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

from rawko_state.model.entries import Question, Turn
from rawko_state.store.contract import ProjectStore
from tests.support.machine import patience
from tests.support.serving import Served


def events(port: int, path: str, **headers: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, cursor and data of each event."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience(30))
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    assert response.status == 200
    kind, cursor = "", ""
    try:
        while line := response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                cursor = value
            elif name == "data":
                yield kind, cursor, json.loads(value)
    finally:
        connection.close()


def test_a_turn_is_sent_as_text_and_then_once_as_html(server: Served, store: ProjectStore) -> None:
    task = store.start("to be followed", agent="developer")
    stream = events(server.port, f"/t/{task.id}/live?after={store.now(task.id)}")
    assert next(stream)[0] == "hello"
    turn = task.turn("developer")
    turn.say("one <b>two</b> ")
    kind, cursor, data = next(stream)
    assert (kind, data["kind"], data["text"]) == ("said", "text", "one <b>two</b> ")
    stream.close()
    turn.say("**three**")
    turn.end()
    stream = events(server.port, f"/t/{task.id}/live", Last_Event_ID=cursor)
    assert next(stream)[0] == "hello"
    data = next(data for kind, _, data in stream if kind == "turn")
    assert data["replaces"]
    assert "<strong>three</strong>" in data["html"]
    assert "<b>two</b>" not in data["html"]
    stream.close()
    task.finish("success")


def test_an_answer_closes_the_question_on_the_page(server: Served, store: ProjectStore) -> None:
    task = store.start("it asks", detached=True)
    task.ask("developer", Question("Which?", ("left", "right")))
    cursor = store.now(task.id)
    task.answer("left")
    task.close()
    for kind, _, data in events(server.port, f"/t/{task.id}/live?after={cursor}"):
        if kind == "turn":
            assert "left" in data["html"]
            assert any('id="t1"' in html and "<form" not in html for html in data["also"])
            break


def test_the_list_says_what_runs_and_that_it_has_changed(server: Served, store: ProjectStore) -> None:
    stream = events(server.port, "/live")
    kind, _, before = next(stream)
    assert kind == "now"
    task = store.start("a new <i>one</i>", detached=True)
    task.add_turn(Turn(number=1, agent="a", status="complete"))
    task.close()
    _, _, after = next(stream)
    assert after["state"] != before["state"]
    assert task.id in after["html"]
    assert "<i>one" not in after["html"]
    stream.close()


def test_a_wrong_cursor_is_refused(server: Served, store: ProjectStore) -> None:
    task = store.start("x", detached=True)
    task.close()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", f"/t/{task.id}/live?after=nonsense")
    assert connection.getresponse().status == 422
    connection.close()
