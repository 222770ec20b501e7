"""The line formats of sections: tool log, progress and files. Each item is one line, with optional lines indented under it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rawko_state.errors import InvalidValue
from rawko_state.format.text import quote, unquote
from rawko_state.format.values import read_json, write_json
from rawko_state.late import late
from rawko_state.model.entries import Blob, FileTouch, Progress, ToolCall

NO_TIME = "--:--:--"
_TIMED = late(r"([0-9]{2}:[0-9]{2}:[0-9]{2}|--:--:--) (\S+)(?: (.*))?")
_BLOB = late(r"([0-9a-f]{64}) ([0-9]{1,15}) bytes")
_FILE = late(r"(read|write|delete) (.+)")
_JSON, _TEXT, _AT = "    = ", "    | ", "    @ "
_LONG_LINE = 2_000
_SHOWN = 500
_SPACE_OR_NOT = late(r"[\s\x00]+|[^\s\x00]{1,500}")
_RESERVED = frozenset({"tool", "args", "result", "output", "time"})


def emit_tools(calls: Sequence[ToolCall | str]) -> str:
    lines: list[str] = []
    for call in calls:
        lines.extend([call] if isinstance(call, str) else _tool_lines(call))
    return "\n".join(lines)


def _tool_lines(call: ToolCall) -> list[str]:
    shown = f"{call.time or NO_TIME} {call.tool}"
    if call.args:
        shown += f" {call.args}"
    if call.result is not None:
        shown += f" -> {call.result}"
    data: dict[str, Any] = {}
    exact = len(shown) <= _LONG_LINE and _split_tool(shown) == (call.time, call.tool, call.args, call.result)
    if not exact or not call.tool:
        shown = _tool_line(call)
        data.update(tool=call.tool, args=call.args, result=call.result)
        if call.time is not None and _split_tool(shown)[0] != call.time:
            data["time"] = call.time
    inline = call.output
    if inline is not None and "\x00" in inline:
        data["output"], inline = inline, None
    if not _RESERVED.isdisjoint(call.more):
        raise InvalidValue(
            f"A tool call's further data can't contain {', '.join(sorted(_RESERVED & call.more.keys()))}"
        )
    data.update(call.more)
    lines = [shown]
    if data:
        lines.append(_JSON + write_json(data))
    if inline is not None:
        lines.extend(_TEXT + line for line in inline.split("\n"))
    if call.blob is not None:
        lines.append(f"{_AT}{call.blob.sha256} {call.blob.size} bytes")
    return lines


def _tool_line(call: ToolCall) -> str:
    """The readable line; shortened to fit one line where the values do not."""
    time = call.time if call.time and _TIMED.fullmatch(f"{call.time} x") else NO_TIME
    line = f"{time} {_one_line(call.tool, '_') or '-'}"
    if call.args:
        line += f" {_one_line(call.args)}"
    if call.result is not None:
        line += f" -> {_one_line(call.result)}"
    return line


def _one_line(text: str, space: str = " ") -> str:
    """Text on a single line, for people; the JSON line has what it leaves out. Looks at no more of it than it shows."""
    if space == " " and "\n" not in text and "\x00" not in text:
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    pieces, size = [], 0
    for match in _SPACE_OR_NOT.finditer(text):
        piece = match[0]
        pieces.append(space if piece[0].isspace() or piece[0] == "\x00" else piece)
        size += len(pieces[-1])
        if size > _SHOWN:
            break
    flat = "".join(pieces)
    return flat if size <= _SHOWN else flat[: _SHOWN - 1] + "…"


def _split_tool(line: str) -> tuple[str | None, str, str, str | None]:
    match = _TIMED.fullmatch(line)
    if match is None:
        return None, "", "", None
    time, tool, rest = match[1], match[2], match[3] or ""
    args, arrow, result = rest.rpartition(" -> ")
    if not arrow and rest.startswith("-> "):
        args, arrow, result = "", "-> ", rest[3:]
    if not arrow:
        args, result = rest, ""
    return (None if time == NO_TIME else time), tool, args, result if arrow else None


def parse_tools(text: str) -> tuple[ToolCall | str, ...]:
    calls: list[ToolCall | str] = []
    for line, under in _grouped(text):
        call = _parse_tool(line, under)
        calls.extend([line, *under] if call is None else [call])
    return tuple(calls)


def _parse_tool(line: str, under: Sequence[str]) -> ToolCall | None:
    """None if the lines under it do not have the right form; then the caller keeps all of them as they are."""
    time, tool, args, result = _split_tool(line)
    if not tool:
        return None
    if not under:
        return ToolCall(tool, args, result, time)
    rest = list(under)
    more: Mapping[str, Any] = {}
    if rest and rest[0].startswith(_JSON):
        data = _json_object(rest.pop(0)[len(_JSON) :])
        if data is None:
            return None
        tool, args, result = data.pop("tool", tool), data.pop("args", args), data.pop("result", result)
        time = data.pop("time", time)
        output = data.pop("output", None)
        if not _are_text((tool, args), (result, time, output)):
            return None
        more = data
    else:
        output = None
    blob = None
    if rest and rest[-1].startswith(_AT):
        match = _BLOB.fullmatch(rest.pop()[len(_AT) :])
        if match is None:
            return None
        blob = Blob(match[1], int(match[2]))
    if rest:
        if not all(line.startswith(_TEXT) for line in rest):
            return None
        output = "\n".join(line[len(_TEXT) :] for line in rest)
    return ToolCall(tool, args, result, time, output, blob, more)


def _json_object(text: str) -> dict[str, Any] | None:
    data = read_json(text)
    return data if isinstance(data, dict) else None


def _are_text(required: Iterable[object], optional: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in required) and all(
        value is None or isinstance(value, str) for value in optional
    )


def _grouped(text: str) -> Iterable[tuple[str, list[str]]]:
    """Yields each timed line with the lines indented under it, and other lines alone."""
    opener: str | None = None
    under: list[str] = []
    for line in text.split("\n"):
        if opener is not None and line.startswith("    "):
            under.append(line)
            continue
        if opener is not None:
            yield opener, under
        if _TIMED.fullmatch(line):
            opener, under = line, []
        else:
            opener = None
            yield line, []
    if opener is not None:
        yield opener, under


def emit_progress(steps: Sequence[Progress | str]) -> str:
    lines: list[str] = []
    for step in steps:
        if isinstance(step, str):
            lines.append(step)
            continue
        first, *more = step.text.split("\n")
        line = f"{step.time or NO_TIME} {step.kind}" + (f" {first}" if first else "")
        match = _TIMED.fullmatch(line)
        if match is None or match[2] != step.kind:
            raise InvalidValue(f"A progress step needs a kind without spaces and a time HH:MM:SS, not {line[:100]!r}.")
        lines.append(line)
        lines.extend(_TEXT + line for line in more)
    return "\n".join(lines)


def parse_progress(text: str) -> tuple[Progress | str, ...]:
    steps: list[Progress | str] = []
    for line, under in _grouped(text):
        match = _TIMED.fullmatch(line)
        if match is None or not all(more.startswith(_TEXT) for more in under):
            steps.extend([line, *under])
            continue
        time = None if match[1] == NO_TIME else match[1]
        words = "\n".join([match[3] or "", *(more[len(_TEXT) :] for more in under)])
        steps.append(Progress(words, match[2], time))
    return tuple(steps)


def emit_files(files: Sequence[FileTouch | str]) -> str:
    for file in files:
        if isinstance(file, FileTouch) and file.operation not in ("read", "write", "delete"):
            raise InvalidValue(f"Not a file operation: {file.operation!r}. Use read, write or delete.")
    return "\n".join(f if isinstance(f, str) else f"{f.operation} {quote(f.path)}" for f in files)


def parse_files(text: str) -> tuple[FileTouch | str, ...]:
    found: list[FileTouch | str] = []
    for line in text.split("\n"):
        match = _FILE.fullmatch(line)
        found.append(FileTouch(match[1], unquote(match[2])) if match else line)
    return tuple(found)
