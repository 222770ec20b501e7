"""Converts blocks (a marker line, fields and sections) to text and back. The codec interprets the fields."""

from __future__ import annotations

import re
from typing import Final

from rawko_state.errors import InvalidValue
from rawko_state.format.seal import read_seal
from rawko_state.format.text import (
    body_text,
    decode,
    escape,
    escape_after_first_line,
    field_needs_json,
    from_json,
    needs_json,
    quote,
    to_json,
    unescape,
    unescape_after_first_line,
    unquote,
)
from rawko_state.late import late
from rawko_state.model.frozen import Frozen
from rawko_state.model.parts import Field, Section

REQUEST: Final = "=== REQUEST ==="
MAX_MARKER: Final = 4_096
"""The most characters that we write in a marker or a heading; longer ones can be read."""
MAX_FIELDS: Final = 4 << 20

_FIELD_NAME = late(r"[A-Z][A-Za-z0-9]*(?:[ -][A-Za-z0-9]+)*")
_FIELD_LINE = late(r"([A-Z][A-Za-z0-9]*(?:[ -][A-Za-z0-9]+)*):(?: (.*)|)", re.DOTALL)
_USER_FIELD = late(rb"(?:\A|\n)(User|User json):(?: |(?=\n)|\Z)")
_HEADING = late("[A-Z][^\x00-\x1f\x7f\ud800-\udfff]*")
_MARKER = late(r"(?:=== |--- )[^\n]*")


# Names and headings that were already checked. Usually few; a hostile file may contain many, so the sets are limited.
_known_names: set[str] = set()
_known_headings: set[str] = set()


def _remember(name: str, known: set[str]) -> None:
    if len(known) < 1_000:
        known.add(name)


class Block(Frozen):
    marker: str
    fields: tuple[Field, ...] = ()
    sections: tuple[Section, ...] = ()


def emit_block(block: Block) -> bytes:
    """The bytes of a block, including the empty line that ends it."""
    if not _MARKER.fullmatch(block.marker) or field_needs_json(block.marker) or len(block.marker) > MAX_MARKER:
        raise InvalidValue(f"Not a valid marker line: {block.marker[:200]!r}.")
    lines = [block.marker]
    user: Field | None = None
    for field in block.fields:
        if block.marker == REQUEST and field.name == "User" and user is None and not field.items:
            user = field
        else:
            lines.extend(_field_lines(field))
    text = "\n".join(lines) + "\n"
    if len(text) > MAX_FIELDS:
        raise InvalidValue(
            f"The fields under {block.marker!r} exceed {MAX_FIELDS:,} characters. Put long text in a section."
        )
    text += "\n" if user is None else _user_body(user.value)
    for section in block.sections:
        text += _emit_section(section)
    return text.encode()


def _user_body(value: str) -> str:
    if needs_json(value):
        return f"User json: {to_json(value)}\n\n"
    return f"User: {escape_after_first_line(value)}\n\n"


def _field_lines(field: Field) -> list[str]:
    if field.name not in _known_names:
        if not _FIELD_NAME.fullmatch(field.name):
            raise InvalidValue(f"Not a valid field name: {field.name!r}.")
        _remember(field.name, _known_names)
    if field.value.isprintable() and field.value.isascii():
        lines = [f"{field.name}: {field.value}" if field.value else f"{field.name}:"]
    elif field_needs_json(field.value):
        lines = [f"{field.name} json: {to_json(field.value)}"]
    else:
        first, *more = field.value.split("\n")
        lines = [f"{field.name}: {first}" if first else f"{field.name}:"]
        lines.extend(f"  | {line}" for line in more)
    lines.extend(f"  - {quote(item)}" for item in field.items)
    return lines


def _emit_section(section: Section) -> str:
    if not section.heading:
        return f"{escape(section.text)}\n\n"
    if section.heading not in _known_headings:
        is_seal = read_seal(f"[{section.heading}]".encode("utf-8", "replace"))
        if not _HEADING.fullmatch(section.heading) or is_seal or len(section.heading) > MAX_MARKER:
            raise InvalidValue(f"Not a valid section heading: {section.heading[:200]!r}.")
        _remember(section.heading, _known_headings)
    if needs_json(section.text):
        return f"[{section.heading} json]\n{to_json(section.text)}\n\n"
    return f"[{section.heading}]\n{escape(section.text)}\n\n"


def parse_fields(head: bytes, marker: str) -> tuple[list[Field], Section | None, bool]:
    """Parses the lines between a marker and the first section: the fields, text without a heading, and whether that text
    starts where a field should be."""
    user: Field | None = None
    if marker == REQUEST:
        found = _USER_FIELD.search(head)
        if found:
            user = _user_field(decode(found[1]), head[found.end() :])
            head = head[: found.start() + 1] if found.start() else b""
    fields: list[Field] = []
    lines = decode(head).split("\n")
    at = 0
    while at < len(lines):
        name, colon, value = lines[at].partition(": ")
        if not colon or name not in _known_names:
            match = _FIELD_LINE.fullmatch(lines[at])
            if match is None:
                break
            name, value = match[1], match[2] or ""
        at += 1
        if at == len(lines) or not lines[at].startswith("  "):
            fields.append(_named(name, value, ()))
            continue
        more, at = _taken(lines, at, "  |")
        items, at = _taken(lines, at, "  -")
        if more:
            value = "\n".join([value, *more])
        fields.append(_named(name, value, tuple(unquote(item) for item in items)))
    rest = lines[at:]
    stray = None
    not_a_field = bool(rest) and rest[0] != ""
    if not not_a_field:
        rest = rest[1:]
    if any(rest):
        stray = Section("", unescape(body_text("\n".join(rest))))
    if user is not None:
        fields.append(user)
    return fields, stray, not_a_field and stray is not None


def _taken(lines: list[str], at: int, prefix: str) -> tuple[list[str], int]:
    """The lines from ``at`` on that have the prefix, without it, and where they end."""
    taken = []
    while at < len(lines) and (lines[at].startswith(prefix + " ") or lines[at] == prefix):
        taken.append(lines[at][len(prefix) + 1 :])
        at += 1
    return taken, at


def _named(name: str, value: str, items: tuple[str, ...]) -> Field:
    if name.endswith(" json"):
        text = from_json(value)
        # Decode only what emit_block would have encoded; keep any other field of that name as it is.
        if text is not None and field_needs_json(text):
            return Field(name[: -len(" json")], text, items)
    return Field(name, value, items)


def _user_field(name: str, body: bytes) -> Field:
    raw = body_text(decode(body))
    if name.endswith(" json"):
        text = from_json(raw)
        if text is not None and needs_json(text):
            return Field("User", text)
        return Field(name, unescape_after_first_line(raw))
    return Field("User", unescape_after_first_line(raw))


def parse_section(heading_line: bytes, body: bytes) -> Section:
    """``[Heading]`` and the bytes up to the next structural line."""
    heading = decode(heading_line)[1:].removesuffix("]")
    raw = body_text(decode(body))
    if heading_line.endswith(b" json]"):
        text = from_json(raw)
        if text is not None and needs_json(text):
            return Section(heading[: -len(" json")], text)
    return Section(heading, unescape(raw))
