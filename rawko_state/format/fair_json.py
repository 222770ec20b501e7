"""Large JSON, read and written without holding the interpreter.

The standard library reads and writes a value in one call in C. With millions of small values in it, no other thread runs for
seconds, and a server's ``/healthz`` does not answer. Its twins in Python let others run. They are slower, so small values don't
use them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from json import scanner
from typing import Any, Final, NoReturn, TypeVar

LARGE: Final = 2 << 20
"""Letters of a text that take a tenth of a second, on a slow machine."""
MANY: Final = 200_000
"""Values in a value that take as long."""
DEEPEST: Final = 200
"""Values within values within values. Parsers and everything that walks through a value call themselves once for each of these:
near the end of the stack, whatever the garbage collector calls there would fail too."""
_TOO_DEEP: Final = f"it is nested more than {DEEPEST} levels deep"
_TOGETHER: Final = 4096
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(set(range(256)) - set(_STEPS))
_PIECE: Final = 1 << 18
_NOT_ESCAPING: Final = re.compile(r"[^\\]")
_HOLDS: Final = (dict, list, tuple)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON.")


def _fair() -> json.JSONDecoder:
    decoder: Any = json.JSONDecoder(parse_constant=_no_constant)
    decoder.parse_object, decoder.parse_array = json.decoder.JSONObject, json.decoder.JSONArray  # type: ignore[attr-defined]
    decoder.scan_once = scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    found: json.JSONDecoder = decoder
    return found


_FAIR: Final = _fair()
_FAST: Final = json.JSONDecoder(parse_constant=_no_constant)


def loads(text: str | bytes) -> Any:
    """Like json.loads(). NaN, infinities and what is nested too deeply are rejected."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return (_FAST if len(text) <= LARGE else _FAIR).decode(shallow(text))


_AnyText = TypeVar("_AnyText", str, bytes)


def shallow(text: _AnyText) -> _AnyText:
    """The text of a value, unchanged. What is nested too deeply is rejected."""
    plain = text if isinstance(text, str) else text.decode("latin-1")
    if plain.count("[") + plain.count("{") > DEEPEST and _depth(plain) > DEEPEST:
        raise ValueError(_TOO_DEEP)
    return text


def _depth(text: str) -> int:
    """How deeply the values of a text are nested. It is read without calling itself, as a text may be nothing but brackets."""
    depth = deepest = 0
    quoted = False
    for piece in _pieces(text):
        parts = piece.encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        for bracket in b"".join(parts[quoted::2]).translate(None, _NO_BRACKETS):
            depth += _STEPS[bracket]
            if depth > deepest:
                deepest = depth
                if deepest > DEEPEST:
                    return deepest
        quoted ^= len(parts) % 2 == 0
    return deepest


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that take a few milliseconds each. None ends within an escape."""
    start = 0
    while start < len(text):
        found = _NOT_ESCAPING.search(text, start + _PIECE - 1)
        end = found.end() if found else len(text)
        yield text[start:end]
        start = end


def dumps(
    value: Any,
    *,
    ensure_ascii: bool = True,
    allow_nan: bool = True,
    sort_keys: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Like json.dumps(). What is nested too deeply is rejected."""
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=allow_nan, sort_keys=sort_keys, default=default)
    if not has_many(value):
        return encoder.encode(value)
    pieces, found = encoder.iterencode(value), []
    while piece := "".join(islice(pieces, _TOGETHER)):
        found.append(piece)
    return "".join(found)


def has_many(value: Any) -> bool:
    """Whether there are so many values in a value that writing it takes long. What is nested too deeply is rejected."""
    level, depth, count = [value] if isinstance(value, _HOLDS) else [], 0, 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        count += sum(map(len, level))
        if count > MANY:
            return True
        inside = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [one for one in inside if isinstance(one, _HOLDS)]
    return False


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal."""
    if not has_many(one):
        return bool(one == other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
