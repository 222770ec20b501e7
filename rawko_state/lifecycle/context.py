"""The context for continuing a task: what was asked, decided and said, in chronological order, within a budget.

Only the turns that are kept are read from the file, with one seek each. For turns in the middle that do not fit, the index has
enough for one line. So the time depends on what is kept, not on the size of the task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rawko_state.format.figures import counted
from rawko_state.format.json_form import VERSION, plain
from rawko_state.lifecycle.messages import DAMAGED, of_turn
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.model.frozen import Frozen
from rawko_state.model.status import FINISHED
from rawko_state.store import Said, TaskSummary, TurnRow
from rawko_state.store.wire import to_wire

BYTES_PER_TOKEN: Final = 3
"""Bytes of UTF-8. Real tokenisers produce fewer tokens for nearly all text, so they stay within a budget, too."""
_SHARE_OF_OLD: Final = 4
"""Head, requests and tail get at most 3 of 4 parts of a budget. The turns get the rest, and whatever those leave."""
_TOKENS_A_LINE: Final = 6
"""The minimum number of tokens for a turn, as one line."""
_FEW: Final = 50
NOBODY: Final = "agent"
"""The next agent if no agent has spoken yet and there is no arbiter."""
_LONGEST: Final = 1 << 20
"""Bytes of a newest turn that is read although it does not fit."""
_OUTPUT: Final = 4_000
"""Maximum characters of a tool's output in a prompt."""


class Source(Protocol):
    """The part of a Store that a context is built from."""

    def summary(self, prefix: str, /) -> TaskSummary: ...
    def said(self, prefix: str, /, up_to: int | None = None) -> list[Said]: ...
    def memory(self, prefix: str, /) -> Mapping[str, Any]: ...
    def turn_rows(self, prefix: str, up_to: int | None, most: int | None, /) -> tuple[list[TurnRow], int]: ...
    def turn(self, prefix: str, number: int, /, *, row: TurnRow | None = None) -> Turn: ...
    def turn_output(self, call: ToolCall, /) -> str | None: ...
    def open_question(self, prefix: str, /) -> Turn | None: ...


class TurnRef(Frozen):
    """One turn of a conversation: the task it is in (a fork refers to its parent's turns), and its row in the index."""

    task: str
    row: TurnRow
    seal: str | None = None
    """The seal of its record, for a text whose reader wants to check it."""

    @property
    def mark(self) -> str:
        """What tells where to check the turn; empty without a seal."""
        return f" [{self.task} seal {self.seal}]" if self.seal is not None else ""


class Prompt(Frozen):
    """A request, or a note that is part of the conversation, and the number of turns before it."""

    said: Said
    before: int


@dataclass(slots=True)
class Context:
    """What an agent needs to know to continue a task."""

    task: TaskSummary
    prompts: list[Prompt]
    memory: Mapping[str, Any]
    """The system prompt, preferences, important steps and the like."""
    next_agent: str
    """The last selected agent, unless it has completed since; then the arbiter."""
    guidance: str | None
    interrupted: list[TurnRef]
    """Turns that were started after the last decision and not completed."""
    question: Turn | None
    turns: list[TurnRef]
    """All turns up to the last decision point, in order."""
    after: list[TurnRef] = field(default_factory=list)
    """Everything after it: completed turns, answers, the user's messages."""
    unread: int = 0
    """The number of turns of a huge task that were not looked up because they cannot fit."""

    @property
    def requests(self) -> list[str]:
        return [prompt.said.text for prompt in self.prompts if prompt.said.kind == "request"]

    @property
    def conversation(self) -> list[TurnRef]:
        """All turns in order, including the interrupted ones."""
        return self.turns + self.after


def build(store: Source, prefix: str, at_turn: int | None = None, budget: int | None = None) -> Context:
    """The conversation of a task: up to its last arbiter decision and what came after it, or up to a turn. With a budget, only
    turns that may fit are looked up."""
    task = store.summary(prefix)
    most = None if budget is None else max(_FEW, budget // _TOKENS_A_LINE)
    places, prompts, total = _conversation(store, task, at_turn, most)
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
        # Without an arbiter, the last agent to speak continues, and the turns it did not finish were interrupted.
        while cut and places[cut - 1].row.status == "interrupted":
            cut -= 1
        after = places[cut:]
        spoke = [place.row.agent for place in places if place.row.agent != "user"]
        selected = spoke[-1] if spoke else NOBODY
    interrupted = [place for place in after if place.row.status == "interrupted"]
    return Context(
        task,
        prompts,
        store.memory(task.id),
        selected or places[decision or 0].row.agent,
        guidance,
        interrupted,
        question,
        places[:cut],
        after,
        total - len(places),
    )


def _conversation(
    store: Source, task: TaskSummary, at_turn: int | None, most: int | None
) -> tuple[list[TurnRef], list[Prompt], int]:
    """The turns, the requests and notes between them, and the total number of turns. A fork's conversation is its parent's up to
    the fork point, followed by its own."""
    turns: list[TurnRef] = []
    total = 0
    parts: list[tuple[list[TurnRef], list[Said]]] = []
    seen: set[str] = set()
    name, up_to, parent = task.id, at_turn, task.parent
    while True:
        seen.add(name)
        rows, count = store.turn_rows(name, up_to, most)
        parts.insert(0, ([TurnRef(name, row) for row in rows], store.said(name, up_to)))
        total += count
        if parent is None or "@" not in parent or parent.partition("@")[0] in seen:
            break  # not a fork, or a cycle made by hand
        name, _, turn = parent.partition("@")
        up_to = int(turn) if turn.isdecimal() else 0
        try:
            parent = store.summary(name).parent
        except KeyError:  # the parent is missing; say so in the context
            gone = Said(0, "request", f"[Forked from {name}, which no longer exists]", None)
            parts.insert(0, ([], [gone]))
            break
    prompts: list[Prompt] = []
    for refs, said in parts:
        for each in said:
            before = len(turns) + sum(ref.row.offset < each.offset for ref in refs)
            asked = [prompt for prompt in prompts if prompt.said.kind == "request"]
            if turns and before == len(turns) and each.kind == "request" and asked and asked[-1].said.text == each.text:
                continue  # a fork without its own message repeats the request
            prompts.append(Prompt(each, before))
        turns += refs
    return turns, prompts, total


def _is_decision(row: TurnRow) -> bool:
    return row.selected is not None or row.decision is not None


def tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


# As a prompt


def prompt(store: Source, context: Context, budget: int | None = None) -> str:
    """The context as text, for any model or person. Never more than ``budget`` tokens."""
    head = _head(context)
    tail = _tail(store, context, budget)
    stopped = {(place.task, place.row.offset) for place in context.interrupted}
    places = {
        at: place for at, place in enumerate(context.conversation) if (place.task, place.row.offset) not in stopped
    }
    asked = [_asked(context, prompt) for prompt in context.prompts]
    if budget is None:
        told = {at: in_words(store, place) for at, place in places.items()}
        return "\n".join([head, *_in_order(context, asked, told), tail]).rstrip() + "\n"
    return _fitted(store, context, head, asked, places, tail, budget)


def _in_order(context: Context, asked: Sequence[str], told: Mapping[int, str]) -> list[str]:
    """Requests, notes and turns in chronological order."""
    found: list[str] = []
    waiting = list(zip(context.prompts, asked, strict=True))
    for at in range(len(context.conversation) + 1):
        while waiting and waiting[0][0].before <= at:
            found.append(waiting.pop(0)[1])
        if at in told:
            found.append(told[at])
    return [text for text in found if text]


def _asked(context: Context, prompt: Prompt) -> str:
    if prompt.said.kind == "note":
        by = f" by {prompt.said.by}" if prompt.said.by else ""
        return f"### Note{by}\n\n{prompt.said.text}\n"
    several = len(context.requests) > 1
    number = sum(each.said.kind == "request" for each in context.prompts[: context.prompts.index(prompt) + 1])
    return f"## Request{f' {number}' if several else ''}\n\n{prompt.said.text}\n"


def _fitted(
    store: Source,
    context: Context,
    head: str,
    asked: list[str],
    places: Mapping[int, TurnRef],
    tail: str,
    budget: int,
) -> str:
    room = budget - 1
    note = "[Shortened to fit: {} of {} turns left out, {} summarised in one line each.]\n"
    fixed = tokens(note.format("00000000", "00000000", "00000000"))
    share = max(0, (room - fixed) * 2 // _SHARE_OF_OLD)
    head = _cut(head, share // 2)
    asked = _fitting_texts(asked, share - tokens(head))
    tail = _cut(tail, max(0, (room - fixed - share) // 2))
    room -= fixed + tokens(head) + sum(tokens(text) + 1 for text in asked) + tokens(tail)
    whole: dict[int, str] = {}
    # The plan (the first turn after the request) and the newest turns, in full.
    plan = next((at for at, place in places.items() if not _is_decision(place.row)), None)
    if plan is not None and places[plan].row.length // (2 * BYTES_PER_TOKEN) <= room:
        text = in_words(store, places[plan])
        if tokens(text) + 1 <= room // 3:
            whole[plan] = text
            room -= tokens(text) + 1
    for at in reversed(list(places)):
        if at in whole:
            continue
        is_newest = at == max(places)
        if places[at].row.length // (2 * BYTES_PER_TOKEN) > room and not (
            is_newest and places[at].row.length < _LONGEST
        ):
            break  # it cannot fit, so do not read it
        text = in_words(store, places[at])
        if is_newest and tokens(text) + 1 > room:
            text = _cut(text, room * 2 // 3)  # rather its beginning and end than nothing of what was done last
        if tokens(text) + 1 > room:
            break
        whole[at] = text
        room -= tokens(text) + 1
    # One line for each of the others: the decisions first, then as many as fit, newest first.
    others = [at for at in places if at not in whole]
    others.sort(key=lambda at: (not _is_decision(places[at].row), -at))
    lines: dict[int, str] = {}
    for at in others:
        line = one_line(places[at].row) + places[at].mark
        if tokens(line) + 1 > room:
            break
        lines[at] = line
        room -= tokens(line) + 1
    total = len(places) + context.unread
    left_out = total - len(whole) - len(lines)
    shortened = [note.format(left_out, total, len(lines))] if len(whole) < total else []
    middle = _in_order(context, asked, {**lines, **whole})
    return _cut("\n".join([head, *shortened, *middle, tail]).rstrip(), budget - 1) + "\n"


def _fitting_texts(texts: list[str], room: int) -> list[str]:
    """The texts, if they fit; otherwise the first and the last, shortened as needed, with the others empty."""
    if not texts or sum(tokens(text) + 1 for text in texts) <= room:
        return texts
    each = max(0, room // min(2, len(texts)) - 2)
    return [_cut(text, each) if at in (0, len(texts) - 1) else "" for at, text in enumerate(texts)]


def _cut(text: str, most: int) -> str:
    """Shortens a text that is too long to its beginning and end, with a mark between."""
    if tokens(text) <= most:
        return text
    mark = "\n[… shortened …]\n"
    room = most * BYTES_PER_TOKEN - len(mark.encode())
    if room <= 0:
        return ""
    data = text.encode("utf-8", "surrogatepass")
    first, last = data[: room * 2 // 3], data[len(data) - room // 3 :]
    # Drop the bytes of a split character instead of replacing them: a replacement may be longer.
    return first.decode("utf-8", "ignore") + mark + last.decode("utf-8", "ignore")


def _head(context: Context) -> str:
    task = context.task
    lines = [f"# Task {task.id}: {task.title or _first_line(context.requests)}", ""]
    facts = [f"status: {task.status}", f"turns: {task.turns}"]
    facts += [f"branch: {task.branch}"] if task.branch else []
    facts += [f"forked from {task.parent}"] if task.parent and "@" in task.parent else []
    lines += [", ".join(facts), ""]
    for name, value in context.memory.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
        lines += [f"## {name.replace('_', ' ').capitalize()}", "", text, ""]
    return "\n".join(lines)


def _first_line(requests: list[str]) -> str:
    return next((line[:100] for request in requests[:1] for line in request.splitlines()), "")


def _tail(store: Source, context: Context, budget: int | None) -> str:
    lines = []
    if context.interrupted:
        lines += ["## Interrupted", ""]
        for place in context.interrupted[-_FEW:]:
            # Do not read what cannot fit.
            fits = budget is None or place.row.length // (2 * BYTES_PER_TOKEN) <= budget
            lines.append(in_words(store, place) if fits else one_line(place.row) + place.mark)
    if context.question is not None and context.question.question is not None:
        lines += ["## Open question", "", context.question.question.text, ""]
        lines += [f"- {choice}" for choice in context.question.question.choices]
    lines += ["## Next", "", _next(context)]
    if context.guidance:
        lines += ["", f"Guidance: {context.guidance}"]
    return "\n".join(lines)


def _next(context: Context) -> str:
    """What to do next, to whoever reads this. Only a task with an arbiter has agents that take turns by a decision."""
    if context.question is not None:
        return "Wait for the answer to the open question."
    if any(place.row.selected or place.row.decision for place in context.conversation):
        return f"{context.next_agent} is next."
    if context.interrupted:
        return "Continue with what was interrupted. What it had begun may be half done: look first."
    if context.task.status in FINISHED:
        return "It is finished. Do what the user asks for next."
    return "Continue with the task."


def in_words(store: Source, place: TurnRef) -> str:
    """One turn as text."""
    turn = store.turn(place.task, place.row.turn, row=place.row)
    state = f" ({turn.status})" if turn.status not in (None, "complete") else ""
    lines = [f"### Turn {turn.number}: {turn.agent}{state}{place.mark}", ""]
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
    """A turn in one line, from its row in the index."""
    damaged = f" [{DAMAGED}]" if row.damaged else ""
    if _is_decision(row):
        what = f"selected {row.selected}" if row.selected else str(row.decision)
        reason = f": {row.reason.splitlines()[0][:200]}" if row.reason else ""
        return f"- turn {row.turn} {row.agent}: {what}{reason}{damaged}"
    tools = f", {counted(row.tool_calls, 'tool call')}" if row.tool_calls else ""
    return f"- turn {row.turn} {row.agent}: {row.status or 'said something'}{tools}{damaged}"


# As data


def as_json(store: Source, context: Context, budget: int | None = None) -> dict[str, Any]:
    """The context as one object. With a budget, it has the newest turns that fit, by the size of their text."""
    share = None if budget is None else budget // 8
    found: dict[str, Any] = {
        "version": VERSION,
        "task": context.task.id,
        "status": context.task.status,
        "title": context.task.title,
        "parent": context.task.parent,
        "requests": _fitting(context.requests, share),
        "said": [{**to_wire(each.said), "before": each.before} for each in context.prompts] if share is None else [],
        "memory": dict(context.memory) if share is None or _size(dict(context.memory)) <= share else {},
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
    return _with_turns(store, context, found, budget, lambda turn: [plain(turn)])


def messages(store: Source, context: Context, budget: int | None = None) -> list[dict[str, Any]]:
    """The conversation as messages for chat APIs, with tool calls and results paired. Exact for turns that kept their
    payload."""
    provider = (context.task.model or "").lower()
    shape = "anthropic" if "claude" in provider else "openai"
    share = None if budget is None else budget // 4
    asked = _fitting([prompt.said.text for prompt in context.prompts], share)
    prompts = context.prompts if len(asked) == len(context.prompts) else [context.prompts[0], context.prompts[-1]]
    system = context.memory.get("system_prompt")
    first = [{"role": "system", "content": system}] if isinstance(system, str) and share is None else []
    spent = _size(first) + _size([{"role": "user", "content": text} for text in asked])
    room = None if budget is None else budget - spent - 40
    said: dict[int, list[dict[str, Any]]] = {}
    left = len(context.conversation) + context.unread
    for at, turn in _newest(store, context, room, lambda turn: of_turn(store, turn, shape)):
        said[at] = turn
        left -= 1
    found = list(first)
    waiting = list(zip(prompts, asked, strict=True))
    told = left == 0
    for at in range(len(context.conversation) + 1):
        while waiting and waiting[0][0].before <= at:
            found.append({"role": "user", "content": waiting.pop(0)[1]})
        if at in said and not told:
            found.append({"role": "user", "content": f"[{left} earlier turns left out to fit the budget]"})
            told = True
        found += said.get(at, [])
    return found


def _fitting(texts: list[str], share: int | None) -> list[str]:
    """The texts, if they fit as JSON; otherwise the first and the last, shortened as needed."""
    if share is None or _size(texts) <= share:
        return texts
    kept = texts if len(texts) <= 2 else [texts[0], texts[-1]]
    most = max(1, share // len(kept) - 4)
    while _size(short := [_cut(text, most) for text in kept]) > share and most > 1:
        most //= 2  # escapes make JSON longer than its text
    return short


def _with_turns(
    store: Source, context: Context, found: dict[str, Any], budget: int | None, shown: Callable[[Turn], list[Any]]
) -> dict[str, Any]:
    room = None if budget is None else budget - _size(found) - _size({"omitted": 10**9, "turns": []})
    if room is not None and room < 0 and "decisions" in found:
        # There are too many decisions: keep the newest.
        while found["decisions"] and room < 0:
            room += _size(found["decisions"].pop(0))
    chosen = [items for _, items in _newest(store, context, room, shown)][::-1]
    left = len(context.conversation) + context.unread - len(chosen)
    turns = [item for items in chosen for item in items]
    return {**found, "turns": turns, **({"omitted": left} if left else {})}


def _newest(
    store: Source, context: Context, room: int | None, shown: Callable[[Turn], list[Any]]
) -> Iterator[tuple[int, list[Any]]]:
    """Yields the position and the output of each turn, newest first, while there is room."""
    places = context.conversation
    for at in range(len(places) - 1, -1, -1):
        place = places[at]
        if room is not None and place.row.length // (4 * BYTES_PER_TOKEN) > max(room, 0):
            return
        items = shown(store.turn(place.task, place.row.turn, row=place.row))
        if room is not None:
            size = tokens(json.dumps(items))
            if size > room:
                return
            room -= size
        yield at, items


def _size(value: Any) -> int:
    return tokens(json.dumps(value))
