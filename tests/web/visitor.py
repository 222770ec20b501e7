"""A browser without a browser: cookies, forms, and nothing that a page could not do."""

from __future__ import annotations

import http.client
import re
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from tests.support.machine import patience


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


class Page(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]

    @property
    def to(self) -> str:
        return self.headers.get("location", "")

    @property
    def token(self) -> str:
        found = re.search(r'name="token" value="([0-9a-f]+)"', self.text)
        assert found is not None, self.text[:300]
        return found[1]

    def ids(self, name: str = "turn") -> list[str]:
        return re.findall(rf'<article class="{name}[^"]*" id="([^"]+)"', self.text)

    @property
    def tags(self) -> list[tuple[str, dict[str, str]]]:
        """Every element with its attributes, as a browser sees them."""
        parser = _Tags()
        parser.feed(self.text)
        return parser.found

    @property
    def words(self) -> str:
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


class Visitor:
    def __init__(self, port: int) -> None:
        self.port = port
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Page:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Page:
        return self._ask("POST", path, urlencode(form or {}), headers)

    def send(self, path: str, form: dict[str, str] | None = None, *, at: str = "/") -> Page:
        """Sends a form of the page ``at``."""
        return self.post(path, {"token": self.get(at).token, **(form or {})}, Origin=f"http://127.0.0.1:{self.port}")

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Page:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience(30))
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            given.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        if body is not None:
            given.setdefault("Content-Type", "application/x-www-form-urlencoded")
        try:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            text = response.read().decode("utf-8")
        finally:
            connection.close()
        for name, value in response.getheaders():
            if name.lower() == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return Page(response.status, text, {name.lower(): value for name, value in response.getheaders()})

    def follow(self, page: Page) -> Page:
        assert page.status == 303, (page.status, page.words[:300])
        address = urlsplit(page.to)
        return self.get(address.path + (f"?{address.query}" if address.query else ""))
