"""The plain parts of a block. Apart from the entries, as searching needs these and not those."""

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
    """``[Heading]`` and its text; the heading is empty for text that stands under none."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """A section too large to be held: where its body stands in the file."""

    heading: str
    offset: int
    length: int
