"""rawko demo: show that rawko keeps its promises, in a throw-away folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from rawko_state.backends.select import open_files
from rawko_state.cli.printing import visible
from rawko_state.store import TaskFilter

# Runs as a separate process, so that it can really be killed in the middle of a turn.
_WRITER = """
import sys, time
from rawko_state.backends.select import open_files

task = open_files(sys.argv[1]).start(
    "Fix the login bug where users can't authenticate with SSO", title="SSO login", agent="developer")
print(task.id, flush=True)
task.decide(selected="planner", reason="Task requires understanding before implementation")
with task.turn("planner") as turn:
    turn.tool("filesystem.read", "auth/sso.rs", "2048 bytes")
    turn.tool("filesystem.search", '"SSO"', "3 matches")
    turn.say("The token check in auth/sso.rs ignores clock skew.\\nThe plan: fix it, then add a test.")
print("turn", flush=True)
task.decide(selected="developer", reason="Plan is clear, ready for implementation")
turn = task.turn("developer")
turn.tool("filesystem.write", "auth/sso.rs", "2156 bytes")
turn.begin_tool("shell.exec", '"cargo test auth"')
for word in "I have changed token_validation to allow for a minute of skew. Now I am running the tests".split():
    turn.say(word + " ")
    print(word, flush=True)
    time.sleep(0.03)
time.sleep(600)
"""


@click.command(name="demo")
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Work in DIR, and leave it there.")
def command(keep: Path | None) -> None:
    """Record, kill, recover and read a task in a throw-away folder."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        _show(keep)
        return
    with tempfile.TemporaryDirectory(prefix="rawko-demo-") as folder:
        _show(Path(folder))


def _show(folder: Path) -> None:
    _head("An agent records a task, live")
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    task_id = writer.stdout.readline().strip()
    said: list[str] = []
    for line in writer.stdout:
        said.append(line.strip())
        if said[0] != "turn":
            raise click.ClickException("the demo's writer did not start")
        if len(said) == 12:
            break
    words = " ".join(said[1:])
    click.echo(f"  task {task_id}: the developer is saying: {words!r} …")
    time.sleep(0.05)

    _head("Its process is killed in the middle of the turn (SIGKILL)")
    os.kill(writer.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    code = writer.wait()
    writer.stdout.close()
    click.echo(f"  process {writer.pid} ended with {code}")

    store = open_files(folder)
    _head("Nothing is lost")
    click.echo(f"  status: {store.status(task_id)}")
    task = store.resume(task_id, by="demo")
    path = store.state_folder / "tasks" / store.find(task_id).filename
    kept = path.read_text(encoding="utf-8")
    if words not in kept:
        raise click.ClickException("words that the agent had said are missing: this must never happen")
    click.echo(f"  every word that was said is in the file, in turn {task.state.turns}, marked as interrupted")

    _head("It is resumed and finished")
    with task:
        with task.turn("developer") as turn:
            turn.tool("shell.exec", '"cargo test auth"', "exit 0", output="running 4 tests\ntest result: ok. 4 passed")
            turn.say("The tests pass.")
        task.decide(decision="complete", reason="Tests pass")
        task.finish("success", "Fixed SSO authentication by allowing for clock skew", files=["auth/sso.rs"])
    (verdict,) = store.verify(task_id)
    click.echo(
        f"  status: {store.status(task_id)}; {verdict.records} records, every seal checked: {_ok(verdict.faults)}"
    )

    _head("It can be searched, also after its index was deleted")
    store.close()
    for file in store.state_folder.glob("index.db*"):
        file.unlink()
    click.echo('  $ rawko history --search "clock skew"')
    for hit in store.search("clock skew").hits:
        click.echo(f"  {hit.task.id}  {hit.task.status}  {hit.task.title}\n        {hit.kind}: {visible(hit.excerpt)}")
    click.echo("  $ rawko history --file auth/sso.rs")
    for found in store.history(TaskFilter(file="auth/sso.rs")):
        click.echo(f"  {found.id}  " + ", ".join(f"{operation} {file}" for operation, file in found.touched))

    _head("It can be grepped")
    click.echo(f"  $ grep -n token_validation {path.name}")
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if "token_validation" in line:
            click.echo(f"  {number}:{visible(line)}")

    _head(f"And read: {path}")
    click.echo(visible(path.read_text(encoding="utf-8")))


def _head(text: str) -> None:
    click.echo(click.style(f"\n{text}", bold=True))


def _ok(faults: list[str]) -> str:
    return "ok" if not faults else faults[0]
