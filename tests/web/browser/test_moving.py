"""Nothing moves under the pointer, and nothing is passed over on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.select import open_files
from rawko_state.model.entries import FileTouch, Question, Turn
from rawko_state.store.contract import ProjectStore
from rawko_state.web.pages import routes
from tests.support.serving import served

pytestmark = pytest.mark.every  # a step of its own in CI


@pytest.fixture
def project(tmp_path: Path) -> Iterator[tuple[ProjectStore, str]]:
    """A project of its own, so that nothing else happens in it; and where it is served."""
    with open_files(tmp_path) as store, served(tmp_path, pages=routes) as running:
        yield store, running.url


def connected(page: Any) -> None:
    page.wait_for_selector("#conn:not([hidden]):not(.lost)")


def test_the_next_edit_is_found_among_turns_that_were_left_out(
    watch: Callable[..., Any], project: tuple[ProjectStore, str]
) -> None:
    store, url = project
    task = store.start("long", agent="developer", detached=True)
    for number in range(1, 301):
        files = (FileTouch("write", "a.py"),) if number in (40, 290) else ()
        task.add_turn(Turn(agent="developer", status="complete", content=f"turn {number}", files=files))
    task.close()
    page = watch(url).ready(f"/t/{task.id}")
    assert page.locator("#t40").count() == 0
    assert page.locator("#t290").count() == 1
    page.keyboard.press("n")
    page.wait_for_url(f"**/t/{task.id}/40#t40")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("n")
    page.wait_for_url(f"**/t/{task.id}/290#t290")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("n")
    page.locator("#told", has_text="There is no later edit.").wait_for()


def test_what_runs_changes_in_place(watch: Callable[..., Any], project: tuple[ProjectStore, str]) -> None:
    store, url = project
    task = store.start("at work", agent="developer")
    try:
        page = watch(url).ready("/")
        connected(page)
        page.evaluate("document.querySelector('#now-list a.t').mine = true")
        with task.turn("developer") as turn:
            turn.progress("Step 2 of 3")
            page.locator("#now-list", has_text="Step 2 of 3").wait_for()
            assert page.evaluate("document.querySelector('#now-list a.t').mine") is True, "one may be clicking on it"
        task.ask("developer", Question("Which?"))
        page.locator("#now-list .waits", has_text="Which?").wait_for()
        assert page.evaluate("document.querySelector('#now-list a.t').mine") is True
    finally:
        task.close()


def test_a_filtered_list_stays_filtered_and_fresh(watch: Callable[..., Any], project: tuple[ProjectStore, str]) -> None:
    store, url = project
    store.start("first failure", detached=True).finish("failure")
    page = watch(url).ready("/?status=failed")
    connected(page)
    running = store.start("runs", detached=True)
    store.start("second failure", detached=True).finish("failure")
    page.locator("#rows", has_text="second failure").wait_for()
    assert page.locator("#now-list li").count() == 0
    assert page.locator(f"a[href='/t/{running.id}']").count() == 0


def test_what_is_new_comes_in_when_the_pointer_has_left(
    watch: Callable[..., Any], project: tuple[ProjectStore, str]
) -> None:
    """Also what ended after the list was sent and before the stream began."""
    store, url = project
    old = store.start("old", detached=True)
    old.finish("success")
    visit = watch(url)

    def begin(route: Any) -> None:
        store.start("in between", detached=True).finish("success")
        route.continue_()

    visit.page.route("**/live", begin, times=1)
    page = visit.ready("/")
    connected(page)
    page.locator("tr[data-id]", has_text="in between").wait_for()
    row = page.locator(f"tr[data-id='{old.id}']")
    row.hover()
    at = row.bounding_box()
    store.start("runs", detached=True).close()
    for number in range(2):
        store.start(f"new {number}", detached=True).finish("success")
    page.locator("#news button", has_text="3 new").wait_for()
    assert page.locator("tr[data-id]").count() == 2
    assert row.bounding_box() == at, "nothing moves under the pointer"
    page.locator(".logo").hover()
    page.locator("tr[data-id]").nth(3).wait_for()
    page.locator("#now-list li", has_text="runs").wait_for()
    assert page.locator("#news button").is_hidden()


ENDED = 'event: stop\ndata: {"text": "Unknown or revoked token."}\n\n'


@pytest.mark.parametrize(
    ("media", "body", "said"),
    [
        ("text/event-stream", ENDED, "Unknown or revoked token."),
        ("text/html", "Sign in", "signed out: reload this page"),
    ],
)
def test_a_stream_that_the_server_ends_says_why(
    watch: Callable[..., Any], project: tuple[ProjectStore, str], media: str, body: str, said: str
) -> None:
    """Also if it sends who follows to the page for signing in, which is no stream."""
    store, url = project
    task = store.start("followed", detached=True)
    task.close()
    visit = watch(url)

    def asked(route: Any) -> None:
        if route.request.method == "HEAD":
            route.fulfill(status=303, headers={"Location": "/sign-in"})
        else:
            route.continue_()

    visit.page.route("**/live?*", lambda route: route.fulfill(content_type=media, body=body))
    visit.page.route(f"**/t/{task.id}", asked)
    page = visit.ready(f"/t/{task.id}")
    page.locator("#conn.lost", has_text=said).wait_for()
    visit.wrong[:] = [each for each in visit.wrong if "MIME type" not in each]
