"""The streaming reader: bytes in, records out, in constant memory, for any input.

It never raises on content; it reports what it cannot parse in ``problems``. It examines only structural lines one by
one. Everything between them is skipped in bulk, hashed and, if it is small, kept with its block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from rawko_state.format.blocks import Block, parse_fields, parse_section
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, HeaderShape, header_shape, read_seal
from rawko_state.format.text import decode as decode_text
from rawko_state.late import late
from rawko_state.model.frozen import Frozen, replace
from rawko_state.model.parts import Span

if TYPE_CHECKING:
    from rawko_state.model.entries import Entry

Read: TypeAlias = Callable[[int], bytes]
Fetch: TypeAlias = Callable[[int, int], bytes]
Kind: TypeAlias = Literal["sealed", "unsealed", "damaged", "torn", "tail"]

CHUNK: Final = 1 << 18
INLINE: Final = 1 << 20
"""Bodies up to this size are kept with their block; larger ones are left in the file."""
MAX_KEPT: Final = 8 << 20
"""At most this much is kept of one record, or of an unsealed file at a time."""
HEAD_KEPT: Final = 1 << 16
"""How much is kept of the start of larger fields."""
MAX_FETCH: Final = 16 << 20
MAX_LINE: Final = 65_536
MAX_REGIONS: Final = 100_000
MAX_BLOCKS: Final = 10_000
MAX_PENDING: Final = 256
MAX_PROBLEMS: Final = 1_000

_STRUCTURAL = late(rb"\n(?:=== |--- |\[[A-Z])")
_LONGEST_PREFIX: Final = 4


class Problem(Frozen):
    """Something wrong with a file. ``code`` is its kind: start, shape, seal or torn."""

    offset: int
    line: int
    message: str
    code: str = "shape"

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class Region:
    """The bytes under a marker or a heading: their position, and their content if it is small."""

    __slots__ = ("cut", "data", "length", "offset", "title")

    def __init__(self, title: bytes, offset: int, length: int = 0, data: bytes | None = None) -> None:
        self.title = title
        self.offset = offset
        self.length = length
        self.data = data
        self.cut = False
        """Only the start was kept."""


class RawBlock:
    """A block in the file. ``regions[0]`` is under the marker; the others are sections."""

    __slots__ = ("length", "offset", "regions")

    def __init__(self, offset: int, regions: list[Region]) -> None:
        self.offset = offset
        self.regions = regions
        self.length = 0

    @property
    def marker(self) -> bytes:
        return self.regions[0].title

    def entry(
        self, fetch: Fetch | None = None, *, head_only: bool = False, only: frozenset[bytes] | None = None
    ) -> Entry:
        """The block as an entry. Without ``fetch``, sections that were too large to keep are listed in ``large``.
        ``head_only`` skips all sections, ``only`` all but those with these heading lines."""
        marker = decode_text(self.marker)
        head, *rest = self.regions[:1] if head_only else self.regions
        if only is not None:
            rest = [region for region in rest if region.title in only]
        fields, stray, _ = parse_fields(_data(head, fetch) or b"", marker)
        sections = [] if stray is None else [stray]
        large = []
        for region in rest:
            data = _data(region, fetch)
            if data is None:
                heading = decode_text(region.title)[1:].removesuffix("]")
                large.append(Span(heading, region.offset, region.length))
            else:
                sections.append(parse_section(region.title, data))
        from rawko_state.format.codec import decode  # after the first call, only a table lookup

        return decode(Block(marker, tuple(fields), tuple(sections)), tuple(large))


def _data(region: Region, fetch: Fetch | None) -> bytes | None:
    if (region.data is None or region.cut) and fetch is not None:
        return fetch(region.offset, region.length)
    return region.data


def bounded(fetch: Fetch) -> Fetch:
    """For building rows and states from blocks: fetches anything of a sane size, and only the start of the rest."""
    return lambda offset, length: fetch(offset, length if length <= MAX_FETCH else HEAD_KEPT)


class Record(Frozen):
    """
    sealed    its seal matches
    unsealed  blocks of an unsealed file before its first seal
    damaged   its seal does not match, but a later one does
    torn      an unfinished append that a later writer has marked
    tail      an unfinished append at the end of the file
    """

    kind: Kind
    offset: int
    length: int
    blocks: list[RawBlock]
    seal: str | None = None
    parent: str | None = None
    torn: int = 0
    """How many bytes at the start of the record are the unfinished append."""
    unterminated: bool = False
    """The seal lacks its LF, which the next writer adds."""

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def counts(self) -> bool:
        """Whether its content can be trusted."""
        return self.kind in ("sealed", "unsealed")


class _Stretch:
    """The blocks read since the last seal, matching or not."""

    __slots__ = ("blocks", "dropped", "offset", "regions")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.blocks: list[RawBlock] = []
        self.dropped = 0
        self.regions = 0


class Scan:
    """Iterate over it to get the records; ``problems`` grows as you do."""

    def __init__(self, read: Read, *, start: int = 0, parent: str = GENESIS, line: int = 1) -> None:
        """``start`` and ``parent``: continue after a seal that is known to match. ``read(n)`` reads from there on."""
        self._read = read
        self._start = start
        self.problems: list[Problem] = []
        self.sealed = start > 0
        """Whether the rules for sealed files apply at the current position."""
        self.header = HeaderShape(None)
        # The search for structural lines starts at the LF before each; the first line gets one that is not in the file.
        self._buffer = b"\n"
        self._base = start - 1
        self._lines_before = line - 2
        self._ended = False
        self._pending: list[Record] = []
        self._stretch = _Stretch(start)
        self._anchor = start
        self._parent = parent
        self._chain = [hashlib.sha256(parent.encode())]
        self._hashed = start
        self._open: RawBlock | None = None
        self._kept = 0
        self._nul = False
        """Whether there was a NUL since the last matching seal. No record holds one; pages that were lost do."""
        self._handed_out = False
        """Records since the last matching seal were already yielded as damaged because there were too many."""

    @property
    def tail_offset(self) -> int:
        """Where the last matching seal ended."""
        return self._anchor

    @property
    def tail_seal(self) -> str:
        return self._parent

    def __iter__(self) -> Iterator[Record]:
        if self._start == 0:
            while len(self._buffer) <= HEADER_LIMIT and self._fill(self._base):
                pass
            self.header = header_shape(self._buffer[1:])
            self.sealed = self.header.format is not None
            if not self._buffer.startswith(b"\n=== TASK "):
                self._problem(0, "the file does not start with '=== TASK'", "start")
        at = 0
        while True:
            found = _STRUCTURAL.search(self._buffer, at)
            if found is None:
                at = max(at, len(self._buffer) - _LONGEST_PREFIX)
                self._hash(self._base + at)
                shift = self._fill(self._base + at)
                if not shift:
                    break
                at -= shift - 1
                continue
            first = found.start() + 1
            last = self._buffer.find(b"\n", first)
            if last < 0 and not self._ended and len(self._buffer) - first < MAX_LINE:
                at = found.start() - (self._fill(self._base + found.start()) or 1) + 1
                continue
            if last < 0:
                last = len(self._buffer)
            if last - first > MAX_LINE:
                self._problem(self._base + first, f"a marker line is longer than {MAX_LINE} bytes")
                last = first + MAX_LINE
            line = self._buffer[first:last]
            self._close_region(self._base + first)
            seal = read_seal(line) if line.startswith(b"[End ") else None
            if seal is not None:
                yield from self._seal(seal, self._base + first, last)
            else:
                part = self._opened(line, self._base + first, last)
                if part is not None:
                    yield part
            at = last
        yield from self._finish()

    def _fill(self, needed: int) -> int:
        """Reads more, and drops what neither the search (from ``needed``) nor a small open region needs. Returns 1 + the number
        of bytes that the buffer was shifted by; 0 at the end of the file."""
        chunk = b"" if self._ended else self._read(CHUNK)
        if not chunk:
            self._ended = True
            return 0
        keep = needed
        if self._open is not None:
            region = self._open.regions[-1]
            if needed - region.offset <= INLINE and self._kept < MAX_KEPT:
                keep = min(keep, region.offset - 1)
            else:
                self._keep_beginning(region, needed)
        shift = max(0, keep - self._base)
        self._hash(self._base + shift)  # what is dropped here is never seen again
        self._lines_before += self._buffer.count(b"\n", 0, shift)
        self._buffer = self._buffer[shift:] + chunk
        self._base += shift
        return shift + 1

    def _keep_beginning(self, region: Region, until: int) -> None:
        """Keeps the start of fields that are too large to keep, for readers without access to the file."""
        start = region.offset - self._base
        if self._open is not None and region is self._open.regions[0] and region.data is None and start >= 0:
            most = HEAD_KEPT if self._kept < MAX_KEPT else HEAD_KEPT // 64
            region.data = self._buffer[start : min(start + most, until - self._base)]
            region.cut = True

    def _problem(self, offset: int, message: str, code: str = "shape") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            line = self._lines_before + 1 + self._buffer.count(b"\n", 0, max(0, offset - self._base))
            self.problems.append(Problem(offset, line, message, code))

    def _hash(self, until: int) -> None:
        """Adds the bytes up to the file offset ``until`` to every running hash."""
        first = self._hashed
        if until <= first:
            return
        for hole, end in self.header.holes if first < HEADER_LIMIT else ():
            if first < end and hole < until:
                self._update(first, min(hole, until))
                first = min(max(end, first), until)
        self._update(first, until)
        self._hashed = until

    def _update(self, first: int, until: int) -> None:
        if first < until:
            if not self._nul and self._buffer.find(b"\0", first - self._base, until - self._base) >= 0:
                self._nul = True
            piece = memoryview(self._buffer)[first - self._base : until - self._base]
            for digest in self._chain:
                digest.update(piece)

    def _opened(self, line: bytes, offset: int, last: int) -> Record | None:
        """Handles a marker or a heading. Returns blocks that can be yielded right away."""
        region = Region(line, min(self._base + last + 1, self._base + len(self._buffer)))
        if line.startswith(b"["):
            if not line.endswith(b"]"):
                self._problem(offset, "a section heading without ']'")
            if self._open is None:
                self._problem(offset, "a section outside any block")
                self._open = RawBlock(offset, [Region(b"=== ===", offset, 0, b"")])
            self._stretch.regions += 1
            if self._stretch.regions > MAX_REGIONS:
                self._open.regions.pop()
                self._stretch.dropped += 1
            self._open.regions.append(region)
        else:
            self._close_block(offset)
            self._open = RawBlock(offset, [region])
            full = len(self._stretch.blocks) >= MAX_BLOCKS or self._kept >= MAX_KEPT
            if full and not self.sealed and not self._pending:
                return self._unsealed_part(offset)
        return None

    def _close_region(self, offset: int) -> None:
        if self._open is None:
            if offset > self._stretch.offset:
                self._problem(self._stretch.offset, f"{offset - self._stretch.offset} bytes outside of any block")
            return
        region = self._open.regions[-1]
        region.length = max(0, offset - region.offset)
        if region.length <= INLINE and region.offset >= self._base and self._kept < MAX_KEPT:
            region.data, region.cut = self._buffer[region.offset - self._base : offset - self._base], False
            self._kept += region.length
        else:
            self._keep_beginning(region, offset)

    def _close_block(self, offset: int) -> None:
        if self._open is not None:
            self._open.length = offset - self._open.offset
            if len(self._stretch.blocks) >= MAX_BLOCKS:
                # Keep the last one: it may be the TORN marker that accounts for all the others.
                self._stretch.blocks.pop()
                self._stretch.dropped += 1
            self._stretch.blocks.append(self._open)
            self._open = None

    def _unsealed_part(self, offset: int) -> Record:
        """An unsealed file has no seal to wait for, so its blocks are yielded before they pile up."""
        self._kept = 0
        part = Record("unsealed", self._stretch.offset, offset - self._stretch.offset, self._stretch.blocks)
        self._stretch = _Stretch(offset)
        return part

    def _seal(self, seal: str, offset: int, last: int) -> Iterator[Record]:
        self._close_block(offset)
        self._hash(offset)
        unterminated = last == len(self._buffer)
        end = self._base + last + (0 if unterminated else 1)
        digests = [digest.hexdigest()[:16] for digest in self._chain]
        first = self._stretch.offset
        record = Record(
            "sealed", first, end - first, self._stretch.blocks, seal, self._parent, unterminated=unterminated
        )
        if self._stretch.dropped:
            self._problem(offset, f"a record has too many blocks or sections; {self._stretch.dropped} were skipped")
        matched: Record | None = None
        if seal in digests[:2]:
            yield from self._pending
            matched = self._as_torn(record)
        elif seal in digests[2:]:
            # The hash of everything since the last match: a torn span, or an unsealed file so far.
            whole = self._whole(record)
            matched = whole if whole.kind == "torn" or not self.sealed else None
            if matched is not None and self._handed_out:
                first = self._pending[0].offset  # earlier records were already yielded as damaged
                matched = replace(
                    matched, offset=first, length=matched.end - first, torn=matched.torn - (first - self._anchor)
                )
        if matched is not None:
            yield matched
            self._pending, self._kept, self._handed_out, self._nul = [], 0, False, False
            self._anchor, self._parent, self.sealed = end, seal, True
            self._chain = [hashlib.sha256(seal.encode())]
        else:
            self._problem(offset, f"the record ending in seal {seal} was changed after it was written", "seal")
            self._pending.append(replace(record, kind="damaged", parent=None))
            runs_on = self._chain[-1]
            runs_on.update(memoryview(self._buffer)[offset - self._base : end - self._base])
            self._chain = [hashlib.sha256(seal.encode()), hashlib.sha256(digests[0].encode()), runs_on]
            if len(self._pending) > MAX_PENDING:
                # This many bad seals in a row are not a torn append.
                self._handed_out = True
                yield self._pending.pop(0)
        self._hashed = end
        self._stretch = _Stretch(end)

    def _whole(self, record: Record) -> Record:
        """Everything since the last matching seal, as one record with the same end as this one."""
        blocks = [block for early in self._pending for block in early.blocks] + record.blocks
        whole = replace(record, offset=self._anchor, length=record.end - self._anchor, blocks=blocks)
        return self._as_torn(whole)

    def _as_torn(self, record: Record) -> Record:
        """The same record, or a torn span if its last block is a TORN marker in the right place."""
        length = _torn_length(record) if self.sealed or record.offset else 0
        if length:
            record = replace(record, kind="torn", torn=length, blocks=record.blocks[-1:])
            # The torn bytes, and the LF between them and the marker.
            self.problems = [p for p in self.problems if not record.offset <= p.offset <= record.offset + length]
        return record

    def _finish(self) -> Iterator[Record]:
        end = self._base + len(self._buffer)
        self._close_region(end)
        self._close_block(end)
        if self.sealed and not self._nul:
            # An append that did not finish holds no seal: what ends in one was changed after it was written.
            while self._pending and not self._pending[0].unterminated:
                damaged = self._pending.pop(0)
                self._anchor, self._parent = damaged.end, damaged.seal or self._parent
                yield damaged
        if end <= self._anchor:
            return
        if self.sealed:
            blocks = [block for record in self._pending for block in record.blocks] + self._stretch.blocks
            self.problems = [p for p in self.problems if p.offset < self._anchor]
            self._problem(self._anchor, f"unfinished write of {end - self._anchor} bytes at the end", "torn")
            first = self._pending[0].offset if self._handed_out and self._pending else self._anchor
            yield Record("tail", first, end - first, blocks, torn=end - first)
            return
        for record in self._pending:
            yield replace(record, kind="unsealed")
        if self._stretch.offset < end:
            yield Record("unsealed", self._stretch.offset, end - self._stretch.offset, self._stretch.blocks)


def _torn_length(record: Record) -> int:
    """The number of torn bytes, if the record's last block is a TORN marker in the right place; else 0."""
    if not record.blocks:
        return 0
    last = record.blocks[-1]
    length = last.offset - 1 - record.offset
    marker = b"=== TORN %d ===" % length
    return length if length > 0 and last.marker == marker and last.length == len(marker) + 2 else 0
