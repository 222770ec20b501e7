"""aider: ``.aider.chat.history.md`` in the repository, with each session under ``# aider chat started at …``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from rawko_state.exchange.transcript import Call, Output, Session, Step, Trouble, dollars
from rawko_state.format.diffs import compared, overwritten, positionless, replacement
from rawko_state.model.entries import Diff

NAME: Final = ".aider.chat.history.md"
INPUTS: Final = ".aider.input.history"
_START = re.compile(r"# aider chat started at (.+?)\s*")
_ERROR = re.compile(r"> ((?:litellm\.\w*(?:Error|Exception)|The API provider|Error:).*)")
_EDITED = re.compile(r"> Applied edit to (.+)")
_MODEL = re.compile(r"> (?:Main model|Model): (\S+)")
_COMMIT = re.compile(r"> Commit ([0-9a-f]{7,40}) (.*)", re.DOTALL)
_COST = re.compile(r"Cost: \$([0-9.]+) message")
_TOKENS = re.compile(r"> Tokens: ([\d.,k]+) sent, (?:[\d.,k]+ cache [a-z]+, )*([\d.,k]+) received")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in paths or [root]:
        file = path / NAME if path.is_dir() else path
        if not file.is_file():
            if paths:
                wrong.append(Trouble(path, f"There is no {NAME} here."))
            continue
        begun: Counter[str] = Counter()
        for start, title in _starts(file):
            # Not by its number in the file: people delete the beginning of the file.
            yield Session("aider", f"{title} #{begun[title]}", file, _read, at=start, folder=file.parent, agent="aider")
            begun[title] += 1


def _lines(path: Path, start: int) -> Iterator[tuple[int, str]]:
    """Each line with its offset. A last line without a line ending is left for next time."""
    with open(path, "rb") as stream:
        stream.seek(start)
        place = start
        for line in stream:
            if not line.endswith(b"\n"):
                return  # still being written
            yield place, line[:-1].decode("utf-8", "surrogateescape")
            place += len(line)


def _starts(path: Path) -> Iterator[tuple[int, str]]:
    for place, line in _lines(path, 0):
        match = _START.fullmatch(line)
        if match:
            yield place, match[1]


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """A step is a run of lines of one kind: what the user said, what the program did, what the model said. Places are relative to
    the start of the session, so that they stay valid when earlier text is deleted."""
    begin = session.at + start
    reader = _Reader(session)
    kind, stretch = "", list[str]()
    place = begin
    end = begin
    for place, line in _lines(session.path, begin):
        end = place + len(line.encode("utf-8", "surrogateescape")) + 1
        match = _START.fullmatch(line)
        if match and place > session.at:
            break
        new = "start" if match else reader.kind_of(line)
        if new == "model" and not line.strip():
            new = kind or "start"
        if new != kind and stretch:
            yield place - session.at, reader.step(kind, stretch)
            stretch = []
        kind = new
        stretch.append(line)
    else:
        place = end
    if stretch:
        yield place - session.at, reader.step(kind, stretch)


class _Reader:
    """Aider ends its own lines and those of the user with two spaces, so that the model's headings and quotes can be told from
    them. A message of several lines, such as that of a commit, has them at its end."""

    def __init__(self, session: Session) -> None:
        self._at = _time(session.key.rpartition(" #")[0])
        self._times = _input_times(session.path.with_name(INPUTS), self._at)
        self._turn = 0
        self._answered = False
        self._is_strict: bool | None = None
        """Whether lines end in two spaces; None before the first one."""
        self._inside = False
        """In a message of several lines."""
        self._edits: dict[str, list[tuple[str, str]]] = {}
        """What the model wants to replace in each file. It counts once the program says that it did so."""
        self._whole: dict[str, str] = {}
        """Whole files in answers, by what stands above them."""
        self._hunks: dict[str, list[list[str]]] = {}
        self._created: set[str] = set()
        self._named = ""

    def kind_of(self, line: str) -> str:
        ends = line.endswith("  ")
        if self._inside:
            self._inside = not ends
            return "tool"
        is_said, is_done = line.startswith("####"), line.startswith("> ")
        if not is_said and not is_done:
            return "model"
        if self._is_strict is None:
            self._is_strict = ends
        if ends or not self._is_strict:
            return "user" if is_said else "tool"
        self._inside = _COMMIT.match(line) is not None
        return "tool" if self._inside else "model"

    def step(self, kind: str, stretch: list[str]) -> Step:
        raw = "\n".join(stretch)
        if kind == "start":
            return Step(raw, self._at)
        if kind == "user":
            self._turn += 1
            self._answered = False
            said = [line.removeprefix("####").removeprefix(" ") for line in stretch if line.startswith("####")]
            prompt = "\n".join(line.rstrip() for line in said)
            self._at = next(iter(self._times.get(prompt) or ()), self._at)
            if self._times.get(prompt):
                self._times[prompt].pop(0)
            return Step(raw, self._at, prompt=prompt)
        if kind == "model":
            self._answered = True
            self._want(stretch)
            return Step(raw, self._at, turn=str(self._turn), agent="aider", text=raw.strip())
        return self._done(raw, stretch)

    def _want(self, lines: list[str]) -> None:
        """Notes the edits in an answer: blocks of what to search for and what to put there, under the name of a file."""
        path, before, after = "", list[str](), list[str]()
        part: list[str] | None = None
        for number, line in enumerate(lines):
            if line.startswith("<<<<<<< SEARCH"):
                above = [text.strip() for text in lines[max(0, number - 3) : number]]
                named = [text for text in above if text and not text.startswith("```")]
                path = named[-1].strip("`*: ") if named and not named[-1].startswith(">>>>>>>") else path
                before, after = [], []
                part = before
            elif part is before and line.startswith("======="):
                part = after
            elif part is after and line.startswith(">>>>>>> REPLACE"):
                self._edits.setdefault(path, []).append(("\n".join(before), "\n".join(after)))
                part = None
            elif part is not None:
                part.append(line)
        for name, language, body in _fenced(lines):
            if language == "diff":
                self._patched(body)
            elif name and not any(line.startswith("<<<<<<< SEARCH") for line in body):
                self._whole[name] = "".join(f"{line}\n" for line in body)

    def _patched(self, body: list[str]) -> None:
        """Notes the hunks of a diff, which say in no line numbers where they belong."""
        path = ""
        for line in body:
            if line.startswith("+++ "):
                path = line[4:].strip().removeprefix("b/")
            elif line.startswith("@@"):
                self._hunks.setdefault(path, []).append([])
            elif line[:1] in (" ", "+", "-", "") and not line.startswith("--- ") and self._hunks.get(path):
                self._hunks[path][-1].append(line or " ")

    def _done(self, raw: str, stretch: list[str]) -> Step:
        calls, outputs, model = list[Call](), list[Output](), None
        failed: str | None = None
        tokens: dict[str, int] = {}
        cost: Decimal | None = None
        for line in _messages(stretch):
            key = f"{self._turn}.{len(calls) + 1}"
            if wrong := _ERROR.match(line):
                failed = failed or wrong[1].strip()
            elif used := _TOKENS.match(line):
                tokens = {"in": _number(used[1]), "out": _number(used[2])}
                spent = _COST.search(line)
                cost = dollars(spent[1]) if spent else None
            elif named := _MODEL.match(line):
                model = named[1]
            elif edited := _EDITED.match(line):
                path = edited[1].strip()
                calls.append(Call(key, "edit", path, (("write", path),)))
                outputs.append(Output(key, "", diffs=self._diffs(path)))
            elif commit := _COMMIT.match(line):
                calls.append(Call(key, "git.commit", commit[2].split("\n")[0].strip()))
                outputs.append(Output(key, f"{commit[1]} {commit[2].strip()}"))
            else:
                text = line.removeprefix("> ").strip()
                self._created |= {self._named} if text.startswith("Create new file?") else set()
                self._named = text
                calls.append(Call(key, "aider", text))
                outputs.append(Output(key, ""))
        # It belongs to the answer before it, or follows a command of the user. Before the first prompt it is no turn.
        turn = None if self._answered or not self._turn else str(self._turn)
        begun = self._turn > 0
        return Step(
            raw, self._at, turn=turn, agent="aider", model=model, tokens=tokens, cost=cost, failed=failed,
            calls=tuple(calls) if begun else (), outputs=tuple(outputs) if begun else (),
        )  # fmt: skip

    def _diffs(self, path: str) -> tuple[Diff, ...]:
        found: list[Diff] = []
        for before, after in self._edits.pop(path, []):
            if before:
                found.append(replacement(path, before + "\n", after + "\n" if after else ""))
            elif path in self._created:
                found.append(compared(path, None, after + "\n"))
            else:
                found.append(overwritten(path, after))
        hunks, whole = self._hunks.pop(path, None), self._whole.pop(path, None)
        if not found and hunks:
            found.append(positionless(path, [hunk for hunk in hunks if hunk]))
        elif not found and whole is not None:
            found.append(compared(path, None, whole) if path in self._created else overwritten(path, whole))
        self._created.discard(path)
        return tuple(found)


def _fenced(lines: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """The blocks of code in an answer: the line above each, its language, and its lines."""
    begun: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begun is None:
            begun = number
        elif line.strip() == "```":
            above = lines[begun - 1].strip().strip("`*: ") if begun else ""
            yield above, lines[begun][3:].strip(), lines[begun + 1 : number]
            begun = None


def _messages(stretch: list[str]) -> Iterator[str]:
    """The program's messages. One of several lines is one message."""
    message: list[str] = []
    for line in stretch:
        if line.startswith("> ") and not (message and _COMMIT.match(message[0]) and not message[-1].endswith("  ")):
            if message:
                yield "\n".join(message)
            message = [line]
        elif message:
            message.append(line)
    if message:
        yield "\n".join(message).rstrip()


def _input_times(path: Path, since: datetime | None) -> dict[str, list[datetime]]:
    """When each prompt was entered, from the file in which aider keeps them. It has each of them once or twice."""
    found: dict[str, list[datetime]] = {}
    at: datetime | None = None
    said: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return found
    for line in [*lines, "# "]:
        if line.startswith("# "):
            if said and at is not None and (since is None or at >= since):
                times = found.setdefault("\n".join(said), [])
                if not times or (at - times[-1]).total_seconds() > 1:
                    times.append(at)
            at, said = _time(line[2:]), []
        elif line.startswith("+"):
            said.append(line[1:])
    return found


def _number(text: str) -> int:
    text = text.replace(",", "")
    try:
        return int(float(text[:-1]) * 1000) if text.endswith("k") else int(float(text))
    except (ValueError, OverflowError):
        return 0


def _time(text: str) -> datetime | None:
    """Local time, as aider writes no time zone."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
