"""What one does on the page, by forms alone: done once, recorded, audited, and undone where that is promised."""

from __future__ import annotations

import json
import re

import pytest

from rawko_state.model.entries import Question, Turn
from rawko_state.store.contract import ProjectStore
from tests.support.serving import Served
from tests.web.visitor import Visitor


@pytest.fixture
def task(store: ProjectStore) -> str:
    made = store.start("to be acted on", agent="developer", detached=True)
    made.add_turn(Turn(number=1, agent="developer", status="complete", content="first"))
    made.close()
    return made.id


def asking(store: ProjectStore, question: Question) -> str:
    made = store.start("it asks", agent="developer", detached=True)
    made.ask("developer", question)
    made.close()
    return made.id


def form_of(page: str, action: str) -> dict[str, str]:
    """The hidden fields of a form."""
    found = re.search(rf'<form[^>]*action="{action}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert found is not None, action
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', found[1]))


def test_a_question_is_answered_where_it_stands_and_once(visitor: Visitor, store: ProjectStore) -> None:
    task = asking(store, Question("Which?", ("left", "right")))
    action = f"/t/{task}/do/answer"
    fields = form_of(visitor.get(f"/t/{task}").text, action)
    page = visitor.post(action, {**fields, "choice": "right"})
    assert page.status == 303
    assert page.to == f"/t/{task}#t2"
    assert visitor.post(action, {**fields, "choice": "right"}).status == 303, "sent twice, done once"
    assert store.summary(task).turns == 2
    assert store.turn(task, 2).content == "right"
    shown = visitor.get(f"/t/{task}").text
    assert action not in shown
    assert "Asked:" in shown


def test_own_words_go_before_a_choice_and_a_wrong_one_is_told(visitor: Visitor, store: ProjectStore) -> None:
    task = asking(store, Question("Which?"))
    assert visitor.send(f"/t/{task}/do/answer", {"text": " "}).status == 422
    assert visitor.send(f"/t/{task}/do/answer", {"text": "the third"}).status == 303
    assert store.turn(task, 2).content == "the third"
    assert visitor.send(f"/t/{task}/do/answer", {"text": "again"}).status == 409


def test_an_approval_shows_the_whole_command(visitor: Visitor, store: ProjectStore) -> None:
    command = "deploy --to staging " + "--flag " * 300
    task = asking(store, Question(f"shell.exec {command}", ("yes", "no"), "no", None, "approval"))
    page = visitor.get(f"/t/{task}")
    assert command.strip() in page.text
    assert "The task waits for your decision" in page.text
    assert 'class="btn main"' not in page.text.partition('class="ask"')[2].partition("</section>")[0], (
        "no choice is the right one"
    )
    assert visitor.send(f"/t/{task}/do/answer", {"choice": "no"}).status == 303
    assert store.turn(task, 2).content == "no"


def test_pause_and_cancel(visitor: Visitor, store: ProjectStore, task: str) -> None:
    assert visitor.send(f"/t/{task}/do/pause").status == 303
    assert store.status(task) == "paused"
    assert visitor.send(f"/t/{task}/do/cancel", {"reason": "enough"}).status == 303
    assert store.status(task) == "cancelled"
    assert "/do/pause" not in visitor.get(f"/t/{task}").text


def test_title_labels_and_pin(visitor: Visitor, store: ProjectStore, task: str) -> None:
    visitor.send(f"/t/{task}/do/title", {"title": "  A better\n title "})
    visitor.send(f"/t/{task}/do/labels", {"labels": "refunds, sev=2"})
    visitor.send(f"/t/{task}/do/labels", {"labels": "-refunds"})
    visitor.send(f"/t/{task}/do/pin")
    found = store.summary(task)
    assert (found.title, dict(found.labels), found.pinned) == ("A better title", {"sev": "2"}, True)
    assert visitor.send(f"/t/{task}/do/unpin").status == 303
    assert not store.summary(task).pinned
    assert visitor.send(f"/t/{task}/do/labels", {"labels": " "}).status == 422
    assert visitor.send(f"/t/{task}/do/title", {"title": " "}).status == 422
    assert visitor.send(f"/t/{task}/do/dance").status == 404


def test_a_fork_is_asked_for_and_made_once(visitor: Visitor, store: ProjectStore, task: str) -> None:
    asked = visitor.get(f"/t/{task}/fork/1")
    fields = form_of(asked.text, f"/t/{task}/do/fork")
    page = visitor.post(f"/t/{task}/do/fork", {**fields, "message": "another way"})
    again = visitor.post(f"/t/{task}/do/fork", {**fields, "message": "another way"})
    assert page.status == again.status == 303
    assert page.to == again.to != f"/t/{task}"
    assert [child[1] for child in store.children(task)] == [1]
    assert 'class="tree"' in visitor.get(f"/t/{task}").text
    assert visitor.get(f"/t/{task}/fork/9").status == 404


def test_the_trash_can_be_undone(visitor: Visitor, store: ProjectStore, task: str) -> None:
    page = visitor.send(f"/t/{task}/do/trash")
    assert page.to == f"/?trashed={task}"
    shown = visitor.follow(page)
    assert "is in the trash" in shown.words
    assert task in visitor.get("/trash").text
    assert visitor.get(f"/t/{task}").status == 404
    assert visitor.send("/trash/restore", {"id": task, "back": "task"}).to == f"/t/{task}"
    assert visitor.get(f"/t/{task}").status == 200
    visitor.send(f"/t/{task}/do/trash")
    assert visitor.send("/trash/empty", at="/trash").status == 422, "not without saying so"
    assert visitor.send("/trash/empty", {"sure": "yes"}, at="/trash").status == 303
    assert store.trash() == []


def test_a_message_to_the_agent(visitor: Visitor, store: ProjectStore, task: str) -> None:
    assert visitor.send(f"/t/{task}/do/say", {"text": "Mind the tests."}).to == f"/t/{task}#t2"
    assert store.turn(task, 2).agent == "user"


def test_exports_are_files_to_keep(visitor: Visitor, store: ProjectStore, task: str) -> None:
    for form, media in (
        ("html", "text/html"),
        ("md", "text/markdown"),
        ("json", "application/json"),
        ("task", "text/plain"),
    ):
        page = visitor.get(f"/t/{task}/export?format={form}")
        assert page.status == 200
        assert page.headers["content-type"].startswith(media)
        assert page.headers["content-disposition"].startswith("attachment; ")
    assert json.loads(visitor.get(f"/t/{task}/export?format=json").text)
    assert visitor.get(f"/t/{task}/export?format=exe").status == 422


def test_what_is_done_here_stands_in_the_audit_log(visitor: Visitor, server: Served, task: str) -> None:
    visitor.send(f"/t/{task}/do/pin")
    rows = server.server.workspaces.state.audited(5, None)
    assert ("add_note", task) in [(row["action"], row["task"]) for row in rows]
