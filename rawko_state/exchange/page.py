"""A task as one HTML page: no scripts, no network access, all content escaped; dark and light; tool output collapsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape as _html_escape

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
    touched,
)

_STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #fbfbfa; --soft: #6b7280; --line: #e3e5e8; --card: #ffffff;
  --mono: #f3f4f6; --ok: #15803d; --bad: #b91c1c; --wait: #b45309; --accent: #3b5bdb; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8eb; --bg: #14161a; --soft: #9aa3ad; --line: #2a2e35; --card: #1b1e24;
  --mono: #101216; --ok: #4ade80; --bad: #f87171; --wait: #fbbf24; --accent: #8ea2ff; } }
* { box-sizing: border-box } body { margin: 0; background: var(--bg); color: var(--fg); font: 16px/1.55 system-ui, sans-serif }
main { max-width: 54rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .5rem } h1 small { color: var(--soft); font-weight: 400 }
.facts { color: var(--soft); font-size: .9rem; margin: 0 0 1.5rem } .facts b { color: var(--fg); font-weight: 600 }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.2rem; margin: .9rem 0 }
article.arbiter { background: none; border-style: dashed } article.user { border-left: 4px solid var(--accent) }
article header { display: flex; gap: .6rem; align-items: baseline; flex-wrap: wrap }
.n { color: var(--soft); font-variant-numeric: tabular-nums } .who { font-weight: 650 }
.meta { color: var(--soft); font-size: .85rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: .87rem/1.5 ui-monospace, monospace; margin: .6rem 0 0 }
.said { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; margin: .6rem 0 0 }
details { margin-top: .7rem } summary { cursor: pointer; color: var(--soft); font-size: .9rem }
.tool { font: .85rem/1.5 ui-monospace, monospace; margin: .4rem 0 0; overflow-wrap: anywhere }
.tool pre { background: var(--mono); border-radius: 6px; padding: .6rem .8rem; max-height: 24rem; overflow: auto }
.complete, .completed, .success { color: var(--ok) } .failed, .failure, .interrupted, .cancelled { color: var(--bad) }
.waiting, .paused { color: var(--wait) }
"""
_WORDS = frozenset(
    {"complete", "completed", "success", "failed", "failure", "interrupted", "cancelled", "waiting", "paused"}
)


def page(task_id: str, status: str, entries: Iterable[Entry]) -> Iterator[str]:
    """Yields the page in pieces, so that a large task is never entirely in memory."""
    opened = False
    for entry in entries:
        if not opened:
            header = entry if isinstance(entry, TaskHeader) else None
            yield from _top(task_id, status, header)
            opened = True
            if header is not None:
                continue
        yield from _part(entry)
    if not opened:
        yield from _top(task_id, status, None)
    yield "</main></body></html>\n"


def _top(task_id: str, status: str, header: TaskHeader | None) -> Iterator[str]:
    title = (header.title if header else None) or "Task"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{_text(title)} <small>{_text(task_id)}</small></h1>"
    )
    facts = [f"<b class='{_class(status)}'>{_text(status)}</b>"]
    if header is not None:
        if header.created:
            facts.append(_text(write_time(header.created)))
        facts += [_text(v) for v in (header.agent, header.model, header.branch, header.repo) if v]
        facts += [_text(f"{key}={value}") for key, value in header.labels.items()]
    yield f"<p class='facts'>{' · '.join(facts)}</p>\n"


def _part(entry: Entry) -> Iterator[str]:
    if entry.damaged:
        yield "<p class='meta interrupted'>Damaged: the seal of what follows does not match.</p>\n"
    if isinstance(entry, Request):
        by = f"<span class='meta'>{_text(said_by(entry) or '')}</span>"
        yield f"<article class='user'><header><span class='who'>Request</span>{by}</header>{_said(entry.text)}</article>\n"
    elif isinstance(entry, Turn):
        yield from _turn(entry)
    elif isinstance(entry, Result):
        word = entry.status or ""
        took = write_duration(entry.duration_ms) if entry.duration_ms is not None else ""
        yield f"<article><header><span class='who {_class(word)}'>Result: {_text(word)}</span>"
        yield f"<span class='meta'>{took}</span></header>"
        yield "".join(_said(text) for text in (entry.summary, entry.error) if text)
        if entry.files_modified:
            yield "<div class='tool'>" + "<br>".join(_text(path) for path in entry.files_modified) + "</div>"
        yield "</article>\n"
    elif isinstance(entry, Resumed):
        when = write_time(entry.at) if entry.at else ""
        yield f"<p class='meta'>Resumed {_text(when)} {_text(entry.by or '')}</p>\n"
    elif isinstance(entry, Note):
        said = [entry.title and f"title: {entry.title}", entry.status and f"status: {entry.status}", entry.content]
        words = "\n".join(text for text in said if text)
        if words:
            yield f"<article class='arbiter'><header><span class='who'>Note</span></header>{_said(words)}</article>\n"
    elif isinstance(entry, Torn):
        yield f"<p class='meta interrupted'>{entry.length} bytes of an append that did not finish</p>\n"
    elif isinstance(entry, Unknown):
        yield f"<p class='meta'>unknown: {_text(entry.marker)}</p>\n"


def _turn(turn: Turn) -> Iterator[str]:
    kind = "arbiter" if turn.is_arbiter else "user" if turn.agent == "user" else "agent"
    facts = [turn.status, write_duration(turn.duration_ms) if turn.duration_ms is not None else None, turn.model]
    facts += [f"{count} {name}" for name, count in turn.tokens.items()]
    if turn.cost is not None:
        facts.append(f"{turn.cost.amount:f} {turn.cost.currency}")
    shown = " · ".join(_text(fact) for fact in facts if fact)
    yield f"<article class='{kind}' id='turn-{turn.number}'><header><span class='n'>{turn.number}</span>"
    yield f"<span class='who'>{_text(turn.agent)}</span><span class='meta {_class(turn.status or '')}'>{shown}</span></header>"
    decision = [f"→ {turn.selected}" if turn.selected else None, turn.decision, turn.reason, turn.guidance]
    words = "\n".join(text for text in decision if text)
    if words:
        yield _said(words)
    if turn.content is not None:
        yield _said(turn.content)
    if turn.question is not None:
        choices = "".join(f"\n• {choice}" for choice in turn.question.choices)
        yield _said(f"? {turn.question.text}{choices}")
    files = touched(turn)
    if files:
        names = "<br>".join(_text(f"{file.operation} {file.path}") for file in files)
        yield f"<details><summary>{len(files)} files</summary><div class='tool'>{names}</div></details>"
    if turn.tools:
        yield f"<details><summary>{len(turn.tools)} tool calls</summary>"
        for call in turn.tools:
            yield _tool(call)
        yield "</details>"
    yield "</article>\n"


def _tool(call: ToolCall | str) -> str:
    if isinstance(call, str):
        return f"<div class='tool'>{_text(call)}</div>"
    result = f" → {call.result}" if call.result is not None else ""
    output = f"<pre>{_text(call.output)}</pre>" if call.output else ""
    where = f" [{call.blob.size} bytes, blob {call.blob.sha256[:12]}…]" if call.blob else ""
    line = f"{call.time or ''} {call.tool} {call.args}{result}{where}".strip()
    return f"<div class='tool'>{_text(line)}{output}</div>"


def _said(text: str) -> str:
    return f"<div class='said'>{_text(text)}</div>"


def _class(word: str) -> str:
    """Only known words are used in the page's markup."""
    return word if word in _WORDS else ""


def _text(text: str) -> str:
    """Escaped text. Lone surrogates and NUL are replaced, as a page cannot contain them."""
    clean = text.encode("utf-8", "replace").decode().replace("\x00", "\N{SYMBOL FOR NULL}")
    return _html_escape(clean, quote=True)
