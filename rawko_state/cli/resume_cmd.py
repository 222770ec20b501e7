"""rawko resume: continue a task, add a run to it, or fork it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids, complete_runners
from rawko_state.cli.printing import commands_shown, counted, one_line, screen, visible
from rawko_state.cli.project import me, store_of, text_of
from rawko_state.config.settings import load
from rawko_state.errors import RawkoError, Stopped
from rawko_state.lazy import lazy
from rawko_state.lifecycle import context as contexts
from rawko_state.lifecycle.context import build
from rawko_state.lifecycle.resuming import newest_to_resume, snapshot_at
from rawko_state.model.status import ENDED, FINISHED

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


@click.command(
    name="resume",
    cls=Page,
    examples="""
    rawko resume                              print the context, change nothing
    rawko resume abc123 --with claude         continue in Claude Code
    rawko resume abc123 --with "my-agent -y"  run a command and record it
    rawko resume abc123 -m "now the tests"    add a run to a finished task
    rawko resume abc123 --open                reopen it, for other commands
    rawko resume abc123 --at-turn 4           fork it after turn 4
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.argument("extra", metavar="[-- ARGUMENTS...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-m",
    "--message",
    metavar="TEXT",
    help="What to do next; '-' reads standard input. Starts another run of a finished task",
)
@click.option(
    "--at-turn", type=click.IntRange(1, 10**18), metavar="N", help="Fork: start a new task that continues after turn N"
)
@click.option(
    "--with",
    "command_line",
    metavar="COMMAND",
    shell_complete=complete_runners,
    help="Continue with this command, or hand over to claude, codex, opencode, gemini or aider",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["prompt", "messages", "json"]),
    default="prompt",
    show_default=True,
    help="Format of the context",
)
@click.option(
    "--budget", type=click.IntRange(100, 10**9), metavar="TOKENS", help="Limit the context to this many tokens"
)
@click.option(
    "--restore",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Check out the turn's snapshot into DIR",
)
@click.option("--open", "reopen", is_flag=True, help="Mark the task as running again, even if it was finished")
@click.option("--print", "only_print", is_flag=True, help="Print the context even if a runner is configured")
@click.option("--dry-run", is_flag=True, help="Print the context and change nothing, also with --at-turn")
@click.option("--by", metavar="NAME", help="Name to record (default: you)")
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
    """Continue a task: the one given, or the newest that is interrupted, waiting or paused.

    Without options it prints the context to continue from, for a person or a program, and changes nothing. A finished task
    continues only with -m or --open.

    COMMAND gets the context on standard input, and RAWKO_TASK, RAWKO_NEXT_AGENT, RAWKO_CONTEXT (a file) and RAWKO_PROJECT in its
    environment. Its output is recorded: lines of the protocol of 'rawko record' as what they say, anything else as one turn. The
    exit code is that of COMMAND.
    """
    store = store_of(ctx)
    message = text_of(message)
    by = by or me(store.root)
    settings = _settings(store)
    budget = budget if budget is not None else settings["resume.budget"]
    if dry_run and command_line:
        raise click.UsageError("--dry-run can't be combined with --with", ctx)
    if task_id is None:
        task_id = newest_to_resume(store)
        if task_id is None:
            raise RawkoError(
                "Nothing to resume: no task is interrupted, waiting or paused.\n"
                '  Continue a finished one: rawko resume ID -m "what to do next"'
            )
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
        raise click.UsageError("Arguments after -- need --with AGENT", ctx)
    if command_line is not None:
        runner.checked(command_line)  # before anything is written
    status = store.status(task_id)
    if at_turn is None and not dry_run and goes_on and _let_go_on(store, task_id, status, by, message, command_line):
        return
    finished = status in FINISHED and message is None and not reopen and at_turn is None
    if finished and command_line is not None:
        raise RawkoError(
            f"Task {task_id} is already {status}.\n"
            "  Say what to do next with -m TEXT, or reopen it as it is with --open"
        )
    if command_line is None and settings["runners"] and not (only_print or dry_run or finished):
        command_line = settings["runners"].get(_context(store, task_id, at_turn, _FEW).next_agent)
        if command_line is not None:
            runner.checked(command_line)  # here, too
            goes_on = True
    if dry_run or (at_turn is None and not goes_on):
        with store.reading():
            found = _context(store, task_id, at_turn, budget)
            _print(store, found, form, budget, changed=False)
        return
    task = _opened(store, task_id, at_turn, message, by, attached=command_line is not None)
    with store.reading():
        with_context = _context(store, task.id, None, budget)
        _say(store, with_context, forked=at_turn is not None, message=message)
        if command_line is None:
            task.close()
            _print(store, with_context, form, budget, changed=True)
            return
    ctx.exit(_run(store, task, with_context, command_line, form, budget))


def _ways_on(store: Store, context: Context) -> list[tuple[str, str]]:
    """The commands that continue from here."""
    task = context.task
    if context.question is not None:
        return [(f"rawko answer {task.id} ANSWER", "answer its question")]
    if task.id in store.alive():
        return [(f"rawko watch {task.id}", "follow it: it is running now")]
    if task.status in FINISHED:
        return [(f"rawko resume {task.id} -m TEXT", "say what to do next")]
    turn = f"rawko task turn {task.id} --agent {one_line(context.next_agent, 40)} TEXT"
    by_hand = (turn, "add a turn") if task.status == "running" else (f"rawko resume {task.id} --open", "do it yourself")
    agent = context.next_agent if context.next_agent in handover.AGENTS else "claude"
    return [(f"rawko resume {task.id} --with {agent}", f"continue in {agent}"), by_hand]


_FEW = 1_000
"""A budget in tokens: enough context to find the next agent."""


def _settings(store: Store) -> Settings:
    found = load(store.root)
    for problem in found.problems:
        click.echo(f"rawko: warning: {visible(str(problem))}", err=True)
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
            f"Task {task_id} is paused, and its process is still alive.\n"
            f"  Continue it there, without --with: rawko resume {task_id} --open"
        )
    with store.attach(task_id) as task:
        if message is not None:
            task.say(message, by=by)
        task.set_status("running", by=by)
    click.echo(f"Resumed {task_id} in its process.", err=True)
    return True


def _context(store: Store, task_id: str, at_turn: int | None, budget: int | None) -> Context:
    return build(store, task_id, at_turn, budget)


def _say(store: Store, context: Context, *, forked: bool, message: str | None) -> None:
    """Prints to standard error, as this is for people."""
    task = context.task
    if forked:
        parent, _, turn = (task.parent or "").partition("@")
        said = f"Forked {parent} after turn {turn} as {task.id}. {parent} is unchanged."
    elif message is not None:
        said = f"Started run {len(store.runs(task.id))} of {task.id}: {one_line(message, 80)}"
    else:
        said = f"Opened {task.id}: {one_line(task.title or ''.join(context.requests[-1:]), 80)}"
    click.echo(said, err=True)
    _say_what_is_open(context)
    if context.next_agent != contexts.NOBODY:
        click.echo(f"Next: {visible(context.next_agent)}", err=True)


def _say_what_is_open(context: Context) -> None:
    for place in context.interrupted:
        who = f"{place.row.turn} ({visible(place.row.agent)})"
        click.echo(f"Turn {who} was interrupted; what it had said is in the context.", err=True)
    if context.question is not None and context.question.question is not None:
        click.echo(f"Waiting for an answer: {one_line(context.question.question.text, 80)}", err=True)


def _rendered(store: Store, context: Context, form: str, budget: int | None) -> str:
    if form == "messages":
        return json.dumps(contexts.messages(store, context, budget), indent=None if budget else 1) + "\n"
    if form == "json":
        return json.dumps(contexts.as_json(store, context, budget), indent=None if budget else 1) + "\n"
    return contexts.prompt(store, context, budget)


def _print(store: Store, context: Context, form: str, budget: int | None, *, changed: bool) -> None:
    """Prints the context; and beside it, for people, what it is and how to continue."""
    text = _rendered(store, context, form, budget)
    if form != "prompt":
        click.echo(text, nl=False)
        return
    click.echo(visible(text), nl=False)
    click.echo("", err=True)
    if not changed:
        task = context.task
        about = one_line(task.title or "".join(context.requests[-1:]), max(20, screen().columns - 24))
        click.echo(f"{task.id}  {one_line(task.status, 20)}  {about}", err=True)
        _say_what_is_open(context)
    turns = counted(len(context.conversation) + context.unread, "turn")
    size = f"Context: {turns}, about {max(100, round(contexts.tokens(text), -2)):,} tokens."
    click.echo(size if changed else f"{size} Nothing was changed.", err=True)
    for line in commands_shown(_ways_on(store, context)):
        click.echo(line, err=True)


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
    """Continues in another agent, in this terminal, and adds what it did to the task when it exits."""
    handover.check(agent)
    if task_id in store.alive():
        raise RawkoError(f"Task {task_id} is running now.\n  Follow it: rawko watch {task_id}")
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    own = handover.own_session(store, task_id, agent)  # also when it can't be used: brings the task up to date
    if at_turn is not None:
        with store.fork(task_id, at_turn, message=message, by=by, detached=True) as fork:
            task_id, own = fork.id, None
    most = budget or handover.BUDGET
    with handover.context_file() as file:
        chosen = handover.plan(
            agent,
            own,
            message,
            lambda: _rendered(store, _context(store, task_id, None, most), "prompt", most),
            file,
            terminal=terminal,
            write=lambda name: native.write_session(name, store, _context(store, task_id, None, None), Path.cwd()),
            extra=extra,
        )
        how = "as a session of its own" if chosen.native else "with the task so far as context"
        click.echo(f"Continuing {task_id} in {agent}, {how}. {agent} asks for permissions as usual.", err=True)
        since = time.time()
        env = {**os.environ, "RAWKO_TASK": task_id, "RAWKO_PROJECT": str(store.root)}
        code = handover.run(chosen, env)
        task = handover.bring_in(store, task_id, agent, chosen, since, message)
    if task is None:
        if at_turn is not None and store.status(task_id) not in ENDED:
            with store.attach(task_id) as fork:  # nobody else continues it
                fork.finish("failure" if code else "unknown", summary=f"{agent} left no session")
        click.echo(f"rawko: warning: {agent} left no session to import; this part is not recorded.", err=True)
    else:
        click.echo(f"Recorded as {task}.", err=True)
    return code


def _restore(store: Store, task_id: str, at_turn: int | None, target: Path) -> None:
    turn = at_turn if at_turn is not None else store.summary(task_id).turns
    found = snapshot_at(store, task_id, turn)
    if found is None:
        raise RawkoError(f"Task {task_id} has no snapshot at or before turn {turn}.")
    snapshots.restore(store.root, found, target)
    click.echo(f"Restored the snapshot of turn {found['turn']} to {target}.", err=True)
