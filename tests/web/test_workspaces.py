"""A team's workspaces on PostgreSQL: each at its own address, and closed to tokens of another."""

from __future__ import annotations

from pathlib import Path

from rawko_state.model.entries import FileTouch, Turn
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


def test_lists_of_a_team_say_what_those_of_one_machine_say(tmp_path: Path, database: str) -> None:
    with served(tmp_path, database, pages=routes) as server:
        store = server.server.workspaces.get("default").store
        task = store.start("estimated", model="claude-sonnet-4-5", agent="developer", detached=True)
        for path in ("src/Übung.py", "src/b.py"):
            touched = FileTouch("write", path)
            task.add_turn(
                Turn(
                    agent="developer", status="complete", tokens={"in": 10_000, "out": 1_000}, files=(touched, touched)
                )
            )
        task.add_turn(Turn(agent="user", content="go on", files=(FileTouch("read", "src/c.py"),)))
        task.finish("success")
        assert store.files_changed([task.id, "nobody"]) == {task.id: 2, "nobody": 0}
        assert store.paths() == [("src/b.py", 1), ("src/c.py", 1), ("src/Übung.py", 1)]
        assert store.paths("B.PY") == [("src/b.py", 1)]
        assert [path for path, _ in store.paths(after="src/b.py", limit=1)] == ["src/c.py"]
        by_agent = {usage.agent: (usage.turns, usage.tokens_in) for usage in store.used([task.id])[task.id]}
        assert by_agent == {"developer": (2, 20_000), "user": (1, None)}
        visitor = Visitor(server.port)
        assert "~$0.09" in visitor.get("/").text
        assert "b.py" in visitor.get("/files?q=SRC/B").text
