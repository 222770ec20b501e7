"""The plain parts of a block. Separate from the entries because search needs only these."""

from __future__ import annotations

from rawko_state.model.frozen import Frozen


class Field(Frozen):
    """``Name: value`` and the items of a list under it.

    >>> Field("X-Ticket", "17").value
    '17'
    """

    name: str
    value: str = ""
    items: tuple[str, ...] = ()


class Section(Frozen):
    """``[Heading]`` and its text; the heading is empty for text without one.

    >>> Section("Plan", "First the test.").heading
    'Plan'
    """

    heading: str
    text: str


class Span(Frozen):
    """A section too large to keep in memory: where its body is in the file.

    >>> Span("Plan", 1_000, 300_000).heading
    'Plan'
    """

    heading: str
    offset: int
    length: int
