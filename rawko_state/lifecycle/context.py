"""The context to go on with a task: what was asked, decided and said, within a budget.

Only what is kept is read from the file, by one seek each; of the turns in the middle that do not fit, the index tells enough for
one line. So the time depends on what is kept, not on the size of the task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rawko_state.format.json_form import VERSION, plain
from rawko_state.lifecycle.messages import DAMAGED, of_turn
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.store import TaskSummary, TurnRow

BYTES_PER_TOKEN: Final = 3
"""Of UTF-8. Real tokenisers make fewer tokens of nearly all text, so a budget is never exceeded there either."""
_SHARE_OF_OLD: Final = 4
"""Requests, plan and decisions get at most 3 of 4 parts of a budget; the newest turns the rest, and what those leave."""
_TOKENS_A_LINE: Final = 6
"""A turn takes at least so many, told in one line."""
_FEW: Final = 50
_OUTPUT: Final = 4_000
"""Characters of a tool's output, when a turn is told in words."""


class Source(Protocol):
    """What a context is made from: a Store."""

    def summary(self, prefix: str, /) -> TaskSummary: ...
    def requests(self, prefix: str, /, up_to: int | None = None) -> list[str]: ...
    def turn_rows(self, prefix: str, up_to: int | None, most: int | None, /) -> tuple[list[TurnRow], int]: ...
    def turn(self, prefix: str, number: int, /, *, row: TurnRow | None = None) -> Turn: ...
    def turn_output(self, call: ToolCall, /) -> str | None: ...
    def open_question(self, prefix: str, /) -> Turn | None: ...


@dataclass(frozen=True, slots=True)
class TurnRef:
    """One turn of a conversation: whose task it stands in (a fork refers to its parent's), and what the index says of it."""

    task: str
    row: TurnRow


@dataclass(slots=True)
class Context:
    """What whoever goes on has to know."""

    task: TaskSummary
    requests: list[str]
    next_agent: str
    """The agent that was selected last and has not completed since; else the arbiter."""
    guidance: str | None
    interrupted: list[TurnRef]
    """What was begun after the last decision and not completed."""
    question: Turn | None
    turns: list[TurnRef]
    """All turns up to the last decision point, in order."""
    after: list[TurnRef] = field(default_factory=list)
    """What stands after it: completed turns, answers, the user's words."""
    unread: int = 0
    """How many turns of a huge task were not even looked up, as they cannot fit."""


def build(store: Source, prefix: str, at_turn: int | None = None, budget: int | None = None) -> Context:
    """The conversation of a task up to its last arbiter decision, and what has come after it; or up to a turn. With a budget,
    of a huge task only what may fit into it is looked up."""
    task = store.summary(prefix)
    most = None if budget is None else max(_FEW, budget // _TOKENS_A_LINE)
    places, requests, total = _conversation(store, task, at_turn, most)
    decision = next((at for at in range(len(places) - 1, -1, -1) if _is_decision(places[at].row)), None)
    cut = len(places) if decision is None else decision + 1
    selected = places[decision].row.selected if decision is not None else None
    after = places[cut:]
    if selected is not None and any(place.row.agent == selected and place.row.status == "complete" for place in after):
        selected = None
    question = store.open_question(task.id) if at_turn is None else None
    guidance = None
    if decision is not None and selected is not None:
        guidance = store.turn(places[decision].task, places[decision].row.turn, row=places[decision].row).guidance
    if decision is None:
        # Nobody decides here: the one who spoke last goes on, and what it did not finish was interrupted.
        while cut and places[cut - 1].row.status == "interrupted":
            cut -= 1
        after = places[cut:]
        spoke = [place.row.agent for place in places if place.row.agent != "user"]
        selected = spoke[-1] if spoke else None
    interrupted = [place for place in after if place.row.status == "interrupted"]
    unread = total - len(places)
    return Context(task, requests, selected or "arbiter", guidance, interrupted, question, places[:cut], after, unread)


def _conversation(
    store: Source, task: TaskSummary, at_turn: int | None, most: int | None
) -> tuple[list[TurnRef], list[str], int]:
    """A fork's conversation is its parent's up to where it was forked, and then its own. The turns, the requests, and how many
    turns there are."""
    rows, total = store.turn_rows(task.id, at_turn, most)
    own = [TurnRef(task.id, row) for row in rows]
    requests = store.requests(task.id, at_turn)
    seen = {task.id}
    parent = task.parent
    while parent is not None and "@" in parent:
        name, _, turn = parent.partition("@")
        if name in seen:
            break  # a circle, made by hand
        seen.add(name)
        try:
            above = store.summary(name)
            rows, more = store.turn_rows(name, int(turn), most)
            asked = store.requests(name, int(turn))
        except KeyError:  # the parent is gone; what it said is missing, and said to be
            requests = [f"[the task {name} that this one was forked from is gone]", *requests]
            break
        own = [TurnRef(name, row) for row in rows] + own
        total += more
        requests = asked + requests if asked[-1:] != requests[:1] else asked[:-1] + requests
        parent = above.parent
    return own, requests, total


def _is_decision(row: TurnRow) -> bool:
    return row.selected is not None or row.decision is not None


def tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


# As a prompt


def prompt(store: Source, context: Context, budget: int | None = None) -> str:
    """The context in words, for any model or person. Never more than ``budget`` tokens."""
    head = _head(context)
    tail = _tail(store, context, budget)
    stopped = {(place.task, place.row.offset) for place in context.interrupted}
    places = context.turns + [place for place in context.after if (place.task, place.row.offset) not in stopped]
    if budget is None:
        return "\n".join([head, *(in_words(store, place) for place in places), tail]).rstrip() + "\n"
    return _fitted(store, head, places, tail, budget, context.unread)


def _fitted(store: Source, head: str, places: Sequence[TurnRef], tail: str, budget: int, unread: int) -> str:
    room = budget - 1
    note = "[Shortened to fit: {} of {} turns are left out, {} are told in one line each.]\n"
    fixed = tokens(note.format("00000000", "00000000", "00000000"))
    head = _cut(head, max(0, (room - fixed) * 2 // _SHARE_OF_OLD))
    tail = _cut(tail, max(0, (room - fixed - tokens(head)) // 2))
    room -= fixed + tokens(head) + tokens(tail)
    whole: dict[int, str] = {}
    # The plan (what was said first after the request) and the newest turns, whole.
    plan = next((at for at, place in enumerate(places) if not _is_decision(place.row)), None)
    if plan is not None and places[plan].row.length // (2 * BYTES_PER_TOKEN) <= room:
        text = in_words(store, places[plan])
        if tokens(text) + 1 <= room // 3:
            whole[plan] = text
            room -= tokens(text) + 1
    for at in range(len(places) - 1, -1, -1):
        if at in whole:
            continue
        if places[at].row.length // (2 * BYTES_PER_TOKEN) > room:
            break  # it cannot fit, so it need not be read
        text = in_words(store, places[at])
        if tokens(text) + 1 > room:
            break
        whole[at] = text
        room -= tokens(text) + 1
    # Of the others one line each: the decisions first, then as many as fit, the newest first.
    others = [at for at in range(len(places)) if at not in whole]
    others.sort(key=lambda at: (not _is_decision(places[at].row), -at))
    lines: dict[int, str] = {}
    for at in others:
        line = one_line(places[at].row)
        if tokens(line) + 1 > room:
            break
        lines[at] = line
        room -= tokens(line) + 1
    total = len(places) + unread
    left_out = total - len(whole) - len(lines)
    shortened = note.format(left_out, total, len(lines)) if len(whole) < total else ""
    middle = [whole.get(at) or lines[at] for at in range(len(places)) if at in whole or at in lines]
    return _cut("\n".join([head, shortened + "\n".join(middle), tail]).rstrip(), budget - 1) + "\n"


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long, saying so."""
    if tokens(text) <= most:
        return text
    mark = "\n[… shortened …]\n"
    room = most * BYTES_PER_TOKEN - len(mark.encode())
    if room <= 0:
        return ""
    data = text.encode("utf-8", "surrogatepass")
    first, last = data[: room * 2 // 3], data[len(data) - room // 3 :]
    # What a cut character leaves is dropped, not replaced: a replacement may be longer.
    return first.decode("utf-8", "ignore") + mark + last.decode("utf-8", "ignore")


def _head(context: Context) -> str:
    task = context.task
    lines = [f"# Task {task.id}: {task.title or (context.requests[0].splitlines() or [''])[0][:100]}", ""]
    facts = [f"status: {task.status}", f"turns: {task.turns}"]
    facts += [f"branch: {task.branch}"] if task.branch else []
    facts += [f"forked from {task.parent}"] if task.parent and "@" in task.parent else []
    lines += [", ".join(facts), ""]
    for number, request in enumerate(context.requests, 1):
        lines += ["## Request" if len(context.requests) == 1 else f"## Request {number}", "", request, ""]
    lines += ["## What has happened so far", ""] if context.turns or context.after else []
    return "\n".join(lines)


def _tail(store: Source, context: Context, budget: int | None) -> str:
    lines = []
    if context.interrupted:
        lines += ["## What was interrupted", ""]
        for place in context.interrupted[-_FEW:]:
            # What cannot fit need not be read.
            fits = budget is None or place.row.length // (2 * BYTES_PER_TOKEN) <= budget
            lines.append(in_words(store, place) if fits else one_line(place.row))
    if context.question is not None and context.question.question is not None:
        lines += ["## Open question", "", context.question.question.text, ""]
        lines += [f"- {choice}" for choice in context.question.question.choices]
    lines += ["## Next", "", f"{context.next_agent} is next."]
    if context.guidance:
        lines += ["", f"Guidance: {context.guidance}"]
    return "\n".join(lines)


def in_words(store: Source, place: TurnRef) -> str:
    """One turn in words."""
    turn = store.turn(place.task, place.row.turn, row=place.row)
    state = f" ({turn.status})" if turn.status not in (None, "complete") else ""
    lines = [f"### Turn {turn.number}: {turn.agent}{state}", ""]
    lines += [f"[{DAMAGED}]", ""] if turn.damaged else []
    if turn.selected or turn.decision:
        lines.append(f"Selected: {turn.selected}" if turn.selected else f"Decision: {turn.decision}")
    lines += [f"Reason: {turn.reason}"] if turn.reason else []
    lines += [f"Guidance: {turn.guidance}"] if turn.guidance else []
    if turn.content:
        lines += [turn.content, ""]
    if turn.question is not None:
        lines += [f"Question: {turn.question.text}", ""]
    lines += [line for call in turn.tools for line in _tool_lines(store, call)]
    return "\n".join(lines).rstrip() + "\n"


def _tool_lines(store: Source, call: ToolCall | str) -> Iterator[str]:
    if isinstance(call, str):
        yield call
        return
    words = f"- {call.tool} {call.args}".rstrip()
    yield words if call.result is None else f"{words} -> {call.result}"
    output = store.turn_output(call)
    if output:
        shown = output if len(output) <= _OUTPUT else f"{output[: _OUTPUT // 2]}\n…\n{output[-_OUTPUT // 2 :]}"
        yield "\n".join(f"    {line}" for line in shown.split("\n"))


def one_line(row: TurnRow) -> str:
    """What the index knows of a turn."""
    damaged = f" [{DAMAGED}]" if row.damaged else ""
    if _is_decision(row):
        what = f"selected {row.selected}" if row.selected else str(row.decision)
        reason = f": {row.reason.splitlines()[0][:200]}" if row.reason else ""
        return f"- turn {row.turn} {row.agent}: {what}{reason}{damaged}"
    tools = f", {row.tool_calls} tool calls" if row.tool_calls else ""
    return f"- turn {row.turn} {row.agent}: {row.status or 'said something'}{tools}{damaged}"


# As data


def as_json(store: Source, context: Context, budget: int | None = None) -> dict[str, Any]:
    """The context as one object; with a budget, the newest turns that fit into it, by the size of their text."""
    share = None if budget is None else budget // 8
    found: dict[str, Any] = {
        "version": VERSION,
        "task": context.task.id,
        "status": context.task.status,
        "title": context.task.title,
        "parent": context.task.parent,
        "requests": _fitting(context.requests, share),
        "next": context.next_agent,
        "guidance": None if context.guidance is None else _fitting([context.guidance], share)[0],
        "interrupted": [place.row.turn for place in context.interrupted[-_FEW:]],
        "question": plain(context.question.question) if context.question else None,
    }
    if share is not None and _size(found["question"]) > share and context.question and context.question.question:
        found["question"] = {"text": _fitting([context.question.question.text], share)[0]}
    decisions = [place.row for place in context.turns if _is_decision(place.row)]
    found["decisions"] = [
        {"turn": row.turn, "selected": row.selected, "decision": row.decision, "reason": row.reason}
        for row in decisions
    ]
    return _with_turns(store, context, found, budget, lambda turn: {"turns": [plain(turn)]})


def messages(store: Source, context: Context, budget: int | None = None) -> list[dict[str, Any]]:
    """The conversation in the shape that chat APIs take, tool calls and their results paired; exact where turns kept their
    payload."""
    provider = (context.task.model or "").lower()
    shape = "anthropic" if "claude" in provider else "openai"
    share = None if budget is None else budget // 4
    first = [{"role": "user", "content": request} for request in _fitting(context.requests, share)]
    found: dict[str, Any] = {"turns": []}
    kept = _with_turns(
        store,
        context,
        found,
        None if budget is None else budget - _size(first),
        lambda turn: {"turns": of_turn(store, turn, shape)},
    )
    omitted = kept.get("omitted")
    if omitted:
        first.append({"role": "user", "content": f"[{omitted} earlier turns are left out to fit the budget]"})
    turns: list[dict[str, Any]] = kept["turns"]
    return first + turns


def _fitting(texts: list[str], share: int | None) -> list[str]:
    """The texts, as JSON, in so many tokens: the first and the last, each shortened where it must be."""
    if share is None or _size(texts) <= share:
        return texts
    kept = texts if len(texts) <= 2 else [texts[0], texts[-1]]
    most = max(1, share // len(kept) - 4)
    while _size(short := [_cut(text, most) for text in kept]) > share and most > 1:
        most //= 2  # escapes make JSON longer than its text
    return short


def _with_turns(
    store: Source, context: Context, found: dict[str, Any], budget: int | None, shown: Any
) -> dict[str, Any]:
    places = context.turns + context.after
    room = None if budget is None else budget - _size(found) - _size({"omitted": 10**9, "turns": []})
    if room is not None and room < 0 and "decisions" in found:
        # The decisions themselves are too many: the newest of them.
        while found["decisions"] and room < 0:
            room += _size(found["decisions"].pop(0))
    chosen: list[Any] = []
    left = len(places) + context.unread
    for place in reversed(places):
        if room is not None and place.row.length // (4 * BYTES_PER_TOKEN) > max(room, 0):
            break
        items = shown(store.turn(place.task, place.row.turn, row=place.row))["turns"]
        size = tokens(json.dumps(items))
        if room is not None:
            if size > room:
                break
            room -= size
        chosen[:0] = items
        left -= 1
    return {**found, "turns": chosen, **({"omitted": left} if left else {})}


def _size(value: Any) -> int:
    return tokens(json.dumps(value))
