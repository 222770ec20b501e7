"""rawko record: write a task from JSON lines, for agents not written in Python."""

from __future__ import annotations

import json
from typing import Any

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import warn
from rawko_state.cli.project import fallback_of, me, stdin
from rawko_state.errors import RawkoError, Stopped
from rawko_state.model.status import FINISHED
from rawko_state.tasks.lines import Recorder


@click.command(
    name="record",
    cls=Page,
    examples="""
    my-agent | rawko record
    my-agent --resume | rawko record abc123
    rawko record --quiet < session.jsonl
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.option("--quiet", "-q", is_flag=True, help="Don't print acknowledgements; errors still go to standard error")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, quiet: bool) -> None:
    """Record a task from JSON lines on standard input: a new task, or more of ID.

    Each line has a "type": start, resume, turn, text, tool, progress, file, end, decision, note, ask, wait, answer or result.
    Once a line is safely on disk, it is acknowledged on standard output with {"seq": N, …}, where N is the number of the input
    line. A line with an error is answered with {"seq": N, "error": …}; the following lines are still processed.

    \b
    {"type": "start", "request": "Fix the login bug", "agent": "dev"}
    {"type": "turn", "agent": "dev", "content": "Done."}
    {"type": "result", "status": "success", "summary": "Fixed"}

    The protocol is described in docs/reference/record.md.
    """
    store = fallback_of(ctx)
    if task_id is not None and store.status(task_id) in FINISHED:
        raise RawkoError(
            f"Task {task_id} is already {store.status(task_id)}.\n  Reopen it first: rawko resume --open {task_id}"
        )
    recorder = Recorder(store, store.resume(task_id, by=me(store.root)) if task_id is not None else None)
    failed = 0
    try:
        for number, line in enumerate(stdin(), 1):
            if not line.strip():
                continue
            try:
                answer: dict[str, Any] = {"seq": number, **recorder.take(line)}
            except Stopped as stopped:
                failed += 1
                answer = {"seq": number, "error": str(stopped), "stopped": stopped.status, "by": stopped.by}
                warn(f"Line {number}: {stopped}")
            except (RawkoError, UnicodeError, RecursionError, OverflowError) as error:
                failed += 1
                answer = {"seq": number, "error": str(error)}
                warn(f"Line {number}: {error}")
            if not quiet:
                click.echo(json.dumps(answer))
    finally:
        recorder.close()
    ctx.exit(1 if failed else 0)
