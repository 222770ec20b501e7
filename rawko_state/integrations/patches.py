"""Small differences between two versions of serialised bytes, and bytes as text that people can read and grep.

A state that grows by one message changes in a few places: counters, and what was added. ``difference`` finds them without looking
for the best answer: it follows both versions as long as they agree, and tries to agree again a few bytes further on.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

Patch = tuple[int, int, bytes]
"""Where, how many bytes are replaced, and by what."""

_AGREED: Final = 12
"""So many equal bytes in a row are no accident."""
_NEAR: Final = 64
_MOST: Final = 32
_BASE64: Final = "base64:"
_CONTROLS: Final = bytes(set(range(32)) - set(b"\t\n\r"))
_NOT_PLAIN: Final = _CONTROLS + b'\t\n\r"\\' + bytes(range(128, 256))


def difference(old: bytes, new: bytes) -> list[Patch] | None:
    """What to replace in ``old`` to get ``new``; None if it is not worth it."""
    patches: list[Patch] = []
    here, there, cost = 0, 0, 0
    while True:
        equal = _agreement(old, here, new, there)
        here, there = here + equal, there + equal
        if here == len(old) or there == len(new):
            break
        if len(patches) >= _MOST or cost * 2 > len(new):
            return None
        cut, added = _next_agreement(old, here, new, there)
        patches.append((here, cut, new[there : there + added]))
        cost += added + 16
        here, there = here + cut, there + added
    if here < len(old) or there < len(new):
        patches.append((here, len(old) - here, new[there:]))
    return patches if sum(len(text) + 16 for _, _, text in patches) * 4 < len(new) * 3 else None


def _agreement(old: bytes, here: int, new: bytes, there: int) -> int:
    """How many bytes are equal from here on. Doubles the step while they are, then halves it."""
    most = min(len(old) - here, len(new) - there)
    equal, step = 0, 64
    while step:
        step = min(step, most - equal)
        at, to = here + equal, there + equal
        if step and old[at : at + step] == new[to : to + step]:
            equal += step
            step *= 2
        else:
            break
    while step:
        step //= 2
        at, to = here + equal, there + equal
        if old[at : at + step] == new[to : to + step]:
            equal += step
    return equal


def _next_agreement(old: bytes, here: int, new: bytes, there: int) -> tuple[int, int]:
    """How many bytes to replace by how many, until both agree again; all the rest if they do not soon."""
    for cut in range(min(_NEAR, len(old) - here) + 1):
        sample = old[here + cut : here + cut + _AGREED]
        if len(sample) < _AGREED:
            break
        found = new.find(sample, there, there + cut + _NEAR + _AGREED)
        if found >= 0:
            return cut, found - there
    return len(old) - here, len(new) - there


def patched(data: bytearray, patches: Sequence[Patch]) -> None:
    """Applies patches in place, so that a version which only grew costs what was added."""
    for at, cut, text in reversed(patches):
        data[at : at + cut] = text


def to_text(data: bytes) -> str:
    """Bytes as text: readable if most of them are, else in base64."""
    # Latin letters take two bytes in a file, and controls six.
    plain = len(data.translate(None, _NOT_PLAIN))
    letters = len(data.translate(None, _CONTROLS))
    costly = len(data) + (letters - plain) + 5 * (len(data) - letters)
    if costly <= len(data) * 4 // 3 + 8 and not data.startswith(_BASE64.encode()):
        return data.decode("latin-1")
    return _BASE64 + base64.b64encode(data).decode()


def to_bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"not a text: {text!r}")
    return base64.b64decode(text[len(_BASE64) :]) if text.startswith(_BASE64) else text.encode("latin-1")
