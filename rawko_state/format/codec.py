"""Converts entries to blocks and back.

For each kind of block, a table maps attributes to fields or sections, in writing order. Whatever does not have the
expected form stays in ``extra`` or ``sections``, so decoding loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rawko_state.errors import InvalidValue
from rawko_state.format import lines, parts, values
from rawko_state.format.blocks import MAX_MARKER, REQUEST, Block
from rawko_state.format.seal import COPY_WIDTH
from rawko_state.format.text import field_needs_json
from rawko_state.late import late
from rawko_state.lazy import lazy
from rawko_state.model.entries import (
    Entry,
    Execution,
    Field,
    Note,
    Request,
    Result,
    Resumed,
    Section,
    Span,
    TaskHeader,
    Torn,
    Turn,
    Unknown,
)
from rawko_state.model.frozen import Frozen

if TYPE_CHECKING:
    from rawko_state.format import diffs
else:
    diffs = lazy("rawko_state.format.diffs")  # most turns change no file

FORMAT_VERSION: Final = 1
EXECUTION: Final = "=== EXECUTION ==="
RESULT: Final = "=== RESULT ==="
NOTE: Final = "=== NOTE ==="

TURN_MARKER: Final = late(r"--- Turn ([1-9][0-9]{0,17}): (.+) ---")
_TASK_MARKER = late(r"=== TASK ([0-9A-Za-z]{1,64}) ===")
_RESUMED_MARKER = late(r"=== RESUMED (.+) ===")
_TORN_MARKER = late(r"=== TORN (0|[1-9][0-9]{0,17}) ===")


class _Part(Frozen):
    """One field or section: its name in the file, its attribute, and how to write and read its value."""

    name: str
    attribute: str
    write: Callable[[Any], str] = str
    read: Callable[[str], Any] = str


def _text(name: str) -> _Part:
    return _Part(name, name.lower().replace(" ", "_"))


_DURATION = _Part("Duration", "duration_ms", values.write_duration, values.read_duration)
_TOKENS = _Part("Tokens", "tokens", values.write_tokens, values.read_tokens)
_COST = _Part("Cost", "cost", parts.write_money, parts.read_money)
_LABELS = _Part("Labels", "labels", values.write_labels, values.read_labels)


def _time(name: str) -> _Part:
    return _Part(name, name.lower(), values.write_time, values.read_time)


def _words(name: str) -> _Part:
    """A section of text. What is not text would come back changed."""
    return _Part(name, name.lower(), partial(values.write_text, name))


def _json(name: str) -> _Part:
    return _Part(name, name.lower(), values.write_json, values.read_json)


_FIELDS: Final[Mapping[type[Entry], tuple[_Part, ...]]] = {
    TaskHeader: (
        _time("Created"),
        _text("Status"),
        _DURATION,
        _Part("Format", "format", values.write_count, values.read_count),
        _text("Title"),
        _Part("Parent", "parent", parts.write_parent, parts.read_parent),
        *map(_text, ("Agent", "Model", "Provider", "Repo", "Branch", "Commit", "Cwd", "Runtime")),
        _LABELS,
        *map(_text, ("User", "Writer", "Source")),
        _Part("Exact", "exact", values.write_flag, values.read_flag),
    ),
    Request: (_text("By"), _time("At"), _Part("User", "text")),
    Execution: (),
    Turn: (
        *map(_text, ("Selected", "Decision", "Reason", "Guidance", "Status")),
        _DURATION,
        _Part("Tool Calls", "tool_calls", values.write_count, values.read_count),
        _time("Started"),
        _text("Model"),
        _TOKENS,
        _COST,
        _text("By"),
        _Part("Answers", "answers", values.write_count, values.read_count),
    ),
    Result: (
        _text("Status"),
        _time("Completed"),
        _DURATION,
        *map(_text, ("Summary", "Error", "Reason", "By")),
        _TOKENS,
        _COST,
    ),
    Resumed: tuple(map(_text, ("By", "Agent", "Reason", "Writer"))),
    Note: (
        _time("At"),
        *map(_text, ("By", "Title")),
        _LABELS,
        _Part("Unlabel", "unlabel", values.write_keys, values.read_keys),
        _Part("Pinned", "pinned", values.write_flag, values.read_flag),
        *map(_text, ("Status", "Reason", "Kind", "Context", "Source")),
    ),
    Torn: (),
    Unknown: (),
}

_SECTIONS: Final[Mapping[type[Entry], tuple[_Part, ...]]] = {
    Turn: (
        _words("Thinking"),
        _words("Content"),
        _Part("Tool Log", "tools", lines.emit_tools, lines.parse_tools),
        _Part("Diff", "diffs", lambda value: diffs.emit_diffs(value), lambda text: diffs.parse_diffs(text)),
        _Part("Progress", "progress", lines.emit_progress, lines.parse_progress),
        _Part("Files", "files", lines.emit_files, lines.parse_files),
        _Part("Question", "question", parts.write_question, parts.read_question),
        _json("State"),
        _words("Payload"),
    ),
    Result: (_json("Output"),),
    Note: (_words("Content"), _json("Data")),
}


class _Parts(NamedTuple):
    """Parts, and what gets the values of all of them from an entry: most are not set, and this is on the path of every append."""

    parts: tuple[_Part, ...]
    of: Callable[[Entry], tuple[Any, ...]]


def _parts(parts: tuple[_Part, ...]) -> _Parts:
    names = [part.attribute for part in parts]
    if len(names) > 1:
        return _Parts(parts, attrgetter(*names))
    return _Parts(parts, lambda entry: tuple([getattr(entry, name) for name in names]))


_FIELDS_OF = {kind: _parts(parts) for kind, parts in _FIELDS.items()}
_SECTIONS_OF = {kind: _parts(_SECTIONS.get(kind, ())) for kind in _FIELDS}
_FIELDS_BY_NAME = {kind: {part.name: part for part in parts} for kind, parts in _FIELDS.items()}
_SECTIONS_BY_NAME = {kind: {part.name: part for part in parts} for kind, parts in _SECTIONS.items()}
_FILES_MODIFIED: Final = "Files Modified"


def encode(entry: Entry) -> Block:
    """The block for an entry."""
    kind = type(entry)
    fields = [Field(part.name, part.write(value)) for part, value in _values(_FIELDS_OF[kind], entry)]
    if isinstance(entry, TaskHeader) and entry.format is not None:
        fields = _with_copies(fields, entry)
    if isinstance(entry, Result) and entry.files_modified:
        fields.append(Field(_FILES_MODIFIED, "", entry.files_modified))
    if isinstance(entry, Request):
        fields[-1:-1] = entry.extra  # User: runs to the end, so it comes last
    else:
        fields.extend(entry.extra)
    sections = [Section(part.name, part.write(value)) for part, value in _values(_SECTIONS_OF[kind], entry)]
    # Text without a heading can only come first.
    headless = [section for section in entry.sections if not section.heading]
    named = [section for section in entry.sections if section.heading]
    return Block(_marker(entry), tuple(fields), (*headless, *sections, *named))


def _values(parts: _Parts, entry: Entry) -> list[tuple[_Part, Any]]:
    """The parts that the entry has. An empty string counts as present, and so does any JSON value; no labels or tools do not."""
    return [
        (part, value)
        for part, value in zip(parts.parts, parts.of(entry), strict=True)
        if value is not None and (value or not isinstance(value, (tuple, dict)) or part.write is values.write_json)
    ]


def _with_copies(fields: list[Field], header: TaskHeader) -> list[Field]:
    """Adds the two values that are overwritten in place: always present, and padded to a fixed width."""
    duration = "-" if header.duration_ms is None else values.write_duration(header.duration_ms)
    copies = [Field("Status", copy_value(header.status or "pending")), Field("Duration", copy_value(duration))]
    first = [field for field in fields if field.name == "Created"]
    rest = [field for field in fields if field.name not in ("Created", "Status", "Duration")]
    return [*first, *copies, *rest]


def copy_value(value: str, width: int = COPY_WIDTH) -> str:
    return value.ljust(width)


def _marker(entry: Entry) -> str:
    if isinstance(entry, Turn):
        agent = values.write_text("agent", entry.agent)
        return _checked(f"--- Turn {entry.number}: {agent} ---", TURN_MARKER, "turn")
    if isinstance(entry, TaskHeader):
        return _checked(f"=== TASK {entry.id} ===", _TASK_MARKER, "task id")
    if isinstance(entry, Resumed):
        return f"=== RESUMED {values.write_time(entry.at) if entry.at else '-'} ==="
    if isinstance(entry, Torn):
        return f"=== TORN {entry.length} ==="
    if isinstance(entry, Unknown):
        return entry.marker
    return {Request: REQUEST, Execution: EXECUTION, Result: RESULT, Note: NOTE}[type(entry)]


def _checked(marker: str, pattern: re.Pattern[str], what: str) -> str:
    if not pattern.fullmatch(marker) or field_needs_json(marker) or len(marker) > MAX_MARKER:
        raise InvalidValue(f"Not a valid {what}: {marker[:200]!r}.")
    return marker


def decode(block: Block, large: tuple[Span, ...] = ()) -> Entry:
    """The entry of a block. ``large``: the sections that were left in the file."""
    kind, marked = _kind(block)
    known, attributes = _FIELDS_BY_NAME[kind], dict(marked)
    extra: list[Field] = []
    for field in block.fields:
        part = known.get(field.name)
        if kind is Result and field.name == _FILES_MODIFIED and field.items and not field.value:
            if "files_modified" not in attributes:
                attributes["files_modified"] = field.items
                continue
        elif part is not None and not field.items and part.attribute not in attributes:
            value = field.value.rstrip(" ") if kind is TaskHeader and field.name in _COPIED else field.value
            value = part.read(value)
            if value is not None:
                attributes[part.attribute] = value
                continue
            if kind is TaskHeader and field.name == "Duration" and field.value.rstrip(" ") == "-":
                continue
        extra.append(field)
    if kind is Request and "text" not in attributes:
        attributes["text"] = ""
    sections = _decode_sections(block.sections, _SECTIONS_BY_NAME.get(kind, {}), attributes)
    return kind(extra=tuple(extra), sections=tuple(sections), large=large, **attributes)


_COPIED: Final = frozenset({"Status", "Duration"})


def _decode_sections(
    sections: Iterable[Section], known: Mapping[str, _Part], attributes: dict[str, Any]
) -> Iterable[Section]:
    """Fills attributes from known sections and yields the others."""
    for section in sections:
        part = known.get(section.heading)
        if part is not None and part.attribute not in attributes:
            value = part.read(section.text)
            if value is not None:
                attributes[part.attribute] = value
                continue
        yield section


def _kind(block: Block) -> tuple[type[Entry], dict[str, Any]]:
    marker = block.marker
    if match := TURN_MARKER.fullmatch(marker):
        return Turn, {"number": int(match[1]), "agent": match[2]}
    if match := _TASK_MARKER.fullmatch(marker):
        return TaskHeader, {"id": match[1]}
    if match := _RESUMED_MARKER.fullmatch(marker):
        at = values.read_time(match[1])
        if at is not None or match[1] == "-":
            return Resumed, {"at": at}
    if match := _TORN_MARKER.fullmatch(marker):
        return Torn, {"length": int(match[1])}
    kinds: dict[str, type[Entry]] = {REQUEST: Request, EXECUTION: Execution, RESULT: Result, NOTE: Note}
    simple = kinds.get(marker)
    return (simple, {}) if simple else (Unknown, {"marker": marker})
