"""Seals: the hash chain over the records of a file, and the two header values that it skips."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from rawko_state.late import late
from rawko_state.model.frozen import Frozen

GENESIS: Final = "0" * 16
SEAL_LENGTH: Final = len("[End 0123456789abcdef]\n")
HEADER_LIMIT: Final = 65_536
COPY_WIDTH: Final = 16

_SEAL_IN = late(rb"^\[End ([0-9a-f]{16})\]$", re.MULTILINE)
_SEAL_LINE = late(rb"\[End ([0-9a-f]{16})\]")
_HEADER_END = late(rb"\n(?:\n|=== |--- |\[[A-Z])")
_FORMAT = late(rb"\nFormat: ([0-9]+)(?=\n|\Z)")
_COPIES = (late(rb"\nStatus: ([^\n]*)"), late(rb"\nDuration: ([^\n]*)"))


class HeaderShape(Frozen):
    """What the header of a file says about its seals."""

    format: int | None
    """None: the file is unsealed."""
    status: tuple[int, int] | None = None
    """The position of the copied value: its first byte and the byte after its last."""
    duration: tuple[int, int] | None = None

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The byte ranges that no seal covers, in order."""
        return tuple(sorted(span for span in (self.status, self.duration) if span))


def header_shape(start: bytes) -> HeaderShape:
    """Reads the shape from the first HEADER_LIMIT bytes of a file (or all of a shorter one)."""
    start = start[:HEADER_LIMIT]
    if not start.startswith(b"=== TASK "):
        return HeaderShape(None)
    end = _HEADER_END.search(start)
    lines = start[: end.start()] if end else start
    version = _FORMAT.search(lines)
    if version is None:
        return HeaderShape(None)
    status, duration = (pattern.search(lines) for pattern in _COPIES)
    # int() rejects thousands of digits; such a version is newer than any we know.
    digits = version[1][:9]
    return HeaderShape(int(digits), status.span(1) if status else None, duration.span(1) if duration else None)


class HeaderWords(NamedTuple):
    """What a header says of the task, to be compared with what else is known of it."""

    id: str | None
    status: str | None
    """The copied value of a sealed file."""


def header_words(start: bytes) -> HeaderWords:
    marker = _TASK_LINE.match(start)
    span = header_shape(start).status
    status = start[slice(*span)].decode("utf-8", "replace").rstrip(" ") if span else None
    return HeaderWords(marker[1].decode() if marker else None, status)


_TASK_LINE = late(rb"=== TASK ([0-9A-Za-z]{1,64}) ===\n")
_FIRST_LINE = late(rb"=== TASK [^\r\n]+ ===\n")


def start_problem(start: bytes) -> str | None:
    """What is wrong with the start of a file; None if it starts like a task file."""
    if not start:
        return "is empty"
    if b"\r\n" in start[: start.find(b"\n") + 1]:
        return "has the line ends of another system (CRLF)"
    if not _FIRST_LINE.match(start):
        return "does not start with a TASK marker"
    return None


LARGEST_TAIL: Final = 16 << 20
_SEAL_WITH_CR = late(rb"^\[End [0-9a-f]{16}\]\r$", re.MULTILINE)


def has_seal_with_cr(tail: bytes) -> bool:
    """Whether records at the end of a file were given other line ends: an append that did not finish holds no seal."""
    return _SEAL_WITH_CR.search(tail) is not None


def seal_of(previous: str, body: bytes, holes: tuple[tuple[int, int], ...] = ()) -> str:
    """The 16 digits of the seal of a record whose bytes before the seal line are ``body``."""
    digest = hashlib.sha256(previous.encode())
    at = 0
    for first, last in holes:
        digest.update(body[at:first])
        at = last
    digest.update(body[at:])
    return digest.hexdigest()[:16]


def seal_line(seal: str) -> bytes:
    return b"[End %s]\n" % seal.encode()


def find_seal(data: bytes) -> str | None:
    """The first whole seal line in a stretch of a file. Content never looks like one: such lines are escaped."""
    match = _SEAL_IN.search(data)
    return match[1].decode() if match else None


def read_seal(line: bytes) -> str | None:
    """The digits of a seal line (without its LF), or None."""
    match = _SEAL_LINE.fullmatch(line)
    return match[1].decode() if match else None
