"""rawko resume: continue a task, add a run to it, or fork it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import one_line, visible
from rawko_state.cli.project import complete_ids, me, store_of, text_of
from rawko_state.config.settings import load
from rawko_state.errors import RawkoError, Stopped
from rawko_state.lazy import lazy
from rawko_state.lifecycle import context as contexts
from rawko_state.lifecycle.context import build
from rawko_state.lifecycle.resuming import newest_to_resume, snapshot_at
from rawko_state.model.status import FINISHED

if TYPE_CHECKING:
    from rawko_state.config.settings import Settings
    from rawko_state.integrations import handover, native
    from rawko_state.lifecycle import runner
    from rawko_state.lifecycle.context import Context
    from rawko_state.store.contract import Store
    from rawko_state.tasks import lines, snapshots
    from rawko_state.tasks.task import Task
else:
    # Not needed to print the context.
    handover = lazy("rawko_state.integrations.handover")
    native = lazy("rawko_state.integrations.native")
    runner = lazy("rawko_state.lifecycle.runner")
    lines = lazy("rawko_state.tasks.lines")
    snapshots = lazy("rawko_state.tasks.snapshots")


@click.command(name="resume")
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.argument("extra", metavar="[-- ARGUMENTS...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-m", "--message", help="What is to be done next; '-' for standard input. A finished task gets a second run."
)
@click.option("--at-turn", type=click.IntRange(1, 10**18), help="Fork: a new task that goes on after this turn.")
@click.option(
    "--with",
    "command_line",
    metavar="COMMAND",
    help="Run this to go on, with the context on its standard input; or hand over to claude, codex, opencode, gemini or aider.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["prompt", "messages", "json"]),
    default="prompt",
    show_default=True,
    help="How the context is given.",
)
@click.option("--budget", type=click.IntRange(100, 10**9), metavar="TOKENS", help="Shorten the context to fit.")
@click.option(
    "--restore",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Check the turn's snapshot out there.",
)
@click.option(
    "--open", "reopen", is_flag=True, help="Say that it goes on: it is running from now on, also if it was finished."
)
@click.option("--print", "only_print", is_flag=True, help="Print the context, also when the settings have a runner.")
@click.option("--dry-run", is_flag=True, help="Print the context and write nothing, also with --at-turn.")
@click.option("--by", help="Who does it; by default the user of this machine.")
@click.pass_context
def command(
    ctx: click.Context,
    task_id: str | None,
    extra: tuple[str, ...],
    message: str | None,
    at_turn: int | None,
    command_line: str | None,
    form: str,
    budget: int | None,
    restore: Path | None,
    reopen: bool,
    only_print: bool,
    dry_run: bool,
    by: str | None,
) -> None:
    """Go on with a task: the newest interrupted, waiting or paused one, or ID.

    \b
    rawko resume                                  # print the context to go on with; the task stays what it is
    rawko resume abc123 --with claude             # continue in claude, codex, opencode, gemini or aider
    rawko resume abc123 --with claude -- --model opus    # with more words for that agent
    rawko resume abc123 --with "my-agent --auto"  # run a command that goes on, and record what it does
    rawko resume abc123 -m "and now the tests"    # a second run of a finished task
    rawko resume abc123 --open                    # it goes on, and what is done is recorded by other commands
    rawko resume abc123 --at-turn 4               # a new task that goes on from turn 4

    What was interrupted is said, and who is next: the agent that was selected last, unless it has completed since; then
    whoever decides. A finished task goes on only with -m or --open. COMMAND finds RAWKO_TASK, RAWKO_NEXT_AGENT, RAWKO_CONTEXT
    (a file) and RAWKO_PROJECT in its environment. What it prints is recorded: lines of the protocol of `rawko record` as what
    they say, anything else as a turn. Its exit code is this command's.
    """
    store = store_of(ctx)
    message = text_of(message)
    by = by or me(store.root)
    settings = _settings(store)
    budget = budget if budget is not None else settings["resume.budget"]
    if dry_run and command_line:
        raise click.UsageError("--dry-run runs nothing: it does not go with --with", ctx)
    if task_id is None:
        task_id = newest_to_resume(store)
        if task_id is None:
            raise RawkoError("no task here is interrupted, waiting or paused; name one to go on with a finished one")
    task_id = store.find(task_id).id
    if restore is not None:
        _restore(store, task_id, at_turn, restore)
    goes_on = message is not None or reopen or command_line is not None
    if (
        command_line is not None
        and command_line in handover.AGENTS
        and command_line not in settings["runners"]
        and not dry_run
    ):
        ctx.exit(_hand_over(store, task_id, at_turn, command_line, message, by, budget, extra))
    if extra:
        raise click.UsageError("words after -- go to the agent that --with names", ctx)
    if command_line is not None:
        runner.checked(command_line)  # before anything is written
    status = store.status(task_id)
    if at_turn is None and not dry_run and goes_on and _let_go_on(store, task_id, status, by, message, command_line):
        return
    finished = status in FINISHED and message is None and not reopen and at_turn is None
    if finished and command_line is not None:
        raise RawkoError(
            f"task {task_id} is {status}: give -m with what is to be done next, or --open to go on with it as it is"
        )
    if command_line is None and settings["runners"] and not (only_print or dry_run or finished):
        command_line = settings["runners"].get(_context(store, task_id, at_turn, _FEW).next_agent)
        goes_on = goes_on or command_line is not None
    if dry_run or (at_turn is None and not goes_on):
        with store.reading():
            found = _context(store, task_id, at_turn, budget)
            _print(store, found, form, budget, how=_how(found, running=task_id in store.alive()))
        return
    task = _opened(store, task_id, at_turn, message, by, attached=command_line is not None)
    with store.reading():
        with_context = _context(store, task.id, None, budget)
        _say(with_context, forked=at_turn is not None)
        if command_line is None:
            task.close()
            _print(store, with_context, form, budget, how=_how(with_context, running=False))
            return
    ctx.exit(_run(store, task, with_context, command_line, form, budget))


def _how(context: Context, *, running: bool) -> str:
    """The command that continues from here."""
    task = context.task
    if context.question is not None:
        return f"rawko answer {task.id} ANSWER"
    if running:
        return f"it is being run now; rawko watch {task.id} follows it"
    if task.status in FINISHED:
        return f"rawko resume {task.id} -m 'what is to be done next'"
    return f"rawko resume {task.id} --with COMMAND, or: rawko task turn {task.id} --agent {context.next_agent} TEXT"


_FEW = 1_000
"""A budget in tokens: enough context to find the next agent."""


def _settings(store: Store) -> Settings:
    found = load(store.root)
    for problem in found.problems:
        click.echo(f"rawko: {visible(str(problem))}", err=True)
    return found


def _opened(store: Store, task_id: str, at_turn: int | None, message: str | None, by: str, *, attached: bool) -> Task:
    if at_turn is not None:
        return store.fork(task_id, at_turn, message=message, by=by, detached=not attached)
    return store.resume(task_id, by=by, detached=not attached, message=message)


def _let_go_on(store: Store, task_id: str, status: str, by: str, message: str | None, command_line: str | None) -> bool:
    """Lets a paused task continue in its own process if that is still alive, with the message if there is one."""
    if status != "paused" or task_id not in store.alive():
        return False
    if command_line is not None:
        raise RawkoError(
            f"task {task_id} is paused in a process that is still there; without --with it goes on in that"
        )
    with store.attach(task_id) as task:
        if message is not None:
            task.say(message, by=by)
        task.set_status("running", by=by)
    click.echo(f"{task_id} goes on in its process", err=True)
    return True


def _context(store: Store, task_id: str, at_turn: int | None, budget: int | None) -> Context:
    return build(store, task_id, at_turn, budget)


def _say(context: Context, *, forked: bool) -> None:
    """Prints to standard error, as this is for people."""
    task = context.task
    what = f"forked from {task.parent}" if forked else "resumed"
    click.echo(f"{task.id} {what}: {one_line(task.title or ''.join(context.requests[-1:]), 80)}", err=True)
    for place in context.interrupted:
        click.echo(f"turn {place.row.turn} of {visible(place.row.agent)} was interrupted", err=True)
    if context.question is not None and context.question.question is not None:
        click.echo(f"it waits for an answer: {one_line(context.question.question.text, 80)}", err=True)
    click.echo(f"next: {visible(context.next_agent)}", err=True)


def _rendered(store: Store, context: Context, form: str, budget: int | None) -> str:
    if form == "messages":
        return json.dumps(contexts.messages(store, context, budget), indent=None if budget else 1) + "\n"
    if form == "json":
        return json.dumps(contexts.as_json(store, context, budget), indent=None if budget else 1) + "\n"
    return contexts.prompt(store, context, budget)


def _print(store: Store, context: Context, form: str, budget: int | None, how: str) -> None:
    """Prints the context, and for a prompt also how to continue."""
    if form == "prompt":
        told = f"\nTo go on: {how}\n"
        text = (
            _rendered(store, context, form, None if budget is None else max(1, budget - contexts.tokens(told))) + told
        )
    else:
        text = _rendered(store, context, form, budget)
    click.echo(visible(text) if form == "prompt" else text, nl=False)


def _run(store: Store, task: Task, context: Context, command_line: str, form: str, budget: int | None) -> int:
    def show(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    try:
        with task:
            return runner.run(
                command_line,
                task,
                lines.Recorder(store, task),
                _rendered(store, context, form, budget),
                root=store.root,
                agent=context.next_agent,
                show=show,
                warn=lambda line: click.echo(f"rawko: {visible(line)}", err=True),
            )
    except Stopped as stopped:
        click.echo(f"rawko: {visible(str(stopped))}", err=True)
        return 1


def _hand_over(
    store: Store,
    task_id: str,
    at_turn: int | None,
    agent: str,
    message: str | None,
    by: str,
    budget: int | None,
    extra: tuple[str, ...],
) -> int:
    """Continues in another agent, in this terminal, and imports its session when it exits."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    source = store.source(task_id) if at_turn is None else None
    context = _context(store, task_id, at_turn, budget or handover.BUDGET)
    text = _rendered(store, context, "prompt", budget or handover.BUDGET)
    with handover.context_file() as file:
        chosen = handover.plan(
            agent,
            source,
            message,
            text,
            file,
            terminal=terminal,
            write=lambda name: native.write_session(name, store, _context(store, task_id, at_turn, None), Path.cwd()),
            extra=extra,
        )
        if at_turn is not None:
            with store.fork(task_id, at_turn, message=message, by=by, detached=True) as fork:
                task_id = fork.id
        how = "as a session of its own" if chosen.native else "with a context of what was done so far"
        click.echo(f"{task_id} continues in {agent}, {how}; {agent} asks for permissions as it is set up to", err=True)
        since = time.time()
        env = {**os.environ, "RAWKO_TASK": task_id, "RAWKO_PROJECT": str(store.root)}
        code = handover.run(chosen, env)
        task = handover.bring_in(store, task_id, agent, chosen, since, message)
    if at_turn is not None:
        with store.attach(task_id) as fork:  # its work is done: nobody else continues it
            fork.finish(
                "failure" if code else "success", summary=f"went on in {agent}" + (f" as {task}" if task else "")
            )
    if task is None:
        click.echo(f"rawko: {agent} has left no session that could be brought in", err=True)
    else:
        click.echo(f"recorded as {task}", err=True)
    return code


def _restore(store: Store, task_id: str, at_turn: int | None, target: Path) -> None:
    turn = at_turn if at_turn is not None else store.summary(task_id).turns
    found = snapshot_at(store, task_id, turn)
    if found is None:
        raise RawkoError(f"task {task_id} has no snapshot at turn {turn} or before")
    snapshots.restore(store.root, found, target)
    click.echo(f"turn {found['turn']}'s snapshot is in {target}", err=True)
