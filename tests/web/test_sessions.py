"""Who gets in: one-time links, tokens and roles; and what a page of somebody else can't do."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.select import open_files, open_server_state
from rawko_state.web import sessions
from rawko_state.web.pages import routes
from rawko_state.web.sessions import Links
from tests.support.serving import Served, served
from tests.web.visitor import Visitor


@pytest.fixture(scope="module")
def task(root: Path) -> str:
    found = open_files(root).start("guarded", detached=True)
    found.close()
    return found.id


@pytest.fixture(scope="module")
def links() -> Links:
    return Links("mara")


@pytest.fixture(scope="module")
def opened(root: Path, links: Links) -> Iterator[Served]:
    """As 'rawko open' starts it."""
    with served(root, private=True, pages=lambda server: routes(server, links)) as running:
        yield running


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str], str]]:
    root = tmp_path_factory.mktemp("team")
    task = open_files(root).start("of a team", detached=True)
    task.close()
    state = open_server_state(root)
    tokens = {role: state.create_token(role, note=f"{role}er") for role in ("read", "write", "admin")}
    state.close()
    with served(root, pages=routes) as running:
        yield running, tokens, task.id


def signed_in(team: tuple[Served, dict[str, str], str], role: str) -> Visitor:
    visitor = Visitor(team[0].port)
    page = visitor.post("/sign-in", {"token": team[1][role], "next": "/"})
    assert page.status == 303, page.words
    return visitor


# One-time links


def test_a_link_works_once(opened: Served, links: Links, task: str) -> None:
    visitor, link = Visitor(opened.port), links.make()
    page = visitor.get(f"/open?once={link}&next=/t/{task}")
    assert page.status == 303
    assert page.to == f"/t/{task}"
    cookie = page.headers["set-cookie"]
    assert cookie.startswith(f"rawko_{opened.port}=link.")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert visitor.get(f"/t/{task}").status == 200
    again = Visitor(opened.port)
    assert again.get(f"/open?once={link}").status == 403
    assert again.cookies == {}


def test_a_link_does_not_last(opened: Served, links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    link = links.make()
    later = time.monotonic() + sessions.LINK_SECONDS + 1
    monkeypatch.setattr("rawko_state.web.sessions.time.monotonic", lambda: later)
    assert links.take(link) is None


def test_a_stranger_on_this_machine_gets_nothing_from_rawko_open(opened: Served, task: str) -> None:
    stranger = Visitor(opened.port)
    for path in (
        "/",
        f"/t/{task}",
        "/search?q=guarded",
        "/files",
        "/figures",
        "/trash",
        "/health",
        f"/t/{task}/export",
    ):
        page = stranger.get(path)
        assert page.status == 303, path
        assert page.to.startswith("/sign-in?next="), path
        assert "guarded" not in page.text
    assert stranger.get(f"/t/{task}/live").status == 303
    assert stranger.get("/?part=1").status == 401
    assert stranger.post(f"/t/{task}/do/cancel", {"token": "x"}).status == 401
    assert stranger.get("/api/v1/tasks").status == 401
    assert stranger.post("/open/link").status == 403
    assert stranger.post("/open/link", Authorization="Bearer wrong").status == 403
    for made_up in (
        "link." + "A" * 43,
        "open." + "A" * 43,
        "token.0123456789ab.9999999999." + "0" * 64,
        "x" * 5000,
        "é",
    ):
        stranger.cookies = {f"rawko_{opened.port}": made_up.encode().decode("latin-1")}
        assert stranger.get("/").status == 303


def test_only_the_key_gives_another_link(opened: Served, links: Links) -> None:
    page = Visitor(opened.port).post("/open/link", Authorization=f"Bearer {links.key}")
    assert page.status == 200
    assert Visitor(opened.port).get(f"/open?once={page.text}").status == 303


def test_signing_out_ends_a_session(opened: Served, links: Links) -> None:
    visitor = Visitor(opened.port)
    visitor.get(f"/open?once={links.make()}")
    held = dict(visitor.cookies)
    assert visitor.send("/sign-out").status == 303
    visitor.cookies = held
    assert visitor.get("/").status == 303


# Tokens


def test_a_token_is_pasted_once_and_is_not_in_the_cookie(team: tuple[Served, dict[str, str], str]) -> None:
    visitor = signed_in(team, "read")
    assert visitor.get("/").status == 200
    assert team[1]["read"] not in str(visitor.cookies)
    assert team[1]["read"].rpartition("_")[2] not in str(visitor.cookies)


def test_a_wrong_token_does_not_get_in(team: tuple[Served, dict[str, str], str]) -> None:
    visitor = Visitor(team[0].port)
    for wrong in ("", "rawko_0123456789ab_" + "A" * 43, "'; drop table tokens; --"):
        assert visitor.post("/sign-in", {"token": wrong}).status == 401
    assert visitor.cookies == {}
    assert visitor.get("/").to.startswith("/sign-in")
    assert visitor.get("/").status == 303
    assert "of a team" not in visitor.get("/sign-in").text


def test_roles_hold_on_the_page(team: tuple[Served, dict[str, str], str]) -> None:
    task = team[2]
    reader, writer, admin = (signed_in(team, role) for role in ("read", "write", "admin"))
    page = reader.get(f"/t/{task}")
    assert page.status == 200
    assert "/do/" not in page.text, "what one may not do is not offered"
    for what in ("cancel", "pause", "pin", "title", "trash", "fork"):
        assert reader.send(f"/t/{task}/do/{what}", {"title": "x", "turn": "1"}).status == 403, what
    assert reader.get(f"/t/{task}/fork/1").status == 403
    assert reader.get("/health").status == writer.get("/health").status == 403
    assert admin.get("/health").status == 200
    assert writer.send("/trash/empty", {"sure": "yes"}).status == 403
    assert writer.send(f"/t/{task}/do/title", {"title": "renamed"}).status == 303
    assert "renamed" in reader.get(f"/t/{task}").words


def test_revoking_a_token_ends_its_sessions(team: tuple[Served, dict[str, str], str]) -> None:
    state = team[0].server.workspaces.state
    token = state.create_token("write", note="brief")
    visitor = Visitor(team[0].port)
    visitor.post("/sign-in", {"token": token})
    assert visitor.get("/").status == 200
    assert state.revoke_token(token.split("_")[1])
    assert visitor.get("/").to.startswith("/sign-in")


def test_signing_in_leads_nowhere_else(team: tuple[Served, dict[str, str], str]) -> None:
    for bad in (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "\\\\x",
        "/a\r\nSet-Cookie: x=1",
    ):
        page = Visitor(team[0].port).post("/sign-in", {"token": team[1]["read"], "next": bad})
        assert page.to == "/", bad
    page = Visitor(team[0].port).post("/sign-in", {"token": team[1]["read"], "next": "/t/abc?diff=split"})
    assert page.to == "/t/abc?diff=split"


# Pages of somebody else


def test_a_form_of_another_page_does_nothing(server: Served, task: str) -> None:
    visitor, other = Visitor(server.port), Visitor(server.port)
    token = visitor.get("/").token
    before = visitor.get(f"/t/{task}").words
    path = f"/t/{task}/do/cancel"
    mine = f"http://127.0.0.1:{server.port}"
    assert visitor.post(path).status == 403
    assert visitor.post(path, {"token": other.get("/").token}).status == 403
    assert visitor.post(path, {"token": token}, Origin="http://evil.example").status == 403
    assert visitor.post(path, {"token": token}, Origin="null").status == 403
    assert visitor.post(path, {"token": token}, Origin=f"http://127.0.0.1:{server.port + 1}").status == 403
    assert visitor.post(path, {"token": token}, Sec_Fetch_Site="cross-site").status == 403
    assert visitor.post(path, {"token": token}, Content_Type="text/plain").status == 415
    assert visitor.get(path).status in (404, 405), "nothing changes by following a link"
    assert "waits" not in before
    assert "cancelled" not in visitor.get(f"/t/{task}").words
    assert visitor.post(path, {"token": token}, Origin=mine).status == 303
    assert "cancelled" in visitor.get(f"/t/{task}").words


def test_a_foreign_host_is_refused(server: Served) -> None:
    for path in ("/", "/static/style.css", "/sign-in", "/nowhere"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", path, headers={"Host": "rebound.example"})
        assert connection.getresponse().status == 421, path
        connection.close()


def test_a_link_on_another_site_leads_here_but_brings_no_rights(server: Served, task: str) -> None:
    fetched = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    page = Visitor(server.port).get(f"/t/{task}?diff=split", **fetched)
    assert page.status == 200
    assert "guarded" not in page.text
    assert f"url=/t/{task}?diff=split" in page.text
    assert "evil" not in Visitor(server.port).get("//evil.example/", **fetched).text, "nor to anywhere else"
    assert Visitor(server.port).get("/", **{**fetched, "Sec_Fetch_Dest": "iframe"}).status == 403
    assert Visitor(server.port).get("/", **{**fetched, "Sec_Fetch_Mode": "no-cors"}).status == 403
    assert Visitor(server.port).get(f"/t/{task}/live", **fetched).status == 403


def test_colours_and_keys_are_kept_in_the_browser(server: Served) -> None:
    visitor = Visitor(server.port)
    assert "data-theme" not in visitor.get("/keys").text
    visitor.send("/settings", {"theme": "dark", "keys": "off", "next": "/keys"})
    page = visitor.get("/keys")
    assert 'data-theme="dark"' in page.text
    assert 'data-keys="off"' in page.text
    assert visitor.send("/settings", {"theme": "<script>", "next": "//evil.example"}).to == "/"
    assert "<script>" not in visitor.get("/keys").text.replace('<script type="module"', "")
