"""Converts field values (times, durations, labels, tokens …) to text and back. Readers return None for malformed text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.late import late

_TIME = late(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_DURATION = late(r"([0-9]{1,12})(?:\.([0-9]{1,3}))?s")
_COUNT = late(r"0|[1-9][0-9]{0,17}")
_TOKEN = late(r"([a-z][a-z0-9_]*)=(0|[1-9][0-9]{0,17})")
_LABEL_KEY = late(r"[A-Za-z0-9_.-]+")
_LABEL = late(r'([A-Za-z0-9_.-]+)=("(?:[^"\\]|\\.)*"|[^",=\s]+)(?:, |\Z)', re.DOTALL)
_DEEPEST: Final = 200
"""So deep it is told where a value can't be written."""
_BARE_LABEL = late(r'[^",=\s]+')


def write_time(value: datetime) -> str:
    if value.tzinfo is not timezone.utc:
        if value.tzinfo is None:
            raise InvalidValue(f"This time has no time zone: {value.isoformat()}.")
        try:
            value = value.astimezone(timezone.utc)
        except OverflowError:
            raise InvalidValue(f"This time is out of range: {value.isoformat()}.") from None
    text = value.isoformat()[:19]
    if value.microsecond:
        text += f".{value.microsecond:06d}".rstrip("0")
    return text + "Z"


def write_exact_time(value: datetime) -> str:
    """The same, always with milliseconds, so that the texts sort by time."""
    return f"{write_time(value.replace(microsecond=0))[:-1]}.{value.microsecond // 1000:03d}Z"


def read_time(text: str) -> datetime | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    micro = int((match[7] or "").ljust(6, "0"))
    try:
        value = datetime(year, month, day, hour, minute, second, micro, tzinfo=timezone.utc)
        if match[8]:
            offset = timedelta(hours=int(match[9]), minutes=int(match[10]))
            value = value - offset if match[8] == "+" else value + offset
    except (ValueError, OverflowError):
        return None
    return value


def write_duration(milliseconds: int) -> str:
    if not 0 <= milliseconds < 10**15:
        raise InvalidValue(f"Not a duration in milliseconds: {milliseconds}.")
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds}.{f'{rest:03d}'.rstrip('0') or '0'}s"


def read_duration(text: str) -> int | None:
    match = _DURATION.fullmatch(text)
    return int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0")) if match else None


def write_count(value: int) -> str:
    if not 0 <= value < 10**18:
        raise InvalidValue(f"Not a whole number: {value}.")
    return str(value)


def read_count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None


def write_tokens(value: Mapping[str, int]) -> str:
    text = " ".join(f"{kind}={count}" for kind, count in value.items())
    if read_tokens(text) != value:
        raise InvalidValue(f"Tokens must be lower-case words with whole numbers, not {text[:200]!r}.")
    return text


def read_tokens(text: str) -> dict[str, int] | None:
    pairs = [_TOKEN.fullmatch(word) for word in text.split(" ")]
    found = {pair[1]: int(pair[2]) for pair in pairs if pair}
    return found if len(found) == len(pairs) else None


def write_labels(value: Mapping[str, str]) -> str:
    for key in value:
        if not _LABEL_KEY.fullmatch(key):
            raise InvalidValue(f"Not a label name: {key!r}. Use letters, digits, '_', '.' and '-'.")
    return ", ".join(f"{k}={v if _BARE_LABEL.fullmatch(v) else write_json(v)}" for k, v in value.items())


def read_labels(text: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        value = read_json(match[2]) if match[2].startswith('"') else match[2]
        if not isinstance(value, str) or match[1] in found:
            return None
        found[match[1]] = value
        at = match.end()
    return found or None


def read_label_lines(text: str | None) -> dict[str, str]:
    """Labels as stored in the index: one per line."""
    found: dict[str, str] = {}
    for line in (text or "").strip("\n").split("\n"):
        found.update(read_labels(line) or {})
    return found


def write_keys(value: tuple[str, ...]) -> str:
    for key in value:
        if not _LABEL_KEY.fullmatch(key):
            raise InvalidValue(f"Not a label name: {key!r}. Use letters, digits, '_', '.' and '-'.")
    return ", ".join(value)


def read_keys(text: str) -> tuple[str, ...] | None:
    keys = tuple(text.split(", "))
    return keys if all(_LABEL_KEY.fullmatch(key) for key in keys) else None


def write_flag(value: bool) -> str:
    return "yes" if value else "no"


def read_flag(text: str) -> bool | None:
    return {"yes": True, "no": False}.get(text)


def write_text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{name} must be text, not {type(value).__name__}: {value!r:.80}.")
    return str.__str__(value)  # an enumeration's own words for a member are others


def write_json(value: Any) -> str:
    from rawko_state.format import fair_json

    try:
        text = fair_json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, (dict, list, tuple)):
            read = fair_json.loads(text)
            # Each value takes at least a letter.
            if not (read == value if len(text) <= fair_json.MANY else fair_json.same(read, value)):
                raise ValueError("it would come back changed")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"Not a JSON value: {_what_changes(value, '', ()) or error}.") from None


def _what_changes(value: Any, place: str, around: tuple[Any, ...]) -> str | None:
    """Where a value can't be written, or would come back changed, and why."""
    if value is None or isinstance(value, (str, int)):
        return None
    where = place or "the value"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{where} is {value}"
    if isinstance(value, tuple):
        return f"{where} is a tuple, which would come back as a list"
    if not isinstance(value, (dict, list)):
        return f"{where} is of type {type(value).__name__}"
    if any(value is one for one in around):
        return f"{where} contains itself"
    if len(around) > _DEEPEST:
        return None
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(name, str):
            return f"the name {name!r}{f' in {place}' if place else ''} is not text"
        found = _what_changes(inner, f"{place}[{name!r}]", (*around, value))
        if found is not None:
            return found
    return None


def read_json(text: str) -> Any:
    from rawko_state.format import fair_json

    try:
        return fair_json.loads(text)
    except (ValueError, RecursionError):
        return None


def seconds(text: str | None) -> int:
    """A written time as Unix time in whole seconds; 0 if it is not a time."""
    when = read_time(text) if text else None
    return int(when.timestamp()) if when is not None else 0
