"""rawko watch: follow a task, or all running tasks, live."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import counted, one_line, styled_status, use_colour, visible
from rawko_state.cli.project import store_of
from rawko_state.cli.times import took
from rawko_state.errors import RawkoError
from rawko_state.model.entries import ToolCall
from rawko_state.model.events import Event
from rawko_state.model.status import RUNNING, WAITING
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import EventStream, Store


@click.command(
    name="watch",
    cls=Page,
    examples="""
    rawko watch
    rawko watch abc123
    rawko watch abc123 --json | jq .kind
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event")
@click.option("--after", metavar="CURSOR", help="Start after this event")
@click.option("--new", is_flag=True, help="Skip what has already happened")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, as_json: bool, after: str | None, new: bool) -> None:
    """Follow a task until it is finished. Without ID, follow all running tasks.

    Every event in --json has a cursor. Pass the last one to --after to continue exactly there.
    """
    store = store_of(ctx)
    if task_id is None and (after or new):
        raise click.UsageError("--after and --new need an ID", ctx)
    if after and new:
        raise click.UsageError("Use --after or --new, not both", ctx)
    try:
        if task_id is None:
            show(all_running(store), as_json=as_json, many=True)
        else:
            cursor = store.now(task_id) if new else after
            show(store.follow(task_id, cursor), as_json=as_json)
    except KeyboardInterrupt:
        ctx.exit(130)


def show(events: Iterator[Event | None], *, as_json: bool = False, many: bool = False) -> None:
    view = View(many=many)
    for event in events:
        if as_json:
            if event is not None:
                click.echo(json.dumps(asdict(event)))
        elif event is None:
            view.idle()
        else:
            view.take(event)
    if not as_json:
        view.end()


def all_running(store: Store) -> Iterator[Event | None]:
    """The open questions, then the events of all tasks from now on; for tasks started later, all events. Open tasks are polled
    continuously, the others once a second."""
    cursors = store.cursors()
    readers: dict[str, EventStream] = {}
    pace = store.pace()
    watched = [task.id for task in store.history(TaskFilter(status=(RUNNING, WAITING)))]
    click.echo(
        f"Watching {', '.join(watched[:10])}. New tasks appear as they start; ^C stops watching."
        if watched
        else "No task is running. Waiting for one to start; ^C stops.",
        err=True,
    )
    yield from _open_questions(store, cursors)
    looked = time.monotonic()
    while True:
        active = store.active()
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            active |= {task_id for task_id, cursor in store.cursors().items() if cursors.get(task_id) != cursor}
        for task_id in sorted(active - readers.keys()):
            with contextlib.suppress(RawkoError):  # it is being created, or already gone
                readers[task_id] = store.event_reader(task_id, cursors.get(task_id))
        happened = False
        for task_id, reader in list(readers.items()):
            for event in reader.poll():
                happened = True
                yield event
            cursors[task_id] = reader.cursor
            if task_id not in active:
                readers.pop(task_id)  # its last events have just been read
        yield None
        pace.wait(happened)


def _open_questions(store: Store, cursors: Mapping[str, str]) -> Iterator[Event]:
    """For each task that waits for an answer, the event that says so."""
    for task in store.history(TaskFilter(status=(WAITING,))):
        turn = store.open_question(task.id)
        if turn is not None and turn.question is not None:
            asked = turn.question
            data = {"question": asked.text, "choices": list(asked.choices), "default": asked.default}
            yield Event(task.id, cursors.get(task.id, ""), "status", turn=turn.number, text=WAITING, data=data)


class View:
    """Prints events as lines; in a terminal, with a status line below."""

    def __init__(self, *, many: bool = False) -> None:
        self._many = many
        self._terminal = sys.stdout.isatty()
        self._colour = use_colour() is not False
        self._inside = ""
        """The task whose text is on the unfinished current line."""
        self._began = time.monotonic()
        self._turns = self._tools = self._tokens = 0
        self._status = self._agent = ""
        self._below = ""
        self._drawn = 0.0

    def take(self, event: Event) -> None:
        self._count(event)
        self._wipe()
        if event.kind == "text":
            self._text(event)
        else:
            line = self._line(event)
            if line is not None:
                self._break()
                self._write(f"{self._who(event)}{line}\n")
        self._draw()

    def idle(self) -> None:
        """Updates the clock in the status line."""
        if self._terminal and time.monotonic() - self._drawn > 0.5:
            self._wipe()
            self._draw()

    def end(self) -> None:
        self._wipe()
        self._break()

    def _count(self, event: Event) -> None:
        if event.kind == "turn":
            self._turns += 1
            self._tokens += sum(event.data.get("tokens", {}).values())
        elif event.kind == "tool" and event.text:
            self._tools += 1
        elif event.kind in ("status", "final"):
            self._status = event.text or ""
        if event.agent:
            self._agent = event.agent

    def _text(self, event: Event) -> None:
        if self._inside != event.task:
            self._break()
            self._write(f"{self._who(event)}{self._style(visible(event.agent or ''), bold=True)}: ")
            self._inside = event.task
        self._write(visible(event.text or "").replace("\n", "\n    "))

    def _line(self, event: Event) -> str | None:
        data = event.data
        if event.kind in ("status", "final"):
            if event.text == WAITING and data.get("question"):
                return self._question(event)
            word = styled_status(event.text or "", one_line(event.text or "", 40))
            word = word if self._colour else click.unstyle(word)
            more = data.get("summary") or data.get("error") or data.get("question") or data.get("reason") or ""
            by = f" by {visible(data['by'])}" if data.get("by") else ""
            return f"{word}{by}" + (f": {one_line(more, 200)}" if more else "")
        if event.kind == "turn":
            return self._turn(event)
        if event.kind == "tool":
            return self._tool(event)
        if event.kind == "edit":
            counts = "".join(
                f" {sign}{data[name]}" for sign, name in (("+", "added"), ("−", "removed")) if data.get(name)
            )
            return self._style(f"  Edit {one_line(event.text or '', 100)} {counts}".rstrip(), fg="cyan")
        if event.kind == "request":
            return f"request: {one_line(event.text or '', 200)}"
        if event.kind == "file":
            return self._style(
                f"  {one_line(str(data.get('operation')), 10)} {one_line(event.text or '', 100)}", dim=True
            )
        if event.kind == "note" and not event.text:
            said = {key: value for key, value in data.items() if value and key != "by"}
            return f"note: {one_line(json.dumps(said, ensure_ascii=False), 150)}"
        colour = {"warning": "yellow", "error": "red", "gap": "red"}.get(event.kind)
        return self._style(f"  {visible(event.kind)}: {one_line(event.text or '', 200)}", fg=colour)

    def _tool(self, event: Event) -> str:
        """A call in one telling line, as ``rawko show`` has it. The end of one that was shown says only what came of it."""
        from rawko_state.exchange.telling import tell

        result = str(event.data["result"]) if event.data.get("result") else None
        if not event.text:
            return self._style(f"  → {one_line(result or 'done', 100)}", dim=True)
        told = tell(ToolCall(event.text, str(event.data.get("args") or ""), result))
        came = f"{told.mark}{one_line(told.detail, 60)}" if result else ""  # without one, it is still running
        line = f"  {one_line(told.head, 110)}{came}"
        return self._style(line, fg="red" if told.failed else "cyan")

    def _question(self, event: Event) -> str:
        """The question that a task waits with, its choices, and how to answer it from anywhere."""
        data, indent = event.data, " " * (len(event.task) + 2) if self._many else ""
        lines = [self._style(f"? {one_line(str(data['question']), 400)}", fg="yellow")]
        for number, choice in enumerate(data.get("choices") or (), 1):
            default = " (default)" if choice == data.get("default") else ""
            lines.append(f"{indent}    {number}  {one_line(str(choice), 100)}{default}")
        answer = "1" if data.get("choices") else "TEXT"
        lines.append(self._style(f"{indent}  Answer from anywhere: ", dim=True) + f"rawko answer {event.task} {answer}")
        return "\n".join(lines)

    def _turn(self, event: Event) -> str:
        data = event.data
        facts = [one_line(str(data[name]), 40) for name in ("status",) if data.get(name)]
        facts += [took(data["duration_ms"])] if data.get("duration_ms") is not None else []
        facts += [counted(data["tool_calls"], "tool call")] if data.get("tool_calls") else []
        facts += [" ".join(f"{name} {count}" for name, count in data["tokens"].items())] if data.get("tokens") else []
        facts += [f"selected {visible(data['selected'])}"] if data.get("selected") else []
        facts += [f"decision {visible(data['decision'])}"] if data.get("decision") else []
        head = f"turn {event.turn} {one_line(event.agent or '', 30)}"
        line = f"{self._style(head, bold=True)}  {', '.join(facts)}"
        shown = event.text or data.get("reason")
        return line if event.replaces or not shown else f"{line}  {one_line(shown, 160)}"

    def _who(self, event: Event) -> str:
        return f"{self._style(event.task, dim=True)}  " if self._many else ""

    def _break(self) -> None:
        if self._inside:
            self._write("\n")
            self._inside = ""

    def _wipe(self) -> None:
        if self._below:
            self._write("\r\x1b[K")
            self._below = ""

    def _draw(self) -> None:
        if not self._terminal or self._inside:
            return
        parts = [
            one_line(self._status, 40) or "…",
            took(int((time.monotonic() - self._began) * 1000)),
            counted(self._turns, "turn"),
        ]
        parts += [counted(self._tools, "tool call")] if self._tools else []
        parts += [counted(self._tokens, "token")] if self._tokens else []
        parts += [visible(self._agent)] if self._agent and not self._many else []
        self._below = " · ".join(parts)
        self._drawn = time.monotonic()
        self._write(self._style(self._below, dim=True))

    def _style(self, text: str, **how: object) -> str:
        return click.style(text, **how) if self._colour else text  # type: ignore[arg-type]

    def _write(self, text: str) -> None:
        click.echo(text, nl=False, color=self._colour)
        sys.stdout.flush()
