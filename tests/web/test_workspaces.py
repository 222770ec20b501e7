"""A team's workspaces on PostgreSQL: each at its own address, and closed to tokens of another."""

from __future__ import annotations

from pathlib import Path

from rawko_state.web.pages import routes
from tests.support.serving import served
from tests.web.visitor import Visitor


def test_a_workspace_has_its_address_and_its_people(tmp_path: Path, database: str) -> None:
    with served(tmp_path, database, pages=routes) as server:
        workspaces = server.server.workspaces
        workspaces.host.create_workspace("web")
        task = workspaces.get("web").store.start("of the web team", detached=True)
        task.close()
        state = workspaces.state
        everywhere = state.create_token("write", note="ann")
        only = state.create_token("read", "default", "bob")
        ann, bob = Visitor(server.port), Visitor(server.port)
        assert ann.post("/sign-in", {"token": everywhere}).status == 303
        assert bob.post("/sign-in", {"token": only}).status == 303
        assert "of the web team" in ann.get("/w/web/").text
        assert "of the web team" not in ann.get("/").text
        assert ann.send(f"/w/web/t/{task.id}/do/pin", at="/w/web/").to == f"/w/web/t/{task.id}"
        assert ann.get("/w/nowhere/").status == 404
        assert bob.get("/").status == 200
        assert bob.get("/w/web/").status == 403
        assert bob.get(f"/w/web/t/{task.id}").status == 403
        assert bob.get(f"/t/{task.id}").status == 404
        projects = bob.get("/projects").text
        assert "/w/default/" in projects
        assert "/w/web/" not in projects
        for path in (
            "/w/web/files",
            "/w/web/figures",
            "/w/web/trash",
            f"/w/web/t/{task.id}",
            f"/w/web/t/{task.id}/check",
            "/w/web/search?q=team",
        ):
            page = ann.get(path)
            assert page.status == 200, (path, page.words[-300:])
