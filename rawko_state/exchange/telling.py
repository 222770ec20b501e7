"""Tells a tool call in one line: ``Edit auth/sso.rs  +12 −3``, ``$ cargo test auth  → exit 0, 3.1s``.

Every agent has its own names for the same few things. The result is plain data: the terminal, Markdown, the HTML export and
the page in the browser all show calls in the same words. It says only what the record proves: an exit code or a duration that is
not recorded is left out.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from rawko_state.exchange.tool_output import unwrapped
from rawko_state.format.diffs import BEFORE_UNKNOWN
from rawko_state.format.fair_json import shallow
from rawko_state.format.figures import changes_text, counted, size_text, took
from rawko_state.late import late
from rawko_state.model.entries import Diff, ToolCall, Turn, own_diffs, touched

EDIT: Final = "edit"
READ: Final = "read"
RUN: Final = "run"
SEARCH: Final = "search"
WEB: Final = "web"
AGENT: Final = "agent"
PLAN: Final = "plan"
OTHER: Final = "other"
FAMILIES: Final = (EDIT, READ, RUN, SEARCH, WEB, AGENT, PLAN, OTHER)

OK: Final = "ok"
FAILED: Final = "failed"
UNKNOWN: Final = "unknown"

NO_RESULT: Final = "no result recorded; it may have run"

# Names in lower case, without "_", "-", "." and " ". One row for each thing that agents do.
_NAMES: Final[tuple[tuple[str, str, str], ...]] = (
    (EDIT, "Edit", "edit multiedit notebookedit editor replace applypatch patch strreplace strreplaceeditor editfile editnotebook"
     " strreplacebasededittool replaceinfile applydiff filechange insertcontent searchandreplace smartedit filesystemedit"),
    (EDIT, "Write", "write writefile create createfile writetofile filesystemwrite filesystemcreate newfile savefile"),
    (EDIT, "Delete", "delete deletefile removefile rm filesystemdelete filesystemremove"),
    (EDIT, "Move", "move movefile rename renamefile filesystemmove filesystemrename"),
    (READ, "Read", "read readfile readfiles readmanyfiles view viewfile viewimage notebookread filesystemread openfile cat"
     " readmcpresource getfile"),
    (READ, "List", "ls list listfiles listdir listdirectory readfolder filesystemlist listmcpresources"),
    (RUN, "$", "bash shell shellexec exec execcommand localshell localshellcall runshellcommand runcommand runcommands"
     " executecommand commandexecution containerexec powershell terminal terminalexec processrun processexec python"
     " runinterminal sh zsh shellrun"),
    (RUN, "Output of", "bashoutput taskoutput readbash getterminaloutput writestdin writebash"),
    (RUN, "Stop", "killshell killbash taskstop stopbash"),
    (SEARCH, "Search", "grep search searchfilecontent grepsearch searchfiles codebasesearch searchcode filesystemsearch rg"
     " codesearch toolsearch searchtext lsp"),
    (SEARCH, "Find", "glob find findfiles filesearch globsearch listcodedefinitionnames filesystemfind filesystemglob"),
    (WEB, "Fetch", "webfetch fetch fetchurl fetchwebcontent urlfetch httpget httprequest browseraction openurl webopen"),
    (WEB, "Web search", "websearch googlewebsearch searchweb websearchcall webquery"),
    (AGENT, "Agent", "task agent spawnagent subagent delegate newtask usesubagents codebaseinvestigator runsubagent"
     " sendmessage sendinput waitagent wait resumeagent closeagent teammate"),
    (PLAN, "Plan", "todowrite todoread todo todos updateplan writetodos taskcreate taskupdate tasklist taskget exitplanmode"
     " enterplanmode planmoderespond updatetodolist reportintent focuschain todolist plan"),
    (OTHER, "Commit", "gitcommit commit"),
    (OTHER, "Ask", "askuserquestion askfollowupquestion askuser question requestuserinput"),
    (OTHER, "Skill", "skill useskill activateskill"),
    (OTHER, "Remember", "memory savememory remember"),
    (OTHER, "Result", "result"),
)  # fmt: skip
_KNOWN: Final = {name: (family, verb) for family, verb, names in _NAMES for name in names.split()}

_SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    EDIT: ("file_path", "filePath", "path", "notebook_path", "absolute_path", "filename", "file", "target_file"),
    READ: ("file_path", "filePath", "path", "absolute_path", "notebook_path", "dir_path", "paths", "files", "uri"),
    RUN: ("command", "cmd", "commands", "script", "code", "bash_id", "shell_id", "task_id", "session_id"),
    SEARCH: ("pattern", "query", "regex", "search", "symbol"),
    WEB: ("url", "query", "prompt", "urls"),
    AGENT: ("description", "task", "message", "prompt", "objective", "id"),
    PLAN: ("subject", "content", "intent", "plan", "description"),
    OTHER: ("command", "file_path", "path", "pattern", "query", "url", "question", "skill", "description", "prompt"),
}
_FAILED_WORDS: Final = late(r"(?:error|fail|denied|rejected|refused|cancel|abort|timed? ?out)", re.IGNORECASE)
_EXIT = late(r"exit(?:ed)?(?: with)?(?: code| status)?:? ?(-?[0-9]{1,10})", re.IGNORECASE)
_SIZE = late(r"([0-9]{1,15}) bytes?")
_SHELL = late(r"(?:/\S*/)?(?:ba|z|da|k)?sh -l?c (.*)", re.DOTALL)
_PATCHED = late(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)
_SCRIPTED = late(r'exec_command\(\{\s*"?cmd"?:\s*("(?:[^"\\]|\\.){0,4000}")')
_FOUND = late(r"Found ([0-9]{1,9}) (?:matching )?(match|file|result|line)")
_NOTHING = late(r"No (?:matches|files|results)\b")
_REJECTED: Final = (
    "The user doesn't want to proceed with this tool use",
    "[Operation Cancelled] Reason: User cancelled",
)
_PYTEST = late(
    r"=* ?(?:[0-9]+ (?:failed|passed|skipped|errors?|xfailed|xpassed|deselected|warnings?|rerun)(?:, )?)+ in [0-9.]+s.{0,30}"
)
_CARGO = late(r"test result: \w+\. [0-9]+ passed; [0-9]+ failed")
_JEST = late(r"Tests:\s+(?:[0-9]+ (?:failed|passed|skipped|todo), )+[0-9]+ total")
_COUNTED = late(r"([0-9]+) (passed|failed|error)")
_STOPPED = late(r"(?:Wall time:? [0-9.]+ seconds\s+)?aborted by user|exec_command failed")
_LONGEST: Final = 4000


class Telling(NamedTuple):
    """What a tool call did, in the words of one line. All texts are untrusted: escape them for where they are shown."""

    family: str
    """One of FAMILIES."""
    verb: str
    """``Edit``, ``Read``, ``$`` for a command, or the tool's own name if it is not known."""
    subject: str
    """A path relative to the project, a command, a pattern, a URL; on one line."""
    detail: str
    """``+12 −3``, ``exit 0, 3.1s``, ``24 lines``, ``error: No such file``; empty if there is nothing to say."""
    outcome: str
    """``ok``: it has a result, and nothing in it says that it failed. ``failed``. ``unknown``: no result was recorded."""
    output: str
    """What the tool gave, without what the agent wrapped it in. Empty if it is kept apart, see ``ToolCall.blob``."""
    diffs: tuple[Diff, ...] = ()
    exit_code: int | None = None
    duration_ms: int | None = None
    command: str | None = None
    """The whole command, with its line breaks, if the subject shows only its start."""

    @property
    def failed(self) -> bool:
        return self.outcome == FAILED

    @property
    def added(self) -> int:
        return sum(diff.added for diff in self.diffs)

    @property
    def removed(self) -> int:
        return sum(diff.removed for diff in self.diffs)

    @property
    def line(self) -> str:
        """All of it as one line of text."""
        return f"{self.head}{self.mark}{self.detail}"

    @property
    def head(self) -> str:
        return f"{self.verb} {self.subject}" if self.subject else self.verb

    @property
    def mark(self) -> str:
        """What stands between the head and the detail."""
        if not self.detail:
            return ""
        if self.outcome != OK or self.family == RUN:
            return "  → "
        return "  " if self.diffs else " · "


def tell(call: ToolCall, turn: Turn | None = None, *, within: str | None = None) -> Telling:
    """``turn``: the one it belongs to, for its diffs and its files. ``within``: the project's folder, or the one that the task
    ran in; paths in it are shown relative to it."""
    own = tuple(own_diffs(call, turn.diffs)) if turn is not None else ()
    family, verb = _kind(call.tool)
    given = _given(call)
    got = unwrapped(call.output or "", failed=_is_error(call), ran=family == RUN)
    exit_code = _number(call.more, "exit_code", "exit") if got.exit_code is None else got.exit_code
    exit_code = _exit_in(call.result) if exit_code is None else exit_code
    duration = _number(call.more, "duration_ms")
    duration = got.duration_ms if duration is None else duration
    outcome = _outcome(call, exit_code)
    subject = _subject(family, call, given)
    if family == RUN and (own or "apply_patch" in subject[:200]) and "*** Begin Patch" in subject:
        family, verb = EDIT, "Edit"
    command = None
    if family == EDIT:
        verb, subject = _edited(verb, subject, own)
    elif family == RUN:
        command = subject = _command(subject)
    elif family == PLAN:
        subject = _planned(given) or subject
    if family in (READ, EDIT) and not own:
        subject = _relative(subject, turn, within)
    elif family == SEARCH and subject and verb == "Search" and not subject.startswith('"'):
        subject = f'"{subject}"'
    flat = _one_line(subject)
    detail = _detail(family, verb, call, own, outcome, got.text, exit_code, duration)
    return Telling(
        family, verb, flat, detail, outcome, got.text, own, exit_code, duration, command if command != flat else None
    )


def tell_edit(diff: Diff) -> Telling:
    """A change that no tool call of its turn made."""
    verb, subject = _edited("Edit", "", (diff,))
    return Telling(EDIT, verb, _one_line(subject), _changes(verb, (diff,)), OK, "", (diff,))


def _changes(verb: str, diffs: Sequence[Diff]) -> str:
    added, removed = sum(diff.added for diff in diffs), sum(diff.removed for diff in diffs)
    return changes_text(added, None if verb == "Write" and not removed else removed)


def _kind(tool: str) -> tuple[str, str]:
    name = re.sub(r"[\s_.-]", "", tool).lower()
    found = _KNOWN.get(name)
    if found is not None:
        return found
    if tool.startswith("mcp__"):  # mcp__server__tool
        server, _, inner = tool.removeprefix("mcp__").partition("__")
        return OTHER, f"{server}: {inner}" if inner else server
    return OTHER, _one_line(tool) or "Tool"


def _given(call: ToolCall) -> Mapping[str, Any]:
    """The arguments as data, if they were recorded so."""
    given = call.more.get("input")
    if isinstance(given, dict):
        return given
    if call.args.startswith("{"):
        try:
            found = json.loads(shallow(call.args))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
    return {}


def _subject(family: str, call: ToolCall, given: Mapping[str, Any]) -> str:
    """The arguments as the record gives them; if they are JSON, the one that matters."""
    if call.args and not call.args.startswith("{"):
        return call.args[:_LONGEST]
    for name in _SUBJECTS[family]:
        value = given.get(name)
        if isinstance(value, str) and value:
            return value[:_LONGEST]
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return ("\n" if family == RUN else " ").join(value)[:_LONGEST]
    return "" if family == PLAN and given else call.args[:_LONGEST]


def _edited(verb: str, subject: str, own: Sequence[Diff]) -> tuple[str, str]:
    """The verb and the files of an edit, from its diffs, else from the patch that was asked for."""
    if own:
        paths = list(dict.fromkeys(diff.path or "" for diff in own))
        if all(diff.new is None for diff in own):
            verb = "Delete"
        elif all(diff.old is None or is_overwritten(diff) for diff in own):
            verb = "Write"
        elif len(own) == 1 and own[0].old != own[0].new and own[0].old is not None:
            return "Move", f"{own[0].old} → {own[0].new}"
        else:
            verb = "Edit"
        return verb, _several(paths)
    patched = _PATCHED.findall(subject) or _PATCHED.findall(subject.replace("\\n", "\n"))
    if patched:
        kinds = {kind for kind, _ in patched}
        verb = {"Add": "Write", "Delete": "Delete"}.get(kinds.pop(), "Edit") if len(kinds) == 1 else "Edit"
        return verb, _several([path.strip() for _, path in patched])
    return verb, subject


def is_overwritten(diff: Diff) -> bool:
    return BEFORE_UNKNOWN in diff.hunks.partition("\n")[0]


def _several(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {counted(len(paths) - 1, 'more file')}"


def _command(text: str) -> str:
    scripted = _SCRIPTED.search(text)
    if scripted is not None:  # Codex can run commands through a script
        with contextlib.suppress(ValueError):
            text = str(json.loads(scripted[1]))
    shell = _SHELL.fullmatch(text)
    text = (shell[1] if shell is not None else text).strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]
    return text[1:-1] if quoted else text


def _planned(given: Mapping[str, Any]) -> str:
    for name in ("todos", "plan", "items", "steps"):
        steps = given.get(name)
        if isinstance(steps, list) and steps and all(isinstance(step, dict) for step in steps):
            done = sum(step.get("status") in ("completed", "done") for step in steps)
            return f"{done} of {counted(len(steps), 'step')} done"
    return ""


def _relative(path: str, turn: Turn | None, within: str | None) -> str:
    """A path as the project knows it: the record names the files of a turn relative to the project."""
    for file in touched(turn) if turn is not None else ():
        if path == file.path or path.endswith(f"/{file.path}"):
            return file.path
    return path.removeprefix(within.rstrip("/") + "/") if within else path


# The outcome


def _is_error(call: ToolCall) -> bool:
    if call.more.get("error") or call.more.get("is_error"):
        return True
    if call.output and _STOPPED.match(call.output):  # Codex
        return True
    result = call.result
    return result is not None and len(result) < 200 and _FAILED_WORDS.match(result) is not None


def _outcome(call: ToolCall, exit_code: int | None) -> str:
    if call.more.get("unfinished") is True:
        return UNKNOWN
    if _is_error(call) or exit_code not in (None, 0):
        return FAILED
    return OK if call.result is not None or exit_code == 0 else UNKNOWN


def _exit_in(result: str | None) -> int | None:
    match = _EXIT.fullmatch(result.strip()) if result is not None and len(result) < 60 else None
    return int(match[1]) if match else None


def _number(more: Mapping[str, Any], *names: str) -> int | None:
    return next((more[name] for name in names if type(more.get(name)) is int), None)


def _detail(
    family: str,
    verb: str,
    call: ToolCall,
    own: Sequence[Diff],
    outcome: str,
    output: str,
    exit_code: int | None,
    duration: int | None,
) -> str:
    if outcome == UNKNOWN:
        return NO_RESULT
    facts: list[str] = []
    tests = _tests(output) if family == RUN else ""
    if family == RUN and exit_code is not None:
        facts += [tests] if tests and not exit_code else [f"exit {exit_code}", tests]
    elif outcome == FAILED:
        facts.append(_error(call, output, last=family == RUN))
    elif own:
        facts.append(_changes(verb, own))
    else:
        facts.append(tests or _result(family, call, output))
    if duration:
        facts.append(took(duration))
    return ", ".join(fact for fact in facts if fact)


def _tests(output: str) -> str:
    """How many tests failed or else passed, by the last lines of pytest, cargo test or jest."""
    counts = {"passed": 0, "failed": 0}
    for line in output[-4000:].splitlines()[-40:]:
        found = _PYTEST.fullmatch(line.strip()) or _CARGO.match(line) or _JEST.fullmatch(line)
        if found is None:
            continue
        if not line.startswith("test result"):  # cargo says it for each of its parts
            counts = {"passed": 0, "failed": 0}
        for number, word in _COUNTED.findall(found[0]):
            counts["passed" if word == "passed" else "failed"] += int(number)
    word = "failed" if counts["failed"] else "passed"
    return f"{counts[word]:,} {word}" if counts[word] else ""


def _error(call: ToolCall, output: str, *, last: bool) -> str:
    """What went wrong, in one line. Commands say it last (``last``), other tools first."""
    said = call.more.get("error")
    text = said if isinstance(said, str) else output
    lines = (text[-2000:] if last else text[:2000]).split("\n")
    told = [line.strip() for line in lines if line.strip() and "Wall time" not in line]
    first = "" if not told else told[-1] if last and not told[0].startswith(_REJECTED) else told[0]
    result = _one_line(call.result or "")
    result = "" if _SIZE.fullmatch(result) else result
    if not first:
        return result or "error"
    if first.startswith(_REJECTED):
        return "rejected by the user"
    return f"error: {_cut(first)}" if result in ("", "error") else _cut(f"{result}: {first}")


def _result(family: str, call: ToolCall, output: str) -> str:
    """What a call gave, where one fact tells it."""
    result = _one_line(call.result or "")
    size = _SIZE.fullmatch(result)
    if family == SEARCH and output:
        found = _FOUND.match(output[:200])
        if found is not None:
            return counted(int(found[1]), found[2], "matches" if found[2] == "match" else None)
        return "no matches" if _NOTHING.match(output) else counted(_lines(output), "line")
    if family == READ and output:
        return counted(_lines(output), "line")
    if size is not None:
        # The length of an answer in words tells nobody anything; that of a file does.
        told = family in (READ, SEARCH, WEB) or (family == EDIT and not output and call.blob is None)
        return size_text(int(size[1])) if told else ""
    return "" if result.lower() in ("ok", "done", "success", "") else _cut(result)


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _cut(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _one_line(text: str) -> str:
    return " ".join(text[:_LONGEST].split())
