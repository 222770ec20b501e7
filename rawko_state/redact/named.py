"""Names and values: what stands behind a secret-looking name, as in settings, code, logs and prose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rawko_state.redact import values
from rawko_state.redact.late import Late
from rawko_state.redact.rule import COLOUR, EDGE, before
from rawko_state.redact.vendors import KEY_OWNERS

ASSIGNED: Final = "assigned-secret"
VENDOR: Final = "vendor-secret"
SPOKEN_SECRET: Final = "spoken-secret"

_KINDS = (
    r"(?:api|access|secret|private|auth|encryption|signing|account|master|consumer|subscription|license|storage|shared|app|application|deploy"
    r"|webhook|session|admin|write|ingest|client|service|function|integration|developer|personal|rest|internal|unseal|recovery|wrapping|functions|validation|decryption|routing)"
)
_KIND = Late(_KINDS + r"[ _.-]?\Z", re.IGNORECASE)
"""A word before 'key' that makes it a secret. A match starts at the hint, so this is looked for when it has matched."""
_KIND_OF_TOKEN = Late(
    r"(?:api|access|auth|refresh|private|bearer|bot|deploy|personal|oauth2?|security|vault|registry|id|npm"
    r"|csrf|xsrf|publish)[ _.-]?\Z"
    r"|[?&]\Z|(?:\A|[\s\"'])--?\Z",  # ?token=X, --token=X
    re.IGNORECASE,
)
"""A word before 'token' after which a UUID is a secret, too."""
HINTS: Final = (
    "passw",
    "passphrase",
    "passcode",
    "pass",
    "pwd",
    "secret",
    "token",
    "credential",
    "key",
    "pw",
    "contrase",
    "kennwort",
    "senha",
    "wachtwoord",
    "creds",
)
_WORD = (
    r"passw(?:or)?[dt]|passphrase|passcode|pwd|(?:(?<![A-Za-z])|(?<=store)|(?<=key)|(?<=db)|(?<=ssh)|(?<=user)|(?<=smtp)|(?<=ftp)|(?<=mail)|(?<=root)"
    r"|(?<=admin)|(?<=redis)|(?<=sql)|(?<=pg)|(?<=http)|(?<=proxy)|(?<=sudo)|(?<=bind))pass|(?<![A-Za-z])pw(?![A-Za-z])"
    r"|secret(?:[_-]?id(?![a-z]))?|token|credentials?|creds|(?<=de )passe|contrase[^\s]a|kennwort|senha|wachtwoord"
)
NAME = (
    rf"(?P<name>(?:{_WORD}|(?<=[A-Za-z_.-])key)"
    # A lookahead and what it found: as the group is not tried shorter, a long row of such words costs no more.
    r"(?=(?P<more>(?:[_-]?(?:key|token|secret|value|string|base|base64|b64|prod|dev|live|test|production|staging|plain|text|salt|private|[0-9]{1,2})){0,4}))(?P=more))"
)
NEXT_LINE = (
    rf"{COLOUR}(?:\r?\n|\\{{1,3}}n){COLOUR}"
    r"(?:[ \t]{0,8}[0-9]{1,6}(?:[:\t→|-]|\\{1,3}t|\\{1,2}u2192))?[ \t>+|-]{0,24}"
)
"""The end of a line, and what may stand before the next one: its number, the signs of a diff or a quotation, its indent."""
# The closing quote of the name, a type, and the separator between name and value; or a second pair that holds the value.
SEPARATOR = (
    rf"(?P<close>\\{{0,3}}[\"'`])?(?:\[[0-9]{{0,4}})?\]?{COLOUR}(?P<gap>[ \t]{{0,32}})"
    r"(?:(?::[ \t]{0,2})?(?:str|string|String|bytes|Optional\[str\]|str \| None|&(?:'static )?str|any|Secret)[ \t]{1,2}(?==))?"
    rf"(?P<sep>[ \t,:={{]{{0,5}}(?:{NEXT_LINE})?\\{{0,3}}[\"']?(?:value|content)\\{{0,3}}[\"']?[ \t]{{0,2}}[:=]"
    r"|[ \t]?,[ \t]?\\{0,3}\"type\\{0,3}\":[ \t]?\\{0,3}\"SecureString\\{0,3}\",[ \t]?\\{0,3}\"value\\{0,3}\":|--value[ \t=]"
    r"|\)?[ \t]{0,2}(?:\|\||\?\?|(?<=[ \t])or)[ \t]{1,3}(?=[\"'])|<-|=>[ \t]?string\([0-9]{1,5}\)"
    r"|=>|:=|===?|=|:|>|%3D|%3A|</key>(?:\s|\\{1,3}[nrt]|[0-9]{1,6}(?=[\t→])|[→>+|]){0,24}<string>"
    r"|,(?=[ \t]{0,3}\\{0,3}[\"']|[A-Za-z0-9!#%*+/_.@^~$-]{8}))"
    rf"[ \t]{{0,24}}{COLOUR}"
    # A block, an anchor or a tag of YAML
    rf"(?:[|>][-+0-9]{{0,2}}[ \t]{{0,4}}(?={COLOUR}(?:\r?\n|\\{{1,3}}n)){NEXT_LINE}"
    r"|&[A-Za-z0-9_-]{1,40}[ \t]{1,3}(?=\S)|!!str[ \t]{1,3})?"
    # The apparent value is itself a name, followed by the value: password: db_password=...
    rf"(?P<inner>[A-Za-z_-]{{0,30}}(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|key)[=:][ \t]{{0,4}}(?![=:\s]))?"
)
_BARE = r"[^\s\"'`\\,;&<>(){}\[\]=\x1b]"
# After an unescaped quote, an escaped quote is part of the value. An escaped newline ends it, like a real one.
_DOUBLE, _SINGLE = (rf"(?:[^{quote}\\\n]|\\[^nrt\n])" for quote in "\"'")
VALUE = (
    rf"(?:'\"'\"'(?P<shell>[^'\n]{{1,400}})'\"'\"'|[@$bfrun]{{0,2}}(?:\"(?P<double>{_DOUBLE}{{1,400}})|'(?P<single>{_SINGLE}{{1,400}})"
    r"|\\{1,3}\"(?P<inner_double>[^\"\\\n]{1,400})|\\{1,3}'(?P<inner_single>[^'\\\n]{1,400}))|`(?P<back>[^`\\\n]{1,400})"
    rf"|(?P<bare>{_BARE}{{1,400}}={{0,2}}|[&(][^\s\"'`\\&;]{{5,400}}))"
)
# A partial value at the end of a text.
OPEN_VALUE = (
    rf"(?P<secret>[@$bfrun]{{0,2}}(?:\"{_DOUBLE}{{0,400}}\\?|'{_SINGLE}{{0,400}}\\?"
    r"|\\{1,3}\"[^\"\\\n]{0,400}|\\{1,3}'[^'\\\n]{0,400}|\\{1,3})|`[^`\\\n]{0,400}"
    rf"|{_BARE}{{0,400}}={{0,2}}|[^\s\"'`\\]{{0,400}})\Z"
)
_ENV_NAME = Late(r"[A-Z][A-Z0-9_]{0,60}\Z")
_CAPITALS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_NAMED: Final = _CAPITALS + "abcdefghijklmnopqrstuvwxyz.-"
_DECORATION: Final = " \t>+|*-"
_BEFORE_LINE: Final = ("\n", "\r", '"', "'", "`", "→", "\\n", "\\r", "\\t")
_NUMBERED = Late(
    r"(?:\A|[\n\r\"'`]|\\[nr])(?:[A-Za-z0-9_./-]{1,90}[:-])?[ \t]{0,8}[0-9]{1,6}(?:[:\t|-]|\\t)[ \t>+|*-]{0,24}\Z"
)
"""A line number, as from cat -n and grep -n."""
_COLOURED = Late(r"(?:\x1b|\\{1,3}(?:x1b|u001b|033|e))\[[0-9;]{0,16}m[ \t>+|*-]{0,24}[A-Za-z0-9_.-]{0,90}\Z")
_BEFORE_VARIABLE: Final = (*"\n\r\t ;|&(+:→", "\\n", "--env=", "--build-arg=")
_SECTION = Late(
    r"(?:^|\n|\\n|[\"'`])(?:[A-Za-z0-9_./-]{1,90}[:-])?[ \t>+|*-]{0,24}(?:[0-9]{1,6}(?:[:\t→|-]|\\t)[ \t>+|*-]{0,24})?"
    r"\[[^\]\n]{1,60}\][ \t]*(?:\r?\n|\\{1,3}[nr])[^\[]{0,400}\Z"
)
"""Behind the head of a section, as in INI files, what stands behind '=' is a value, not a variable."""
_ENV_REST = Late(r"[^\s\"'`\\]{1,400}")
_LINE_REST = Late(r"[^\s\"'`\\\x1b]{1,400}(?=[ \t]{0,8}(?:[\r\n\x1b\"'`]|\Z|\\n))")
_MORE = Late(r"[A-Za-z0-9_+/=.~-]{4,400}")
_LONGEST_VALUE: Final = 400
"""A pattern matches at most so many characters of a value; a longer one goes on, with letters that tokens have."""
_LONG_REST = Late(r"[A-Za-z0-9_+/=.~%:-]{1,65536}")
_DIGIT = Late(r"[0-9]")
_CALL = Late(r"[A-Za-z_$][A-Za-z0-9_.$]*(?:[(\[]|<[A-Z][A-Za-z]*>)")
_AFTER_PAIR: Final = ("", "`", "\n", "\r", " ", "\t", "&", ";", '"', "'", "\x1b", "<", "\\")
_AFTER_LINE: Final = ("", "\n", "\r", "\x1b", '"', "'", "`", "\\")
_QUOTED_NAME = Late(r"[\"'][A-Za-z0-9_.-]*\Z")
_AFTER_CELL: Final = ("", ",", "\n", "\r", "\x1b", '"', "'", "`", "\\")
_TYPES = Late(r"[A-Z][A-Za-z0-9]*(?:\|[A-Za-z][A-Za-z0-9]*)+")
"""One of several types, in code."""
_ESCAPED = Late(r"(?:\\[nrt]|\[[0-9;]{0,16}m)\Z")
"""The end of an escaped line break, or of a colour code."""
_KIND_NAME = Late(r"[A-Za-z0-9]::[A-Za-z0-9]+::[A-Za-z0-9]*\Z")
_RESOURCE = Late(r"(?:\A|[^A-Za-z0-9])arn:[A-Za-z0-9:/*_-]{1,110}:\Z")
"""The name of a resource of Amazon: arn:…:secret:NAME."""
_SETTER = Late(
    r"(?:define|setdefault|(?:set|put|add)[A-Za-z_]{0,24}|[A-Za-z_]{0,24}(?:header|env|property|option))\([ \t]{0,3}"
    r"(?:[\"'][^\"'\n]{0,60}[\"'],[ \t]{0,3})?[\"'][A-Za-z0-9_.-]{0,60}\Z",
    re.IGNORECASE,
)
"""A call that sets a name to a value: define('DB_PASSWORD', 'X')."""
_SHORTEST: Final = 4
_SHORTEST_RANDOM: Final = 20
_SHORTEST_OF_VENDOR: Final = 14
_OF_A_PAGE: Final = (
    "next", "page", "continuation", "pagination", "continue", "sync", "cancellation", "starting", "resume", "cursor",
    "idempotency", "change", "forward", "backward", "product", "unit",
)  # fmt: skip
"""A token behind one of these words says where a list goes on, or which request this is."""
_NAMES: Final = frozenset(
    ("password", "passwd", "passphrase", "secret", "token", "credentials", "apikey", "key", "pass")
)
_GENERIC_SECRET = ("secret", "passw", "passphrase", "pwd", "credential")


def is_kind_of_key(match: re.Match[str]) -> bool:
    return match["name"][:3].lower() == "key" and _KIND.search(before(match, 20)) is not None


def is_of_a_kind(match: re.Match[str]) -> bool:
    """Whether the name is that of a type, as ``"AWS::IAM::AccessKey"``."""
    return _KIND_NAME.search(before(match, 100)) is not None


def is_of_a_page(match: re.Match[str]) -> bool:
    return before(match, 20).rstrip(" _.-").lower().endswith(_OF_A_PAGE)


def _is_of_vendor(text: str) -> bool:
    """Whether the name of a vendor ends this text, which a key follows."""
    return text[-20:].rstrip(" _.-").lower().endswith(KEY_OWNERS)


def identifies(match: re.Match[str], name: str) -> bool:
    """Whether a UUID behind this name is an identifier."""
    if any(word in name for word in _GENERIC_SECRET):
        return False
    front = before(match, 20)
    return not (name[:5] == "token" and (_KIND_OF_TOKEN.search(front) or _is_of_vendor(front)))


def environment_name(match: re.Match[str]) -> bool:
    """Whether the name is written as in an .env file: all capitals, directly followed by '=', no space."""
    name = match["name"]
    if match["sep"] != "=" or match["gap"] or match["close"] or name != name.upper():
        return False
    return _ENV_NAME.search(name) is not None


def _starts_variable(match: re.Match[str]) -> bool:
    """Whether the name starts where a shell, a Dockerfile or an .env file has a variable."""
    text = before(match, 100).rstrip(_CAPITALS)
    return not text or text.endswith(_BEFORE_VARIABLE)


def _starts_line(match: re.Match[str]) -> bool:
    """Whether the name is the first word of a line; list marks, quotes and the signs of a diff may precede it."""
    text = before(match, 100)
    lead = text.rstrip(_NAMED)
    if lead.endswith("\\") and text[len(lead)] in "nrt":
        return True  # an escaped line break
    stripped = lead.rstrip(_DECORATION)
    if not stripped or stripped.endswith(_BEFORE_LINE):
        return True
    if stripped[-1] in "0123456789:t" and _NUMBERED.search(lead):
        return True
    # The end of a colour code was taken for a part of the name.
    return stripped[-1] in "[;" and _COLOURED.search(text) is not None


def value_group(match: re.Match[str]) -> str:
    return next(
        group for group in ("shell", "double", "single", "inner_double", "inner_single", "back", "bare") if match[group]
    )


def _span(match: re.Match[str], group: str) -> tuple[int, int]:
    """Where the value is. A bare one may go on behind characters that would end it in code."""
    start, end = match.span(group)
    text = match.string
    if end - start >= _LONGEST_VALUE:
        rest = _LONG_REST.match(text, end)
        return start, end if rest is None else rest.end()
    if group != "bare":
        return start, end
    if environment_name(match) and _starts_variable(match):
        # In an .env file, a value goes on to the next space, whatever the characters.
        rest = _ENV_REST.match(text, end)
        return start, end if rest is None else end + len(rest[0].rstrip(";,)]}>&|"))
    if match["sep"] in (":", "=") and _starts_line(match):
        rest = _LINE_REST.match(text, end)
        if rest is not None and not _CALL.match(text, start, rest.end()):
            return start, end + len(rest[0].rstrip(";,)]}>&|"))
    if text[end - 1] == "=" and match["sep"][-1] in "=:>,":
        # Random letters have a digit among the first: hostile text without one is not judged at length.
        rest = _MORE.match(text, end) if _DIGIT.search(text, start, start + 24) else None
        if rest is not None and _MORE.fullmatch(text, start, rest.end()) and values.is_random(text[start : rest.end()]):
            return start, rest.end()
    return start, end


def is_assigned(match: re.Match[str]) -> bool:
    group = value_group(match)
    name, text, bare = match["name"], match.string, group == "bare"
    following = text[match.end() : match.end() + 1]
    if bare and (following.isspace() or following.isalnum() or not following):
        shown = match["bare"].rstrip("=")
        if len(shown) < _SHORTEST or shown.lower() in _NAMES:
            return False  # decided early, as hostile text has many of these
    start, end = _span(match, group)
    value, following = text[start:end], text[end : end + 1]
    if values.repeats(value):
        return False
    environment = environment_name(match)
    # A second pair that holds the value stands on a line of its own.
    second = "value" in match["sep"]
    starts_line = bare and (second or (match["sep"] in (":", "=") and _starts_line(match)))
    whole_line = starts_line and following in _AFTER_LINE
    if (
        value[0] in "&("
        and bare
        and not (
            (whole_line or environment)
            and values.is_strong(value.rstrip(")"))
            and (environment or not _CALL.match(value[1:]))
        )
    ):
        return False  # an address, or brackets, in code
    if bare and following and following in "([{" and not (environment and _starts_variable(match)):
        return False  # a call or an index in code
    if bare and environment and value[-1] == "[" and following and following in "\"'":
        return False  # the same, for an argument in capitals
    if (match["sep"] == ">" and (match["gap"] or not bare or following != "<")) or (bare and match["sep"][:2] == "=="):
        return False  # a comparison
    if match["close"] and is_of_a_kind(match):
        return False
    if bare and (_TYPES.fullmatch(value) or (match["sep"] == ":" and _RESOURCE.search(before(match, 120)))):
        return False
    lower = name.lower()
    kind = is_kind_of_key(match)
    if lower[:3] == "key" and not kind:
        if not values.is_random(value) or not (environment or _is_of_vendor(before(match, 20))):
            return False
        kind = True
    if lower == "pw" and (";" in value or not (values.is_strong(value) or values.is_random(value))):
        return False  # a short variable
    if lower == "token" and is_of_a_page(match):
        return False
    is_id = not (kind or environment) and identifies(match, lower)
    if match["sep"] == ",":
        if match["inner"] is not None or value.startswith("--"):
            return False  # another pair, or the options of a command
        call = "" if bare else before(match, 120)
        if "(" in call and _SETTER.search(call):
            return values.assigned(name, value, quoted=True, environment=False, identifies=is_id)
        # A list of words has the same form, so the value must look random.
        return (
            (
                not match["close"] and not match["gap"] and _starts_line(match) and following in _AFTER_CELL
                if bare
                else _QUOTED_NAME.search(before(match, 60)) is not None
            )
            and not values.is_no_secret(value, uuid=is_id)
            and (
                values.UUID.fullmatch(value) is not None
                or (bare and _is_personal(lower) and _MIXED.fullmatch(value) is not None)
                or (
                    not values.is_identifier(value)
                    and (values.is_random(value) or (_is_personal(lower) and values.is_strong(value)))
                )
            )
        )
    # Name and value as in YAML or INI files, or as in a log or a query.
    line = bare and (
        (((match["sep"] == "=" and not match["gap"]) or match["inner"] is not None) and following in _AFTER_PAIR)
        or (whole_line and (match["sep"] == ":" or second or _SECTION.search(before(match, 500)) is not None))
        or match["sep"] == ">"
    )
    return values.assigned(
        name,
        value,
        quoted=not bare or match["sep"][:2] == "</",
        environment=environment,
        line=line,
        identifies=is_id,
    )


def assigned_parts(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    return [_span(match, value_group(match))]


def _is_personal(name: str) -> bool:
    return any(word in name for word in values.PASSWORDS)


# Prose

SPOKEN = (
    r"(?P<name>passw(?:or)?[dt]|passphrase|passcode|pwd|(?<![A-Za-z])pw|secret|token|credentials?|creds"
    r"|(?<=de )passe|contrase[^\s]a|kennwort|senha|wachtwoord"
    r"|(?<=[A-Za-z][ _-])key)\b(?P<mark>[*_`\"']{0,3})(?:[ \t]\[[^\]\n]{0,24}\]"
    r"|[ \t]#?[0-9]{1,2}(?=:)|[ \t]is generated|[ \t](?:you|we)[ \t](?:need|want|use)|[ \t]\([^()\n]{1,30}\))?"
    r"(?:[ \t](?:for|of|on|to|in)[ \t][^\n.:;,|=]{1,40}?)??"
    r"(?P<by>[ \t]{1,2}(?:is|was)(?:[ \t](?:now|set to|just|still))?:?[ \t]{1,2}"
    r"|[ \t]to[ \t](?=[^\s]{0,60}[0-9])|[ \t]{0,2}(?:->|=>|→)[ \t]{0,2}"
    rf"|[ \t]{{0,2}}[:=][*_]{{0,2}}[ \t]{{0,3}}(?:(?:\r?\n|\\{{1,3}}n)?{NEXT_LINE})?"
    r"|[ \t]{0,24}\|[ \t]{0,24}|[ \t]{1,2}(?=[`\"'])|[ \t](?=[A-Za-z0-9_+/=.~-]{20}))[`\"'*]{0,3}"
)
"""A name and a value as people write them: 'API key: X', 'the password for bob is X', '| token | X |'."""
SPOKEN_VALUE = r"[^\s\"'`\\|<>]"
_ALGORITHM = Late(
    r"(?:sha|md|utf|base|aes|rsa|bcrypt|pbkdf|argon|scrypt|rfc|[hrep]s|iso|oauth|v)-?[0-9]", re.IGNORECASE
)
_NUMBERED_NAME = Late(r"[a-z]+(?:-[a-z]+)*-[0-9]{1,3}")
_CONSTANT = Late(r"[A-Z0-9]+(?:_[A-Z0-9]+)+")
_MIXED = Late(r"[A-Za-z]+[0-9]+[A-Za-z][A-Za-z0-9]*")
"""A digit among letters, as in hunter2zebra."""
_OWNED = Late(
    EDGE + r"(?:my|your|our|his|her|their|the|new|old|current|initial|temporary|temp|default"
    r"|admin|root|wifi|login|user|sudo|db|database|prod|production|staging|generated|random|following|enter)[ ]\Z",
    re.IGNORECASE,
)
_ACCOUNT = Late(
    EDGE + r"(?:user(?:[ _]?name)?|login|e-?mail|account)[*`]{0,3}[ ]?(?:[:=][ ]?|[ ])[*`\"']{0,3}[^\s`\"']{1,80}"
    r"[`\"',;]{0,3}[ ](?:and|with|/|\||-|,)?[ ]?[*`]{0,3}\Z",
    re.IGNORECASE,
)
_SPACED_KIND = Late(_KINDS + r" \Z", re.IGNORECASE)


def _spoken_span(match: re.Match[str]) -> tuple[int, int]:
    start, end = match.span("secret")
    if end - start >= _LONGEST_VALUE and (rest := _LONG_REST.match(match.string, end)) is not None:
        return start, rest.end()
    return start, start + len(match.string[start:end].rstrip(".,;:)*}"))


def is_spoken(match: re.Match[str]) -> bool:
    start, end = _spoken_span(match)
    value, name, by = match.string[start:end], match["name"].lower(), match["by"].strip()
    if len(value) < 6 or value[0] in ")]},:" or match["secret"].endswith("...") or is_of_a_kind(match):
        return False
    if not by and _NUMBERED_NAME.fullmatch(value):
        return False
    told = _is_told(match, name, value)
    if (
        by[:1] in ("=", ":")
        and not told
        and not match["mark"]
        and not set("\n*\\") & set(match["by"])
        and not _SPACED_KIND.search(before(match, 20))
        and not (name == "key" and _is_of_vendor(before(match, 20)))
    ):
        return False  # the rule for assignments decides
    if values.is_no_secret(value, uuid=name == "token" and identifies(match, name), chosen=told) or _CALL.match(value):
        return False
    if name == "token" and is_of_a_page(match):
        return False
    if told and (by[:1] in ("=", ":") or by[:2] in ("is", "wa") or (not by and match.string[start - 1] in "`\"'")):
        return True
    if (
        name == "key"
        and not _KIND.search(before(match, 20))
        and not (_is_of_vendor(before(match, 20)) and values.is_random(value))
    ):
        return False
    if values.UUID.fullmatch(value):
        return name != "token" or not identifies(match, name)
    if values.is_random(value):
        return not values.is_identifier(value)
    if not by and match.string[match.end("by")] not in "`\"'":
        return False  # 'the token X' tells less than 'the token is X'
    if not _is_personal(name) or by[:1] == "=" or _ALGORITHM.match(value) or _CONSTANT.fullmatch(value):
        return False
    return values.is_strong(value) or (by[:2] in ("is", "wa") and len(value) >= 8 and bool(_MIXED.fullmatch(value)))


def _is_told(match: re.Match[str], name: str, value: str) -> bool:
    """As in 'my password: X' or 'user: bob, password: X', where the value may have the form of a variable with a number."""
    if not _is_personal(name) or _DIGIT.search(value) is None or value.isdigit() or _ALGORITHM.match(value):
        return False
    text = before(match, 120)
    if " for " in match.string[match.end("mark") : match.start("by")] and match["by"].strip()[:1] in ("=", ":"):
        return True
    return bool(_OWNED.search(text[-20:]) or _ACCOUNT.search(text))


def spoken_parts(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    return [_spoken_span(match)]


# Vendors

_PUBLIC = Late(
    r"(?:[_.-]|(?<=[a-z]))(?:id|ids|url|uri|host|hash|sha|sha1|sha256|md5|sum|version|digest|commit|ref|rev|name|path|file|email|user"
    r"|region|domain|type|count|public|etag|revision|channel|checksum|integrity|build|bucket|project|zone|arn|endpoint|link|image|size"
    r"|date|time|(?<!p)at|class|style|module|package|tag|label)s?\Z",
    re.IGNORECASE,
)


_A_CLIENTS_ID = Late(r"(?:client|access|api)[_.-]?id\Z", re.IGNORECASE)
"""Some vendors treat it as a secret, so it is one here unless it is a UUID."""
_SECRET_UUIDS: Final = ("messagebird", "message_bird", "message-bird", "sendbird")
"""These vendors' clients are known by a UUID that opens something."""
VENDOR_SEPARATOR: Final = SEPARATOR.replace("(?P<sep>", r"(?P<sep>\|(?=[ \t])|", 1)
"""Also between the cells of a table."""


def is_vendors(match: re.Match[str]) -> bool:
    group = value_group(match)
    start, end = _span(match, group)
    name, value, sep = match["name"], match.string[start:end], match["sep"]
    if len(value) < _SHORTEST_OF_VENDOR or sep in ("==", "===") or (match["close"] and is_of_a_kind(match)):
        return False
    front = before(match, 20)
    if front[-1:] == "/":
        return False  # a part of a path
    if front[-1:].isalpha() and not (front[-1:].islower() and name[0].isupper()) and not _ESCAPED.search(front):
        return False  # a part of another word: AccessEntry
    if sep == ">" and (match["gap"] or match.string[end : end + 1] != "<"):
        return False
    if sep == "," and (group == "bare" or not _SETTER.search(before(match, 120))):
        return False
    is_id = _A_CLIENTS_ID.search(name) is not None
    if not is_id and _PUBLIC.search(name):
        return False
    if values.is_no_secret(value, uuid=is_id and not name.lower().startswith(_SECRET_UUIDS)) or "/" in value[:1]:
        return False
    if values.UUID.fullmatch(value) or (is_id and values.is_long_number(value)):
        return True
    if _CONSTANT.fullmatch(value) or (len(value) < _SHORTEST_RANDOM and values.is_identifier(value)):
        return False
    return re.fullmatch(r"[A-Za-z0-9_+/=.~%:-]+", value) is not None and values.is_random(value)


def is_named_secret(name: str, value: str) -> bool:
    """Whether the value of a key in structured data is a secret."""
    match = _WHOLE_NAME.fullmatch(name[-200:])
    if match is None:
        return False
    is_key = match["name"][:3].lower() == "key"
    front = match.string[: match.start("name")]
    kind = is_key and (_KIND.search(front) is not None or (_is_of_vendor(front) and values.is_random(value)))
    if is_key and not kind:
        return False
    is_id = not kind and identifies(match, match["name"].lower())
    return values.assigned(match["name"], value, quoted=True, environment=False, identifies=is_id)


_WHOLE_NAME = Late(r".{0,200}?" + NAME, re.IGNORECASE | re.DOTALL)
