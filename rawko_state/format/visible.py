"""Makes control characters visible. Task files contain whatever a model or a web page said; no terminal must interpret it."""

from __future__ import annotations

import re

# C0 and C1 controls except LF and TAB, DEL, line and paragraph separators, and the characters that change the writing direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with control characters made visible: ESC as ␛, others as \\xNN or \\uNNNN. Lines end with LF."""
    return _UNSAFE.sub(_shown, text.replace("\r\n", "\n"))


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
