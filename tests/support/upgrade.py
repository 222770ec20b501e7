"""A whole history as one version of rawko left it, and what that version answered. Every later version must answer the same.

    python -m tests.support.upgrade NAME      writes fixtures/upgrade/NAME.tar.gz and NAME.sql.gz with the code as it is now

A fixture is never written again: it stands for the files that people have. A new one joins it when a format or a schema changes.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent.parent.parent / "fixtures" / "upgrade"
QUERIES: Final = ("skew", '"clock skew"', "getUser*", "file:auth/* NOT broken", "tool:shell.exec", "deep OR needle")


def fill(root: Path) -> None:
    """A project with everything in it that a version can leave behind: also drafts of a dead process, trash, packed tasks."""
    import rawko_state
    from rawko_state import Turn

    store: Any = rawko_state.open(root)
    with store.start(
        "Fix the login bug", title="Login", labels={"team": "auth"}, model="m-1", agent="dev", branch="main"
    ) as task:
        task.decide(selected="dev", reason="small enough")
        with task.turn("dev") as turn:
            turn.say("The token check ignores clock skew.\n=== not a marker ===\n\u2028 snow ☃ \x1b[31m")
            turn.tool("shell.exec", "make test", "exit 0", output="long output " * 3_000)
            turn.touch("write", "auth/sso.rs")
        task.note("a note", title="Login, mended")
        task.finish("success", "Fixed the token check", files=["auth/sso.rs"])
    fork = store.fork(task.id, 2, message="Do it otherwise")
    fork.add_turn(Turn(number=1, agent="arbiter", status="complete", content="getUserByName is a deep needle"))
    fork.finish("failure", error="it broke")
    asking = store.start("Which database?", detached=True)
    from rawko_state.model.entries import Question

    asking.ask("dev", Question("Which?", ("sqlite", "postgres")))
    asking.close()
    for number in range(3):
        with store.start(f"packed {number}") as packed:
            packed.add_turn(Turn(number=1, agent="dev", status="complete", content=f"getUserById deep {number}"))
            packed.finish("success")
    for kept in store.retention_rows():
        if store.summary(kept.id).request.startswith("packed"):
            store.pack(kept)
    with store.start("for the trash") as gone:
        gone.add_turn(Turn(number=1, agent="dev", status="complete", content="needle in the trash"))
        gone.finish("success")
    store.delete(gone.id)
    (root / ".rawko" / "config.yaml").write_text("retention:\n  max_age: 3650d\n")
    store.flush(wait=True)
    with store.start("after the fold") as late:
        late.add_turn(Turn(number=1, agent="dev", status="complete", content="needle that is not folded"))
        late.finish("cancelled")
    store.close()
    command = [sys.executable, "-m", "rawko_state", "-C", str(root)]
    subprocess.run([*command, "kv", "set", "user", "editor", "vi"], check=True)
    subprocess.run([*command, "token", "create", "--role", "read"], check=True, stdout=subprocess.DEVNULL)
    _die(root)


def _die(root: Path) -> None:
    """A process that is killed in the middle of a turn."""
    code = (
        "import os, sys, rawko_state; t = rawko_state.open(sys.argv[1]).start('It dies').turn('dev');"
        "t.say('half a needle'); t.begin_tool('shell.exec', 'rm -r build'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)])
    assert done.returncode == -9


def answers(store: Any) -> dict[str, Any]:
    """What a store answers, in a form that no later version has a reason to change."""
    from rawko_state import Turn
    from rawko_state.store import TaskFilter

    tasks = {}
    for summary in store.history(TaskFilter(sort="created")):
        turns = [entry for _, entry in store.entries(summary.id) if isinstance(entry, Turn)]
        tasks[summary.id] = {
            "status": store.status(summary.id),
            "request": summary.request,
            "title": summary.title,
            "labels": dict(summary.labels),
            "parent": summary.parent,
            "turns": [[turn.number, turn.agent, turn.status, turn.content] for turn in turns],
            "files": sorted([operation, path] for _, operation, path in store.files(summary.id)),
        }
    return {
        "tasks": tasks,
        "search": {
            query: sorted([hit.task.id, hit.turn] for hit in store.search(query, turns=True).hits) for query in QUERIES
        },
        "trash": sorted(each.id for each in store.trash()),
        "verify": {verdict.name.id: verdict.faults for verdict in store.verify()},
    }


def unpack(name: str, folder: Path) -> dict[str, Any]:
    """The fixture as project/ and home/ below a folder. Returns what was answered then."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as packed:
        if sys.version_info >= (3, 12):
            packed.extractall(folder, filter="data")
        else:
            packed.extractall(folder)
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return found


def main(name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="rawko-upgrade-"))
    home, root = work / "home", work / "project"
    state = home / ".local/state"
    (state / "rawko").mkdir(parents=True)
    (state / "rawko").chmod(0o700)
    (root / ".rawko").mkdir(parents=True)
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        os.environ[variable] = str(home)
    os.environ["XDG_STATE_HOME"] = str(state)
    fill(root)
    target = FOLDER / f"{name}.tar.gz"
    before = work / "before"
    shutil.copytree(work / "project", before)
    import rawko_state

    store: Any = rawko_state.open(before)
    store.reconcile()  # what the dead process left becomes a turn; the fixture itself keeps the draft
    found = answers(store)
    (work / "answers.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    store.close()
    with tarfile.open(target, "w:gz") as packed:
        for part in ("project", "home", "answers.json"):
            packed.add(work / part, part)
    _dump(name, before, found)
    shutil.rmtree(work)


def _dump(name: str, root: Path, found: dict[str, Any]) -> None:
    """The same tasks in PostgreSQL, as SQL."""
    from rawko_state.backends.postgres.store import PostgresStore
    from rawko_state.lifecycle.moving import move
    from tests.support.postgres import OwnPostgres

    server = OwnPostgres("upgrade")
    try:
        import rawko_state

        here: Any = rawko_state.open(root)
        there: Any = PostgresStore(server.uri, root=root)
        for _ in move(here, there, sorted(found["tasks"])):
            pass
        mine = answers(there)
        assert mine["tasks"] == found["tasks"], "PostgreSQL does not answer as the files do"
        there.close()
        here.close()
        with gzip.open(FOLDER / f"{name}.sql.gz", "wb") as packed:
            packed.write(server.dump())
    finally:
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
