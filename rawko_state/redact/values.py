"""Decides whether the value of a secret-looking name is a secret, or code, a placeholder, a path or a count."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise
from typing import Final

from rawko_state.redact.late import Late
from rawko_state.redact.wordlike import UNLIKELY, surprise

TAG = Late(r"\[redacted:[a-z0-9-]{1,40}:[0-9a-f]{4}\]")
"""Replaces a secret, also inside a longer one."""
_PLACEHOLDER = Late(
    r"(?:x+|\*+|\.+|-+|_+|0+|(?:123456789?0?)|(?:your|my|some|the|an?|any|insert|enter|put|add)[-_ ][a-z_ -]*"
    # References: $NAME, ${…}, $(…), %NAME%, %s, <…>, {…}, #{…}, @name, and tags of YAML.
    r"|\$[a-z_][a-z0-9_]*|\$[({].*|\$[0-9@*?]|%[a-z_]+%?|%[({].*|%[sdrq]|<.*|\[[^\]]*\]|__[a-z_]+__|[#@]?\{.*|@[a-z_.]+"
    r"|!(?:vault|secret|ref|sub|env[a-z_]*|getatt|include|reference|join|importvalue|binary|encrypted[a-z/_-]*|important)\b.*"
    r"|!![a-z_$].*|arn:.*|0x[0-9a-f]{1,16}|[a-z0-9.-]{1,100}:[0-9]{1,5}|.*(?:a-z[^a-z]{0,3}(?:0-9|\])|\(\?[:=!]|\[\^|\[0-9[^\]]{0,9}\]\{|abcdefghijklmnopqrst).*"
    r"|.*(?:change[-_ ]?me|placeholder|example|dummy|redacted|not[-_ ]?set|replace[-_ ]?me|xxxx|\*\*\*|\.\.\.|…|\$\{|\{\{).*"
    r"|(?:none|null|nil|true|false|undefined|unset|empty|secret|passw(?:or)?d|pass|token|string|str|bytes|text|test(?:ing)?|todo|tbd"
    r"|required|optional|hidden|masked|unknown|default|admin|root|user|foo|bar|baz|foobar|value|abc|guest|invalid|valid|key|dev|prod"
    r"|sekret|letmein|qwerty|hello|world|fake|mock|sample|bogus|wrong|right|good|bad|new|old|other)[-_]?(?P<digits>[0-9]{0,4}))",
    re.IGNORECASE,
)
UUID = Late(r"\{?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\}?")
_OF_AWS = Late(r"[A-Za-z0-9/+]{29,33}EXAMPLE(?:KEY)?")
"""The secret key that AWS shows in its documentation. In a settings file it is taken for a real one."""
_CODE = Late(r"[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.|!\.)[A-Za-z_$][\w$]*)*[.:!?]?", re.ASCII)
_PATH = Late(r"(?:[A-Za-z]:[\\/]|[~.]{0,2}/|[A-Za-z][A-Za-z0-9+.-]*://).*", re.DOTALL)
_DATE = Late(r"[0-9]{4}-[0-9]{2}-[0-9]{2}.*")
_DIGITS = Late(r"[0-9]")
_LETTERS = Late(r"[A-Za-z]")
_SYMBOLS = Late(r"[!@#$%^&*()+=\[\]{}|;:,?~-]")
_HEX = Late(r"[0-9a-fA-F]+(?:-[0-9a-fA-F]{6,})*")
_WORDS = Late(r"[A-Za-z]{3,}")

_SLUG = Late(r"[./]?[A-Za-z]+(?:[-:,?!()&+=#@/._$ ][A-Za-z]*)*")
_ENOUGH: Final = 160
"""So many characters tell what a value is."""
_NO_PATH: Final = 4.5
_CHOSEN: Final = 3
"""With so many digits behind it, a word was chosen as a password: secret123."""
_WORDLIKE: Final = 4.2
"""Below it, letters with some digits among them are words: production-db-2, sha256WithRSA."""

_SURELY: Final = 5.3
"""Above it, letters are random, whatever else they look like."""

_SCATTERED = Late(r"(?=[A-Za-z]*(?:[0-9][A-Za-z]*){5})[A-Za-z]*(?:[0-9]+[A-Za-z]+){2,}[0-9]+[A-Za-z0-9]*")
"""One word with digits in three places, five or more in all: no name in code."""
_NUMBER = Late(r"[0-9]{15,20}")
_LONG_HEX: Final = 24
"""So many hexadecimal digits are no name in code."""

_PHRASE = Late(r"[a-z]{3,9}(?:([ -])[a-z]{3,9})(?:\1[a-z]{3,9}){2,6}")
_SENTENCE = Late(
    r"\b(?:the|and|for|you|your|our|not|are|was|has|have|had|can|may|must|will|should|would|with|without|from|into|that|this|these|than|then"
    r"|its|all|any|but|one|two|more|less|least|too|use|used|using|enter|type|please|new|old|does|did|when|where|which|who|how|what|pass[a-z]*"
    r"|user[a-z]*|name|login|account|value|string|characters?|long|short|match|invalid|valid|required|empty|change|reset|forgot|set|get|per|via)\b"
)
PASSWORDS: Final = (
    "passw",
    "passphrase",
    "passcode",
    "pwd",
    "pass",
    "pw",
    "contrase",
    "kennwort",
    "senha",
    "wachtwoord",
)


def entropy(text: str) -> float:
    """Shannon entropy in bits per character."""
    total = len(text)
    return -sum(count / total * math.log2(count / total) for count in Counter(text).values()) if total else 0.0


def without_tags(value: str) -> str:
    """What is left of a value from which a secret was removed before."""
    return TAG.sub("", value) if "[redacted:" in value else value


def repeats(value: str) -> bool:
    """Whether it repeats itself, as no secret does."""
    return len(value) > 64 and value.count(value[:5], 0, _ENOUGH) > 5


def is_no_secret(value: str, *, uuid: bool = True, chosen: bool = False) -> bool:
    """Whether it is a placeholder, a reference, an identifier, a path or a date. ``uuid``: UUIDs are identifiers here.
    ``chosen``: only a password stands here, so ``secret123`` is one."""
    value = without_tags(value)[:_ENOUGH]
    if not value:
        return True
    if value[:1] == "/" and entropy(value) >= _NO_PATH:
        return False  # base64 may start with a slash
    placeholder = _PLACEHOLDER.fullmatch(value)
    return bool(
        (placeholder and not (chosen and len(placeholder["digits"] or "") >= _CHOSEN))
        or (uuid and UUID.fullmatch(value))
        or _PATH.fullmatch(value)
        or _DATE.fullmatch(value)
    )


def is_random(value: str) -> bool:
    """Letters and digits that no one would type by hand: long, mixed, with little repetition, and unlike words."""
    size = len(value)
    if size < 12 or " " in value or not _LETTERS.search(value):
        return False
    if not _DIGITS.search(value):
        return size >= 16 and entropy(value) >= 3.3 and surprise(value) >= UNLIKELY
    if entropy(value) < (3.0 if size >= 16 else 2.8):
        return False
    strange = surprise(value)
    return (
        strange == 0.0
        or strange >= _WORDLIKE
        or _HEX.fullmatch(value) is not None
        or _SCATTERED.fullmatch(value) is not None
    )


def is_password(value: str) -> bool:
    """Something that a person could have chosen as a password: more than a plain word, such as a label or a variable name."""
    if len(value) < 6:
        return False
    digits = _DIGITS.search(value) is not None
    if " " in value.strip():
        # A sentence (a label, a message) starts with a capital letter or has no digit.
        return (digits and not value[:1].isupper()) or _is_phrase(value)
    kinds = sum(1 for pattern in (_DIGITS, _LETTERS, _SYMBOLS) if pattern.search(value))
    if kinds < 2:
        return is_random(value) or (len(value) >= 8 and value.lower() != value and surprise(value) >= UNLIKELY)
    # Words with dashes or a colon: a label or a slug.
    return (
        digits
        or not _SLUG.fullmatch(value)
        or _is_phrase(value)
        or (value.lower() != value and surprise(value) >= UNLIKELY)
    )


def _is_phrase(value: str) -> bool:
    """Four words or more that make no sentence: correct horse battery staple."""
    return _PHRASE.fullmatch(value) is not None and not is_sentence(value)


def is_sentence(words: str) -> bool:
    """Whether words that no list of words for passwords has are among these."""
    return _SENTENCE.search(words) is not None


def is_strong(value: str) -> bool:
    """At least three kinds of characters, without a space."""
    kinds = sum(1 for pattern in (r"[a-z]", r"[A-Z]", r"[0-9]", r"[^A-Za-z0-9 ]") if re.search(pattern, value))
    return len(value) >= 8 and kinds >= 3 and " " not in value and "\\" not in value


def is_long_number(value: str) -> bool:
    """Some vendors' secrets are numbers. A round one counts something."""
    return _NUMBER.fullmatch(value) is not None and len(set(value)) > 5 and "0000" not in value


def is_identifier(value: str) -> bool:
    """Whether it is a name in code. Random letters and digits have that form too, but change between kinds more often."""
    if not _CODE.fullmatch(value):
        return False
    if not is_random(value):
        return True
    if len(value) >= _LONG_HEX and _HEX.fullmatch(value):
        return False
    if _SCATTERED.fullmatch(value):
        return False
    kinds = ["d" if letter.isdigit() else "u" if letter.isupper() else "l" for letter in value]
    # A capital before a small letter starts a word.
    changes = sum(1 for one, other in pairwise(kinds) if one != other and (one, other) != ("u", "l"))
    return changes < 0.32 * len(value) and surprise(value) < _SURELY


def assigned(
    name: str, value: str, *, quoted: bool, environment: bool, line: bool = False, identifies: bool = True
) -> bool:
    """Whether ``name = value`` reveals a secret. ``environment``: written as in an .env file or a shell. ``line``: name and value
    are all of a line, as in YAML. ``identifies``: a UUID behind this name is an identifier."""
    value = without_tags(value)[:_ENOUGH].strip()
    personal = any(word in name.lower() for word in PASSWORDS)
    if not quoted and _OF_AWS.fullmatch(value):
        return True
    if repeats(value) or is_no_secret(value, uuid=identifies, chosen=environment and personal):
        return False
    if environment:
        least = 4 if personal else 8
        if len(value) < least:
            return False
        # Of a key, words alone are its name.
        return (
            personal
            or is_long_number(value)
            or not (value.isdigit() or (_SLUG.fullmatch(value) and surprise(value) < UNLIKELY))
        )
    if UUID.fullmatch(value):
        return True
    if not quoted and is_identifier(value):
        strange = _DIGITS.search(value) is not None or surprise(value) >= UNLIKELY
        return line and personal and strange and is_password(value)
    if personal:
        return is_password(value)
    return is_random(value) or ((quoted or line) and is_long_number(value))
