"""Drafts: the content of a live turn so far, one JSON object per line.

A turn becomes one record when it ends. Until then its text, tool calls and progress are here, flushed as they arrive, so that
a killed process loses none of them. The next writer turns a leftover draft into an interrupted turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Protocol

from rawko_state.errors import InvalidValue
from rawko_state.format.values import read_time, write_time
from rawko_state.model.entries import Diff, FileTouch, Progress, ToolCall, Turn
from rawko_state.model.frozen import replace

MAY_HAVE_RUN = "may have run"


@dataclass(slots=True)
class DraftContent:
    """The content of a draft."""

    agent: str
    started: datetime
    since: int
    """Where the file ended when the turn began. If the turn was completed, its record comes after that."""
    seal: str
    fields: dict[str, Any] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    tools: list[ToolCall] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    """Tool calls without a result yet: key, and index in ``tools``."""
    keys: dict[str, int] = field(default_factory=dict)
    """All tool calls that have a key."""
    outputs: dict[str, list[str]] = field(default_factory=dict)
    """The outputs of running tool calls so far, by their keys."""
    thoughts: list[str] = field(default_factory=list)
    diffs: list[Diff] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    files: list[FileTouch] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Applies one line of a draft. Live turns and recovery both use this, so their results agree."""
        kind = event.get("kind")
        if kind == "text":
            self.text.append(str(event["text"]))
        elif kind == "tool":
            more = dict(event.get("more") or {})
            call = ToolCall(
                str(event["tool"]), str(event.get("args", "")), event.get("result"), event.get("time"), event.get("output"),
                None, more,
            )  # fmt: skip
            if event.get("open"):
                self.running[str(event["key"])] = self.keys[str(event["key"])] = len(self.tools)
            self.tools.append(call)
        elif kind == "tool_end":
            at = self.running.pop(str(event["key"]), None)
            if at is not None:
                call, streamed = self.tools[at], self.outputs.pop(str(event["key"]), None)
                output = event.get("output")
                if output is None and streamed is not None:
                    output = "".join(streamed)
                self.tools[at] = ToolCall(
                    call.tool, call.args, event.get("result"), call.time, output, None,
                    {**call.more, **(event.get("more") or {})},
                )  # fmt: skip
        elif kind == "tool_output":
            if str(event["key"]) in self.running:
                self.outputs.setdefault(str(event["key"]), []).append(str(event["text"]))
        elif kind == "progress":
            self.progress.append(Progress(str(event["text"]), str(event.get("of", "progress")), event.get("time")))
        elif kind == "think":
            self.thoughts.append(str(event["text"]))
        elif kind == "edit":
            self._edit(event)
        elif kind == "file":
            self.files.append(FileTouch(str(event["operation"]), str(event["path"])))

    def _edit(self, event: dict[str, Any]) -> None:
        self.diffs.append(
            Diff(event["old"], event["new"], str(event["hunks"]), None, int(event["added"]), int(event["removed"]))
        )
        at = self.keys.get(str(event.get("key")))
        if at is not None:
            call = self.tools[at]
            self.tools[at] = replace(call, more=with_diffs(call.more, [len(self.diffs)]))

    def interrupted(self, number: int) -> Turn:
        """The turn to record if its writer died."""
        tools = list(self.tools)
        for key, at in self.running.items():
            call = tools[at]
            output = "".join(self.outputs[key]) if key in self.outputs else call.output
            tools[at] = ToolCall(
                call.tool, call.args, MAY_HAVE_RUN, call.time, output, None, {**call.more, "unfinished": True}
            )
        return Turn(
            number=number,
            agent=self.agent,
            status="interrupted",
            started=self.started,
            model=self.fields.get("model"),
            tool_calls=len(tools) or None,
            thinking="".join(self.thoughts) if self.thoughts else None,
            content="".join(self.text) if self.text else None,
            tools=tuple(tools),
            diffs=tuple(self.diffs),
            progress=tuple(self.progress),
            files=tuple(self.files),
        )


def with_diffs(more: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """A tool call's further data, with the numbers of the diffs that are its own."""
    before = more.get("diff", [])
    own = [*(before if isinstance(before, list) else [before]), *numbers]
    return {**more, "diff": own[0] if len(own) == 1 else own}


class Sink(Protocol):
    """The destination of a draft's lines."""

    def write(self, data: bytes, *, durable: bool) -> None: ...

    def discard(self) -> None: ...

    def leave(self) -> None: ...


class Draft:
    """The draft of a running turn, open for writing."""

    def __init__(self, sink: Sink, agent: str, since: int, seal: str, fields: dict[str, Any], durable: bool) -> None:
        self.content = DraftContent(agent, datetime.now(timezone.utc), since, seal, fields)
        self._sink = sink
        head = {"agent": agent, "started": write_time(self.content.started), "since": since, "seal": seal}
        self._line({**head, "fields": fields}, durable=durable)

    def add(self, event: dict[str, Any], *, durable: bool = False) -> None:
        """Applies an event and flushes it. With ``durable``, it survives a power cut too."""
        self._line(event, durable=durable)
        self.content.take(event)

    def _line(self, value: dict[str, Any], *, durable: bool) -> None:
        try:
            data = json.dumps(value, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValue(f"Not a JSON value: {error}.") from None
        self._sink.write(data, durable=durable)

    def discard(self) -> None:
        """Deletes the draft, once its turn is in the task file."""
        self._sink.discard()

    def leave(self) -> None:
        """Closes the draft and keeps it for the next writer."""
        self._sink.leave()


def draft_content(lines: Iterable[bytes]) -> DraftContent | None:
    """Parses the lines of a draft. Skips a torn last line. None if the draft has no readable head."""
    content: DraftContent | None = None
    for line in lines:
        try:
            event = json.loads(line)
            if content is None:
                started = read_time(event["started"]) or datetime.now(timezone.utc)
                fields = dict(event.get("fields") or {})
                content = DraftContent(event["agent"], started, int(event["since"]), str(event["seal"]), fields)
            else:
                content.take(event)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return content
