"""A task as a person reads it in the terminal: prompts at the margin, answers, one line for each tool call, the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rawko_state.cli.printing import (
    STATUS_COLOURS,
    counted,
    cut,
    fitting,
    in_short,
    is_terminal,
    one_line,
    screen,
    size_text,
    visible,
    width_of,
    wrap,
    wrapped,
)
from rawko_state.cli.terminal_markdown import shown
from rawko_state.cli.times import day_and_time, took
from rawko_state.errors import RawkoError
from rawko_state.exchange.coloured import runs, settled
from rawko_state.exchange.facts import Changed, Facts, facts_of, repeats
from rawko_state.exchange.telling import FAILED, OTHER, RUN, Telling, tell, tell_edit
from rawko_state.format.diffs import diff_text
from rawko_state.format.values import read_time
from rawko_state.model.entries import (
    UNKNOWN_USER,
    Diff,
    Entry,
    FileTouch,
    Note,
    Progress,
    Question,
    Request,
    Result,
    Resumed,
    TaskHeader,
    ToolCall,
    Torn,
    Turn,
    Unknown,
    said_by,
)

if TYPE_CHECKING:
    from rawko_state.store import TaskSummary
    from rawko_state.store.contract import Store

PROSE: Final = 100
PROMPT: Final = "┃"
_OUTPUT_LINES, _FAILED_LINES, _DIFF_LINES, _THOUGHT_LINES = 3, 10, 20, 3
_DIFF_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}
_MARKS: Final = {"success": "✓", "failure": "✗", "cancelled": "–", "interrupted": "!"}
_RESULT_COLOURS: Final = {"failure": "red", "interrupted": "yellow"}
_TURN_COLOURS: Final = {"failed": "red", "interrupted": "yellow"}
_PROGRAMS_OWN: Final = ("imported", "imported-before", "session")
"""Notes for programs: which session was recorded, how far, and what came before its first turn."""
_ANSI: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_MOST_RELATIVES: Final = 60
_LONG: Final = 2_000
"""Of a longer line only the beginning is shown, unless everything is."""
_INDENT: Final = " " * 6
"""Of what a tool printed and of diffs."""


class View(NamedTuple):
    """How a task is to be shown."""

    full: bool = False
    utc: bool = False
    iso: bool = False
    width: int = PROSE
    edge: int | None = None
    """Where the terminal ends: output and diffs are broken there, with their indent. In a pipe, lines are left as they are."""

    @classmethod
    def here(cls, *, full: bool = False, utc: bool = False, iso: bool = False) -> View:
        """For this terminal; in a pipe, as wide as prose is read."""
        if not is_terminal():
            return cls(full, utc, iso)
        columns = screen().columns
        return cls(full, utc, iso, min(columns, PROSE), columns)


class Reader:
    """Renders the entries of one task in order. Remembers what was said last, so that a result does not repeat it."""

    def __init__(self, store: Store, task_id: str, view: View) -> None:
        self._store, self._id, self._view = store, task_id, view
        self._within: str | None = None
        self._answer: str | None = None
        self._changed: Mapping[str, Changed] = {}
        self._day = ""
        """The day of the last time that was shown: the next one of that day needs no date."""

    def _time(self, at: datetime | None) -> str:
        if at is None:
            return ""
        full = day_and_time(at, utc=self._view.utc, iso=self._view.iso)
        day, _, time = full.rpartition(" ")
        same, self._day = day == self._day, day
        return time if same else full

    def task(self, summary: TaskSummary) -> Iterator[str]:
        """All of it."""
        from rawko_state.lifecycle.prices import estimated

        facts = facts_of((entry for _, entry in self._store.entries(summary.id)), estimated)
        yield from self.head(summary)
        self._changed = facts.files
        yield from (click.style(line, dim=True) for line in _joined(self._facts(summary, facts), self._view.width))
        used = [facts.tokens_text, facts.cost_text, facts.files_text]
        if any(used):
            yield click.style(" · ".join(fact for fact in used if fact), dim=True)
        yield click.style(visible(summary.file), dim=True)
        yield from tree(self._store, summary) if self._view.full else family(self._store, summary)
        for kind, entry in self._store.entries(summary.id):
            if kind == "damaged" and not isinstance(entry, Turn):
                yield "\n" + click.style("DAMAGED: the text below was changed after it was recorded", fg="red")
            yield from self.entry(entry)

    def turns(self, summary: TaskSummary, turns: Iterable[Turn]) -> Iterator[str]:
        """Some of its turns, below its first line."""
        _, header = next(self._store.entries(summary.id, whole=False), (None, None))
        self._within = _folder(self._store, header) if isinstance(header, TaskHeader) else None
        yield from self.head(summary, whole=False)
        for turn in turns:
            yield from self.entry(turn)

    def head(self, summary: TaskSummary, *, whole: bool = True) -> Iterator[str]:
        """The first line. ``whole``: it says whether anything in the task is damaged, not only in what follows."""
        bad = bool(summary.damaged) and whole
        status = one_line(summary.status, 40)
        first = f"{summary.id}  {status}  " + ("damaged  " if bad else "")
        words = one_line(summary.title or summary.request or "", 1000)
        beside = self._view.width - len(first) >= 20
        lines = wrap(words, self._view.width - len(first)) if beside else ["", *wrap(words, self._view.width)]
        damaged = click.style("damaged", fg="red") + "  " if bad else ""
        colour = STATUS_COLOURS.get(summary.status)
        styled = click.style(status, fg=colour, bold=summary.status == "waiting" or None)
        yield f"{click.style(summary.id, bold=True)}  {styled}  {damaged}{lines[0]}".rstrip()
        yield from (" " * (len(first) if beside else 0) + line for line in lines[1:])

    def _facts(self, summary: TaskSummary, facts: Facts) -> list[str]:
        created = read_time(summary.created) if summary.created else None
        when = self._time(created) + (" UTC" if self._view.utc else "") if created else "time unknown"
        found = [when, f"took {took(summary.duration_ms)}" if summary.duration_ms is not None else ""]
        found += [counted(summary.turns, "turn"), facts.main_agent or "", *facts.models, summary.branch or ""]
        found += [f"{name}={value}" for name, value in summary.labels.items()]
        found += ["pinned"] if summary.pinned else []
        return [visible(fact) for fact in found if fact]

    def brief(self, summary: TaskSummary) -> Iterator[str]:
        """Prompts, the last answer to each, results. What fits in a pull request."""
        facts = facts_of(entry for _, entry in self._store.entries(summary.id))
        self._changed = facts.files
        created = read_time(summary.created) if summary.created else None
        found = [self._time(created)]
        found += [f"took {took(summary.duration_ms)}" if summary.duration_ms is not None else ""]
        found += [counted(summary.turns, "turn"), facts.files_text]
        styled = click.style(one_line(summary.status, 40), fg=STATUS_COLOURS.get(summary.status))
        dim = click.style(" · ".join(fact for fact in found if fact), dim=True)
        yield f"{click.style(summary.id, bold=True)}  {styled}  {dim}"
        answer: str | None = None
        for _, entry in self._store.entries(summary.id):
            asked = isinstance(entry, Request) or (isinstance(entry, Turn) and entry.agent == "user")
            if asked or isinstance(entry, Result):
                yield from self._said(answer)
                self._answer, answer = answer or self._answer, None
                if isinstance(entry, Result):
                    yield from self._result(entry, brief=True)
                else:
                    yield from self._prompt(entry, brief=True)  # type: ignore[arg-type]
            elif isinstance(entry, Turn) and not entry.is_arbiter:
                answer = entry.content or answer
        yield from self._said(answer)

    def _said(self, text: str | None) -> Iterator[str]:
        if text:
            yield ""
            yield from (f"  {line}".rstrip() for line in shown(text, self._view.width - 2))

    def diffs(self, summary: TaskSummary, turns: list[Turn] | None = None) -> Iterator[str]:
        """Only what changed, so that delta, diffstat and editors can read it."""
        entries = turns if turns is not None else (entry for _, entry in self._store.entries(summary.id))
        for entry in entries:
            if not isinstance(entry, Turn):
                continue
            verbs = {
                id(diff): tell(call, entry).verb
                for call in entry.tools
                if isinstance(call, ToolCall)
                for diff in tell(call, entry).diffs
            }
            for diff in entry.diffs:
                verb = verbs.get(id(diff))
                words = f"# turn {entry.number} · {entry.agent}" + (f" · {verb}" if verb else "")
                yield click.style(one_line(words, 200), dim=True)
                yield from self._diff(diff, indent="", whole=True)

    # Entries

    def entry(self, entry: Entry) -> Iterator[str]:
        if isinstance(entry, TaskHeader):
            self._within = _folder(self._store, entry)
            yield from self._header(entry)
        elif isinstance(entry, Request) or (isinstance(entry, Turn) and entry.agent == "user"):
            yield from self._prompt(entry)
        elif isinstance(entry, Turn):
            yield from self.turn(entry)
        elif isinstance(entry, Result):
            yield from self._result(entry)
        elif isinstance(entry, Resumed):
            by = f" by {entry.by}" if entry.by else ""
            yield "\n" + click.style(visible(f"Resumed {self._time(entry.at)}{by}".rstrip()), dim=True)
        elif isinstance(entry, Note):
            yield from self._note(entry)
        elif isinstance(entry, Torn):
            yield "\n" + click.style(f"[{entry.length} bytes of an unfinished write]", fg="red")
        elif isinstance(entry, Unknown):
            yield "\n" + click.style(f"Unknown block: {visible(entry.marker)}", dim=True)
            if self._view.full:
                yield from self._extra(entry)

    def _header(self, header: TaskHeader) -> Iterator[str]:
        if self._view.full:
            yield from self._extra(header)

    def _extra(self, entry: Entry) -> Iterator[str]:
        """Fields and sections that rawko does not interpret."""
        yield from (f"  {field.name}: {visible(field.value)}" for field in entry.extra)
        for section in entry.sections:
            yield click.style(f"  [{visible(section.heading)}]", dim=True)
            yield from (f"    {line}" for line in visible(section.text).split("\n"))

    def _prompt(self, entry: Request | Turn, *, brief: bool = False) -> Iterator[str]:
        text = entry.text if isinstance(entry, Request) else entry.content or ""
        at = entry.at if isinstance(entry, Request) else entry.started
        by = said_by(entry)
        number = "" if isinstance(entry, Request) else str(entry.number)
        facts = [number, "" if by in (None, UNKNOWN_USER) else by or "", self._time(at)]
        yield ""
        bar = click.style(PROMPT, fg="yellow", bold=True)
        for line in visible(text).strip("\n").split("\n"):
            hang = len(line) - len(line.lstrip())
            for part in wrap(line, self._view.width - 2, hang):
                yield f"{bar} {click.style(part, bold=True)}".rstrip() if part else bar
        told = visible(" · ".join(fact for fact in facts if fact))
        if told and not brief:
            yield f"{bar} {' ' * max(0, self._view.width - 2 - width_of(told))}{click.style(told, dim=True)}"
        if brief:
            return
        if isinstance(entry, Turn):
            yield from self._turn_rest(entry)
        elif self._view.full:
            yield from self._extra(entry)

    def turn(self, turn: Turn) -> Iterator[str]:
        yield ""
        yield from self._turn_head(turn)
        if turn.damaged:
            yield click.style("  The text below was changed after it was recorded.", fg="red")
        if turn.guidance:
            yield from (f"  {line}".rstrip() for line in shown(turn.guidance, self._view.width - 2))
        if turn.thinking:
            yield from self._thinking(turn.thinking)
        if turn.content is not None and turn.content.strip():
            yield from (f"  {line}".rstrip() for line in shown(turn.content, self._view.width - 2))
            self._answer = turn.content
        if turn.tools or turn.question is not None or turn.diffs:
            yield from [""] if (turn.content or "").strip() else []
        yield from self._turn_rest(turn)

    def _turn_head(self, turn: Turn) -> Iterator[str]:
        number = click.style(f"{turn.number} ", bold=True)
        who = click.style(one_line(turn.agent, 60), bold=True)
        words = ""
        if turn.is_arbiter:
            chosen = f" → {turn.selected}" if turn.selected else ""
            why = ": ".join(each for each in (turn.decision, turn.reason) if each)
            words = visible(f"{chosen}{': ' if why and chosen else ' ' if why else ''}{why}")
        status = turn.status if turn.status not in (None, "complete") else None
        by = said_by(turn)
        facts = [f"by {by}" if by else "", self._time(turn.started)]
        facts += [took(turn.duration_ms) if turn.duration_ms is not None else ""]
        facts += [f"{in_short(turn.tokens[kind])} {kind}" for kind in ("in", "out") if kind in turn.tokens]
        facts += [turn.model or ""] if self._view.full else []
        told = click.style(visible(" · ".join(fact for fact in facts if fact)), dim=True) if any(facts) else ""
        if status:
            dot = click.style(" · ", dim=True) if told else ""
            told = click.style(one_line(status, 20), fg=_TURN_COLOURS.get(status)) + dot + told
        if turn.damaged:
            told = click.style("DAMAGED", fg="red", bold=True) + (f" · {told}" if told else "")
        lines = wrap(f"{turn.number} {one_line(turn.agent, 60)}{words}", self._view.width, 2)
        first = number + who + lines[0].removeprefix(f"{turn.number} {one_line(turn.agent, 60)}")
        gap = self._view.width - width_of(first) - width_of(told)
        # The arbiter's line is the decision; when it was made matters only to those who want everything.
        right = told if not turn.is_arbiter or self._view.full or status or turn.damaged else ""
        if len(lines) == 1 and right and gap >= 2:
            yield f"{first}{' ' * gap}{right}"
            return
        yield first
        yield from lines[1:]
        if right:
            yield f"  {right}"

    def _thinking(self, text: str) -> Iterator[str]:
        lines = [part for line in visible(text).strip().split("\n") for part in wrap(line, self._view.width - 2)]
        most = len(lines) if self._view.full or len(lines) == _THOUGHT_LINES + 1 else _THOUGHT_LINES
        yield from (click.style(f"  {line}".rstrip(), dim=True) for line in lines[:most])
        if len(lines) > most:
            yield click.style(f"  … {counted(len(lines) - most, 'line')} of thinking", dim=True)
        yield ""

    def _turn_rest(self, turn: Turn) -> Iterator[str]:
        """Tool calls, diffs, the question, and with --full all that is left."""
        own: set[int] = set()
        for call in turn.tools:
            if isinstance(call, str):
                yield visible(f"  {call}")
                continue
            told = tell(call, turn, within=self._within)
            own |= {id(diff) for diff in told.diffs}
            yield from self._tool(call, told, turn)
        for diff in turn.diffs:
            if id(diff) not in own:
                yield click.style(visible(f"  {tell_edit(diff).line}"), fg="cyan")
                yield from self._diff(diff, turn=turn.number)
        if turn.question is not None:
            yield from _question(turn.question, self._view.width)
        if not self._view.full:
            return
        for step in turn.progress:
            text = f"{step.time or '--:--:--'} {step.kind} {step.text}" if isinstance(step, Progress) else step
            yield click.style(visible(f"  {text}"), dim=True)
        for file in turn.files:
            words = f"{file.operation} {file.path}" if isinstance(file, FileTouch) else file
            yield click.style(visible(f"  {words}"), dim=True)
        if turn.state is not None:
            yield click.style("  [State]", dim=True)
            yield from (f"    {line}" for line in visible(json.dumps(turn.state, indent=1)).split("\n"))
        yield from self._extra(turn)

    def _tool(self, call: ToolCall, told: Telling, turn: Turn) -> Iterator[str]:
        head = visible(told.head)
        detail = visible(f"{told.mark}{told.detail}")
        # A long error leaves room for what failed; it follows in full below.
        detail = cut(detail, self._view.width - 2 - min(width_of(head), self._view.width // 2))
        room = self._view.width - 2 - width_of(detail)
        colour = "red" if told.outcome == FAILED else "cyan"
        if self._view.full and told.command is not None:
            yield from (
                click.style(f"  {'$ ' if not n else '  '}{line}", fg=colour)
                for n, line in enumerate(visible(told.command).split("\n"))
            )
            if detail:
                yield click.style(f"  {detail.strip()}", fg=colour)
        else:
            yield click.style(f"  {head if width_of(head) <= room else one_line(head, room)}{detail}", fg=colour)
        for diff in told.diffs:
            yield from self._diff(diff, turn=turn.number)
        if told.diffs and not self._view.full:
            return
        yield from self._output(call, told, turn)

    def _output(self, call: ToolCall, told: Telling, turn: Turn) -> Iterator[str]:
        if call.blob is not None:
            whole = self._store.turn_output(call) if self._view.full else None
            if whole is None:
                where = f"rawko show {self._id} {turn.number} --full"
                words = f"not here; .rawko/state/blobs/{call.blob.sha256}" if self._view.full else where
                yield click.style(f"      … {size_text(call.blob.size)} of output: {words}", dim=True)
                return
            yield from self._printed(whole.rstrip("\n"))
            return
        text = (call.output or "" if self._view.full else told.output).strip("\n")
        if not text:
            return
        if self._view.full:
            yield from self._printed(text)
            return
        failed = told.outcome == FAILED
        if told.family not in (RUN, OTHER) and not failed:
            return
        lines = settled(text).split("\n")
        if failed and len(lines) == 1 and lines[0].strip() in told.detail:
            return
        most = _FAILED_LINES if failed else _OUTPUT_LINES
        if len(lines) > most + 1:  # in the place of one line that line can stand
            yield click.style(f"      … {counted(len(lines) - most, 'line')}", dim=True)
            lines = lines[-most:]
        yield from self._printed("\n".join(line[:_LONG] for line in lines))

    def _printed(self, text: str) -> Iterator[str]:
        """What a program printed, in its own colours where that is safe, else dim."""
        line = _INDENT
        for style, piece in runs(text):
            colour = None if style.colour is None else ("bright_" if style.colour > 7 else "") + _ANSI[style.colour % 8]
            # No blue and no bright black: they can't be read on some backgrounds.
            colour = {"blue": "cyan", "bright_black": None, "black": None}.get(colour or "", colour)
            dim = style.colour is None and not style.bold
            for number, part in enumerate(piece.split("\n")):
                if number:
                    yield line.rstrip()
                    line = _INDENT
                *before, last = self._broken(part, width_of(line))
                for some in before:
                    yield line + click.style(some, fg=colour, dim=dim or None, bold=style.bold or None)
                    line = _INDENT
                line += click.style(last, fg=colour, dim=dim or None, bold=style.bold or None) if last else ""
        yield line.rstrip()

    def _broken(self, text: str, used: int) -> list[str]:
        """A line in parts that fit, the first one behind so many columns, the others behind the indent."""
        parts: list[str] = []
        while self._view.edge is not None and width_of(text) > self._view.edge - used > 0:
            end = fitting(text, self._view.edge - used)
            space = text.rfind(" ", end // 2, end)
            end = end if space < 0 else space + 1
            parts.append(text[:end])
            text, used = text[end:], len(_INDENT)
        return [*parts, text]

    def _diff(self, diff: Diff, *, indent: str = _INDENT, whole: bool = False, turn: int = 0) -> Iterator[str]:
        if diff.blob is not None:
            hunks = self._store.turn_output(ToolCall("", blob=diff.blob)) if whole or self._view.full else None
            if hunks is None:
                more = f"rawko show {self._id} {turn} --diff" if turn else f".rawko/state/blobs/{diff.blob.sha256}"
                yield click.style(f"{indent}… {size_text(diff.blob.size)} of diff: {more}", dim=True)
                return
            diff = Diff(diff.old, diff.new, hunks, None, diff.added, diff.removed)
        first, second, *hunk = diff_text(diff).split("\n")
        if whole:
            yield click.style(visible(first), bold=True)
            yield click.style(visible(second), bold=True)
        most = len(hunk) if whole or self._view.full or len(hunk) == _DIFF_LINES + 1 else _DIFF_LINES
        for line in hunk[:most]:
            text = visible(line if whole or self._view.full or len(line) <= _LONG else f"{line[:_LONG]}…")
            for part in [text] if whole else self._broken(text, len(indent)):
                yield click.style(f"{indent}{part}", fg=_DIFF_COLOURS.get(line[:1]))
        if len(hunk) > most:
            rest = counted(len(hunk) - most, "more line")
            yield click.style(f"{indent}… {rest}: rawko show {self._id} {turn} --diff", dim=True)

    def _result(self, result: Result, *, brief: bool = False) -> Iterator[str]:
        word = result.status or "unknown"
        mark = _MARKS.get(word, "?")
        colour = _RESULT_COLOURS.get(word)
        reason = f": {result.reason}" if result.reason else ""
        if word == "interrupted" and not reason:
            reason = ": it ended without a result"
        parts = [f"{mark} {word}{reason}", self._time(result.completed)]
        parts += [f"took {took(result.duration_ms)}" if result.duration_ms is not None else ""]
        parts += [f"by {result.by}" if result.by else ""]
        told = " · ".join(part for part in parts if part)
        summary = result.summary if result.summary and not repeats(result.summary, self._answer) else None
        yield ""
        if brief:
            told = f"{mark} {one_line(summary, 2000)}" if summary else f"{mark} {word}{reason}"
            yield from (click.style(line, fg=colour) for line in wrap(visible(told), self._view.width, 2))
        else:
            yield click.style(visible(told), fg=colour, bold=True)
            for line in shown(summary, self._view.width - 2) if summary else ():
                yield f"  {line}".rstrip()
        if result.error and result.error != summary:
            yield from (click.style(f"  {line}", fg="red") for line in visible(result.error).split("\n"))
        for path in result.files_modified or self._changed:
            change = self._changed[path].text if path in self._changed else ""
            yield click.style(visible(f"  {path} {change}".rstrip()), dim=True)
        if result.output is not None and not brief:
            yield from (
                f"  {line}" for line in visible(json.dumps(result.output, indent=1, ensure_ascii=False)).split("\n")
            )
        if self._view.full:
            yield from self._extra(result)

    def _note(self, note: Note) -> Iterator[str]:
        of_program = note.kind is not None and note.kind.endswith("-data") and note.context == "out"
        if (note.kind in _PROGRAMS_OWN or of_program) and not self._view.full:
            return
        said = [f"title: {note.title}" if note.title is not None else "", note.status or ""]
        said += [f"{name}={value}" for name, value in note.labels.items()] + [f"-{name}" for name in note.unlabel]
        said += [] if note.pinned is None else ["pinned" if note.pinned else "unpinned"]
        said += [note.reason or ""]
        words = ", ".join(part for part in said if part)
        if not (self._view.full or note.content or note.status):
            return  # a title, labels, a pin: they are in the head
        by = f" by {note.by}" if note.by else ""
        kind = f" ({note.kind})" if note.kind else ""
        head = f"Note{kind}{by}{': ' if words else ''}{words}"
        yield "\n" + click.style(visible(head), dim=True)
        if note.content is not None:
            yield from (f"  {line}".rstrip() for line in shown(note.content, self._view.width - 2))
        if self._view.full:
            if note.data is not None:
                data = json.dumps(note.data, ensure_ascii=False)
                # Only the program can tell what of it counts: it may say that something before is gone.
                yield (
                    f"  {len(data.encode(errors='replace')):,} bytes for the program"
                    if of_program
                    else f"  {visible(data)}"
                )
            yield from self._extra(note)


def _joined(facts: Sequence[str], width: int) -> Iterator[str]:
    """Facts with a dot between them, broken between two facts."""
    line = ""
    for fact in facts:
        if line and width_of(line) + 3 + width_of(fact) > width:
            yield line
            line = fact
        else:
            line = f"{line} · {fact}" if line else fact
    yield line


def _folder(store: Store, header: TaskHeader) -> str | None:
    """The folder that paths are shown relative to: the project, if the task ran in it."""
    root = str(store.root)
    return root if store.is_local and header.cwd and (header.cwd + "/").startswith(root + "/") else header.cwd


def _question(question: Question, width: int) -> Iterator[str]:
    for number, line in enumerate(wrapped(question.text.strip("\n"), width - 4)):
        yield click.style(f"    {line}" if number else f"  ? {line}", fg="yellow")
    for number, choice in enumerate(question.choices, 1):
        default = " (default)" if choice == question.default else ""
        yield visible(f"      {number}  {choice}{default}")


# Relatives


def family(store: Store, summary: TaskSummary) -> Iterator[str]:
    """Where a task comes from, and what came of it."""
    if summary.parent:
        parent, _, turn = summary.parent.partition("@")
        after = f" after turn {turn}" if turn else ""
        word = "forked from" if turn else "child of"
        try:
            about = store.summary(parent)
            words = f"{word} {about.id}{after} · {one_line(about.title or about.request or '', 60)}"
            yield click.style(words, dim=True)
        except RawkoError:
            yield click.style(f"{word} {visible(parent)}{after} (no longer here)", fg="yellow")
    children = store.children(summary.id)
    forks = [f"{child} after turn {turn}" for child, turn, _ in children if turn is not None]
    others = [child for child, turn, _ in children if turn is None]
    parts = [f"{counted(len(forks), 'fork')}: {', '.join(forks[:5])}{' …' if len(forks) > 5 else ''}"] if forks else []
    if others:
        listed = f"{', '.join(others[:5])}{' …' if len(others) > 5 else ''}"
        parts.append(f"{counted(len(others), 'child', 'children')}: {listed}")
    if parts:
        yield click.style(" · ".join(parts), dim=True)


def tree(store: Store, summary: TaskSummary) -> Iterator[str]:
    """The tree of forks that contains a task, from its root down."""
    from itertools import islice

    root, seen = summary, {summary.id}
    while root.parent:
        parent, _, turn = root.parent.partition("@")
        if parent in seen:
            break
        seen.add(parent)
        try:
            root = store.summary(parent)
        except RawkoError:
            after = f" after turn {turn}" if turn else ""
            yield click.style(f"forked from {visible(parent)}{after} (no longer here)", fg="yellow")
            break
    lines = list(islice(_branches(store, root.id, summary.id, {root.id}, ""), _MOST_RELATIVES + 1))
    if not lines:
        return
    yield _relative(root.id, None, root.title or root.request or "", summary.id)
    yield from lines[:_MOST_RELATIVES]
    if len(lines) > _MOST_RELATIVES:
        yield "   …"


def _branches(store: Store, parent: str, chosen: str, seen: set[str], indent: str) -> Iterator[str]:
    children = [child for child in store.children(parent) if child[0] not in seen]
    for number, (child, turn, request) in enumerate(children):
        last = number == len(children) - 1
        seen.add(child)
        yield f"{indent}{'└─' if last else '├─'} {_relative(child, turn, request, chosen)}"
        yield from _branches(store, child, chosen, seen, indent + ("   " if last else "│  "))


def _relative(task_id: str, turn: int | None, about: str, chosen: str) -> str:
    after = f" after turn {turn}" if turn is not None else ""
    line = f"{task_id}{after}  {one_line(about, 60)}"
    return click.style(line, bold=True) if task_id == chosen else line
