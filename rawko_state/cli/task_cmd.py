"""rawko task: single steps for shell scripts."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import one_line, visible
from rawko_state.cli.project import complete_ids, labels_of, me, store_of, text_of
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


@click.group(name="task")
def command() -> None:
    """Write to a task from a shell script, one step at a time.

    \b
    id=$(rawko task start "Fix the tests")
    rawko task turn "$id" --agent developer "I fixed them." --file write:tests/a.py
    rawko task finish "$id" --summary "Two tests fixed"
    """


@command.command()
@click.argument("request")
@click.option("--title", help="One line for people.")
@click.option("--agent", help="The main agent.")
@click.option("--model", help="Its model.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="May be given several times.")
@click.option("--repo", help="The repository; by default the one around.")
@click.option("--branch", help="The branch it works on; by default the one that is checked out.")
@click.option("--commit", help="The commit; likewise.")
@click.option("--cwd", help="The folder; by default this one.")
@click.option("--runtime", help="devcontainer, container, local …; by default what can be told.")
@click.option("--by", help="Who asks.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="A field of your own: X-NAME.")
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
    """Start a task and print its id, and nothing else. REQUEST may be '-' for standard input."""
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


@command.command()
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.argument("content", required=False)
@click.option("--agent", required=True, help="Who speaks.")
@click.option("--status", default="complete", show_default=True, help="complete, failed, interrupted.")
@click.option("--model", help="The model of this turn.")
@click.option("--tool", "tools", multiple=True, metavar="LINE", help="A tool call: 'shell.exec ls -> exit 0'.")
@click.option("--file", "files", multiple=True, metavar="OP:PATH", help="read:PATH, write:PATH or delete:PATH.")
@click.option("--tokens", metavar="'in=N out=N'", help="Tokens used.")
@click.option("--cost", metavar="AMOUNT", help="Cost in USD.")
@click.option("--duration", metavar="SECONDS", type=click.FloatRange(0, 10**9), help="How long it took; it ended now.")
@click.option("--by", help="On whose behalf.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="A field of your own: X-NAME.")
@click.option("--expect", metavar="SEAL", help="Only if this is the last seal of the file.")
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
    """Add a turn. CONTENT may be '-' for standard input. Prints the turn's number.

    A task that was interrupted or paused goes on with it; a finished one does not: 'rawko resume --open ID' first.
    """
    calls: list[ToolCall | str] = []
    for line in tools:
        call = parse_tools(line)[0]
        if not isinstance(call, ToolCall):
            call = parse_tools(f"{clock()} {line}")[0]
        if not isinstance(call, ToolCall):
            raise InvalidValue(f"a tool call is 'TOOL ARGUMENTS -> RESULT', not {line!r}")
        calls.append(call)
    counted = read_tokens(tokens) if tokens else {}
    price = read_money(f"{cost} USD") if cost else None
    if counted is None:
        raise InvalidValue(f"tokens are written 'in=1200 out=300', not {tokens!r}")
    if cost and price is None:
        raise InvalidValue(f"a cost is a decimal number such as 0.0123, not {cost!r}")
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
        raise InvalidValue(f"a duration is a number of seconds, not {seconds}")
    return round(seconds * 1000)


def _fields(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidValue(f"a field is NAME=VALUE, not {pair!r}")
        found[name] = value
    return found


def _touch(text: str) -> FileTouch:
    operation, _, path = text.partition(":")
    if operation not in ("read", "write", "delete") or not path:
        raise InvalidValue(f"a file is read:PATH, write:PATH or delete:PATH, not {text!r}")
    return FileTouch(operation, path)


@command.command()
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.option("--select", "selected", metavar="AGENT", help="Who is next.")
@click.option("--decision", type=click.Choice(["complete", "retry", "continue"]), help="What becomes of the task.")
@click.option("--reason", help="Why.")
@click.option("--guidance", help="What the selected agent should mind.")
@click.option("--agent", default="arbiter", show_default=True, help="Who decides.")
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
    """Add an arbiter's decision. Prints the turn's number."""
    task = _going_on(store_of(ctx), task_id, None)
    appended = task.decide(selected=selected, decision=decision, reason=reason, guidance=guidance, agent=agent)
    task.close()
    click.echo(appended.state.turns)


@command.command()
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.argument("text", required=False)
@click.option("--title", help="Rename the task.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Set a label.")
@click.option("--unlabel", multiple=True, metavar="NAME", help="Take a label away.")
@click.option("--pin/--unpin", "pinned", default=None, help="Keep it from every cleanup.")
@click.option("--kind", help="What sort of note; preferences, summary, important_steps … are kept in mind.")
@click.option("--data", metavar="JSON", help="Any data.")
@click.option("--in-context", is_flag=True, help="Part of the conversation: whoever resumes the task reads it.")
@click.option("--by", help="Who says so.")
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
    """Add a note: text, a title, labels, a pin, data. TEXT may be '-' for standard input."""
    if text is None and title is None and not labels and not unlabel and pinned is None and data is None:
        raise click.UsageError("nothing to note: give TEXT, --title, --label, --unlabel, --pin, --unpin or --data", ctx)
    value = None
    if data is not None:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise InvalidValue(f"--data is not JSON: {error}") from None
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


@command.command()
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.option("--status", default="success", show_default=True, help="success, failure or cancelled.")
@click.option("--summary", help="What came of it.")
@click.option("--error", help="What went wrong.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A file that was modified.")
@click.pass_context
def finish(
    ctx: click.Context, task_id: str, status: str, summary: str | None, error: str | None, files: tuple[str, ...]
) -> None:
    """End the run."""
    task = store_of(ctx).attach(task_id)
    task.finish(status, text_of(summary), files=files, error=error)


@command.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.pass_context
def delete(ctx: click.Context, task_ids: tuple[str, ...]) -> None:
    """Move tasks to the trash, whatever their age. `rawko cleanup --restore ID` brings them back."""
    store = store_of(ctx)
    failed = False
    for task_id in task_ids:
        try:
            click.echo(f"{store.delete(task_id, by=me(store.root))} is in the trash", err=True)
        except RawkoError as error:
            failed = True
            click.echo(f"rawko: {visible(str(error))}", err=True)
    ctx.exit(1 if failed else 0)


@command.command()
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def erase(ctx: click.Context, task_ids: tuple[str, ...], yes: bool) -> None:
    """Delete tasks for good, in the trash or not: their files, long outputs, index rows and search words.

    Nothing brings them back. Copies that you have made yourself, in git for example, are not touched.
    """
    store = store_of(ctx)
    for task_id in task_ids:
        about = _about(store, task_id)
        if not yes:
            if sys.stdin is None or not sys.stdin.isatty():
                raise click.UsageError("nobody is here to be asked: give --yes to do it", ctx)
            click.confirm(f"Delete {about} for good?", abort=True, err=True)
        click.echo(f"{store.erase(task_id, by=me(store.root))} is erased", err=True)


def _about(store: Store, prefix: str) -> str:
    """A description of a task for people."""
    try:
        found = store.summary(prefix)
        return f"{found.id} ({one_line(found.title or found.request or '', 60)})"
    except TaskNotFound as error:
        if not error.in_trash:
            raise
        return f"{prefix}, which is in the trash,"
