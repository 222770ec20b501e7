"""The plain parts of a block. Separate from the entries because search needs only these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """``Name: value`` and the items of a list under it."""

    name: str
    value: str = ""
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """``[Heading]`` and its text; the heading is empty for text without one."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """A section too large to keep in memory: where its body is in the file."""

    heading: str
    offset: int
    length: int
