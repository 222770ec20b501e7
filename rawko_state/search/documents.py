"""Converts blocks of a task file to searchable documents: one for each block with any text.

Documents are built from the raw sections: the words of a tool log are the same before and after parsing, and parsing takes four
times as long. Machine-readable sections (``[Payload]``, ``[State]``, ``[Snapshot]``) are left out: they repeat the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rawko_state.format.blocks import parse_fields, parse_section
from rawko_state.format.scan import Fetch, RawBlock, Record, Region
from rawko_state.format.text import decode, unescape
from rawko_state.late import late

MOST_SEARCHED: Final = 16 << 20
"""Only this much of the start of a longer section is searched."""

TITLE, ASKED, NAMED, SAID, DONE = 6, 4, 3, 2, 1
"""The weight of a word: in a title, a request or result, a file name, what was said, what a tool did."""

_TURN = late(rb"--- Turn ([1-9][0-9]{0,17}): (.+) ---")
_KINDS: Final = (
    (b"=== TASK ", "task"),
    (b"=== REQUEST ", "request"),
    (b"=== RESULT ", "result"),
    (b"=== NOTE ", "note"),
)
KINDS: Final = ("turn", "task", "request", "result", "note", "other")
_WORDY: Final = {
    "Title": TITLE,
    "Labels": ASKED,
    "User": ASKED,
    "Summary": ASKED,
    "Error": ASKED,
    "Files Modified": NAMED,
    "Reason": SAID,
    "Guidance": SAID,
    "Question": SAID,
}
_MAY_BE_WORDY = late(rb"(?:\A|\n)(?:%s)" % b"|".join(re.escape(name.encode()) for name in _WORDY))
_SKIPPED: Final = (b"[Payload", b"[State", b"[Snapshot", b"[End ")
_TIMES = late(r"(?m)^(?:[0-9]{2}:[0-9]{2}:[0-9]{2}|--:--:--) (\S+)")
_OPERATIONS = late(r"(?m)^(?:read|write|delete) ")
_ESCAPES = late(r"\\u001[bB]\[[0-?]*[ -/]*[@-~]|\\(?:u[0-9a-fA-F]{4}|.)")


class Document:
    """The searchable text of one block, and its position."""

    __slots__ = ("agent", "diff", "kind", "length", "offset", "parts", "tools", "turn")

    def __init__(self, offset: int, length: int, kind: str, turn: int = 0, agent: str = "") -> None:
        self.offset = offset
        self.length = length
        self.kind = kind
        self.turn = turn
        self.agent = agent
        self.parts: list[tuple[int, str]] = []
        """Texts, each with the weight of its words."""
        self.tools: set[str] = set()
        self.diff = ""

    def texts(self, where: str) -> list[str]:
        """All its texts, or only what was ``added`` to files or ``removed`` from them."""
        if not where:
            return [text for _, text in self.parts]
        sign = "+" if where == "added" else "-"
        return ["\n".join(line[1:] for line in self.diff.split("\n") if line.startswith(sign))]


_OF_A_PROGRAM = re.compile(rb"^Kind: [^\n]*-data$", re.MULTILINE)
"""Notes that hold the state of a program, for itself: nobody searches for it, and the program may have withdrawn it."""


def documents(records: Iterable[Record], fetch: Fetch) -> Iterator[Document]:
    """The documents of whole records. Unfinished appends are skipped."""
    for record in records:
        if record.kind != "torn":
            for block in record.blocks:
                found = document(block, fetch)
                if found is not None:
                    yield found


def document(block: RawBlock, fetch: Fetch) -> Document | None:
    marker = block.marker
    turn = _TURN.fullmatch(marker)
    if turn is not None:
        agent = decode(turn[2])
        found = Document(block.offset, block.length, "turn", int(turn[1]), agent)
        found.parts.append((DONE, agent))
    else:
        kind = next((kind for prefix, kind in _KINDS if marker.startswith(prefix)), "other")
        found = Document(block.offset, block.length, kind)
    head, *sections = block.regions
    data = _data(head, fetch)
    if found.kind == "other" or _MAY_BE_WORDY.search(data):
        _take_fields(found, data, decode(marker))
    programs = found.kind == "note" and _OF_A_PROGRAM.search(data) is not None
    for region in sections:
        if not region.title.startswith(_SKIPPED) and not (programs and region.title.startswith(b"[Data")):
            _take_section(found, region.title, _data(region, fetch))
    return found if found.parts else None


def _take_fields(found: Document, data: bytes, marker: str) -> None:
    fields, stray, _ = parse_fields(data, marker)
    for each in fields:
        weight = _WORDY.get(each.name, DONE if found.kind == "other" else 0)
        if found.kind == "task" and each.name == "User":
            weight = DONE  # a person, not a request
        if weight:
            found.parts.extend((weight, text) for text in (each.value, *each.items) if text)
    if stray is not None:
        found.parts.append((SAID, stray.text))


def _take_section(found: Document, title: bytes, data: bytes) -> None:
    if title == b"[Tool Log]" or title == b"[Progress]":
        text = decode(data)
        if title == b"[Tool Log]":
            found.tools.update(tool.lower() for tool in _TIMES.findall(text))
        if "\n    = " in text:
            text = "\n".join(
                _ESCAPES.sub(" ", line) if line.startswith("    = ") else line for line in text.split("\n")
            )
        found.parts.append((DONE, _TIMES.sub(r"\1", text)))
    elif title.endswith(b" json]") or title == b"[Question]":
        text = parse_section(title, data).text
        found.parts.append((SAID, _ESCAPES.sub(" ", text) if title == b"[Question]" else text))
    elif title == b"[Diff]":
        # The paths are in the list of files, too.
        found.diff = unescape(decode(data))
        found.parts.append((DONE, found.diff))
    elif title == b"[Files]":
        found.parts.append((NAMED, _OPERATIONS.sub("", decode(data))))
    else:
        found.parts.append((SAID if title == b"[Content]" else DONE, decode(data)))


def _data(region: Region, fetch: Fetch) -> bytes:
    if region.data is None or region.cut:
        return fetch(region.offset, min(region.length, MOST_SEARCHED))
    return region.data
