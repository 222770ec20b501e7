"""Decides whether the value of a secret-looking name is a secret, or code, a placeholder, a path or a count."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

_PLACEHOLDER = re.compile(
    r"(?:x+|\*+|\.+|-+|_+|0+|(?:123456789?0?)|(?:your|my|some|the|a|an|any|insert|enter|put|add)[-_ ].*"
    r"|[<$%{@#!].*"
    r"|.*(?:change[-_]?me|placeholder|example|dummy|redacted|not[-_]?set|replace[-_]?me|xxxx|\*\*\*|\.\.\.|…).*"
    r"|none|null|nil|true|false|undefined|unset|empty|secret|passw(?:or)?d|pass|token|string|str|bytes|text|test(?:ing)?|todo|tbd"
    r"|required|optional|hidden|masked|unknown|default|admin|root|user|foo|bar|foobar|value|abc|abc123|guest|invalid|valid)",
    re.IGNORECASE,
)
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\}?")
_CODE = re.compile(r"[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)*[.:]?", re.ASCII)
_PATH = re.compile(r"(?:[A-Za-z]:[\\/]|[~.]{0,2}/|[A-Za-z][A-Za-z0-9+.-]*://).*", re.DOTALL)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}.*")
_DIGITS = re.compile(r"[0-9]")
_LETTERS = re.compile(r"[A-Za-z]")
_SYMBOLS = re.compile(r"[!@#$%^&*()+=\[\]{}|;:,?~-]")

_NO_PATH: Final = 4.5

PASSWORDS: Final = ("passw", "passphrase", "pwd")


def entropy(text: str) -> float:
    """Shannon entropy in bits per character."""
    total = len(text)
    return -sum(count / total * math.log2(count / total) for count in Counter(text).values()) if total else 0.0


def is_no_secret(value: str) -> bool:
    """Whether it is a placeholder, a reference to a secret, an identifier, a path or a date."""
    if value[:1] == "/" and entropy(value) >= _NO_PATH:
        return False  # base64 may start with a slash
    return bool(
        _PLACEHOLDER.fullmatch(value) or _UUID.fullmatch(value) or _PATH.fullmatch(value) or _DATE.fullmatch(value)
    )


def is_random(value: str) -> bool:
    """Letters and digits that no one would type by hand: long, mixed, and with little repetition."""
    if len(value) < 12 or not _DIGITS.search(value) or not _LETTERS.search(value):
        return False
    return entropy(value) >= (3.0 if len(value) >= 16 else 2.8)


def is_password(value: str) -> bool:
    """Something that a person could have chosen as a password: more than a plain word, such as a label or a variable name."""
    kinds = sum(1 for pattern in (_DIGITS, _LETTERS, _SYMBOLS) if pattern.search(value))
    return len(value) >= 6 and kinds >= 2


def assigned(name: str, value: str, *, quoted: bool, environment: bool) -> bool:
    """Whether ``name = value`` reveals a secret. ``environment``: written as in an .env file or a shell."""
    value = value.strip()
    if is_no_secret(value):
        return False
    personal = any(word in name.lower() for word in PASSWORDS)
    if environment:
        least = 4 if personal else 8
        return len(value) >= least and (personal or not value.isdigit())
    if not quoted and (_CODE.fullmatch(value) and not is_random(value)):
        return False
    if personal:
        return is_password(value)
    return is_random(value)
