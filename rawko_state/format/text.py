"""Encodes text for a file and back: line escaping, and JSON for what UTF-8 text cannot represent.

Escaping matches prefixes, never whole lines, so that structural lines of a later version are safe too. And for people: control
characters made visible, as task files contain whatever a model or a web page said, and no terminal must interpret it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rawko_state.late import late

_SLICE: Final = 1 << 20
# Searched for first: a pattern that starts with a fixed character takes a tenth of the time of one that starts with "^".
_PERHAPS = late(r"\n\\*(?:=== |--- |\[[A-Z])")
_LINE_TO_ESCAPE = late(r"^(?=\\*(?:=== |--- |\[[A-Z]))", re.MULTILINE)
_LINE_ESCAPED = late(r"^\\(?=\\*(?:=== |--- |\[[A-Z]))", re.MULTILINE)
_SURROGATE = late("[\ud800-\udfff]")
_JOINABLE = late("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_NOT_IN_FIELD = late("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_CONTROL = late("[\x00-\x1f\x7f]")


def escape(text: str) -> str:
    return _escaped(text) if len(text) <= _SLICE else "".join(map(_escaped, _slices(text)))


def _escaped(text: str) -> str:
    return _LINE_TO_ESCAPE.sub(r"\\", text) if _PERHAPS.search("\n" + text) else text


def _slices(text: str) -> Iterator[str]:
    """Parts of a text, cut after lines: searching a long one in one go would keep other threads waiting."""
    start = 0
    while len(text) - start > _SLICE and (end := text.find("\n", start + _SLICE) + 1):
        yield text[start:end]
        start = end
    yield text[start:]


def unescape(text: str) -> str:
    return _LINE_ESCAPED.sub("", text) if "\\" in text else text


def escape_after_first_line(text: str) -> str:
    """For a body that does not begin at the start of a line (``User: …``)."""
    first, newline, rest = text.partition("\n")
    return first + newline + escape(rest) if newline else text


def unescape_after_first_line(text: str) -> str:
    first, newline, rest = text.partition("\n")
    return first + newline + unescape(rest) if newline else text


def needs_json(text: str) -> bool:
    """Whether a body would make the file invalid text: NUL, or what UTF-8 cannot represent."""
    return "\x00" in text or (not text.isascii() and _SURROGATE.search(text) is not None)


def field_needs_json(value: str) -> bool:
    return _NOT_IN_FIELD.search(value) is not None


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def to_json(text: str) -> str:
    """A JSON string in ASCII, or an array of strings where JSON would join a high and a low surrogate."""
    import json

    parts = _JOINABLE.split(text)
    return json.dumps(text) if len(parts) == 1 else json.dumps(parts)


def from_json(text: str) -> str | None:
    """The string that to_json encoded, or None if it is something else."""
    import json

    from rawko_state.format.fair_json import shallow

    try:
        value = json.loads(shallow(text))
    except ValueError:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return "".join(value)
    return None


def quote(item: str) -> str:
    """A path or a list item: as it is, or as a JSON string if it would not survive on one line."""
    if item.startswith('"') or has_control(item) or _SURROGATE.search(item) or item != item.strip() or not item:
        return to_json(item)
    return item


def unquote(item: str) -> str:
    if item.startswith(('"', "[")):
        value = from_json(item)
        # A path may start with a bracket; only an array that quote() would write is decoded as JSON.
        if value is not None and (item[0] == '"' or quote(value) == item):
            return value
    return item


def decode(data: bytes) -> str:
    """Decodes bytes of a file. Invalid UTF-8 becomes U+FFFD here; the file keeps its bytes."""
    return data.decode("utf-8", "replace")


def body_text(raw: str) -> str:
    """A body without the LF of its last line and the empty line that ends the section; still escaped."""
    return raw.removesuffix("\n").removesuffix("\n")


# C0 and C1 controls except LF and TAB, DEL, line and paragraph separators, and the characters that change the writing direction.
_UNSAFE = late("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with control characters made visible: ESC as ␛, others as \\xNN or \\uNNNN. Lines end with LF."""
    return text if text.isprintable() else _UNSAFE.sub(_shown, text.replace("\r\n", "\n"))


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
