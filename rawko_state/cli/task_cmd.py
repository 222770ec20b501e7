"""rawko task: single steps for shell scripts."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

import click

from rawko_state.cli import PageGroup
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import one_line
from rawko_state.cli.project import complain, labels_of, me, store_of, text_of
from rawko_state.errors import InvalidValue, RawkoError, TaskNotFound
from rawko_state.format.lines import parse_tools
from rawko_state.format.parts import read_money
from rawko_state.format.values import read_tokens
from rawko_state.model import status as words
from rawko_state.model.entries import Field, FileTouch, ToolCall, Turn, x_name
from rawko_state.tasks.live_turn import clock

if TYPE_CHECKING:
    from rawko_state.store.contract import Store
    from rawko_state.tasks.task import Task


@click.group(
    name="task",
    cls=PageGroup,
    examples="""
    id=$(rawko task start "Fix the tests")
    rawko task turn "$id" --agent dev "I fixed them." --file write:tests/a.py
    rawko task finish "$id" --summary "Two tests fixed"
    """,
)
def command() -> None:
    """Record a task step by step from a shell script."""


@command.command(
    examples="""
    rawko task start "Fix the tests"
    rawko task start - --title "Fix the tests" --label team=auth < request.md
    """
)
@click.argument("request")
@click.option("--title", metavar="TEXT", help="Short title")
@click.option("--agent", metavar="NAME", help="Main agent")
@click.option("--model", metavar="NAME", help="Model of the main agent")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label to set (repeatable)")
@click.option("--repo", metavar="URL", help="Repository (default: this one)")
@click.option("--branch", metavar="NAME", help="Branch the task works on (default: the current one)")
@click.option("--commit", metavar="HASH", help="Commit the task starts from (default: the current one)")
@click.option("--cwd", metavar="DIR", help="Working folder (default: this one)")
@click.option("--runtime", metavar="NAME", help="local, container, devcontainer … (default: detected)")
@click.option("--by", metavar="NAME", help="Who asks (default: you)")
@click.option(
    "--field", "fields", multiple=True, metavar="NAME=VALUE", help="Field of your own, written as X-NAME (repeatable)"
)
@click.pass_context
def start(
    ctx: click.Context,
    request: str,
    title: str | None,
    agent: str | None,
    model: str | None,
    labels: tuple[str, ...],
    repo: str | None,
    branch: str | None,
    commit: str | None,
    cwd: str | None,
    runtime: str | None,
    by: str | None,
    fields: tuple[str, ...],
) -> None:
    """Start a task and print its id. REQUEST '-' reads standard input."""
    task = store_of(ctx).start(
        text_of(request) or "",
        title=title,
        agent=agent,
        model=model,
        repo=repo,
        branch=branch,
        commit=commit,
        cwd=cwd,
        runtime=runtime,
        by=by,
        labels=labels_of(labels),
        fields=_fields(fields),
        detached=True,
    )
    task.close()
    click.echo(task.id)


@command.command(
    examples="""
    rawko task turn abc123 --agent dev "I fixed them." --file write:tests/a.py
    rawko task turn abc123 - --agent dev --tokens 'in=1200 out=300' < said.md
    rawko task turn abc123 --agent dev --tool 'shell.exec make test -> exit 0'
    """
)
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.argument("content", required=False)
@click.option("--agent", required=True, metavar="NAME", help="Agent whose turn it is")
@click.option(
    "--status", default="complete", show_default=True, metavar="STATUS", help="complete, failed or interrupted"
)
@click.option("--model", metavar="NAME", help="Model used for this turn")
@click.option(
    "--tool", "tools", multiple=True, metavar="LINE", help="Tool call, as 'shell.exec ls -> exit 0' (repeatable)"
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="OP:PATH",
    help="File touched: read:PATH, write:PATH or delete:PATH (repeatable)",
)
@click.option("--tokens", metavar="'in=N out=N'", help="Tokens used")
@click.option("--cost", metavar="AMOUNT", help="Cost in USD")
@click.option(
    "--duration", metavar="SECONDS", type=click.FloatRange(0, 10**9), help="How long the turn took; it ended now"
)
@click.option("--by", metavar="NAME", help="Person on whose behalf it was done")
@click.option(
    "--field", "fields", multiple=True, metavar="NAME=VALUE", help="Field of your own, written as X-NAME (repeatable)"
)
@click.option("--expect", metavar="SEAL", help="Fail unless SEAL is the last seal of the file")
@click.pass_context
def turn(
    ctx: click.Context,
    task_id: str,
    content: str | None,
    agent: str,
    status: str,
    model: str | None,
    tools: tuple[str, ...],
    files: tuple[str, ...],
    tokens: str | None,
    cost: str | None,
    duration: float | None,
    by: str | None,
    fields: tuple[str, ...],
    expect: str | None,
) -> None:
    """Add a turn and print its number. CONTENT '-' reads standard input.

    This continues a task that was interrupted or paused. A finished task has to be reopened first: rawko resume --open ID
    """
    calls: list[ToolCall | str] = []
    for line in tools:
        call = parse_tools(line)[0]
        if not isinstance(call, ToolCall):
            call = parse_tools(f"{clock()} {line}")[0]
        if not isinstance(call, ToolCall):
            raise InvalidValue(f"Not a tool call: {line!r}. Write TOOL ARGUMENTS -> RESULT.")
        calls.append(call)
    counted = read_tokens(tokens) if tokens else {}
    price = read_money(f"{cost} USD") if cost else None
    if counted is None:
        raise InvalidValue(f"Not a token count: {tokens!r}. Write 'in=1200 out=300'.")
    if cost and price is None:
        raise InvalidValue(f"Not an amount: {cost!r}. Write a decimal number such as 0.0123.")
    task = _going_on(store_of(ctx), task_id, by)
    appended = task.add_turn(
        Turn(
            number=1,
            agent=agent,
            status=status,
            model=model,
            content=text_of(content),
            tools=tuple(calls),
            tool_calls=len(calls) or None,
            files=tuple(_touch(file) for file in files),
            tokens=counted,
            cost=price,
            duration_ms=_milliseconds(duration),
            by=by,
            extra=tuple(Field(x_name(name), value) for name, value in _fields(fields).items()),
        ),
        expect=expect,
    )
    task.close()
    click.echo(appended.state.turns)


def _going_on(store: Store, task_id: str, by: str | None) -> Task:
    """The task, open for writing. If it was interrupted or paused and no process runs it, it is resumed as detached."""
    task_id = store.find(task_id).id
    if store.status(task_id) in (words.INTERRUPTED, words.PAUSED) and task_id not in store.alive():
        return store.resume(task_id, by=by or me(store.root), detached=True)
    return store.attach(task_id)


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not math.isfinite(seconds):
        raise InvalidValue(f"Not a duration: {seconds}. Write a number of seconds.")
    return round(seconds * 1000)


def _fields(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidValue(f"Not a field: {pair!r}. Write NAME=VALUE.")
        found[name] = value
    return found


def _touch(text: str) -> FileTouch:
    operation, _, path = text.partition(":")
    if operation not in ("read", "write", "delete") or not path:
        raise InvalidValue(f"Not a file operation: {text!r}. Write read:PATH, write:PATH or delete:PATH.")
    return FileTouch(operation, path)


@command.command(
    examples="""
    rawko task decide abc123 --select developer --reason "The plan is clear"
    rawko task decide abc123 --decision complete --reason "The tests pass"
    """
)
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.option("--select", "selected", metavar="AGENT", help="Agent that goes next")
@click.option("--decision", type=click.Choice(["complete", "retry", "continue"]), help="What happens to the task")
@click.option("--reason", metavar="TEXT", help="Reason to record")
@click.option("--guidance", metavar="TEXT", help="Instructions for the selected agent")
@click.option("--agent", default="arbiter", show_default=True, metavar="NAME", help="Agent that decides")
@click.pass_context
def decide(
    ctx: click.Context,
    task_id: str,
    selected: str | None,
    decision: str | None,
    reason: str | None,
    guidance: str | None,
    agent: str,
) -> None:
    """Add an arbiter's decision and print the turn's number."""
    task = _going_on(store_of(ctx), task_id, None)
    appended = task.decide(selected=selected, decision=decision, reason=reason, guidance=guidance, agent=agent)
    task.close()
    click.echo(appended.state.turns)


@command.command(
    examples="""
    rawko task note abc123 "Reviewed by ann"
    rawko task note abc123 --title "SSO login" --label team=auth --pin
    rawko task note abc123 --kind summary --in-context - < summary.md
    """
)
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.argument("text", required=False)
@click.option("--title", metavar="TEXT", help="New title")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Set a label (repeatable)")
@click.option("--unlabel", multiple=True, metavar="NAME", help="Remove a label (repeatable)")
@click.option("--pin/--unpin", "pinned", default=None, help="Protect the task from cleanup, or stop protecting it")
@click.option(
    "--kind", metavar="WORD", help="Kind of note; preferences, summary, important_steps … become the task's memory"
)
@click.option("--data", metavar="JSON", help="Data to store with the note")
@click.option("--in-context", is_flag=True, help="Make the note part of the context of 'rawko resume'")
@click.option("--by", metavar="NAME", help="Name to record (default: you)")
@click.pass_context
def note(
    ctx: click.Context,
    task_id: str,
    text: str | None,
    title: str | None,
    labels: tuple[str, ...],
    unlabel: tuple[str, ...],
    pinned: bool | None,
    kind: str | None,
    data: str | None,
    in_context: bool,
    by: str | None,
) -> None:
    """Add a note, or change the title, labels or pin. TEXT '-' reads standard input."""
    if text is None and title is None and not labels and not unlabel and pinned is None and data is None:
        raise click.UsageError(
            "Nothing to record. Give TEXT, --title, --label, --unlabel, --pin, --unpin or --data", ctx
        )
    value = None
    if data is not None:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise InvalidValue(f"--data is not JSON: {error}.") from None
    store = store_of(ctx)
    task = store.attach(task_id)
    task.note(
        text_of(text),
        title=title,
        labels=labels_of(labels),
        unlabel=unlabel,
        pinned=pinned,
        kind=kind,
        data=value,
        in_context=True if in_context else None,
        by=by or me(store.root),
    )
    task.close()


@command.command(
    examples="""
    rawko task finish abc123 --summary "Two tests fixed" --file tests/a.py
    rawko task finish abc123 --status failure --error "The build is broken"
    """
)
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.option("--status", default="success", metavar="RESULT", show_default=True, help="success, failure or cancelled")
@click.option("--summary", metavar="TEXT", help="What was achieved")
@click.option("--error", metavar="TEXT", help="What went wrong")
@click.option("--file", "files", multiple=True, metavar="PATH", help="File that was changed (repeatable)")
@click.pass_context
def finish(
    ctx: click.Context, task_id: str, status: str, summary: str | None, error: str | None, files: tuple[str, ...]
) -> None:
    """Finish the current run of a task."""
    task = store_of(ctx).attach(task_id)
    task.finish(status, text_of(summary), files=files, error=error)


@command.command(examples="rawko task delete abc123")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.pass_context
def delete(ctx: click.Context, task_ids: tuple[str, ...]) -> None:
    """Move tasks to the trash. Restore them with 'rawko cleanup --restore ID'."""
    store = store_of(ctx)
    failed = False
    for task_id in task_ids:
        try:
            found = store.delete(task_id, by=me(store.root))
            click.echo(f"Moved {found} to the trash. Undo: rawko cleanup --restore {found}", err=True)
        except RawkoError as error:
            failed = True
            complain(error, store)
    ctx.exit(1 if failed else 0)


@command.command(examples="rawko task erase abc123\nrawko task erase abc123 --yes")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation (required without a terminal)")
@click.pass_context
def erase(ctx: click.Context, task_ids: tuple[str, ...], yes: bool) -> None:
    """Permanently delete tasks, in the trash or not: their files, stored outputs, and what the indexes hold of them.

    They can't be restored. Copies that you made yourself, in git for example, are not touched.
    """
    store = store_of(ctx)
    for task_id in task_ids:
        about = _about(store, task_id)
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise click.UsageError("This can't be undone, and there is no terminal to ask. Confirm with --yes", ctx)
            click.confirm(f"Permanently delete {about}? This can't be undone.", abort=True, err=True)
        click.echo(f"Erased {store.erase(task_id, by=me(store.root))}.", err=True)


def _about(store: Store, prefix: str) -> str:
    """A description of a task for people."""
    try:
        found = store.summary(prefix)
        return f"{found.id} ({one_line(found.title or found.request or '', 60)})"
    except TaskNotFound as error:
        if not error.in_trash:
            raise
        return f"{prefix} (in the trash)"
