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


def chosen(page: Any) -> str:
    return page.locator(".pal [aria-selected=true]").inner_text()


def test_the_palette_goes_to_tasks_files_and_places_and_does_what_can_be_done(
    watch: Callable[..., Any], store: ProjectStore, tasks: list[str]
) -> None:
    quagga = store.start("the okapi sleeps", agent="developer", detached=True)
    touched = ToolCall(
        "Edit", "zoo/okapi.py", "ok", None, None, None, {"diff": 1, "input": {"file_path": "zoo/okapi.py"}}
    )
    diff = Diff("zoo/okapi.py", "zoo/okapi.py", HUNKS, None, 1, 1)
    quagga.add_turn(Turn(number=1, agent="developer", status="complete", content="x", tools=(touched,), diffs=(diff,)))
    quagga.close()
    visit = watch(permissions=["clipboard-read", "clipboard-write"])
    page = visit.ready(f"/t/{tasks[0]}")

    def ask(text: str) -> None:
        page.keyboard.press("Control+k")
        page.keyboard.type(text)
        if not text.startswith(">"):
            page.wait_for_selector(f"dialog[data-found='{text}']")

    page.keyboard.press("Control+k")
    page.locator(".pal [data-kind=Tasks] .waiting").first.wait_for()
    assert "waiting" in page.locator(".pal [role=option]").first.inner_html(), "what waits comes first"
    assert page.evaluate("document.activeElement.getAttribute('aria-activedescendant')") == "pal-0"
    page.keyboard.press("Escape")
    assert not page.locator(".pal").is_visible()

    ask("okapi")
    page.wait_for_selector(".pal [data-kind=Files]")
    assert "the okapi sleeps" in chosen(page)
    assert page.locator(".pal [data-kind=Files] mark").first.inner_text() == "okapi"
    page.keyboard.press("ArrowDown")
    assert "zoo/okapi.py" in chosen(page)
    page.keyboard.press("Tab")
    assert page.locator(".pal .grp").count() == 1
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert "zoo/okapi.py" in chosen(page)
    page.keyboard.press("Enter")
    page.wait_for_url("**/file?path=zoo%2Fokapi.py")

    page.wait_for_selector("html[data-ready]")
    ask("okapi")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/search?q=okapi")

    page.wait_for_selector("html[data-ready]")
    ask(quagga.id)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/t/{quagga.id}")

    page.wait_for_selector("html[data-ready]")
    ask("> resume")
    page.keyboard.press("Enter")
    page.locator("[data-copy]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"rawko resume {quagga.id}"
    ask("> upkeep")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trash")


def test_no_row_of_the_palette_deletes_allows_or_refuses(watch: Callable[..., Any], store: ProjectStore) -> None:
    asked = store.start("leave to go", detached=True)
    asked.ask("developer", Question("shell.exec rm -r build", ("yes", "no"), "no", None, "approval"))
    asked.close()
    page = watch().ready(f"/t/{asked.id}")
    page.keyboard.press("Control+k")
    page.keyboard.type(">")
    rows = page.locator(".pal [role=option]").all_inner_texts()
    assert any("Answer what waits" in row for row in rows)
    assert not any(word in row for row in rows for word in ("Allow", "Refuse", "Cancel", "trash,", "Delete", "Move to"))


def test_the_palette_holds_no_violation_of_accessibility(watch: Callable[..., Any], tasks: list[str]) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for width in (1440, 390):
        for colours in ("light", "dark"):
            visit = watch(viewport={"width": width, "height": 850}, color_scheme=colours, bypass_csp=True)
            page = visit.ready(f"/t/{tasks[0]}")
            page.keyboard.press("Control+k")
            page.keyboard.type("first")
            page.wait_for_selector("dialog[data-found=first]")
            found = Axe().run(page)
            assert found.violations_count == 0, f"{width} {colours}\n{found.generate_report()}"


def test_enter_opens_a_row_and_folds_the_tools_of_a_turn(watch: Callable[..., Any], tasks: list[str]) -> None:
    page = watch().ready(f"/t/{tasks[0]}#t3")
    for key in ("k", "j"):
        page.keyboard.press(key)
    assert here(page) == "t3"
    before = page.locator("#t3 .tool[open]").count()
    page.keyboard.press("Enter")
    assert page.locator("#t3 .tool[open]").count() != before
    page = watch().ready("/?sort=created")
    first = page.locator("tr[data-id]").first.get_attribute("data-id")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/t/{first}")


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
