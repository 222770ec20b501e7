"""A task as Markdown, for a pull request or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rawko_state.format.values import write_duration, write_time
from rawko_state.model.entries import (
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

_RUN_OF_TICKS = re.compile("`+")


def markdown(task_id: str, status: str, entries: Iterable[Entry]) -> Iterator[str]:
    """Yields pieces, so that a large task is never entirely in memory."""
    yield f"# Task {task_id}\n\n- **Status:** {_line(status)}\n"
    for entry in entries:
        if entry.damaged:
            yield "\n> **Damaged:** the seal of what follows does not match.\n"
        if isinstance(entry, TaskHeader):
            yield from _header(entry)
        elif isinstance(entry, Request):
            yield f"\n## Request by {_line(said_by(entry) or '')}\n\n{_fenced(entry.text)}\n"
        elif isinstance(entry, Turn):
            yield from _turn(entry)
        elif isinstance(entry, Result):
            yield f"\n## Result: {_line(entry.status or '')}\n"
            for text in (entry.summary, entry.error):
                if text:
                    yield f"\n{_fenced(text)}\n"
            for path in entry.files_modified:
                yield f"- {_code(path)}\n"
        elif isinstance(entry, Resumed):
            yield f"\n*Resumed {write_time(entry.at) if entry.at else ''}*\n"
        elif isinstance(entry, Note) and entry.content:
            yield f"\n*Note:*\n\n{_fenced(entry.content)}\n"
        elif isinstance(entry, Torn):
            yield f"\n*{entry.length} bytes of an append that did not finish*\n"
        elif isinstance(entry, Unknown):
            yield f"\n*{_code(entry.marker)}*\n"


def _header(header: TaskHeader) -> Iterator[str]:
    if header.title:
        yield f"- **Title:** {_line(header.title)}\n"
    if header.created:
        yield f"- **Created:** {write_time(header.created)}\n"
    for name, value in (("Agent", header.agent), ("Model", header.model), ("Branch", header.branch)):
        if value:
            yield f"- **{name}:** {_line(value)}\n"


def _turn(turn: Turn) -> Iterator[str]:
    facts = [turn.status or "", write_duration(turn.duration_ms) if turn.duration_ms is not None else ""]
    yield f"\n## Turn {turn.number}: {_line(turn.agent)}\n\n{' · '.join(_line(fact) for fact in facts if fact)}\n"
    for name, value in (("Selected", turn.selected), ("Decision", turn.decision), ("Reason", turn.reason)):
        if value:
            yield f"- **{name}:** {_line(value)}\n"
    if turn.content is not None:
        yield f"\n{_fenced(turn.content)}\n"
    if turn.question is not None:
        yield f"\n**Question:** {_line(turn.question.text)}\n"
    if turn.tools:
        yield "\n<details><summary>Tool log</summary>\n\n"
        for call in turn.tools:
            if isinstance(call, ToolCall):
                result = f" → {call.result}" if call.result is not None else ""
                yield f"- {_code(f'{call.tool} {call.args}{result}')}\n"
                if call.output:
                    yield f"\n{_fenced(call.output)}\n\n"
                if call.blob:
                    yield f"  ({call.blob.size} bytes of output, in blob {call.blob.sha256})\n"
            else:
                yield f"- {_code(call)}\n"
        yield "\n</details>\n"


def _fenced(text: str) -> str:
    """Uses a fence longer than any in the text, so that the content cannot end it."""
    longest = max((len(run) for run in _RUN_OF_TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _code(text: str) -> str:
    flat = " ".join(text.split())
    longest = max((len(run) for run in _RUN_OF_TICKS.findall(flat)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {flat} {ticks}" if longest else f"`{flat}`"


_ACTIVE = re.compile(r"([\\`*_{}\[\]<>#|!~])")


def _line(text: str) -> str:
    """The text on one line, with Markdown's special characters escaped."""
    return _ACTIVE.sub(r"\\\1", " ".join(text.split()))
