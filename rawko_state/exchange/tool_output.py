"""What a tool gave, without what an agent wrapped it in: exit code and duration, headings, tags.

Agents hand the output of a command to their model inside text of their own. Only the places are read where the agent writes,
so that a program's output cannot say what its exit code was.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rawko_state.late import late

_HEAD = late(
    r"Chunk ID: \S+|Wall time:? ([0-9.]{1,12}) seconds|Process exited with code (-?[0-9]{1,10})|Exit code: (-?[0-9]{1,10})"
    r"|Process running with session ID \S+|Original token count: [0-9]+|Total output lines: [0-9]+|Script (?:completed|failed)"
)
_FOOT = late(
    r"Error: .*|Exit Code: (-?[0-9]{1,10}|\(none\))|Signal: .*|Process Group PGID: .*|Background PIDs: .*|</untrusted_context>"
)
_SHELL_ID = late(r"\n?<[^<>\n]{0,80}with exit code (-?[0-9]{1,10})>\s*\Z")
_EXITED_FIRST = late(
    r"(?:\[Command exited with code (-?[0-9]{1,10})\]|Exit code (-?[0-9]{1,10}))(?:\n+(?:\[stderr\]\n)?|\Z)"
)
_EXITED_LAST = late(r"\n*Command exited with code (-?[0-9]{1,10})\s*\Z")
_CONTENT = late(
    r"<path>[^\n]*</path>\n<type>[^\n]*</type>\n<content>\n(.*?)(?:\n\n\([^\n]*\))?\n?</content>\s*\Z", re.DOTALL
)
_TAGGED = late(r"(?:<task [^>\n]*>\s*)?<(tool_use_error|task_result)>\s*(.*?)\s*</\1>\s*(?:</task>\s*)?\Z", re.DOTALL)
_SUB_AGENT = late(r"\nagentId: \w+ \(use .*\Z", re.DOTALL)
_SILENT = ("(Bash completed with no output)", "(no output)", "<system>Tool ran without output or errors</system>")
_MOST_FEET = 8


class Got(NamedTuple):
    text: str
    exit_code: int | None = None
    duration_ms: int | None = None


def unwrapped(output: str, *, failed: bool = False, ran: bool = False) -> Got:
    """``failed``: the call's result says so. ``ran``: it was a command."""
    if not output:
        return Got("")
    if (headed := _headed(output)) is not None:
        return headed
    if ran:
        return _of_command(output, failed)
    if (match := _CONTENT.match(output)) or (match := _TAGGED.match(output)):
        return Got(match[match.lastindex or 1])
    found = _SUB_AGENT.search(output, max(0, len(output) - 2000))
    return Got(output[: found.start()] if found else output)


def _headed(output: str) -> Got | None:
    """Codex: lines about the command, then ``Output:``."""
    head, found, _ = output[:600].partition("\nOutput:\n")
    lines = head.split("\n")
    if not found or not all(_HEAD.fullmatch(line) for line in lines):
        return None
    code = duration = None
    for line in lines:
        match = _HEAD.fullmatch(line)
        assert match is not None
        if match[1] and match[1].count(".") <= 1 and match[1] != ".":
            duration = round(float(match[1]) * 1000)
        if match[2] or match[3]:
            code = int(match[2] or match[3])
    return Got(output[len(head) + len(found) :].lstrip("\n"), code, duration)


def _of_command(output: str, failed: bool) -> Got:
    if output.strip() in _SILENT:
        return Got("")
    if match := _SHELL_ID.search(output, max(0, len(output) - 200)):
        return Got(output[: match.start()], int(match[1]))
    if failed and (match := _EXITED_FIRST.match(output)):
        return Got(output[match.end() :], int(match[1] or match[2]))
    if failed and (match := _EXITED_LAST.search(output, max(0, len(output) - 200))):
        return Got(output[: match.start()], int(match[1]))
    footed = _footed(output)
    return footed if footed is not None else Got(output)


def _footed(output: str) -> Got | None:
    """Gemini and Qwen: ``Output: …``, then lines about how it ended."""
    body = output.removeprefix("<untrusted_context>\n")
    if body.startswith("Command: "):
        start = body.find("\nOutput: ")
        body = body[start + 1 :] if 0 <= start < 20_000 else ""
    if not body.startswith("Output: "):
        return None
    body, code = body.removeprefix("Output: ").rstrip("\n"), None
    for _ in range(_MOST_FEET):
        rest, _, line = body.rpartition("\n")
        match = _FOOT.fullmatch(line)
        if match is None:
            break
        if code is None and match[1] and match[1] != "(none)":
            code = int(match[1])
        body = rest
    return Got("" if body == "(empty)" else body, code)
