"""rawko demo: show that rawko keeps its promises, in a folder of its own."""

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
from rawko_state.cli import Page
from rawko_state.cli.printing import commands_shown, counted, say, screen, visible, wrapped
from rawko_state.cli.project import with_tilde
from rawko_state.errors import InvalidValue
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


@click.command(
    name="demo",
    cls=Page,
    examples="""
    rawko demo
    rawko demo --keep ~/rawko-demo
    rawko demo --no-pause
    """,
)
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Work in DIR and leave it there")
@click.option("--pause/--no-pause", default=None, help="Wait for Enter after each step (default: on a terminal)")
def command(keep: Path | None, pause: bool | None) -> None:
    """See how rawko works: record a task, kill its process, recover, search.

    On a terminal it waits for Enter after each step, and leaves its folder for you to look around. In a pipe it doesn't wait, and
    removes the folder unless you name one with --keep.
    """
    person = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
    demo = _Demo(pause=person if pause is None else pause)
    if keep is not None:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise InvalidValue(f"{keep} {'is not empty' if keep.is_dir() else 'is not a folder'}. Name a new folder.")
        keep.mkdir(parents=True, exist_ok=True)
        demo.show(keep.resolve())
    elif person:
        demo.show(Path(tempfile.mkdtemp(prefix="rawko-demo-")).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="rawko-demo-") as folder:
            demo.show(Path(folder), stays=False)


class _Demo:
    """Six steps, each with a pause behind it if a person looks on."""

    def __init__(self, *, pause: bool) -> None:
        self._pause = pause
        self._step = 0

    def show(self, folder: Path, *, stays: bool = True) -> None:
        about = (
            "This demo records a task, kills its process in the middle of a sentence, and shows that nothing is lost. "
        )
        about += f"It works in {with_tilde(folder)} and touches nothing else."
        say(wrapped(about + (" Enter continues, q quits." if self._pause else ""), min(80, screen().columns)))
        try:
            self._steps(folder)
        except click.Abort:
            click.echo("")
        click.echo("")
        if stays:
            click.echo("The folder stays for you to look around:")
            say(
                commands_shown(
                    [
                        (f"cd {with_tilde(folder)} && rawko", "look around"),
                        (f"rm -r {with_tilde(folder)}", "when you are done"),
                        ("rawko", "in a project of yours: how to start"),
                    ]
                )
            )
        else:
            click.echo("The folder is removed now; 'rawko demo --keep DIR' leaves it. In a project of yours: rawko")

    def _steps(self, folder: Path) -> None:
        self._head("An agent works on a task")
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
        try:
            task_id, words = self._listen(writer)
            click.echo(f"   Task {task_id}. The developer is saying:")
            self._quote(f"{words} …")
            time.sleep(0.05)
            self._next()

            self._head("Its process is killed in the middle of the sentence (kill -9)")
        finally:
            os.kill(writer.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        click.echo(f"   Killed process {writer.pid}.")
        self._next()

        store = open_files(folder)
        self._head("Nothing is lost")
        click.echo(f"   Status: {store.status(task_id)}")
        task = store.resume(task_id, by="demo")
        path = store.state_folder / "tasks" / store.find(task_id).filename
        if words not in path.read_text(encoding="utf-8"):
            raise click.ClickException(
                "Words are missing from the task file. This is a bug in rawko: please report it."
            )
        click.echo(f"   Every word is in the file, in turn {task.state.turns}, marked as interrupted.")
        self._next()

        self._head("Resume it and finish")
        with task:
            with task.turn("developer") as turn:
                turn.tool(
                    "shell.exec", '"cargo test auth"', "exit 0", output="running 4 tests\ntest result: ok. 4 passed"
                )
                turn.say("The tests pass.")
            task.decide(decision="complete", reason="Tests pass")
            task.finish("success", "Fixed SSO authentication by allowing for clock skew", files=["auth/sso.rs"])
        (verdict,) = store.verify(task_id)
        seals = visible(verdict.faults[0]) if verdict.faults else "every seal matches"
        click.echo(f"   {store.status(task_id)} · {counted(verdict.records, 'record')} · {seals}")
        self._next()

        self._head("Search, even without the index")
        store.close()
        for file in store.state_folder.glob("index.db*"):
            file.unlink()
        click.echo("   $ rm .rawko/state/index.db*")
        click.echo('   $ rawko search "clock skew"')
        for hit in store.search("clock skew").hits:
            click.echo(
                f"   {hit.task.id}  {hit.task.status}  {hit.task.title}\n     {hit.kind}: {visible(hit.excerpt)}"
            )
        click.echo("   $ rawko history --file auth/sso.rs")
        for found in store.history(TaskFilter(file="auth/sso.rs")):
            click.echo(f"   {found.id}  " + ", ".join(f"{operation} {file}" for operation, file in found.touched))
        self._next()

        self._head("And it is a text file")
        click.echo("   $ grep -n token_validation .rawko/state/tasks/*.task")
        whole = path.read_text(encoding="utf-8")
        for number, line in enumerate(whole.split("\n"), 1):
            if "token_validation" in line:
                self._quote(f"{number}:{line}")
        self._next()
        # A person has seen enough; the rest is a command away, and the steps above stay on the screen.
        lines = whole.rstrip().split("\n")
        shown = lines[:12] if self._pause else lines
        click.echo(f"\n   $ {'head -n 12' if self._pause else 'cat'} .rawko/state/tasks/{path.name}")
        for line in shown:
            click.echo(f"   {visible(line)}".rstrip())
        store.close()

    def _listen(self, writer: subprocess.Popen[str]) -> tuple[str, str]:
        """The id of the task, and the words that the agent has said so far."""
        assert writer.stdout is not None
        task_id = writer.stdout.readline().strip()
        said: list[str] = []
        for line in writer.stdout:
            said.append(line.strip())
            if said[0] != "turn":
                raise click.ClickException("The demo's process did not start.")
            if len(said) == 12:
                break
        return task_id, " ".join(said[1:])

    def _quote(self, text: str) -> None:
        say(f"   {line}" for line in wrapped(text, max(20, screen().columns - 3)))

    def _head(self, text: str) -> None:
        self._step += 1
        click.echo(click.style(f"\n{self._step}  {text}", bold=True))

    def _next(self) -> None:
        if self._pause and click.prompt("", default="", show_default=False, prompt_suffix="   ↵ ", err=True) in (
            "q",
            "quit",
        ):
            raise click.Abort
