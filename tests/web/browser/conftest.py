"""A real browser: Debian's Chromium, driven by Playwright. Skipped loudly where they are missing; CI requires them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.select import open_files
from rawko_state.store.contract import ProjectStore
from rawko_state.web.pages import routes
from tests.support.machine import patience
from tests.support.serving import Served, served

try:
    from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = "Playwright" if sync_playwright is None else "Chromium" if shutil.which("chromium") is None else ""
    if missing:
        mark = pytest.mark.skip(
            reason=f"NOT TESTED HERE: needs {missing}; pip install 'rawko-state[browser]', apt-get install chromium"
        )
        for item in items:
            if "web/browser" in item.path.as_posix():
                item.add_marker(mark)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "shop"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[ProjectStore]:
    with open_files(root) as found:
        yield found


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Served]:
    with served(root, pages=routes) as running:
        yield running


class Watched:
    """A page, and whatever it did that it must not: errors, scripts of others, requests elsewhere."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        self.is_attack = False
        """Whether a page of somebody else is shown: what it does, and what it is refused, is its own."""
        page.set_default_timeout(min(patience(10), 90) * 1000)
        page.on("console", lambda message: self._saw(f"console: {message.text}") if message.type == "error" else None)
        page.on("pageerror", lambda error: self._saw(f"error: {error}"))
        page.on("dialog", lambda dialog: (self._saw(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda request: None if request.url.startswith(url) else self._saw(f"request: {request.url}")
        )

    def _saw(self, what: str) -> None:
        if not self.is_attack:
            self.wrong.append(what)

    def goto(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def ready(self, path: str) -> Page:
        """The page with its scripts at work."""
        self.goto(path)
        self.page.wait_for_selector("html[data-ready]")
        return self.page


@pytest.fixture
def watch(browser: Browser, server: Served) -> Iterator[Callable[..., Watched]]:
    contexts: list[BrowserContext] = []
    made: list[Watched] = []

    def new(url: str | None = None, **options: Any) -> Watched:
        context = browser.new_context(**options)
        contexts.append(context)
        made.append(Watched(context.new_page(), url or server.url))
        return made[-1]

    yield new
    for context in contexts:
        context.close()
    assert [wrong for each in made for wrong in each.wrong] == []
