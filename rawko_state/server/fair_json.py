"""Parses large JSON without holding the interpreter.

The parser of the standard library is one call in C: while it reads 60 MB of small values, no other thread runs for seconds, and
``/healthz`` does not answer. Its twin in Python lets others run. It is slower, so small bodies don't use it.
"""

from __future__ import annotations

import json
from json import scanner
from typing import Any, Final, NoReturn

LARGE: Final = 256 << 10


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


def loads(body: bytes) -> Any:
    """Like json.loads(), for input that may be large. NaN and infinities are rejected."""
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    return (_FAST if len(text) <= LARGE else _FAIR).decode(text)
