"""Tasks as Markdown, for a pull request or a chat: prose as prose, diffs as diffs, tool output folded.

What an agent said stays Markdown, but can't leave its place: raw HTML, images and links that run something are shown as text,
headings go below ours, and a fence that was left open is closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rawko_state.exchange.coloured import runs, settled
from rawko_state.exchange.facts import repeats
from rawko_state.exchange.shown import Shown, day
from rawko_state.exchange.telling import tell, tell_edit
from rawko_state.format.diffs import diff_text
from rawko_state.format.figures import counted, size_text
from rawko_state.late import late
from rawko_state.model.entries import (
    UNKNOWN_USER,
    Diff,
    Entry,
    Note,
    Question,
    Request,
    Result,
    Resumed,
    ToolCall,
    Torn,
    Turn,
    Unknown,
    said_by,
)

_RUN_OF_TICKS = late("`+")
_FENCE = late(r"( {0,3})(`{3,}|~{3,})(.*)")
_HEADING = late(r" {0,3}(#{1,6})(?=[ \t]|$)")
_SPAN = late(r"(`+)(?!`)(.*?)(?<!`)\1(?!`)")
_ACTIVE_LINK = late(r"\]\((?!\s*<?(?:https?:|mailto:|#|[\w./-]+[)#\s>]))", re.IGNORECASE)
_MOST_LINES: Final = 60
_MARKS: Final = {"success": "✅", "failure": "❌", "cancelled": "⏹", "interrupted": "⚠️"}


def markdown(tasks: Sequence[Shown], *, brief: bool = False) -> Iterator[str]:
    """Yields pieces, so that a large task is never entirely in memory."""
    for number, task in enumerate(tasks):
        if number:
            yield "\n---\n\n"
        yield from _Text(task, brief).pieces()


class _Text:
    """One task. Remembers what was said last, so that its result does not repeat it."""

    def __init__(self, task: Shown, brief: bool) -> None:
        self._task, self._brief = task, brief
        self._answer: str | None = None

    def pieces(self) -> Iterator[str]:
        task = self._task
        facts = [f"**{_line(task.status)}**", *map(_line, task.known())]
        facts += [_line(f"{task.facts.files_text} ({task.facts.lines_text})")] if task.facts.lines_text else []
        yield f"# {_line(task.heading)}\n\n{' · '.join(facts)} · rawko task {_code(task.id)}\n"
        if self._brief:
            yield from self._briefly()
        else:
            for entry in task.entries():
                yield from self._entry(entry)
        if task.facts.files:
            yield "\n## Files changed\n\n"
            for path, change in task.facts.files.items():
                yield f"- {_code(path)} {change.text}".rstrip() + "\n"

    def _briefly(self) -> Iterator[str]:
        answer: str | None = None
        for entry in self._task.entries():
            asked = isinstance(entry, Request) or (isinstance(entry, Turn) and entry.agent == "user")
            if asked or isinstance(entry, Result):
                if answer:
                    yield f"\n{prose(answer)}\n"
                    self._answer = answer
                answer = None
                yield from self._entry(entry)
            elif isinstance(entry, Turn) and not entry.is_arbiter:
                answer = entry.content or answer
        if answer:
            yield f"\n{prose(answer)}\n"

    def _entry(self, entry: Entry) -> Iterator[str]:
        if entry.damaged:
            yield "\n> **Damaged:** what follows was changed after it was recorded.\n"
        if isinstance(entry, Request):
            yield self._prompt(entry, entry.text)
        elif isinstance(entry, Turn) and entry.agent == "user":
            yield self._prompt(entry, entry.content or "")
        elif isinstance(entry, Turn):
            yield from self._turn(entry)
        elif isinstance(entry, Result):
            yield from self._result(entry)
        elif isinstance(entry, Resumed):
            yield f"\n*Resumed {day(entry.at) if entry.at else ''}*\n"
        elif isinstance(entry, Note) and entry.content:
            yield f"\n*Note:*\n\n{prose(entry.content)}\n"
        elif isinstance(entry, Torn):
            yield f"\n*{counted(entry.length, 'byte')} of an unfinished write*\n"
        elif isinstance(entry, Unknown):
            yield f"\n*Unknown block: {_code(entry.marker)}*\n"

    def _prompt(self, entry: Request | Turn, text: str) -> str:
        by = said_by(entry)
        who = "Prompt" if by in (None, UNKNOWN_USER) else _line(by or "")
        quoted = "\n".join(f"> {line}".rstrip() for line in prose(text).split("\n"))
        return f"\n## {who}\n\n{quoted}\n"

    def _turn(self, turn: Turn) -> Iterator[str]:
        if turn.is_arbiter:
            chosen = f" → {turn.selected}" if turn.selected else ""
            why = ": ".join(text for text in (turn.decision, turn.reason) if text)
            yield f"\n*{_line(f'{turn.agent}{chosen}')}*{': ' if why else ''}{_line(why)}\n"
        else:
            status = f" ({turn.status})" if turn.status not in (None, "complete") else ""
            yield f"\n### {turn.number} {_line(turn.agent + status)}\n"
        if turn.content is not None and turn.content.strip():
            self._answer = turn.content
            yield f"\n{prose(turn.content)}\n"
        if turn.question is not None:
            yield _question(turn.question)
        own: set[int] = set()
        for call in turn.tools:
            if isinstance(call, str):
                yield f"\n- {_code(call)}\n"
                continue
            told = tell(call, turn, within=self._task.within)
            own |= {id(diff) for diff in told.diffs}
            yield _folded(f"{told.head}{told.mark}{told.detail}", _inside(call, told.output, told.diffs))
        for diff in turn.diffs:
            if id(diff) not in own:
                yield _folded(tell_edit(diff).line, _inside(None, "", (diff,)))

    def _result(self, result: Result) -> Iterator[str]:
        word = result.status or "unknown"
        reason = f": {result.reason}" if result.reason else ""
        yield f"\n## {_MARKS.get(word, '?')} {_line(word + reason)}\n"
        if result.summary and not repeats(result.summary, self._answer):
            yield f"\n{prose(result.summary)}\n"
        if result.error and result.error != result.summary:
            yield f"\n{_fenced(result.error)}\n"


def _question(question: Question) -> str:
    choices = "".join(f"\n{number}. {_line(choice)}" for number, choice in enumerate(question.choices, 1))
    return f"\n**Question:** {_line(question.text)}\n{choices}\n"


def _inside(call: ToolCall | None, output: str, diffs: Sequence[Diff]) -> str:
    """What is folded under a tool call."""
    parts = [_fenced(diff_text(diff), "diff") for diff in diffs]
    if call is not None and call.blob is not None:
        parts.append(f"*{size_text(call.blob.size)} of output, in blob {call.blob.sha256}, is not part of this export*")
    elif output.strip("\n") and not diffs:
        plain = "".join(piece for _, piece in runs(settled(output.strip("\n"))))
        lines = plain.split("\n")
        left = len(lines) - _MOST_LINES
        parts += [f"*The last {_MOST_LINES} of {len(lines):,} lines:*"] if left > 0 else []
        parts.append(_fenced("\n".join(line[:2000] for line in lines[-_MOST_LINES:])))
    return "\n\n".join(parts)


def _folded(line: str, inside: str) -> str:
    if not inside:
        return f"\n- {_code(line)}\n"
    return f"\n<details><summary><code>{_html(line)}</code></summary>\n\n{inside}\n\n</details>\n"


def prose(text: str) -> str:
    """Markdown that somebody else wrote, made to stay in its place."""
    found: list[str] = []
    chunk: list[str] = []
    fence = ""
    for line in text.strip("\n").split("\n"):
        mark = _FENCE.fullmatch(line)
        if fence:
            closes = mark is not None and mark[2].startswith(fence) and not mark[3].strip()
            fence = "" if closes else fence
            found.append(mark[2] if closes and mark is not None else line)
        elif mark is not None and not (mark[2][0] == "`" and "`" in mark[3]):
            found += _safe(chunk)
            chunk, fence = [], mark[2]
            # At the margin: within a list, the next line that is not indented would end it.
            found.append(f"{mark[2]}{_html(mark[3])}")
        elif line.strip():
            chunk.append(line)
        else:
            found += [*_safe(chunk), line]
            chunk = []
    return "\n".join([*found, *_safe(chunk), *([fence] if fence else [])])


def _safe(chunk: list[str]) -> list[str]:
    """Lines without an empty one between them. Code spans are left as they are, if each is within its line: a span over several
    lines ends where only a parser knows."""
    exact = not any("`" in _SPAN.sub("", line) for line in chunk)
    return [_safe_line(line, exact) for line in chunk]


def _safe_line(line: str, exact: bool) -> str:
    heading = _HEADING.match(line)
    if heading is not None:
        line = "#" * min(6, len(heading[1]) + 3) + line[heading.end() :]
    found, at = [], 0
    for span in _SPAN.finditer(line) if exact else ():
        found += [_escaped(line[at : span.start()]), span[0]]
        at = span.end()
    return "".join([*found, _escaped(line[at:])])


def _escaped(text: str) -> str:
    text = re.sub(r"\\*<", lambda match: f"{match[0][:-1]}\\<" if len(match[0]) % 2 else match[0], text)
    text = text.replace("![", "!\\[").replace("]:", "]\\:")
    return _ACTIVE_LINK.sub(r"]\\(", text)


def _fenced(text: str, language: str = "") -> str:
    """Uses a fence longer than any in the text, so that the content cannot end it."""
    longest = max((len(run) for run in _RUN_OF_TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    flat = " ".join(text.split())
    longest = max((len(run) for run in _RUN_OF_TICKS.findall(flat)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {flat} {ticks}" if longest else f"`{flat}`"


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_ACTIVE = late(r"([\\`*_{}\[\]<>#|!~])")


def _line(text: str) -> str:
    """The text on one line, with Markdown's special characters escaped."""
    return _ACTIVE.sub(r"\\\1", " ".join(text.split()))
