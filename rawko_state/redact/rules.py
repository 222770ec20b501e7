"""The table of secret formats. Each row: a name, the literals that every match starts with, the pattern, and samples.

Vendors' tokens, which have a prefix, are in ``tokens.py``; here are the forms in which other secrets appear. A pattern is tried only
where one of its hints occurs, and its length is bounded, so that the time for all of them is proportional to the length of any text.
Its group ``secret`` is removed; without that group, the whole match. The samples are tested alone and inside a paragraph, a JSON
string and a URL. They are written in two halves, so that this file contains nothing that looks like a secret.

Patterns are compiled when first needed: a short text rarely needs more than three of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

from rawko_state.redact import values
from rawko_state.redact.late import Late
from rawko_state.redact.scan import LEAST_RUN
from rawko_state.redact.tokens import TOKENS

RUN: Final = "run"
"""The hint is inside a run of at least 20 letters, digits, '_', '-', '~' and '.'."""
TEXT: Final = "text"
"""The hint may be anywhere."""
FOLD: Final = "fold"
"""Anywhere, in upper or lower case. The hint is written in lower case."""

Check = Callable[["re.Match[str]"], bool]
Parts = Callable[["re.Match[str]"], Iterable[tuple[int, int]]]


class Rule:
    """One format. Several rows may have the same name."""

    def __init__(
        self,
        name: str,
        hints: tuple[str, ...],
        pattern: str,
        samples: tuple[str, ...],
        never: tuple[str, ...] = (),
        where: str = RUN,
        check: Check | None = None,
        opening: str | None = None,
        parts: Parts | None = None,
        more: str | None = None,
        least: int = LEAST_RUN,
        needs: str | None = None,
    ) -> None:
        """``samples``: each contains one secret between '«' and '»', which are not part of the text. ``never``: texts that must not
        match. ``opening``: matches the end of a text if a secret may follow; a stream holds back the text from its group ``secret``
        on. ``parts``: the secrets inside a match, if they are not its group. ``more``: characters that continue a secret which is
        longer than the pattern allows. ``least``: how long the run is at least that a match is in. ``needs``: a text that is near
        every match, for rules whose hints are common."""
        self.name, self.hints, self.pattern = name, hints, pattern
        self.samples, self.never, self.where, self.check = samples, never, where, check
        self.opening, self.parts, self.more, self.least = opening, parts, more, least
        self.needs = needs

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.ASCII | (re.IGNORECASE if self.where == FOLD else 0))

    @cached_property
    def opens(self) -> re.Pattern[str] | None:
        if self.opening is None:
            return None
        return re.compile(self.opening, re.ASCII | (re.IGNORECASE if self.where == FOLD else 0))

    @cached_property
    def rest(self) -> re.Pattern[str] | None:
        return None if self.more is None else re.compile(f"{self.more}{{1,65536}}", re.ASCII)

    @cached_property
    def is_pair(self) -> bool:
        """Whether it is for a name and a value."""
        return "sep" in self.regex.groupindex

    @property
    def is_bounded(self) -> bool:
        """Whether a token must not continue a word."""
        return self.pattern.startswith(BOUNDARY)


LONGEST: Final = 4096
"""A pattern matches at most so many characters of a secret; the rest of a longer one is found by ``more``, piece by piece."""
BOUNDARY: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\x[0-9a-fA-F]{2})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\[m)|(?<=\[[0-9]m)|(?<=\[[0-9]{2}m)|(?<=;[0-9]m)|(?<=;[0-9]{2}m)|(?<=;[0-9]{3}m))"
)
"""A token must not continue a word. The end of a JSON or URL escape, or of a terminal colour code, may precede it."""
_OPEN_END = re.compile(r"(\[[^\]]+\])\{[0-9]+,\}(?:\(\?!\[?[_-]{1,2}\]?\))?\Z")
_COLOUR = r"(?:(?:\x1b|\\{1,3}(?:x1b|u001b|033|e))\[[0-9;]{0,16}m){0,2}"
_EDGE = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
"""Where a word starts; also behind an escaped line break."""
_QUOTE = r"(?:\\{0,3}[\"'`])?"


_NOT_IN_RUNS = re.compile(r"\[[^\]]*[+=%][^\]]*\]")


def _token(name: str, prefixes: str, body: str, sample: str, never: tuple[str, ...] = ()) -> Rule:
    """A token that is recognised by its prefix and is not part of a longer word."""
    starting = tuple(prefixes.split())
    # Only what is part of a word can be looked for among words.
    words = [re.split(r"[^A-Za-z0-9_.~-]", prefix)[0] for prefix in starting]
    hints = tuple(
        dict.fromkeys(word if len(word) > 3 else prefix for word, prefix in zip(words, starting, strict=True))
    )
    starts = "|".join(re.escape(prefix) for prefix in sorted(starting, key=lambda prefix: -len(prefix)))
    end = "(?![A-Za-z0-9])" if body.endswith("!") else ""
    weak = body.startswith("~")
    body = body.removeprefix("~").removesuffix("!")
    open_end = _OPEN_END.search(body)
    more = open_end[1] if open_end else None
    if open_end:
        body = body[: open_end.end(1)] + body[open_end.end(1) :].replace(",}", f",{LONGEST}}}", 1)
    where = TEXT if _NOT_IN_RUNS.search(body) or ":" in prefixes or "$" in prefixes or "//" in prefixes else RUN
    samples = tuple(f"«{prefix}{sample}»" for prefix in starting)
    pattern = f"{BOUNDARY}(?:{starts})(?P<body>{body}){end}"
    least = min(map(len, starting)) + len(sample)  # a sample is as short as its pattern allows
    check = _is_random_body if weak else None
    return Rule(name, hints, pattern, samples, (*never, *starting), where, check, more=more, least=least)


def _is_random_body(match: re.Match[str]) -> bool:
    body = match["body"]
    return values.is_random(body) or _is_strong(body)


def _form(
    name: str,
    hints: tuple[str, ...],
    lead: str,
    body: str,
    size: tuple[int, int],
    samples: tuple[str, ...],
    never: tuple[str, ...] = (),
    *,
    check: Check,
    where: str = FOLD,
    tail: str = "",
    hold: str | None = None,
    needs: str | None = None,
) -> Rule:
    """A secret that is recognised by what precedes it. ``hold``: what a stream holds back after it, if not just the body."""
    least, most = size
    return Rule(
        name,
        hints,
        f"{lead}(?P<secret>{body}{{{least},{most}}}){tail}",
        samples,
        never,
        where,
        check,
        f"{lead}(?P<secret>{hold or body}{{0,{most}}})\\Z",
        more=body if body.startswith("[") and not tail else None,
        needs=needs,
    )


def _before(match: re.Match[str], size: int = 200) -> str:
    return match.string[max(0, match.start() - size) : match.start()]


_SCHEME = r"(?:bearer|basic|token|digest|apikey|api-key|apitoken|api-token|negotiate|bot|key|oauth|sso-key|genie-?key|personal)"

# Names and values

# Words before 'key' that make it a secret. Each is a lookbehind, because a match starts at the hint.
_KINDS = [
    "api",
    "access",
    "private",
    "auth",
    "encryption",
    "signing",
    "account",
    "master",
    "consumer",
    "subscription",
    "license",
    "storage",
    "shared",
    "app",
    "application",
    "deploy",
    "webhook",
    "session",
    "admin",
    "write",
    "ingest",
    "client",
    "service",
    "function",
    "integration",
    "developer",
    "personal",
    "rest",
]
_KEY = "(?:(?P<kind>" + "|".join(f"(?<={kind})|(?<={kind}[_-])" for kind in _KINDS) + ")|(?<=[_-]))key"
_HINTS = ("passw", "passphrase", "passcode", "pass", "pwd", "secret", "token", "credential", "key")
_WORD = r"passw(?:or)?d|passphrase|passcode|pwd|(?:(?<![A-Za-z])|(?<=store)|(?<=key))pass|secret|token|credentials?"
_NAME = (
    rf"(?P<name>(?:{_WORD}|{_KEY})"
    # A lookahead and what it found: as the group is not tried shorter, a long row of such words costs no more.
    r"(?=(?P<more>(?:[_-]?(?:key|token|secret|value|string|base|base64|b64|prod|dev|live|test|production|staging|plain|text|[0-9]{1,2})){0,4}))(?P=more))"
)
# The closing quote of the name, a type, and the separator between name and value; or a second pair that holds the value.
_SEPARATOR = (
    rf"(?P<close>\\{{0,3}}[\"'`])?\]?{_COLOUR}(?P<gap>[ \t]{{0,8}})"
    r"(?::[ \t]{0,2}(?:str|string|String|bytes|Optional\[str\]|str \| None|&(?:'static )?str|any|Secret)[ \t]{1,2}(?==))?"
    r"(?P<sep>=>|:=|===?|=|:|>|%3D|%3A|,(?=[ \t]{0,3}\\{0,3}[\"'])"
    r"|[ \t,]{0,3}(?:\r?\n[ \t]{0,24})?\\{0,3}[\"']?value\\{0,3}[\"']?[ \t]{0,2}[:=])"
    rf"[ \t]{{0,8}}{_COLOUR}"
    # The apparent value is itself a name, followed by the value: password: db_password=...
    rf"(?P<inner>[A-Za-z_-]{{0,30}}(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|key)[=:][ \t]{{0,4}}(?![=:\s]))?"
)
_BARE = r"[^\s\"'`\\,;&<>(){}\[\]=\x1b]"
# After an unescaped quote, an escaped quote is part of the value. An escaped newline ends it, like a real one.
_DOUBLE, _SINGLE = (rf"(?:[^{quote}\\\n]|\\[^nrt\n])" for quote in "\"'")
_VALUE = (
    rf"(?:[@$bfru]{{0,2}}(?:\"(?P<double>{_DOUBLE}{{1,400}})|'(?P<single>{_SINGLE}{{1,400}})"
    r"|\\{1,3}\"(?P<inner_double>[^\"\\\n]{1,400})|\\{1,3}'(?P<inner_single>[^'\\\n]{1,400}))|`(?P<back>[^`\\\n]{1,400})"
    rf"|(?P<bare>{_BARE}{{1,400}}={{0,2}}))"
)
# A partial value at the end of a text.
_OPEN_VALUE = (
    rf"(?P<secret>[@$bfru]{{0,2}}(?:\"{_DOUBLE}{{0,400}}\\?|'{_SINGLE}{{0,400}}\\?"
    r"|\\{1,3}\"[^\"\\\n]{0,400}|\\{1,3}'[^'\\\n]{0,400}|\\{1,3})|`[^`\\\n]{0,400}"
    rf"|{_BARE}{{0,400}}={{0,2}}|[^\s\"'`\\]{{0,400}})\Z"
)
_ENV_NAME = Late(r"[A-Z][A-Z0-9_]{0,60}\Z")
_LINE_START = Late(r"(?:^|[\n\r\"']|\\n)[ \t>+|-]{0,40}(?:[A-Za-z0-9_.-]{0,60})\Z")
_ENV_START = Late(
    r"(?:^|[\n\r\t ;|&(+→]|\\n)[ \t]*(?:export |set |env |declare -x |-e |--env[ =]|--build-arg[ =]|ENV |ARG |- )?[A-Z0-9_]{0,60}\Z"
)
_ENV_REST = Late(r"[^\s\"'`\\]{1,400}")
_AFTER_PAIR: Final = ("", "`", "\n", "\r", " ", "\t", "&", ";", '"', "'", "\x1b", "<", "\\")
_AFTER_LINE: Final = ("", "\n", "\r", "\x1b", '"', "'", "\\")
_QUOTED_NAME = Late(r"[\"'][A-Za-z0-9_.-]*\Z")
_GENERIC_SECRET = ("secret", "passw", "passphrase", "pwd", "credential")


def _environment_name(match: re.Match[str]) -> bool:
    """Whether the name is written as in an .env file: all capitals, directly followed by '=', no space."""
    name = match["name"]
    if match["sep"] != "=" or match["gap"] or match["close"] or name != name.upper():
        return False
    start = match.start("name")
    before = match.string[max(0, start - 60) : start]
    return _ENV_NAME.search(before + name) is not None


def _value_group(match: re.Match[str]) -> str:
    return next(group for group in ("double", "single", "inner_double", "inner_single", "back", "bare") if match[group])


def _is_assigned(match: re.Match[str]) -> bool:
    group = _value_group(match)
    name, value, text = match["name"], match[group], match.string
    following = text[match.end() : match.end() + 1]
    environment = _environment_name(match)
    if (
        group == "bare"
        and following
        and following in "([{"
        and not (environment and _ENV_START.search(_before(match, 100)))
    ):
        return False  # a call or an index in code
    if match["sep"] == ">" and (match["gap"] or group != "bare" or following != "<"):
        return False  # a comparison
    lower = name.lower()
    kind = match["kind"] is not None
    if lower[:3] == "key" and not kind and not (environment and values.is_random(value)):
        return False
    identifies = not (kind or any(word in lower for word in _GENERIC_SECRET) or environment)
    if match["sep"].startswith(","):
        # A list of words has the same form, so the value must look random.
        return (
            _QUOTED_NAME.search(_before(match, 60)) is not None
            and not values.is_no_secret(value, uuid=identifies)
            and (values.is_random(value) or (any(word in lower for word in values.PASSWORDS) and _is_strong(value)))
        )
    # Name and value as in YAML, or as in a log or a query.
    line = group == "bare" and (
        (((match["sep"] == "=" and not match["gap"]) or match["inner"] is not None) and following in _AFTER_PAIR)
        or (match["sep"] == ":" and following in _AFTER_LINE and bool(_LINE_START.search(_before(match, 100))))
        or match["sep"] == ">"
    )
    return values.assigned(
        name, value, quoted=group != "bare", environment=environment, line=line, identifies=identifies
    )


def _is_strong(value: str) -> bool:
    kinds = sum(1 for pattern in (r"[a-z]", r"[A-Z]", r"[0-9]", r"[^A-Za-z0-9 ]") if re.search(pattern, value))
    return len(value) >= 8 and kinds >= 3 and " " not in value and "\\" not in value


def _assigned_parts(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    group = _value_group(match)
    start, end = match.span(group)
    if group == "bare" and _environment_name(match):
        # In an .env file, a value goes on to the next space, whatever the characters.
        text = match.string
        if _ENV_START.search(text[max(0, match.start() - 100) : match.start()]):
            rest = _ENV_REST.match(text, end)
            if rest is not None:
                end += len(rest[0].rstrip(";,)]}>&|"))
    return [(start, end)]


# Checks


_PORT = Late(r"[0-9]{1,5}(?:/|\Z)")
_USER_IS_TOKEN: Final = ("x-oauth-basic", "x-token-auth")


def _is_url_password(match: re.Match[str]) -> bool:
    secret = match["secret"]
    return not values.is_no_secret(secret) and secret not in _USER_IS_TOKEN and not _PORT.match(secret)


_WITH_SCHEME = Late(rf"{_SCHEME}[ \t]{{1,3}}", re.IGNORECASE)


def _is_header(match: re.Match[str]) -> bool:
    value = match["secret"]
    if values.is_no_secret(value, uuid=False) or len(value) < 8:
        return False
    if "[" in value or (
        values.is_identifier(value) and not _WITH_SCHEME.search(match[0][: match.start("secret") - match.start()])
    ):
        return False
    return values.is_random(value) or values.UUID.fullmatch(value) is not None or values.is_password(value)


def _is_given(match: re.Match[str]) -> bool:
    """What follows an option that is always a secret."""
    value = match["secret"]
    return not values.is_no_secret(value, uuid=False) and not (value.isdigit() and len(value) < 6) and value != "-"


def _is_random(match: re.Match[str]) -> bool:
    value = match["secret"]
    return not values.is_no_secret(value, uuid=False) and values.is_random(value)


_FLAG = Late(r"(?:\A|[\s\"'`\[(,])-{1,2}[A-Za-z0-9-]{0,30}\Z")
_SETTING = Late(
    _EDGE + r"(?:ENV|ARG|SetEnv|setenv|setx|set -g?x|set -xg|heroku config:set|config set)[ \t]+[^\s=]{0,80}\Z"
)


def _is_spaced(match: re.Match[str]) -> bool:
    """``--token X`` or ``ENV TOKEN X``."""
    value, before = match["secret"], _before(match, 120)
    if values.is_no_secret(value, uuid=False):
        return False
    if _FLAG.search(before):
        return values.is_password(value) or values.is_random(value)
    return _SETTING.search(before) is not None and len(value) >= 4


_LOGIN = Late(r"(?:\A|\s|\\n)(?:login|user|account)[ \t]{1,8}\S{1,128}(?:[ \t]|\r?\n|\\n){1,24}\Z")
_MACHINE = Late(r"(?:\A|\s|\\n)(?:machine[ \t]{1,8}\S{1,253}|default)(?:[ \t]|\r?\n|\\n){1,24}\Z")
_VARIABLE = Late(r"variable[ \t]{1,4}\\{0,3}\"(?P<name>[^\"\n\\]{1,100})\\{0,3}\"[ \t]{0,4}\{[^}]{0,400}\Z")
_SECRET_WORD = Late(_NAME, re.IGNORECASE)


def _is_netrc(match: re.Match[str]) -> bool:
    before, secret = _before(match, 300), match["secret"]
    login = _LOGIN.search(before)
    if values.is_no_secret(secret) or not (login or _MACHINE.search(before)):
        return False
    # Prose has these words too: then the value decides.
    return values.is_password(secret) or (login is not None and "machine " in before)


def _is_default(match: re.Match[str]) -> bool:
    """The default of a Terraform variable with a secret-looking name."""
    variable = _VARIABLE.search(_before(match, 600))
    named = _SECRET_WORD.search(variable["name"]) if variable else None
    if named is None:
        return False
    return values.assigned(named["name"], match["secret"], quoted=True, environment=False, identifies=False)


def _is_basic(match: re.Match[str]) -> bool:
    """The base64 of 'user:password'."""
    import base64
    import binascii

    try:
        text = base64.b64decode(match["secret"] + "=" * (-len(match["secret"]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    user, colon, password = text.partition(b":")
    return bool(user and colon and password) and text.isascii() and text.decode("ascii").isprintable()


def _is_npm(match: re.Match[str]) -> bool:
    value = match["secret"]
    if values.UUID.fullmatch(value) or _is_basic(match):
        return True
    return not values.is_no_secret(value) and not values.is_identifier(value) and values.is_random(value)


_COOKIE = Late(r"(?P<name>[A-Za-z0-9_.$~!%*-]{1,100})=(?P<value>[^;\s\"'\\,]{6,4096})")
_SESSION = Late(r"sess|auth|token|sid\Z|jwt|csrf|xsrf|remember|login|secret|credential|key", re.IGNORECASE)
_ATTRIBUTES: Final = frozenset(("path", "domain", "expires", "max-age", "samesite", "priority"))


def _cookies(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    """The values of cookies that are random, or of a session."""
    for each in _COOKIE.finditer(match.string, match.start("secret"), match.end("secret")):
        name, value = each["name"].lower(), each["value"]
        if name in _ATTRIBUTES or values.is_no_secret(value, uuid=False):
            continue
        if (
            values.is_random(value)
            or values.UUID.fullmatch(value)
            or (_SESSION.search(name) and values.is_password(value))
        ):
            yield each.span("value")


def _is_key_body(match: re.Match[str]) -> bool:
    return len(re.sub(r"[^A-Za-z0-9+/]", "", match["secret"][:4096])) >= 32


_PUBLIC = Late(
    r"(?:[_.-]|(?<=[a-z]))(?:id|ids|url|uri|host|hash|sha|sha1|sha256|md5|sum|version|digest|commit|ref|rev|name|path|file|email|user"
    r"|region|domain|type|count|public|etag|revision|channel|checksum|integrity|build|bucket|project|zone|arn|endpoint|link|image|size"
    r"|date|time|at|class|style|module|package|tag|label)s?\Z",
    re.IGNORECASE,
)


def _is_vendors(match: re.Match[str]) -> bool:
    group = _value_group(match)
    name, value = match["name"], match[group]
    if _PUBLIC.search(name) or match["sep"] in (">", "==", "===") or match["sep"].startswith(","):
        return False
    if values.is_no_secret(value, uuid=False) or "/" in value[:1]:
        return False
    if values.UUID.fullmatch(value):
        return True
    return len(value) >= 20 and re.fullmatch(r"[A-Za-z0-9_+/=.~-]+", value) is not None and values.is_random(value)


# Vendors whose keys have no prefix: a random value behind a name with theirs in it.
_VENDORS = [
    "adafruit",
    "adobe",
    "airtable",
    "algolia",
    "amplitude",
    "asana",
    "atlassian",
    "auth0",
    "azure",
    "beamer",
    "bitbucket",
    "bittrex",
    "bitly",
    "cloudflare",
    "codecov",
    "cohere",
    "coinbase",
    "confluent",
    "contentful",
    "datadog",
    "deepgram",
    "deepseek",
    "discord",
    "drone",
    "etsy",
    "fastly",
    "finicity",
    "finnhub",
    "flickr",
    "freshbooks",
    "gitter",
    "gocardless",
    "heroku",
    "hetzner",
    "hubspot",
    "intercom",
    "jfrog",
    "kraken",
    "kucoin",
    "launchdarkly",
    "linkedin",
    "linode",
    "looker",
    "mailchimp",
    "mapbox",
    "mattermost",
    "messagebird",
    "mistral",
    "mixpanel",
    "netlify",
    "newrelic",
    "nytimes",
    "okta",
    "openweather",
    "opsgenie",
    "pagerduty",
    "plaid",
    "postmark",
    "rapidapi",
    "rollbar",
    "sendbird",
    "shodan",
    "sidekiq",
    "snyk",
    "splunk",
    "squarespace",
    "sumologic",
    "telegram",
    "travis",
    "trello",
    "twilio",
    "twitch",
    "twitter",
    "wandb",
    "yandex",
    "zendesk",
]

_BASE64_LINE = r"[A-Za-z0-9+/=]"
# What may stand between the lines of a key: line breaks, also escaped, quotes, '+' of code and diffs, and line numbers (cat -n, 12→).
_BETWEEN = r"(?:\\{1,2}[nrt]|[\s|>\"',+:→-]|[0-9]{1,6}(?=[\s→|:])|\\\n|(?:\x1b|\\u001b)\[[0-9;]{0,16}m)"
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?P<secret>"
    # Up to the end line. If the key was cut off, up to its last line.
    r"(?:(?!-----)[\s\S]){1,20000}(?=-----END )"
    rf"|(?:{_BETWEEN}{{0,24}}(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{{1,100}}){{0,4}}"
    rf"(?:{_BETWEEN}{{0,24}}{_BASE64_LINE}{{16,1000}}){{1,400}}(?:{_BETWEEN}{{1,24}}{_BASE64_LINE}{{1,15}}(?=\s{{0,4}}\Z|\.\.\.|…))?)"
)

_CREDENTIAL = r"[^\s\"'\\,;<>{}()$\x1b]"
_OPTION = r"[^\s\"'`\\|;&<>(){}$]"
_URL_TEXT = r"[^\s\"'`<>\\]"

# A name with a dot or a port; any other only if no '@' follows, because the password may contain one.
_HOST = (
    r"(?:localhost|\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63}){1,8})(?::[0-9]{1,5})?(?:[/?#\s\"'`<>\\,;)]|\Z)"
    r"|[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}(?:[/?#\s\"'`<>\\,;)]|\Z)|[A-Za-z0-9_.\[-][^\s@\"'`<>\\]{0,253}(?:[\s\"'`<>\\,;)]|\Z)"
)

_FORMS: Final[tuple[Rule, ...]] = (
    Rule(
        "private-key", ("-----BEGIN",), _PRIVATE_KEY,
        ("-----BEGIN RSA PRIVATE " "KEY-----«\nMIIEowIBAAKCAQEAn4Zq0vYyQbX3c9T1\nlkJ8s7fGh2pQwErTyUiOpAsDfGhJkLzX\n»-----END RSA PRIVATE KEY-----",
         "-----BEGIN OPENSSH PRIVATE " "KEY-----«\\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz\\n»-----END OPENSSH PRIVATE KEY-----",
         "-----BEGIN PRIVATE " "KEY-----«\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj»",
         "-----BEGIN RSA PRIVATE " "KEY-----«\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,8E2B7C1D9F3A4056\n\nMIIEowIBAAKCAQEAn4Zq0vYyQbX3c9T1lkJ8s7fG»",
         "     1\t-----BEGIN EC PRIVATE " "KEY-----«\n     2\tMHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY\n     3\tAwEHoUQDQgAE0vYyQbX3c9T1lkJ8s7fGh2pQwEr»",
         "1→-----BEGIN PRIVATE " "KEY-----«\n2→MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n3→VJTUt9Us8cKjMzEfYyjiWA4R4n»"),
        ("-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu1SU1LfVLPHCozMxH2Mo\n-----END PUBLIC KEY-----",
         "looks for -----BEGIN RSA PRIVATE KEY----- in the text", "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYDVQQGEwJJ\n-----END CERTIFICATE-----"),
        TEXT, _is_key_body,
    ),
    # Tokens that are recognised by something other than their beginning
    Rule("azure-secret", ("8Q~", "7Q~"), r"(?<=[A-Za-z0-9_~.-]{3})[78]Q~(?P<secret>[A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])",
         ("abc8Q~«k2JdQ8sLZx" "Yv7WbNm2PtRf5GhTyUiOpAsD»",), ("8Q~x",), TEXT),
    Rule("azure-devops-token", ("AZDO",), r"(?<=[A-Za-z0-9]{76})AZDO[A-Za-z0-9]{4}(?![A-Za-z0-9])",
         ("«" + "k2JdQ8sLZxYv7WbNm2P" * 4 + "AZDO" "x1y2»",), ("AZDO1234",), parts=lambda match: [(match.start() - 76, match.end())]),
    Rule("terraform-token", (".atlasv1.",), rf"(?<=[A-Za-z0-9]{{14}})\.atlasv1\.(?P<secret>[A-Za-z0-9_-]{{60,{LONGEST}}})",
         ("k2JdQ8sLZxYv7W.atlasv1.«bNm2PtRf5GhTyUiOp" "AsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8»",), ("x.atlasv1.y",), more="[A-Za-z0-9_-]"),
    Rule("mailchimp-key", ("-us",), r"(?<=[0-9a-f]{32})-us[0-9]{1,2}(?![A-Za-z0-9])", ("«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54-us14»",), ("region-us1",),
         parts=lambda match: [(match.start() - 32, match.end())]),
    Rule("maxmind-key", ("_mmk",), r"(?<=[A-Za-z0-9]{6}_[A-Za-z0-9]{29})_mmk(?![A-Za-z0-9_])", ("«k2JdQ8_sLZxYv7WbNm2Pt" "Rf5GhTyUiOpAsDf_mmk»",), ("the_mmk",),
         parts=lambda match: [(match.start() - 36, match.end())]),
    Rule("telegram-token", (":AA",), r"(?<=[0-9]{8}):(?P<secret>AA[A-Za-z0-9_-]{32,33})(?![A-Za-z0-9_-])",
         ("110201543:«AAH" "dqTcvCH1vGWJxfSeofSAs0K5PALDsaw»",), ("12345678:AArdvark",), TEXT),
    Rule("discord-token", ("MD", "MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"), BOUNDARY + r"[MNO][A-Za-z0-9]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9])",
         ("«MTIzNDU2Nzg5" "MDEyMzQ1Njc4.Gk2JdQ.sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLz»",), ("MTIzNDU2.x",), least=58),
    Rule("twitter-token", ("AAAAAAAAAAAAAAAAAAAAA",), BOUNDARY + r"A{21,22}[A-Za-z0-9]{6,60}%(?:2B|3D|2F)[A-Za-z0-9%]{30,200}",
         ("«AAAAAAAAAAAAAAAAAAAAA" "Ak2JdQ8sLZxYv7%3DWbNm2PtRf5GhTyUiOpAsDfGhJkLzXcVbNm1qAz»",), ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",)),
    Rule("jwt", ("eyJ",), BOUNDARY + rf"(?<![_-])eyJ[A-Za-z0-9_-]{{8,65536}}\.eyJ[A-Za-z0-9_-]{{8,65536}}\.[A-Za-z0-9_-]{{8,{LONGEST}}}",
         ("«eyJ" "hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U»",),
         ("eyJhbGciOiJIUzI1NiJ9", "keyJson.keyJson.keyJson"), more="[A-Za-z0-9_-]"),
    # Webhooks and signed URLs
    _form("slack-webhook", ("hooks.slack.com",), r"hooks\.slack\.com/(?:services|workflows|triggers)/", r"[A-Za-z0-9/]", (24, 200),
          ("https://hooks.slack.com/services/«T01ABCDEF" "/B02GHIJKL/k2JdQ8sLZxYv7WbNm2PtRf5G»",), ("https://hooks.slack.com/services/T000/B000/XXX",), check=lambda match: re.fullmatch("[A-Z0-9]{6,}/[A-Z0-9]{6,}/[A-Za-z0-9]{16,}", match["secret"]) is not None or values.is_random(match["secret"]), where=TEXT),
    _form("discord-webhook", ("webhooks",), r"webhooks/[0-9]{15,22}/", r"[A-Za-z0-9_-]", (50, 200),
          ("https://discord.com/api/webhooks/123456789012345678/«k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOp" "AsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5»",), ("/api/webhooks/42/x",), check=lambda match: True, where=TEXT),
    _form("teams-webhook", ("webhook",), r"webhook(?:b2)?/", r"[A-Za-z0-9@/-]", (60, 400),
          ("https://acme.webhook.office.com/webhookb2/«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54@8e2b7c1d-9f3a-4056-b8c7-d2e1f0a93b54/IncomingWebhook/8e2b7c1d9f3a4056b8c7d2e1f0a93b54/8e2b7c1d-9f3a-4056-b8c7-d2e1f0a93b54»",),
          ("https://example.org/webhook/github",), check=lambda match: "IncomingWebhook/" in match["secret"], where=TEXT),
    _form("zapier-webhook", ("hooks.zapier.com",), r"hooks\.zapier\.com/hooks/catch/", r"[A-Za-z0-9/]", (10, 100),
          ("https://hooks.zapier.com/hooks/catch/«1234567/" "k2jdq8s/»",), ("https://hooks.zapier.com/hooks/",), check=lambda match: True, where=TEXT),
    _form("signed-url", ("sig", "signature", "x-amz-", "x-goog-"),
          r"(?:(?<=[?&;])|(?<=u0026)|(?<=%26))(?:sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|x-oss-signature|x-ms-signature)(?:=|%3D)",
          r"[A-Za-z0-9%+/=_.~-]", (16, 4096),
          ("https://acme.blob.core.windows.net/c/f?sv=2024-01-01&sig=«k2JdQ8sLZxYv7WbNm2Pt" "Rf5GhTyUiOpAsDfGhJkLzXc%3D»",
           "https://b.s3.amazonaws.com/k?X-Amz-Date=20240115T000000Z&X-Amz-Signature=«8e2b7c1d9f3a4056b8c7d2e1f0a93b54" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»"),
          ("?signature=required", "the design=16 columns"), check=_is_random),
    # URLs
    Rule("url-password", ("://",), rf"://[^\s:/@\"'`<>\\\[\]]{{0,128}}:(?![0-9]{{1,5}}/)(?P<secret>{_URL_TEXT}{{1,256}}?)@(?={_HOST})",
         ("postgres://app:«hunter2" "-Zx9»@db.internal:5432/app", "redis://:«p4ssZ" "ebra»@cache:6379", "https://bob:«s3cr3t" "Zebra»@example.org/x",
          "postgres://app:«p@ss/w0rd" "#Zx9»@db.internal:5432/app", "mysql://root:«a@b@" "c99»@localhost/x"),
         ("http://localhost:8080/a@b", "postgres://user:password@localhost/db", "postgres://app:$DB_PASSWORD@db/app", "https://example.org/~bob:x"), TEXT, _is_url_password,
         rf"://[^\s:/@\"'`<>\\\[\]]{{0,128}}:(?![0-9]{{1,5}}(?:/|\Z))(?P<secret>{_URL_TEXT}{{0,256}})\Z"),
    Rule("url-token", ("://",), r"://(?P<secret>[A-Za-z0-9_.~%-]{16,256})(?::(?:x-oauth-basic|x-token-auth|))?@(?=[A-Za-z0-9\[])",
         ("git clone https://«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b548e2b7c1d»@github.com/acme/app.git", "https://«k2JdQ8sLZx" "Yv7WbNm2Pt»:x-oauth-basic@github.com/acme/app"),
         ("ssh://git@github.com/acme/app", "https://a-rather-long-user-name@example.org/"), TEXT, _is_random,
         r"://(?P<secret>[A-Za-z0-9_.~%-]{0,256}(?::[a-z-]{0,14})?@?)\Z"),
    # Headers
    _form("authorization", ("authorization", "proxy-auth"), rf"(?:proxy-)?auth(?:orization)?{_QUOTE}[ \t]{{0,3}}[:=,][ \t]{{0,3}}{_COLOUR}{_QUOTE}(?:{_SCHEME}[ \t]{{1,3}})?{_COLOUR}",
          _CREDENTIAL, (8, LONGEST),
          ("Authorization: Bearer «k2JdQ8sLZx" "Yv7WbNm2Pt»", "-H 'authorization: Basic «Ym9iOmh1bnRl" "cjI=»'", '"Authorization": "token «8e2b7c1d9f3a' '4056»"',
           "Authorization: Bearer «8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»"),
          ("Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "authorization: required", "Authorization: Bearer YOUR_TOKEN", "authorization = request.headers['x']"),
          check=_is_header),
    _form("bearer-token", ("bearer",), _EDGE + r"bearer(?:[ ]{1,3}|%20|\+)", r"[A-Za-z0-9._~+/=-]", (16, LONGEST),
          ("send it as Bearer «k2JdQ8sLZx" "Yv7WbNm2Pt»", "Bearer «8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»"), ("the bearer of-this-letter-is-welcome", "Bearer authentication-scheme"),
          check=_is_random),
    Rule("cookie", ("cookie",), rf"(?:set-)?cookie2?{_QUOTE}[ \t]{{0,3}}[:=,][ \t]{{0,3}}{_QUOTE}(?P<secret>[^\n\"'\\]{{8,{LONGEST}}})",
         ("Cookie: theme=dark; session=«k2JdQ8sLZx" "Yv7WbNm2Pt»", "Set-Cookie: sid=«s%3Ak2JdQ8sL" "ZxYv7WbNm2Pt.Rf5GhTyU»; Path=/; HttpOnly", '"cookie": "connect.sid=«k2JdQ8sLZx' 'Yv7WbNm2Pt»"'),
         ("Set-Cookie: theme=dark; Path=/; HttpOnly", "Cookie: lang=en-GB; consent=accepted", "document.cookie = 'a=' + name"), FOLD, None,
         rf"(?:set-)?cookie2?{_QUOTE}[ \t]{{0,3}}[:=,][ \t]{{0,3}}{_QUOTE}(?P<secret>[^\n\"'\\]{{0,{LONGEST}}})\Z", parts=_cookies),
    Rule("command-cookie", ("-b",), rf"(?<=[ \t])-b[ \t]{{0,3}}{_QUOTE}(?P<secret>[A-Za-z0-9_.-]{{1,60}}=[^\n\"'\\|]{{6,{LONGEST}}})",
         ("curl -b 'session=«k2JdQ8sLZx" "Yv7WbNm2Pt»' https://example.org/",), ("git checkout -b feature=x", "curl -b cookies.txt x"), TEXT, None,
         rf"(?<=[ \t])-b[ \t]{{0,3}}{_QUOTE}(?P<secret>[A-Za-z0-9_.-]{{1,60}}=[^\n\"'\\|]{{0,{LONGEST}}})\Z", parts=_cookies, needs="curl"),
    # Commands
    _form("command-password", _HINTS, _NAME + r"[ \t]{1,3}" + _QUOTE, _OPTION, (4, 400),
          ("mysql --user root --password «hunter2" "Zebra» app", "tool --api-key «k2JdQ8sLZx" "Yv7WbNm2Pt» run", "ENV DB_PASSWORD «hunter2" "Zebra»", "keytool -storepass «hunter2" "Zebra»",
           "setenv API_TOKEN «k2JdQ8sLZx" "Yv7WbNm2Pt»"),
          ("--password PASSWORD", "--token TOKEN is required", "--password-stdin", "--password $DB_PASSWORD", "ENV PASSWORD $X", "the password is", "--token-file path/to/file1"),
          check=_is_spaced),
    _form("command-secret", ("mysql", "mariadb", "sshpass", "redis-cli", "mongo", "ldapsearch", "ldapmodify", "ldapadd", "sqlcmd", "docker", "podman", "nerdctl", "helm", "twine", "htpasswd", "openssl", "smbclient", "ipmitool", "7z"),
          _EDGE + r"(?:(?:mysql(?:dump|admin|import|show|check)?|mariadb(?:-dump|-admin)?|7za?)(?:[ \t][^\n|;&]{0,160}?)?[ \t]-p"
          r"|sshpass[ \t]+-p[ \t]{0,2}|redis-cli(?:[ \t][^\n|;&]{0,160}?)?[ \t]-a[ \t]{1,2}"
          r"|(?:docker|podman|nerdctl|helm registry)[ \t]+login(?:[ \t][^\n|;&]{0,160}?)?[ \t]-p[ \t]{1,2}"
          r"|mongo(?:sh|dump|restore|export|import)?(?:[ \t][^\n|;&]{0,160}?)?[ \t]-p[ \t]{1,2}|twine upload(?:[ \t][^\n|;&]{0,160}?)?[ \t]-p[ \t]{1,2}"
          r"|ldap(?:search|modify|add)(?:[ \t][^\n|;&]{0,160}?)?[ \t]-w[ \t]{1,2}|(?:sqlcmd|ipmitool)(?:[ \t][^\n|;&]{0,160}?)?[ \t]-P[ \t]{1,2}"
          r"|htpasswd[ \t]+-[a-zB]{0,4}b[a-zB]{0,4}[ \t]+[^\s]{1,200}[ \t]+[^\s]{1,100}[ \t]+|openssl(?:[ \t][^\n|;&]{0,160}?)?[ \t]-pass(?:in|out)?[ \t]+pass:"
          r"|smbclient(?:[ \t][^\n|;&]{0,160}?)?[ \t]-U[ \t]{0,2}[^\s%]{1,64}%)" + _QUOTE, _OPTION, (3, 400),
          ("mysql -u root -p«hunter2" "Zebra» app", "mysqldump -h db -p«S3cr" "3t!» x", "sshpass -p «hunter2" "Zebra» ssh bob@host", "sshpass -p '«hunter2" "Zebra»' ssh h", "redis-cli -h cache -a «hunter2" "Zebra» ping",
           "docker login -u bob -p «hunter2" "Zebra» registry.example.org", "openssl rsa -in k.pem -passin pass:«hunter2" "Zebra»", "ldapsearch -D cn=admin -w «hunter2" "Zebra» -b dc=x"),
          ("mysql -u root -p app", "docker run -p 8080:80 image", "mysql -P 3306 -p", "docker login -p $PASS", "mongo --port 27017"), check=_is_given),
    _form("command-user", ("-u", "--user", "--proxy-user"), r"(?<=[ \t\"'])(?:-u[ \t]{0,2}|--(?:proxy-)?user(?:[ \t]{1,2}|=))(?:\\{0,3}[\"'])?[A-Za-z0-9._@+%-]{0,64}:", r"[^\s\"'`\\|;&<>(){}$/]", (4, 255),
          ("curl -u bob:«hunter2" "Zebra» https://example.org/", "curl -ubob:«hunter2" "Zebra» https://example.org/", "curl --user='bob:«hunter2" "Zebra»' https://example.org/", 'curl --user "bob:«hunter2' 'Zebra»" x'),
          ("docker run -u 1000:1000 image", "curl -u $USER:$PASS x", "docker run --user 1000:1000 x"), where=TEXT,
          check=lambda match: not match["secret"].isdigit() and not values.is_no_secret(match["secret"], uuid=False)),
    # Files
    _form("netrc-password", ("password", "passwd"), r"passw(?:or)?d[ \t]{1,8}", r"[^\s\"'\\]", (3, 400),
          ("machine api.example.org login bob password «hunter2" "Zebra»", "machine api.example.org\n  login bob\n  password «hunter2" "Zebra»"),
          ("the login page has a password field", "user bob password is required", "machine learning password reset"), check=_is_netrc),
    _form("pgpass-password", ("5432", "5433", "6432", "6543", ":*:"), r"(?:(?<=[A-Za-z0-9_.*-]:)(?:5432|5433|6432|6543)|:\*):[^:\s/\"']{1,64}:[^:\s/\"']{1,64}:", r"[^\s:\"'\\]", (4, 255),
          ("db.internal:5432:app:bob:«hunter2" "Zebra»", "*:*:*:bob:«hunter2" "Zebra»"), ("10:5432:20:30:40", "tcp:5432:x:y:"), where=TEXT,
          check=lambda match: not match["secret"].isdigit() and not values.is_no_secret(match["secret"])),
    _form("docker-auth", ("auth",), r"(?<=[\"'])auth\\{0,3}[\"'][ \t]{0,3}:[ \t]{0,3}\\{0,3}[\"']", r"[A-Za-z0-9+/=]", (8, LONGEST),
          ('{"auths": {"registry.example.org": {"auth": "«Ym9iOmh1bnRl' 'cjJaZWJyYQ==»"}}}',), ('"auth": "required"', '"auth": "basic"'), check=_is_basic),
    _form("npmrc-auth", ("_auth",), r"(?:(?<![A-Za-z0-9.])|(?<=\\n))_auth(?:token)?[\"']?(?:[ \t]{0,3}[:=][ \t]{0,3}|[ \t]{1,2})" + _QUOTE, r"[A-Za-z0-9_+/=.~:-]", (8, 1000),
          ("//registry.npmjs.org/:_authToken=«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»", "_auth=«Ym9iOmh1bnRl" "cjJaZWJyYQ==»"), ("_authToken=${NPM_TOKEN}", "user_auth = authenticate"), check=_is_npm),
    _form("kubeconfig-key", ("client-key-data",), r"client-key-data(?:\\{0,3}[\"'])?:[ \t]{0,3}(?:\\{0,3}[\"'])?", r"[A-Za-z0-9+/=]", (32, LONGEST),
          ("    client-key-data: «LS0tLS1CRUdJTiBSU0EgUFJJVkFURSB" "LRVktLS0tLQpNSUlFb3dJQkFBS0NBUUVB»",), ("client-key-data: REDACTED",), check=lambda match: True),
    _form("terraform-default", ("default",), r"default[ \t]{0,12}=[ \t]{0,3}\\{0,3}\"", r"[^\"\n\\]", (4, 400),
          ('variable "db_password" {\n  type    = string\n  default = "«hunter2' 'Zebra»"\n}',), ('variable "region" {\n  default = "eu-west-1"\n}', 'variable "db_password" {\n  default = "changeme"\n}'), check=_is_default, needs="variable "),
    _form("sql-password", ("password", "identified"), r"(?:identified[ \t]{1,3}(?:with[ \t]{1,3}\S{1,40}[ \t]{1,3})?by|(?:with|encrypted|set)[ \t]{1,3}password(?:[ \t]{0,2}=)?|password)[ \t]{1,3}\\{0,3}'", r"[^'\n\\]", (4, 255),
          ("CREATE USER bob IDENTIFIED BY '«hunter2" "Zebra»'", "ALTER ROLE bob WITH PASSWORD '«hunter2" "Zebra»'"), ("identified by 'password'", "the password 'admin' is weak"), check=lambda match: not values.is_no_secret(match["secret"]) and values.is_password(match["secret"])),
    Rule("assigned-secret", _HINTS, _NAME + _SEPARATOR + _VALUE,
         ("DB_PASSWORD=«hunter" "2x»", "export API_KEY=«8e2b7c1d9f3a" "4056b8c7d2e1f0a93b54»", '{"client_secret": "«k2JdQ8sLZx' 'Yv7WbNm2Pt»"}',
          "password: «Tr0ub4dor" "-3»", "aws_secret_access_key = «wJalrXUtnFEMI/K7MDENG/" "bPxRfiCYzk2JdQ8sLZ»", "password = '«correct horse" " battery staple 9»'",
          "password: password=«hunter2" "Zebra»", "token: api_token=«k2JdQ8sLZx" "Yv7WbNm2Pt»",
          "STRIPE_KEY=«k2JdQ8sLZx" "Yv7WbNm2»", "<password>«Zebra-" "2024-x»</password>", "https://api.example.org/?access_token=«k2JdQ8sLZx" "Yv7WbNm2Pt»&x=1",
          "DB_PASSWORD=«!Zebra" "2024»", "HEROKU_API_KEY=«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»", "password=\x1b[32m«hunter2" "Zebra9»\x1b[0m", "define('DB_PASSWORD', '«hunter2" "-Zebra»');",
          "ansible_become_pass: «hunter2" "-Zebra»", '<add key="DbPassword" value="«hunter2' '-Zebra»"/>', "let api_key: &str = \"«k2JdQ8sLZx" "Yv7WbNm2Pt»\";"),
         ("tokens: 12345", "max_tokens=4096", "token = tokenizer.next_token()", "password = os.environ['DB_PASSWORD']", "password = getpass.getpass()", "password: str",
          '"password": "Password"', "DB_PASSWORD=$SECRET", "API_KEY=your-api-key-here", "token_count = 128_000_128", "secret_name = 'prod/db/main-1'", "PWD=/home/bob/src/app1",
          "session_token: 123e4567-e89b-12d3-a456-426614174000", "if token == expected_token:", "primary_key = True", "cache_key=8e2b7c1d9f3a4056b8c7d2e1f0a93b54", "password=<password>",
          "token: string", "SECRET_KEY_FILE=/run/secrets/key1", "TOKEN=${GITHUB_TOKEN}", "password_hash = '8e2b7c1d9f3a4056b8c7'", "PASSWORD=********", 'getpass("Password: ")',
          "password1 = password2", 'token="production-database-2"', "password: !vault |", '"password": "At least 8 characters"'), FOLD,
         _is_assigned,
         _NAME + _SEPARATOR + _OPEN_VALUE, parts=_assigned_parts),
    Rule("assigned-secret", ("_PAT",), r"(?<=[A-Z])(?P<name>_PAT)(?P<kind>(?!))?" + _SEPARATOR + _VALUE, ("GITHUB_PAT=«k2JdQ8sLZx" "Yv7WbNm2»",), ("LD_LIBRARY_PATH=/usr/lib64",), TEXT,
         lambda match: _environment_name(match) and _is_assigned(match), r"(?<=[A-Z])(?P<name>_PAT)(?P<kind>(?!))?" + _SEPARATOR + _OPEN_VALUE, parts=_assigned_parts),
    Rule("vendor-secret", tuple(_VENDORS), rf"(?P<name>(?:{'|'.join(_VENDORS)})(?=(?P<more>[A-Za-z0-9_.-]{{0,40}}))(?P=more))" + _SEPARATOR + _VALUE,
         ("datadog: «8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»", 'heroku = "«8e2b7c1d-9f3a-4056-b8c7-' 'd2e1f0a93b54»"', "SNYK=«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»"),
         ("azure: eu-west", "discord_id: 8e2b7c1d9f3a4056b8c7d2e1f0a93b54", "heroku_commit=8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d", "netlify: https://example.org/8e2b7c1d9f3a4056"), FOLD,
         _is_vendors,
         rf"(?P<name>(?:{'|'.join(_VENDORS)})(?=(?P<more>[A-Za-z0-9_.-]{{0,40}}))(?P=more))" + _SEPARATOR + _OPEN_VALUE, parts=lambda match: [match.span(_value_group(match))]),
)  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (*(_token(*row) for row in TOKENS), *_FORMS)
NAMES: Final = tuple(dict.fromkeys(rule.name for rule in RULES))

ASSIGNED: Final = "assigned-secret"
VENDOR: Final = "vendor-secret"
_WHOLE_NAME: list[re.Pattern[str]] = []


def is_named_secret(name: str, value: str) -> bool:
    """Whether the value of a key in structured data is a secret."""
    if not _WHOLE_NAME:
        # A whole name whose value may be a secret; its group says of which kind.
        _WHOLE_NAME.append(re.compile(r".{0,200}?" + _NAME, re.IGNORECASE | re.DOTALL))
    match = _WHOLE_NAME[0].fullmatch(name[-200:])
    if match is None or (match["name"][:3].lower() == "key" and match["kind"] is None):
        return False
    kind = match["kind"] is not None
    identifies = not (kind or any(word in match["name"].lower() for word in _GENERIC_SECRET))
    return values.assigned(match["name"], value, quoted=True, environment=False, identifies=identifies)
