"""Lists: what stands on top, what a task cost, every file, filters that stay, and the way from one task to the next."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import pytest

from rawko_state.backends.select import open_files
from rawko_state.errors import StorageError
from rawko_state.model.entries import FileTouch, Question, Turn
from rawko_state.store.contract import ProjectStore
from rawko_state.web import tasks
from rawko_state.web.pages import routes
from rawko_state.web.visits import Visit
from tests.support.machine import patience
from tests.support.serving import served
from tests.web.visitor import Visitor


class Shop(NamedTuple):
    store: ProjectStore
    visitor: Visitor


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A project of its own: what is in it is known."""
    with open_files(tmp_path) as store, served(tmp_path, pages=routes) as running:
        yield Shop(store, Visitor(running.port))


def on_top(text: str) -> list[str]:
    return re.findall(r'<a class="t" href="/t/([a-z0-9]+)"', text.partition('id="now-list"')[2].partition("<table")[0])


def rows(text: str) -> list[str]:
    return re.findall(r'<tr data-id="([a-z0-9]+)"', text)


def test_what_runs_never_takes_the_place_of_what_waits(shop: Shop) -> None:
    asking = shop.store.start("asks", detached=True)
    asking.ask("developer", Question("Which?"))
    asking.close()
    running = [shop.store.start(f"runs {number}", detached=True) for number in range(12)]
    for task in running:
        task.note("at it")
        task.close()
    page = shop.visitor.get("/").text
    found = on_top(page)
    assert found[0] == asking.id
    assert len(found) == 9
    assert 'href="/?status=running">More tasks run' in page
    assert set(rows(page)) | set(found) == {asking.id, *(task.id for task in running)}
    part = shop.visitor.get("/?part=1").text
    assert rows(part) == rows(page), "what a script fetches does not repeat what is on top"
    assert on_top(shop.visitor.get("/?status=running").text) == []


def test_a_turn_that_runs_is_shown_without_scripts_too(shop: Shop) -> None:
    task = shop.store.start("busy", agent="header-agent")
    try:
        with task.turn("developer") as turn:
            turn.think("first I <i>wonder</i> about locks")
            assert "wonder</i> about locks" in shop.visitor.get("/").words
            turn.say("Half of <b>them</b> pass.")
            turn.tool("Bash", "pytest -q", "exit 1", more={"input": {"command": "pytest -q"}})
            turn.progress("Step 2 of 3")
            top = shop.visitor.get("/").text.partition('id="now-list"')[2].partition("<table")[0]
            assert ">developer</span>" in top, "known before its first turn has ended"
            page = shop.visitor.get(f"/t/{task.id}").text.partition('id="live"')[2].partition("</article>")[0]
            for text in ("developer", "&lt;i&gt;wonder", "&lt;b&gt;them", "pytest -q", "Step 2 of 3"):
                assert text in page, text
    finally:
        task.close()


def test_a_cost_that_no_agent_stated_is_estimated_in_the_list_and_on_the_page(shop: Shop) -> None:
    task = shop.store.start("imported", model="claude-sonnet-4-5", agent="developer", detached=True)
    for _ in range(202):  # more than the page reads to sum up
        task.add_turn(Turn(agent="developer", status="complete", tokens={"in": 10_000, "out": 1_000}))
    task.finish("success")
    other = shop.store.start("nobody knows", model="a-model-of-nobody", agent="developer", detached=True)
    other.add_turn(Turn(agent="developer", status="complete", tokens={"in": 10, "out": 5}))
    other.finish("success")
    listed = shop.visitor.get("/").text
    row = listed.partition(f'data-id="{task.id}"')[2].partition("</tr>")[0]
    cost = re.search(r"~\$([0-9.]+)", row)
    assert cost is not None, row
    assert float(cost[1]) == pytest.approx(202 * (0.03 + 0.015))
    facts = shop.visitor.get(f"/t/{task.id}").text.partition("<h2>Facts</h2>")[2].partition("</dl>")[0]
    assert cost[0] in facts
    assert "no price" in listed.partition(f'data-id="{other.id}"')[2].partition("</tr>")[0]


def test_a_list_says_how_many_tasks_there_are(shop: Shop) -> None:
    old = datetime.now(timezone.utc) - timedelta(days=2)
    for number in range(52):
        shop.store.start(f"task {number}", created=old, detached=True).finish("success", completed=old)
    first = shop.visitor.get("/")
    assert "50 of 52 tasks" in first.words
    second = shop.visitor.get(first.text.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&"))
    assert len(rows(second.text)) == 2
    assert "2 of 52 tasks" in second.words


def test_a_list_begins_before_its_tasks_are_looked_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.store.start("Fix it"):
        pass
    may_go_on = threading.Event()
    now_list = tasks.now_list

    def slow(visit: Visit) -> tasks.Now:
        assert may_go_on.wait(patience(60))
        return now_list(visit)

    monkeypatch.setattr(tasks, "now_list", slow)
    connection = http.client.HTTPConnection("127.0.0.1", shop.visitor.port, timeout=patience(60))
    connection.request("GET", "/")
    response = connection.getresponse()
    try:
        begun = response.read(2_000).decode()
    finally:
        may_go_on.set()
    assert "/static/style.css" in begun
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert "Fix it" in response.read().decode()
    connection.close()


def test_a_list_that_can_not_be_read_says_so_with_a_true_status_if_it_has_not_begun(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.store.start("Fix it"):
        pass

    def away(*_: object) -> None:
        raise StorageError("The disk is <away>", str(shop.store.root / "index.db"))

    def broken(*_: object) -> None:
        raise KeyError("what nobody should see")

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "now_list", away)
        begun = shop.visitor.get("/")
        patched.setattr(tasks, "now_list", broken)
        faulty = shop.visitor.get("/")
    monkeypatch.setattr(tasks, "filter_of", away)
    page = shop.visitor.get("/")
    assert (begun.status, faulty.status, page.status) == (200, 200, 503)
    assert "The disk is <away>" in begun.words
    assert "The disk is <away>" in page.words
    assert "A fault of the server" in faulty.words
    for text in (begun.text, faulty.text, page.text):
        assert not {each for each in ("<away>", "nobody", str(shop.store.root)) if each in text}


def test_every_file_can_be_reached_also_of_more_than_a_page(shop: Shop) -> None:
    task = shop.store.start("many files", detached=True)
    paths = [f"src/m{number:04}.py" for number in range(1_203)] + ["docs/Übersicht.md", "README.md"]
    task.add_turn(Turn(agent="a", status="complete", files=tuple(FileTouch("write", path) for path in paths)))
    task.close()
    found, address = [], "/files"
    while address:
        page = shop.visitor.get(address).text
        found += re.findall(r'<a href="/file\?path=[^"]+"><span class="mono">([^<]+)</span>', page)
        address = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert sorted(found) == sorted(path.rpartition("/")[2] for path in paths)
    assert "m1202.py" in shop.visitor.get("/files?q=M1202").text
    assert "No file matches" in shop.visitor.get("/files?q=m9999").words


def test_a_search_keeps_the_filters_of_the_list(shop: Shop) -> None:
    for outcome in ("success", "failure"):
        shop.store.start(f"the quagga, {outcome}", detached=True).finish(outcome)
    form = shop.visitor.get("/?status=failed").text.partition('aria-label="All tasks"')[2].partition("</form>")[0]
    assert '<input type="hidden" name="status" value="failed">' in form
    page = shop.visitor.get("/search?q=quagga&status=failed")
    assert "quagga, failure" in page.words.replace(" ,", ",")
    assert "quagga, success" not in page.words.replace(" ,", ",")
    assert 'href="/search?q=quagga"' in page.text, "each filter can be taken off"


def test_the_next_task_is_the_one_that_was_active_before(shop: Shop) -> None:
    ids = []
    for days in (3, 2, 1):
        at = datetime.now(timezone.utc) - timedelta(days=days)
        task = shop.store.start(f"{days} days ago", created=at, detached=True)
        task.finish("success", completed=at)
        ids.append(task.id)
    oldest, middle, newest = ids
    assert shop.visitor.get(f"/t/{middle}/beside").to == f"/t/{oldest}"
    assert shop.visitor.get(f"/t/{middle}/beside?back=1").to == f"/t/{newest}"
    end = shop.visitor.get(f"/t/{oldest}/beside")
    assert "This is the last task" in shop.visitor.follow(end).words


def test_a_search_in_one_task_shows_every_place_in_order(shop: Shop) -> None:
    task = shop.store.start("places", detached=True)
    for number in range(9):
        task.add_turn(Turn(agent="a", status="complete", content=f"quagga {number}" + " quagga" * (number % 4)))
    task.close()
    all_tasks = shop.visitor.get("/search?q=quagga").text
    more = re.search(r'<a class="all" href="([^"]+)">6 more in this task', all_tasks)
    assert more is not None
    page = shop.visitor.get(more[1].replace("&amp;", "&"))
    assert re.findall(r">turn ([0-9]+)</a>", page.text) == [str(number) for number in range(1, 10)]
    assert "9 places" in page.words
