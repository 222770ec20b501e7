"""Every key does what the page of keys says, and none does while one types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rawko_state.model.entries import Diff, Question, ToolCall, Turn
from rawko_state.store.contract import ProjectStore
from tests.support.serving import Served

pytestmark = pytest.mark.every  # a step of its own in CI

HUNKS = "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2"


@pytest.fixture(scope="module")
def tasks(store: ProjectStore) -> list[str]:
    found = []
    for title in ("first", "second"):
        task = store.start(title, agent="developer", detached=True)
        failed = ToolCall("Bash", "pytest", "exit 1", None, "no", None, {"input": {"command": "pytest"}, "error": True})
        edit = ToolCall("Edit", "a.py", "ok", None, None, None, {"diff": 1, "input": {"file_path": "a.py"}})
        task.add_turn(Turn(number=1, agent="developer", status="complete", content="one", thinking="hm"))
        task.say("go on", by="mara")
        task.add_turn(
            Turn(
                number=1,
                agent="developer",
                status="complete",
                content="three",
                tools=(edit,),
                diffs=(Diff("a.py", "a.py", HUNKS, None, 1, 1),),
            )
        )
        task.add_turn(Turn(number=1, agent="developer", status="complete", content="four", tools=(failed,)))
        task.ask("developer", Question("Which?", ("left", "right")))
        task.close()
        found.append(task.id)
    return found


def here(page: Any) -> str | None:
    return page.evaluate(
        "document.querySelector('.here, .cur')?.id || document.querySelector('.here, .cur')?.dataset.id"
    )


def test_keys_in_a_task(watch: Callable[..., Any], server: Served, tasks: list[str]) -> None:
    visit = watch(permissions=["clipboard-read", "clipboard-write"])
    page = visit.ready(f"/t/{tasks[0]}")
    for key, expected in (
        ("j", "r1"),
        ("j", "t1"),
        ("k", "r1"),
        ("J", "t2"),
        ("K", "r1"),
        ("n", "t3"),
        ("x", "t4"),
        ("X", "t4"),
        ("p", "t3"),
    ):
        page.keyboard.press(key)
        assert here(page) == expected, key
    page.keyboard.press("t")
    assert page.locator(".think[open]").count() == 1
    before = page.locator("#t3 .tool[open]").count()
    page.keyboard.press("e")
    assert page.locator("#t3 .tool[open]").count() != before
    page.keyboard.press("o")
    assert page.locator("#t3 .tool[open]").count() == before
    page.keyboard.press("c")
    assert page.evaluate("navigator.clipboard.readText()") == f"rawko resume {tasks[0]}"
    page.keyboard.press("y")
    assert f"/t/{tasks[0]}/3?seal=" in page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("a")
    page.keyboard.press("2")
    assert page.locator(".ask input[value=right]").is_checked()
    page.keyboard.press("d")
    page.wait_for_url("**diff=split*")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press(".")
    page.wait_for_selector(".crumb .pin")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("?")
    page.wait_for_url("**/keys")


def test_keys_in_the_list(watch: Callable[..., Any], tasks: list[str]) -> None:
    page = watch().ready("/?sort=created")
    ids = [each.get_attribute("data-id") for each in page.locator("tr[data-id]").all()]
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert here(page) == ids[1]
    page.keyboard.press("o")
    page.wait_for_url(f"**/t/{ids[1]}")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("[")
    page.wait_for_url(f"**/t/{ids[0]}")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("]")
    page.wait_for_url(f"**/t/{ids[1]}")
    page.wait_for_selector("html[data-ready]")
    for key, place in (("f", "files"), ("i", "figures"), ("u", "trash"), ("t", "")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**/{place}")
        page.wait_for_selector("html[data-ready]")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("jk?")
    assert page.locator("#q").input_value() == "jk?"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "q"


def test_keys_can_be_turned_off(watch: Callable[..., Any], tasks: list[str]) -> None:
    page = watch().ready("/keys")
    page.get_by_role("button", name="Turn single keys off").click()
    page.wait_for_selector("body[data-keys=off]")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.tagName") != "INPUT"


def test_nothing_that_deletes_or_allows_has_a_key(
    watch: Callable[..., Any], store: ProjectStore, tasks: list[str]
) -> None:
    asked = store.start("leave", detached=True)
    asked.ask("developer", Question("shell.exec rm -r build", ("yes", "no"), "no", None, "approval"))
    asked.close()
    page = watch().ready(f"/t/{asked.id}")
    page.keyboard.press("a")
    for key in "123456789":
        page.keyboard.press(key)
    assert store.status(asked.id) == "waiting"
    assert "rm -r build" in page.locator(".ask").inner_text()


def test_focus_can_be_seen(watch: Callable[..., Any], tasks: list[str]) -> None:
    page = watch().ready(f"/t/{tasks[0]}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(12):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(() => { const e = document.activeElement; const s = getComputedStyle(e.closest('.find') || e); return s.outlineStyle; })()"
        )
        assert style != "none"
