"""Large JSON, read and written without holding the interpreter.

The standard library reads and writes a value in one call in C. With millions of small values in it, no other thread runs for
seconds, and a server's ``/healthz`` does not answer. Its twins in Python let others run. They are slower, so small values don't
use them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate, islice
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
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(data) > DEEPEST:
        raise ValueError(_TOO_DEEP)
    return text


def _depth(text: bytes) -> int:
    """How deeply the values of a text are nested. It is read without calling itself, as a text may be nothing but brackets."""
    outside = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    deepest = 0
    for depth in accumulate(_STEPS[bracket] for bracket in b"".join(outside).translate(None, _NO_BRACKETS)):
        if depth > deepest:
            deepest = depth
            if deepest > DEEPEST:
                break
    return deepest


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
        inside = []
        for each in level:
            count += len(each)
            if count > MANY:
                return True
            inside += [one for one in (each.values() if isinstance(each, dict) else each) if isinstance(one, _HOLDS)]
        level = inside
    return False


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal."""
    if not has_many(one):
        return bool(one == other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
