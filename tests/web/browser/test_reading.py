"""Every page in a browser: with and without JavaScript, on a phone, for those who listen, and against hostile content."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rawko_state.model.entries import Diff, FileTouch, Question, ToolCall, Turn
from rawko_state.store.contract import ProjectStore
from tests.web.browser.payloads import PAYLOADS
from tests.web.test_pages import every_page

pytestmark = pytest.mark.every  # a step of its own in CI

HUNKS = "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2"


@pytest.fixture(scope="module")
def told(store: ProjectStore) -> str:
    task = store.start(
        "Mend the **cart**: totals are off by a cent",
        agent="developer",
        model="atlas-4",
        labels={"sev": "2"},
        detached=True,
    )
    call = ToolCall("Edit", "src/cart.py", "ok", None, None, None, {"diff": 1, "input": {"file_path": "src/cart.py"}})
    failed = ToolCall(
        "Bash", "pytest -q", "exit 1", None, "E  1 failed", None, {"input": {"command": "pytest -q"}, "error": True}
    )
    long = ToolCall("Read", "big.txt", "ok", None, "line\n" * 5_000, None, {"input": {"file_path": "big.txt"}})
    task.add_turn(
        Turn(
            number=1,
            agent="developer",
            status="complete",
            content="# Look\n\n#### Closer\n\nI **look**.\n\n| a | b |\n|---|---|\n| 1 | 2 |",
            thinking="hidden thought",
            tools=(call, failed, long),
            diffs=(Diff("src/cart.py", "src/cart.py", HUNKS, None, 1, 1),),
            tokens={"in": 10, "out": 5},
        )
    )
    task.say("部分返金のテストも追加してください。", by="健")
    deep = FileTouch("write", f"a/{'deep/' * 40}f.py")
    task.add_turn(Turn(number=1, agent="tester", status="complete", content="Done.", files=(deep,)))
    task.ask("tester", Question("Which one?", ("left", "right"), "left"))
    task.close()
    other = store.start("Another one", agent="tester", detached=True)
    other.finish("failure", "Three tests of the cart fail, and nobody knows why", error="three tests fail")
    asking = store.start("May I?", agent="tester", detached=True)
    asking.ask("tester", Question("Bash rm -rf build " + "and_more_" * 60, ("yes", "no"), "no", None, "approval"))
    asking.close()
    store.delete(store.start("to go", detached=True).id)
    return task.id


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_every_page_can_be_read(watch: Callable[..., object], told: str, scripts: bool) -> None:
    visit = watch(java_script_enabled=scripts)
    for path in every_page(told):
        page = visit.goto(path)
        assert page.locator("h1").count() == 1, path
        assert page.locator("main").inner_text().strip(), path
    page = visit.goto(f"/t/{told}")
    assert page.locator("#t1 strong").inner_text() == "look"
    page.locator("#t1 details.think > summary").click()
    assert page.locator("#t1 .think .md").inner_text() == "hidden thought"


@pytest.mark.parametrize("width", [1440, 390, 360])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_page_scrolls_sideways_and_axe_finds_nothing(
    watch: Callable[..., object], told: str, width: int, colours: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    visit = watch(viewport={"width": width, "height": 850}, color_scheme=colours, bypass_csp=True)
    axe = Axe()
    for path in every_page(told):
        page = visit.goto(path)
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if width == 360:
            continue
        found = axe.run(page)
        assert found.violations_count == 0, f"{path} {width} {colours}\n{found.generate_report()}"


@pytest.mark.parametrize(("width", "colours"), [(1440, "light"), (360, "dark")])
def test_what_opens_holds_no_violation_of_accessibility(
    watch: Callable[..., object], told: str, width: int, colours: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = watch(viewport={"width": width, "height": 850}, color_scheme=colours, bypass_csp=True).ready("/")
    axe = Axe()

    def check(what: str) -> None:
        assert page.evaluate("document.documentElement.scrollWidth") <= width, what
        found = axe.run(page)
        assert found.violations_count == 0, f"{what} {width} {colours}\n{found.generate_report()}"

    opened = "all => all.forEach(each => { each.open = true; })"
    page.eval_on_selector_all("details.menu", opened)
    check("menus of the list")
    page.locator("#q").fill("cart")
    page.wait_for_selector("body[data-found=cart]", state="attached")
    check("results as one types")
    page.goto(page.url.partition("/search")[0] + f"/t/{told}")
    page.wait_for_selector("html[data-ready]")
    page.eval_on_selector_all("details:not(.menu)", opened)
    page.locator("#t1 .tool pre.out", has_text="line").wait_for()
    page.keyboard.press("j")
    check("everything open in a task")
    page.eval_on_selector_all("details.menu", opened)
    check("menus of a task")


def test_hostile_content_runs_nothing_and_loads_nothing(watch: Callable[..., object], store: ProjectStore) -> None:
    tasks = []
    for start in range(0, len(PAYLOADS), 20):
        text = "\n\n".join(PAYLOADS[start : start + 20])
        one = PAYLOADS[start]
        task = store.start(
            text,
            title=one,
            agent=one[:60],
            model=one[:60],
            branch=one[:60],
            labels={"l": one},
            user=one[:60],
            detached=True,
        )
        tools = tuple(
            ToolCall(each[:40] or "x", each, each, None, each, None, {"input": {"command": each}, "error": each})
            for each in PAYLOADS[start : start + 20]
        )
        diffs = tuple(
            Diff(
                each[:60].replace("\n", " "),
                each[:60].replace("\n", " "),
                f"@@ -1 +1 @@\n-x\n+{each.splitlines()[0]}",
                None,
                1,
                1,
            )
            for each in PAYLOADS[start : start + 5]
        )
        task.add_turn(
            Turn(
                number=1,
                agent=one[:60],
                model=one,
                status="complete",
                content=text,
                thinking=text,
                reason=text,
                tools=tools,
                diffs=diffs,
                by=one,
            )
        )
        task.say(text, by=one[:60])
        task.note(text, by=one, in_context=True)
        task.ask(one[:60], Question(text, (one, "other"), one, None, "question", {one: text}))
        task.close()
        tasks.append(task.id)
    visit = watch()
    visit.page.add_init_script(
        "window.__ran = []; for (const name of ['alert', 'confirm', 'prompt']) window[name] = () => window.__ran.push(name);"
    )
    for task_id in tasks:
        for path in (*every_page(task_id)[:11], f"/t/{task_id}?tools=open", f"/t/{task_id}/turns?from=1&to=2&part=1"):
            page = visit.goto(path)
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            assert page.evaluate("window.__ran") == [], path
            assert (
                page.locator(
                    "main script, main iframe, main object, main embed, main img, main link, main base, main meta"
                ).count()
                == 0
            ), path
            assert (
                page.evaluate(
                    "[...document.querySelectorAll('*')].flatMap((each) => [...each.attributes]).filter((each) => each.name.startsWith('on')).length"
                )
                == 0
            ), path
            assert (
                page.evaluate("[...document.links].filter((each) => !/^(https?|mailto):/.test(each.href)).length") == 0
            ), path
    page = visit.ready("/")
    page.keyboard.press("Control+k")
    for text in ("script", "onerror", "<img src=x onerror=alert(1)>"):
        page.locator(".pal input").fill(text)
        page.wait_for_function("text => document.querySelector('dialog.pal').dataset.found === text", arg=text)
        assert page.evaluate("window.__ran") == []
        assert page.locator(".pal script, .pal img, .pal iframe, .pal svg[onload]").count() == 0
        assert page.locator(".pal [role=option]").count() > 0


def test_a_page_prints(watch: Callable[..., object], told: str) -> None:
    page = watch().ready(f"/t/{told}")
    page.emulate_media(media="print")
    assert not page.locator("header.bar").is_visible()
    assert page.locator("#t1").is_visible()
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
    assert page.locator("#t1 .tool .v").count() >= 3
    assert page.eval_on_selector_all("#t1 .tool .v", cut) == [], "the word for each tool stands there in full"
    assert len(page.pdf()) > 5_000
