"""What happens appears by itself: turns as they are written, after a lost connection too, questions that a real process waits for."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rawko_state.model.entries import Turn
from rawko_state.store.contract import ProjectStore
from tests.support.machine import patience, wait_for

pytestmark = pytest.mark.every  # a step of its own in CI
WRITER = """
import sys
from rawko_state.backends.select import open_files
from rawko_state.model.entries import Question
store = open_files(sys.argv[1])
task = store.start("Follow me", agent="developer")
print(task.id, flush=True)
turn = None
for line in sys.stdin:
    verb, _, rest = line.strip().partition(" ")
    if verb == "turn":
        turn = task.turn("developer")
    elif verb == "say":
        turn.say(rest + " ")
    elif verb == "tool":
        turn.tool("Bash", rest, "ok")
    elif verb == "end":
        turn.end()
    elif verb == "ask":
        task.ask("developer", Question(rest, ("left", "right")))
        print(task.wait_for_answer(), flush=True)
        continue
    elif verb == "finish":
        task.finish("success", rest)
    print("ok", flush=True)
"""


class Writer:
    """A process that writes a task, as told."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.id = self.process.stdout.readline().strip()

    def tell(self, *lines: str) -> None:
        for line in lines:
            self.send(line)
            assert self.heard() == "ok"

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(patience(10))
        self.process.stdout.close()


@pytest.fixture
def writer(root: Path) -> Iterator[Writer]:
    made = Writer(root)
    yield made
    made.close()


def test_a_turn_appears_word_by_word_and_then_stands_once(watch: Callable[..., object], writer: Writer) -> None:
    page = watch().ready(f"/t/{writer.id}")
    page.wait_for_selector("#conn:not([hidden]):not(.lost)")
    writer.tell("turn", "say One **two**", "tool pytest -q", "say three")
    page.locator("#live").filter(has_text="three").wait_for(state="attached")
    said = page.locator("#live").inner_text()
    assert "One **two**" in said, "text as it comes, not yet Markdown"
    assert said.count("One") == 1
    assert "pytest -q" in said
    writer.tell("end")
    page.wait_for_selector("#t1 strong")
    assert page.locator("#live").count() == 0
    assert page.locator("#line article.agent").count() == 1
    assert page.locator("#t1 .tool").count() == 1
    writer.tell("turn", "say next", "end", "finish all is well")
    page.wait_for_selector(".turn.result")
    assert page.locator("#facts").inner_text().strip().startswith("completed")
    assert page.locator("#line article.agent").count() == 2
    assert page.locator("#t1, #t2").count() == 2
    reloaded = [each.get_attribute("id") for each in page.locator("#line article").all()]
    page.reload()
    assert [each.get_attribute("id") for each in page.locator("#line article").all()] == reloaded


def test_nothing_is_doubled_or_missing_when_the_server_dies_in_between(
    watch: Callable[..., object], root: Path, writer: Writer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def running() -> subprocess.Popen[str]:
        code = "from rawko_state.__main__ import main; main()"
        made = subprocess.Popen(
            [sys.executable, "-c", code, "-C", str(root), "serve", "--port", str(port), "--quiet"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert made.stderr is not None
        assert "serving" in made.stderr.readline()
        return made

    server = running()
    try:
        visit = watch(f"http://127.0.0.1:{port}")
        page = visit.ready(f"/t/{writer.id}")
        writer.tell("turn", "say alpha")
        page.locator("#live").filter(has_text="alpha").wait_for(state="attached")
        server.kill()
        server.wait()
        page.wait_for_selector("#conn.lost")
        writer.tell("say beta", "end", "turn", "say gamma")
        assert server.stderr is not None
        server.stderr.close()
        server = running()
        page.locator("#live").filter(has_text="gamma").wait_for(state="attached")
        writer.tell("say delta")
        page.locator("#live").filter(has_text="delta").wait_for(state="attached")
        text = page.locator("#line").inner_text()
        assert [text.count(word) for word in ("alpha", "beta", "gamma", "delta")] == [1, 1, 1, 1]
        writer.tell("end", "finish done")
        page.wait_for_selector(".turn.result")
        text = page.locator("#line").inner_text()
        assert [text.count(word) for word in ("alpha", "beta", "gamma", "delta")] == [1, 1, 1, 1]
        visit.wrong[:] = [
            each
            for each in visit.wrong
            if "ERR_CONNECTION_REFUSED" not in each and "ERR_INCOMPLETE" not in each and "ERR_EMPTY" not in each
        ]
    finally:
        server.terminate()
        server.wait(patience(10))
        assert server.stderr is not None
        server.stderr.close()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
def test_a_process_gets_the_answer_that_was_given_on_the_page(
    watch: Callable[..., object], writer: Writer, store: ProjectStore, scripts: bool
) -> None:
    page = watch(java_script_enabled=scripts).goto(f"/t/{writer.id}")
    writer.send("ask Left or right?")
    if scripts:
        page.wait_for_selector(".ask form")
    else:
        wait_for(lambda: store.status(writer.id) == "waiting")
        page.reload()
    page.locator(".ask label", has_text="right").click()
    page.locator(".ask button").click()
    assert writer.heard() == "right"
    page.wait_for_selector("#t2")
    assert page.locator(".ask form").count() == 0
    assert page.locator("#t2").inner_text().count("right") == 1


def test_what_runs_and_waits_comes_to_the_top_by_itself(
    watch: Callable[..., object], store: ProjectStore, root: Path
) -> None:
    store.start("an old one", detached=True).finish("success")
    page = watch().ready("/")
    page.wait_for_selector("#conn:not([hidden]):not(.lost)")
    writer = Writer(root)
    try:
        page.wait_for_selector(f"#now-list a[href='/t/{writer.id}']")
        writer.send("ask Which way?")
        page.wait_for_selector(".now .waits")
        assert "Which way?" in page.locator(".now .waits").inner_text()
        page.locator(".now .waits a.btn").first.click()
        page.wait_for_selector(".ask form")
        page.locator(".ask input[type=radio]").first.check()
        page.locator(".ask button").click()
        assert writer.heard() == "left"
    finally:
        writer.close()


def test_a_gap_opens_and_a_long_output_is_fetched(watch: Callable[..., object], store: ProjectStore) -> None:
    from rawko_state.model.entries import ToolCall

    task = store.start("long", detached=True)
    call = ToolCall(
        "Read", "big.txt", "ok", None, "needle\n" + "hay\n" * 3_000, None, {"input": {"file_path": "big.txt"}}
    )
    for number in range(230):
        task.add_turn(
            Turn(
                number=1,
                agent="a",
                status="complete",
                content=f"turn {number + 1}",
                tools=(call,) if number == 0 else (),
            )
        )
    task.close()
    page = watch().ready(f"/t/{task.id}")
    assert "needle" not in page.content()
    page.locator("#t1 .tool > summary").click()
    page.locator("#t1").filter(has_text="needle").wait_for(state="attached")
    assert page.locator("#t21").count() == 0
    page.locator(".gap a").click()
    page.wait_for_selector("#t50")
    ids = [each.get_attribute("id") for each in page.locator("#line article.agent").all()]
    assert ids == [f"t{number}" for number in range(1, 231)]


def test_search_as_one_types(watch: Callable[..., object], store: ProjectStore) -> None:
    task = store.start("the quagga <b>crosses</b> the river", detached=True)
    task.close()
    page = watch().ready("/")
    page.locator("#q").press_sequentially("quagga")
    page.wait_for_url(
        re.compile(r"/search\?q=quagga$")
    )  # after the beginnings of the word, each of which finds it, too
    page.wait_for_selector("#hits mark")
    assert page.locator("#hits mark").first.inner_text() == "quagga"
    assert page.locator("#hits b").count() == 0
    page.locator("#q").fill("")
    page.wait_for_selector("#rows table")
    assert page.locator("#hits").count() == 0


def shown(page: object) -> list[tuple[int, int]]:
    """The turns on the page and its gaps, in order."""
    return [
        (int(a), int(b))
        for a, b in page.evaluate(
            "[...document.querySelectorAll('#line > .turn[data-n], #line > .gap')].map((e) => e.dataset.n ? [e.dataset.n, e.dataset.n] : [e.dataset.from, e.dataset.to])"
        )
    ]


def test_a_long_task_never_fills_the_browser(watch: Callable[..., object], store: ProjectStore) -> None:
    last = 1_700
    task = store.start("very long", agent="developer", detached=True)
    for number in range(1, last + 1):
        task.add_turn(Turn(number=1, agent="developer", status="complete", content=f"turn {number}"))

    def is_whole() -> bool:
        spans = shown(page)
        return [span[0] for span in spans] == [1, *(span[1] + 1 for span in spans[:-1])] and spans[-1][1] == last

    page = watch(viewport={"width": 1000, "height": 800}).ready(f"/t/{task.id}")
    assert is_whole()
    for _ in range(6):  # downwards through the middle
        gap = page.locator("#line > .gap").last
        start = gap.get_attribute("data-from")
        gap.locator("a").click()
        page.locator(f"#t{start}").wait_for(state="attached")
        assert is_whole(), shown(page)
        assert page.locator("#line > .turn[data-n]").count() <= 600
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        top = page.evaluate(f"document.getElementById('t{start}').getBoundingClientRect().top")
        assert 0 <= top < 800, "what was opened is in view"
    page.goto(page.url.partition("#")[0] + f"/{last}")
    page.wait_for_selector("html[data-ready]")
    for _ in range(4):  # and upwards
        gap = page.locator("#line > .gap").first
        start = gap.get_attribute("data-from")
        gap.locator("a").click()
        page.locator(f"#t{start}").wait_for(state="attached")
        assert is_whole(), shown(page)
        assert page.locator("#line > .turn[data-n]").count() <= 600
    # Followed at the end: old turns make place for new ones. Read further up: what is there stays.
    page.goto(page.url.partition("#")[0].rpartition("/")[0])
    page.wait_for_selector("#conn:not([hidden]):not(.lost)")
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    for number in range(last + 1, last + 431):
        task.add_turn(Turn(number=1, agent="developer", status="complete", content=f"turn {number}"))
    last += 430
    page.locator(f"#t{last}").wait_for(state="attached")
    assert is_whole(), shown(page)
    assert page.locator("#line > .turn[data-n]").count() == 600
    page.evaluate("scrollTo(0, 400)")
    page.wait_for_timeout(200)
    before = page.evaluate("document.querySelector('#line > .turn[data-n]').id")
    for number in range(last + 1, last + 4):
        task.add_turn(Turn(number=1, agent="developer", status="complete", content=f"turn {number}"))
    last += 3
    page.locator(f"#line > .gap[data-to='{last}']").wait_for(state="attached")
    assert is_whole(), shown(page)
    assert page.evaluate("document.querySelector('#line > .turn[data-n]').id") == before
    task.close()
