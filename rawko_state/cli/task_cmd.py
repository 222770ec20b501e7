"""rawko task: single steps for shell scripts."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import complete_ids, labels_of, store_of, text_of
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.format.lines import parse_tools
from rawko_state.format.parts import read_money
from rawko_state.format.values import read_tokens
from rawko_state.model.entries import FileTouch, ToolCall, Turn
from rawko_state.tasks.live_turn import clock

if TYPE_CHECKING:
    from rawko_state.model.entries import FileTouch


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
@click.option("--branch", help="The branch it works on.")
@click.option("--by", help="Who asks.")
@click.pass_context
def start(
    ctx: click.Context,
    request: str,
    title: str | None,
    agent: str | None,
    model: str | None,
    labels: tuple[str, ...],
    branch: str | None,
    by: str | None,
) -> None:
    """Start a task and print its id, and nothing else. REQUEST may be '-' for standard input."""
    task = store_of(ctx).start(
        text_of(request) or "",
        title=title,
        agent=agent,
        model=model,
        branch=branch,
        by=by,
        labels=labels_of(labels),
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
    expect: str | None,
) -> None:
    """Add a turn. CONTENT may be '-' for standard input. Prints the turn's number."""
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
    task = store_of(ctx).attach(task_id)
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
        ),
        expect=expect,
    )
    task.close()
    click.echo(appended.state.turns)


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
    task = store_of(ctx).attach(task_id)
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
    by: str | None,
) -> None:
    """Add a note: text, a title, labels, a pin. TEXT may be '-' for standard input."""
    if text is None and title is None and not labels and not unlabel and pinned is None:
        raise click.UsageError("nothing to note: give TEXT, --title, --label, --unlabel, --pin or --unpin", ctx)
    task = store_of(ctx).attach(task_id)
    task.note(text_of(text), title=title, labels=labels_of(labels), unlabel=unlabel, pinned=pinned, by=by or _me())
    task.close()


@command.command()
@click.argument("task_id", metavar="ID", shell_complete=complete_ids)
@click.option("--status", type=click.Choice(["success", "failure", "cancelled"]), default="success", show_default=True)
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
            click.echo(f"{store.delete(task_id, by=_me())} is in the trash", err=True)
        except RawkoError as error:
            failed = True
            click.echo(f"rawko: {visible(str(error))}", err=True)
    ctx.exit(1 if failed else 0)


def _me() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
