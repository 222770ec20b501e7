"""Tasks as one HTML page to send to somebody: no script, nothing loaded, everything escaped; light, dark and on paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rawko_state.exchange.facts import repeats
from rawko_state.exchange.rich_html import diff_html, is_rich, markdown_html, output_html, text_html
from rawko_state.exchange.shown import Shown, day, time_of_day
from rawko_state.exchange.telling import FAILED, Telling, tell, tell_edit
from rawko_state.format.figures import counted, in_short, money, size_text, took
from rawko_state.format.values import write_time
from rawko_state.model.entries import (
    UNKNOWN_USER,
    Diff,
    Entry,
    Note,
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

_STYLE: Final = Path(__file__).with_name("export.css")
_STATUSES: Final = frozenset(
    {"completed", "success", "failed", "failure", "interrupted", "cancelled", "waiting", "paused", "running"}
)
_MOST_LINES: Final = 300
_MOST_TEXT: Final = 60_000
"""Of one output; a page with everything that was ever printed is of no use to anybody."""
_OPEN_DIFF: Final = 40
_MARKS: Final = {"success": "✓", "failure": "✗", "cancelled": "–", "interrupted": "!"}


def page(tasks: Sequence[Shown], *, brief: bool = False) -> Iterator[str]:
    """Yields the page in pieces, so that a large task is never entirely in memory."""
    style = _STYLE.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    title = f"{tasks[0].heading} · {tasks[0].id}" if len(tasks) == 1 else f"{counted(len(tasks), 'task')} of rawko"
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<meta name="generator" content="rawko"><title>{text_html(title)}</title><style>{style}</style></head><body>\n'
    )
    if len(tasks) > 1:
        yield "<nav aria-label='Tasks'><h2>Tasks</h2><ol>"
        yield "".join(f'<li><a href="#{_id(task)}">{text_html(task.heading)}</a></li>' for task in tasks)
        yield "</ol></nav>\n"
    for number, task in enumerate(tasks):
        if number:
            yield '<hr class="next">\n'
        yield from _Page(task, brief).pieces()
    plain = "" if is_rich() else " Shown as plain text: the exporting rawko lacks its [html] extra."
    yield f"<footer class='end'>Exported by rawko. Times are UTC.{plain}</footer></body></html>\n"


def _id(task: Shown) -> str:
    return f"task-{text_html(task.id)}"


class _Page:
    """One task. Remembers what was said last, so that its result does not repeat it."""

    def __init__(self, task: Shown, brief: bool) -> None:
        self._task, self._brief = task, brief
        self._answer: str | None = None
        self._requests = 0

    def pieces(self) -> Iterator[str]:
        yield from self._head()
        yield from self._contents()
        yield "<main>\n"
        if self._brief:
            yield from self._briefly()
        else:
            for entry in self._task.entries():
                yield from self._entry(entry)
        yield "</main>\n"

    def _head(self) -> Iterator[str]:
        task, facts = self._task, self._task.facts
        status = f'<span class="{_class(task.status)}"><b>{text_html(task.status)}</b></span>'
        found = [status, *(f"<span>{text_html(fact)}</span>" for fact in task.known())]
        if facts.files:
            found.append(f"<span>{_lines(facts.lines_text)} {text_html(facts.files_text)}</span>")
        header = facts.header
        where = [header.branch, header.repo, *(f"{k}={v}" for k, v in header.labels.items())] if header else []
        found += [f"<span>{text_html(fact)}</span>" for fact in where if fact]
        yield f'<header class="task-h" id="{_id(task)}">'
        yield f'<p class="crumb">rawko task <span class="mono">{text_html(task.id)}</span></p>'
        yield f'<h1>{text_html(task.heading)}</h1><div class="facts">{" ".join(found)}</div>'
        if facts.files:
            rows = "".join(
                f'<tr><td class="mono">{text_html(path)}</td><td>{_lines(change.text)}</td></tr>'
                for path, change in facts.files.items()
            )
            opened = " open" if len(facts.files) <= 8 else ""
            yield f'<details class="files"{opened}><summary>Files changed</summary><table>{rows}</table></details>'
        yield "</header>\n"

    def _contents(self) -> Iterator[str]:
        prompts = self._task.facts.prompts
        if len(prompts) < 2:
            return
        items = "".join(
            f'<li><a href="#{_id(self._task)}-{place}">{text_html(_first_line(text))}</a></li>'
            for place, text in prompts
        )
        yield f"<nav aria-label='Contents'><details open><summary>{counted(len(prompts), 'prompt')}</summary><ol>{items}</ol>"
        yield "</details></nav>\n"

    def _briefly(self) -> Iterator[str]:
        answer: Turn | None = None
        for entry in self._task.entries():
            asked = isinstance(entry, Request) or (isinstance(entry, Turn) and entry.agent == "user")
            if asked or isinstance(entry, Result):
                yield from self._answered(answer)
                answer = None
                yield from self._entry(entry)
            elif isinstance(entry, Turn) and not entry.is_arbiter and entry.content:
                answer = entry
        yield from self._answered(answer)

    def _answered(self, turn: Turn | None) -> Iterator[str]:
        if turn is not None and turn.content:
            self._answer = turn.content
            yield f'<article class="turn agent">{self._turn_head(turn)}{markdown_html(turn.content)}</article>\n'

    def _entry(self, entry: Entry) -> Iterator[str]:
        if entry.damaged:
            yield '<p class="note bad">Damaged: what follows was changed after it was recorded.</p>\n'
        if isinstance(entry, TaskHeader):
            return
        if isinstance(entry, Request):
            self._requests += 1
            yield self._prompt(entry, f"r{self._requests}", entry.text, entry.at)
        elif isinstance(entry, Turn) and entry.agent == "user":
            yield self._prompt(entry, f"t{entry.number}", entry.content or "", entry.started)
        elif isinstance(entry, Turn):
            yield from self._turn(entry)
        elif isinstance(entry, Result):
            yield from self._result(entry)
        elif isinstance(entry, Resumed):
            by = f" by {entry.by}" if entry.by else ""
            yield f'<p class="rest">Resumed{text_html(by)} {self._when(entry.at)}</p>\n'
        elif isinstance(entry, Note):
            yield from _note(entry)
        elif isinstance(entry, Torn):
            yield f'<p class="note bad">{counted(entry.length, "byte")} of an unfinished write.</p>\n'
        elif isinstance(entry, Unknown):
            yield f'<p class="rest">Unknown block: {text_html(entry.marker)}</p>\n'

    def _when(self, at: object) -> str:
        from datetime import datetime

        if not isinstance(at, datetime):
            return ""
        return f'<time datetime="{write_time(at)}" title="{day(at)}">{time_of_day(at, self._task.facts.first)}</time>'

    def _prompt(self, entry: Request | Turn, place: str, text: str, at: object) -> str:
        by = said_by(entry)
        who = "You" if by in (None, UNKNOWN_USER) else text_html(by or "")
        who = "Prompt" if who == "You" else who
        return (
            f'<article class="turn user" id="{_id(self._task)}-{place}"><header><span class="who">{who}</span>'
            f'<span class="r">{self._when(at)}</span></header>{markdown_html(text)}</article>\n'
        )

    def _turn_head(self, turn: Turn) -> str:
        facts = [took(turn.duration_ms) if turn.duration_ms is not None else ""]
        facts += [f"{in_short(turn.tokens[kind])} {kind}" for kind in ("in", "out") if kind in turn.tokens]
        facts += [money(turn.cost.amount)] if turn.cost is not None and turn.cost.currency == "USD" else []
        many = len(self._task.facts.models) > 1
        status = turn.status if turn.status not in (None, "complete") else None
        shown = [f'<b class="{_class(status)}">{text_html(status)}</b>'] if status else []
        shown += [text_html(fact) for fact in [turn.model if many else "", *facts] if fact]
        shown += [when] if (when := self._when(turn.started)) else []
        place = f"{_id(self._task)}-t{turn.number}"
        return (
            f'<header><a href="#{place}">{turn.number}</a> <span class="who">{text_html(turn.agent)}</span>'
            f'<span class="r">{" · ".join(shown)}</span></header>'
        )

    def _turn(self, turn: Turn) -> Iterator[str]:
        place = f"{_id(self._task)}-t{turn.number}"
        if turn.is_arbiter:
            chosen = f" → {turn.selected}" if turn.selected else ""
            why = ": ".join(text for text in (turn.decision, turn.reason) if text)
            words = f"{turn.agent}{chosen}{': ' if why else ''}{why}"
            yield f'<article class="turn arbiter" id="{place}"><header><a href="#{place}">{turn.number}</a> '
            yield f"<span>{text_html(words)}</span></header>"
            yield (markdown_html(turn.guidance) if turn.guidance else "") + (
                markdown_html(turn.content) if turn.content else ""
            )
            yield "</article>\n"
            return
        yield f'<article class="turn agent" id="{place}">{self._turn_head(turn)}'
        if turn.thinking and turn.thinking.strip():
            size = counted(turn.thinking.strip().count("\n") + 1, "line")
            yield f'<details class="think"><summary>Thinking, {size}</summary>{markdown_html(turn.thinking)}</details>'
        if turn.content is not None and turn.content.strip():
            self._answer = turn.content
            yield markdown_html(turn.content)
        own: set[int] = set()
        if turn.tools or turn.diffs:
            yield '<div class="tools">'
            for call in turn.tools:
                if isinstance(call, str):
                    yield f'<div class="tool flat">{text_html(call)}</div>'
                    continue
                told = tell(call, turn, within=self._task.within)
                own |= {id(diff) for diff in told.diffs}
                yield _tool(call, told)
            for diff in turn.diffs:
                if id(diff) not in own:
                    yield _tool(None, tell_edit(diff))
            yield "</div>"
        if turn.question is not None:
            choices = "".join(f"<li>{text_html(choice)}</li>" for choice in turn.question.choices)
            listed = f"<ol>{choices}</ol>" if choices else ""
            yield f'<div class="ask">{markdown_html(turn.question.text)}{listed}</div>'
        yield "</article>\n"

    def _result(self, result: Result) -> Iterator[str]:
        word = result.status or "unknown"
        reason = f": {result.reason}" if result.reason else ""
        spent = f" · took {took(result.duration_ms)}" if result.duration_ms is not None else ""
        yield f'<section class="result"><h2 class="{_class(word)}">{_MARKS.get(word, "?")} {text_html(word + reason)}'
        when = self._when(result.completed)
        yield f'<span class="dim">{spent}{" · " if when else ""}{when}</span></h2>'
        if result.summary and not repeats(result.summary, self._answer):
            yield markdown_html(result.summary)
        if result.error and result.error != result.summary:
            yield f'<pre class="out">{output_html(result.error)}</pre>'
        yield "</section>\n"


_LINE: Final = '<span class="l">%s</span>'
"""Around what a folded call says in one line: where it is too long, what was done is cut, and how it ended is not."""


def _tool(call: ToolCall | None, told: Telling) -> str:
    head = f'<span class="v">{text_html(told.verb)}</span> <span class="o">{text_html(told.subject)}</span>'
    detail = _lines(told.detail) if told.diffs and told.outcome != FAILED else text_html(told.detail)
    head += f'<span class="x">{text_html(told.mark)}{detail}</span>' if told.detail else ""
    inside = "".join(_diff(diff) for diff in told.diffs)
    if told.command is not None:
        inside += f'<pre class="out">{text_html(told.command)}</pre>'
    if call is not None and not told.diffs:
        inside += _output(call, told)
    names = "tool" + (" err" if told.outcome == FAILED else " edit" if told.diffs else "")
    if not inside:
        return f'<div class="{names} flat">{head}</div>'
    opened = _opened(told.diffs) if told.diffs else ""
    return f'<details class="{names}"{opened}><summary>{_LINE % head}</summary><div class="in">{inside}</div></details>'


def _opened(diffs: Sequence[Diff]) -> str:
    """A short diff is shown at once: it is what people come for."""
    return " open" if sum(diff.hunks.count("\n") for diff in diffs) <= _OPEN_DIFF else ""


def _output(call: ToolCall, told: Telling) -> str:
    if call.blob is not None:
        return f'<p class="rest">{size_text(call.blob.size)} of output are not part of this export.</p>'
    text = told.output.strip("\n")
    if not text:
        return ""
    lines = text.split("\n")
    kept = lines[-_MOST_LINES:]
    shown = "\n".join(kept)[-_MOST_TEXT:]
    left = len(lines) - len(kept)
    rest = (
        f'<p class="rest">The first {counted(left, "line")} of {len(lines):,} are not part of this export.</p>'
        if left
        else ""
    )
    if not left and len(shown) < len(text):
        rest = f'<p class="rest">The last {size_text(len(shown))} of {size_text(len(text))}.</p>'
    return f'{rest}<pre class="out" tabindex="0">{output_html(shown)}</pre>'


def _diff(diff: Diff) -> str:
    if diff.blob is not None:
        return f'<p class="rest">A diff of {size_text(diff.blob.size)}, not part of this export.</p>'
    return diff_html(diff) if diff.hunks else '<p class="rest">No lines changed.</p>'


def _note(note: Note) -> Iterator[str]:
    if note.content:
        by = f" by {note.by}" if note.by else ""
        head = f'<header><span class="who">Note{text_html(by)}</span></header>'
        yield f'<article class="turn">{head}{markdown_html(note.content)}</article>\n'
    elif note.status:
        why = f": {note.reason}" if note.reason else ""
        yield f'<p class="rest">{text_html(f"{note.status}{why}")}</p>\n'


def _lines(text: str) -> str:
    """``+12 −3`` in colours."""
    added, _, removed = text.partition(" ")
    shown = f'<span class="add">{text_html(added)}</span>' if added else ""
    return shown + (f' <span class="del">{text_html(removed)}</span>' if removed else "")


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.split("\n") if line.strip()), "(empty)")
    return line if len(line) <= 120 else line[:119].rstrip() + "…"


def _class(word: str | None) -> str:
    """Only known words are used in the page's markup."""
    return word if word in _STATUSES else ""
