"""rawko watch: follow a task, or all running tasks, live."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import (
    STATUS_COLOURS,
    counted,
    cut,
    in_short,
    one_line,
    screen,
    styled_status,
    use_colour,
    visible,
    width_of,
    wrap,
    wrapped,
)
from rawko_state.cli.project import store_of
from rawko_state.cli.terminal_markdown import shown
from rawko_state.cli.times import took
from rawko_state.errors import RawkoError
from rawko_state.exchange.facts import repeats
from rawko_state.format.values import read_time
from rawko_state.late import late
from rawko_state.model.entries import ToolCall
from rawko_state.model.events import Event
from rawko_state.model.status import PENDING, RUNNING, WAITING
from rawko_state.store import TaskFilter, TaskSummary

if TYPE_CHECKING:
    from rawko_state.store.contract import EventStream, Store

_PROSE: Final = 100
_PARTS: Final = late(r"\n|[^\S\n]+|\S+")
_OF_A_TURN: Final = ("tool", "progress", "edit", "file", "warning", "error")
_MARKS: Final = {"completed": "✓", "failed": "✗", "cancelled": "–", "interrupted": "!"}
_NAMED: Final = 10


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
            watched = store.history(TaskFilter(status=(RUNNING, WAITING)))
            _introduce(watched)
            statuses = {task.id: task.status for task in watched}
            show(all_running(store), as_json=as_json, view=View(many=True, statuses=statuses))
        else:
            cursor = store.now(task_id) if new else after
            show(store.follow(task_id, cursor), as_json=as_json)
    except KeyboardInterrupt:
        ctx.exit(130)


def _introduce(watched: Sequence[TaskSummary]) -> None:
    """Says what is followed."""
    if not watched:
        click.echo("No task is running. Waiting for one to start; ^C stops.", err=True)
        return
    click.echo(f"Watching {counted(len(watched), 'task')}. New ones appear as they start; ^C stops.", err=True)
    for task in watched[:_NAMED]:
        about = one_line(task.title or task.request or "", max(20, screen().columns - len(task.id) - 13))
        click.echo(f"  {task.id}  {task.status:<7}  {about}", err=True)
    if len(watched) > _NAMED:
        click.echo(f"  and {len(watched) - _NAMED} more: rawko history --status running,waiting", err=True)


def show(events: Iterator[Event | None], *, as_json: bool = False, view: View | None = None) -> None:
    view = view or View()
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
    """Prints events for reading, as ``rawko show`` would; in a terminal, with a status line below."""

    def __init__(self, *, many: bool = False, statuses: Mapping[str, str] | None = None) -> None:
        self._many = many
        self._terminal = sys.stdout.isatty()
        self._colour = use_colour() is not False
        self._width = min(screen().columns, _PROSE) if self._terminal else 10_000
        self._statuses = dict(statuses or {})
        """Of each task."""
        self._speaker = ("", "")
        """The task and the agent whose live turn is being shown."""
        self._column = 0
        """Where the unfinished current line ends."""
        self._held: list[Event] = []
        """What a turn that was not seen live has done: it comes before the turn, and is shown below its head."""
        self._answer: str | None = None
        self._asked: dict[str, str] = {}
        """Of each task that asks, how to answer it: said once nothing else is known, as the answer may be the next event."""
        self._began: datetime | None = None
        self._tools = self._tokens = 0
        self._agent = ""
        self._below = ""
        self._drawn = 0.0

    def take(self, event: Event) -> None:
        self._count(event)
        self._wipe()
        if event.turn is not None and not event.live and event.kind in _OF_A_TURN:
            self._held.append(event)
        elif event.kind == "text":
            self._text(event)
        elif event.kind == "turn":
            self._turn(event)
        else:
            self._release()
            self._say(event, self._lines(event))
        self._draw()

    def idle(self) -> None:
        """All that has happened is shown: says how to answer what is still open, and updates the clock in the status line."""
        if self._asked:
            self._wipe()
            self._break()
            for line in self._asked.values():
                self._write(f"{line}\n")
            self._asked.clear()
            self._draw()
        if self._terminal and time.monotonic() - self._drawn > 0.5:
            self._wipe()
            self._draw()

    def end(self) -> None:
        self._wipe()
        self._release()
        self._break()

    def _count(self, event: Event) -> None:
        if event.kind == "turn":
            self._tokens += sum(event.data.get("tokens", {}).get(kind, 0) for kind in ("in", "out"))
        elif event.kind == "tool" and event.text:
            self._tools += 1
        elif event.kind in ("status", "final"):
            self._statuses[event.task] = event.text or ""
            self._asked.pop(event.task, None)
        self._agent = event.agent or self._agent
        if self._began is None and not self._many and event.at:
            self._began = read_time(event.at)

    # What was said

    def _text(self, event: Event) -> None:
        """Live text, word by word as it comes."""
        self._release()
        self._speaks(event)
        indent = self._indent(event)
        for part in _PARTS.findall(visible(event.text or "")):
            if part == "\n":
                self._write("\n")
                self._column = 0
                continue
            if self._column and self._column + width_of(part) > self._width:
                self._write("\n")
                self._column = 0
                if part.isspace():
                    continue
            if not self._column:
                self._write(indent)
            self._column = (self._column or len(indent)) + width_of(part)
            self._write(part)

    def _speaks(self, event: Event) -> None:
        """The name of the agent whose live turn begins, or goes on after that of another task."""
        if event.live and event.agent and self._speaker != (event.task, event.agent):
            self._break()
            self._speaker = (event.task, event.agent)
            self._write(f"{self._gap}{self._who(event)}{self._style(one_line(event.agent, 60), bold=True)}\n")

    def _turn(self, event: Event) -> None:
        """A turn that has ended. Of one that was seen live only the figures are missing."""
        self._break()
        facts = [took(event.data["duration_ms"])] if event.data.get("duration_ms") is not None else []
        facts += [f"{in_short(n)} {kind}" for kind, n in event.data.get("tokens", {}).items() if kind in ("in", "out")]
        status = event.data.get("status")
        facts = ([one_line(str(status), 40)] if status not in (None, "complete") else []) + facts
        if event.replaces or self._speaker == (event.task, event.agent):
            self._speaker = ("", "")
            self._held.clear()
            if facts:
                said = f"turn {event.turn} · {' · '.join(facts)}" if event.turn else " · ".join(facts)
                self._write(self._style(f"{self._indent(event)}{said}\n", dim=True))
            return
        self._speaker = ("", "")
        if event.agent == "user" and event.text:
            self._say(event, self._prompt(event.text))
            return
        chosen = " → ".join(visible(str(event.data[name])) for name in ("selected", "decision") if event.data.get(name))
        head = f"{event.turn} {one_line(event.agent or '', 60)}" + (f" → {one_line(chosen, 80)}" if chosen else "")
        told = self._style(f"  {' · '.join(facts)}", dim=True) if facts else ""
        said = event.text or event.data.get("reason") or ""
        indent = self._indent(event)
        if self._many:
            lines = [one_line(said, max(20, self._width - len(indent)))] if said else []
        else:
            lines = (
                [line if self._colour else click.unstyle(line) for line in shown(said, self._width - 2)] if said else []
            )
            self._answer = event.text or self._answer
        self._write(f"{self._gap}{self._who(event)}{self._style(head, bold=True)}{told}\n")
        for line in lines:
            self._write(f"{indent}{line}".rstrip() + "\n")
        self._release()

    def _release(self) -> None:
        """Shows what was held back for a turn."""
        held, self._held = self._held, []
        for event in held:
            for line in self._lines(event):
                self._write(f"{' ' * (len(event.task) if self._many else 0)}{line}\n")

    # Everything else

    def _say(self, event: Event, lines: Sequence[str]) -> None:
        if not lines:
            return
        self._break()
        if event.live and event.agent:
            self._speaks(event)
            margin = [" " * (len(event.task) if self._many else 0)] * len(lines)
        else:
            self._speaker = ("", "")
            margin = [self._who(event), *[" " * len(self._indent(event)) if self._many else ""] * (len(lines) - 1)]
        for before, line in zip(margin, lines, strict=True):
            self._write(f"{before}{line}\n")

    def _lines(self, event: Event) -> list[str]:
        data, text = event.data, event.text or ""
        if event.kind == "status":
            return self._status(event)
        if event.kind == "final":
            return self._final(event)
        if event.kind == "request":
            return self._prompt(text)
        if event.kind == "note":
            return self._note(event)
        if event.kind == "tool":
            return [self._tool(event)]
        if event.kind == "edit":
            counts = "".join(
                f" {sign}{data[name]}" for sign, name in (("+", "added"), ("−", "removed")) if data.get(name)
            )
            return [self._style(f"  Edit {one_line(text, 100)} {counts}".rstrip(), fg="cyan")]
        if event.kind == "file":
            return [self._style(f"  {one_line(str(data.get('operation')), 10)} {one_line(text, 100)}", dim=True)]
        if event.kind in ("progress", "thinking", "output"):
            return [self._style(f"  {one_line(text, self._width - 10)}", dim=True)] if text.strip() else []
        colour = {"warning": "yellow", "error": "red", "gap": "red"}.get(event.kind)
        return [self._style(f"  {visible(event.kind)}: {one_line(text, 200)}", fg=colour)]

    def _prompt(self, text: str) -> list[str]:
        """What a person said."""
        lines = [one_line(text, self._width - 12)] if self._many else wrapped(text.strip("\n"), self._width - 2)
        return [f"{self._style('┃', fg='yellow')} {self._style(line, bold=True)}".rstrip() for line in lines]

    def _status(self, event: Event) -> list[str]:
        """A change of status. That a task begins to run is in its request and in the status line."""
        if event.text == WAITING and event.data.get("question"):
            return self._question(event)
        by = f" by {visible(event.data['by'])}" if event.data.get("by") else ""
        if event.text in (PENDING, RUNNING) and not by:
            return []
        word = styled_status(event.text or "", one_line(event.text or "", 40))
        reason = event.data.get("reason")
        return [(word if self._colour else click.unstyle(word)) + by + (f": {one_line(reason, 200)}" if reason else "")]

    def _final(self, event: Event) -> list[str]:
        status, data = event.text or "", event.data
        by = f" by {visible(data['by'])}" if data.get("by") else ""
        facts = [f"{_MARKS.get(status, '?')} {one_line(status, 40)}{by}"]
        facts += [f"took {took(data['duration_ms'])}"] if data.get("duration_ms") is not None else []
        said = str(data.get("summary") or data.get("error") or "")
        facts += [one_line(said, 300)] if said and not repeats(said, self._answer) else []
        line = self._style(" · ".join(facts), fg=STATUS_COLOURS.get(status), bold=True)
        return [line] if self._many else ["", *wrap(line, self._width, 2)]

    def _note(self, event: Event) -> list[str]:
        data = event.data
        if data.get("context") == "out" and not event.text:
            return []  # of a program, for itself
        said = [event.text or "", f"title: {data['title']}" if data.get("title") else ""]
        said += [f"{name}={value}" for name, value in (data.get("labels") or {}).items()]
        said += [] if data.get("pinned") is None else ["pinned" if data["pinned"] else "unpinned"]
        by = f" by {visible(data['by'])}" if data.get("by") else ""
        return [f"Note{by}: {one_line(', '.join(filter(None, said)), 200)}"]

    def _tool(self, event: Event) -> str:
        """A call in one telling line, as ``rawko show`` has it. The end of one that was shown says only what came of it."""
        from rawko_state.exchange.telling import tell

        result = str(event.data["result"]) if event.data.get("result") else None
        if not event.text:
            return self._style(f"  → {one_line(result or 'done', 100)}", dim=True)
        told = tell(ToolCall(event.text, str(event.data.get("args") or ""), result))
        came = f"{told.mark}{one_line(told.detail, 60)}" if result else ""  # without one, it is still running
        line = f"  {one_line(told.head, max(20, min(110, self._width - 2 - width_of(came))))}{came}"
        return self._style(line, fg="red" if told.failed else "cyan")

    def _question(self, event: Event) -> list[str]:
        """The pending question of a task and its choices."""
        data = event.data
        first, *more = wrapped(str(data["question"])[:2000], max(20, self._width - len(self._indent(event)) - 2))
        lines = [self._style(line, fg="yellow") for line in (f"? {first}", *(f"  {line}" for line in more))]
        for number, choice in enumerate(data.get("choices") or (), 1):
            default = " (default)" if choice == data.get("default") else ""
            lines.append(f"    {number}  {one_line(str(choice), 100)}{default}")
        answer = "1" if data.get("choices") else "TEXT"
        how = self._style("Answer from anywhere: ", dim=True) + f"rawko answer {event.task} {answer}"
        self._asked[event.task] = f"{self._who(event)}  {how}"
        return lines

    # The terminal

    def _who(self, event: Event) -> str:
        return f"{self._style(event.task, dim=True)}  " if self._many else ""

    @property
    def _gap(self) -> str:
        """Before the turns of one task. Lines of several are closer."""
        return "" if self._many else "\n"

    def _indent(self, event: Event) -> str:
        return " " * (len(event.task) + 2 if self._many else 2)

    def _break(self) -> None:
        if self._column:
            self._write("\n")
            self._column = 0

    def _wipe(self) -> None:
        if self._below:
            self._write("\r\x1b[K")
            self._below = ""

    def _draw(self) -> None:
        if not self._terminal or self._column:
            return
        self._below = cut(" · ".join(self._facts()), screen().columns - 1)
        self._drawn = time.monotonic()
        self._write(self._style(self._below, dim=True))

    def _facts(self) -> Iterator[str]:
        if self._many:
            found = list(self._statuses.values())
            waiting = found.count(WAITING)
            yield f"{found.count(RUNNING)} running"
            if waiting:
                yield f"{waiting} waiting for you"
        else:
            yield one_line(next(iter(self._statuses.values()), "") or "…", 40)
            if self._agent:
                yield one_line(self._agent, 30)
            if self._began is not None:
                passed = datetime.now(timezone.utc) - self._began
                yield took(max(0, int(passed.total_seconds() * 1000)))
            if self._tools:
                yield counted(self._tools, "tool call")
            if self._tokens:
                yield f"{in_short(self._tokens)} tokens"
        yield "^C stops"

    def _style(self, text: str, **how: object) -> str:
        return click.style(text, **how) if self._colour else text  # type: ignore[arg-type]

    def _write(self, text: str) -> None:
        click.echo(text, nl=False, color=self._colour)
        sys.stdout.flush()
