"""The table of secret formats. Each row: a name, the literals that every match starts with, the pattern, and samples.

Vendors' tokens, which have a prefix, are in ``tokens.py``; here are the forms in which other secrets appear. A pattern is tried only
where one of its hints occurs, and its length is bounded, so that the time for all of them is proportional to the length of any text.
Its group ``secret`` is removed; without that group, the whole match. The samples are tested alone and inside a paragraph, a JSON
string and a URL. They are written in two halves, so that this file contains nothing that looks like a secret.

Patterns are compiled when first needed: a short text rarely needs more than three of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rawko_state.redact import values
from rawko_state.redact.late import Late
from rawko_state.redact.named import (
    ASSIGNED,
    HINTS,
    NAME,
    OPEN_VALUE,
    SEPARATOR,
    SPOKEN,
    SPOKEN_SECRET,
    SPOKEN_VALUE,
    VALUE,
    VENDOR,
    VENDOR_SEPARATOR,
    assigned_parts,
    environment_name,
    identifies,
    is_assigned,
    is_kind_of_key,
    is_of_a_kind,
    is_of_a_page,
    is_spoken,
    is_vendors,
    spoken_parts,
)
from rawko_state.redact.rule import BOUNDARY, COLOUR, EDGE, FOLD, LONGEST, QUOTE, TEXT, Rule, before, form, token
from rawko_state.redact.tokens import TOKENS
from rawko_state.redact.vendors import VENDORS

_SCHEME = r"(?:bearer|basic|token|digest|apikey|api-key|apitoken|api-token|negotiate|bot|key|oauth|sso-key|genie-?key|personal|ssws|splunk|hmac)"


_SAME_COMMAND = r"(?:[^\n|;&\\]|\\(?![nr]))"
"""A character of a command: none that ends it, also not an escaped line break."""


_POSTGRES_PORTS: Final = (
    "5431", "5432", "5433", "5434", "5435", "5436", "5437", "5438", "5439", "5440", "6000", "6432", "6433", "6543",
    "15432", "25060", "25432", "26257", "54320", "54321", "54322", "55432",
)  # fmt: skip
_OPTIONS: Final = {
    r"-p": r"mysql(?:dump|admin|import|show|check)?|mariadb(?:-dump|-admin)?|7za?",
    r"-p[ \t]{1,2}": r"(?:docker|podman|nerdctl|helm[ \t]registry)[ \t]+login|mongo(?:sh|dump|restore|export|import)?|(?:twine[ \t]upload|poetry[ \t]publish)|cqlsh"
    r"|rabbitmqadmin|winrm|psexec(?:64)?|keychain",
    r"-pw[ \t]{1,2}": r"p(?:link|scp)",
    r"/p:": r"xfreerdp[0-9]?",
    r"-u[ \t]{0,2}[^\s,]{1,64},": r"lftp",
    r"-P[ \t]{1,2}": r"sqlcmd|bcp|ipmitool|(?:un)?zip|mosquitto_(?:pub|sub)",
    r"-a[ \t]{1,2}": r"redis-cli|bearer",
    r"-w[ \t]{1,2}": r"ldap(?:search|modify|add)|kadmin|(?:generic|internet)-password",
    r"-k[ \t]{1,2}": r"openssl",
    r"-pass(?:in|out)?[ \t]+pass:": r"openssl",
    r"-[AX][ \t]{1,2}": r"snmp(?:get|walk|set|bulkwalk)",
    r"-U[ \t]{0,2}[^\s%]{1,64}%": r"smbclient",
    r"--auth[ \t=]": r"netlify",
}
"""Commands with an option that is a secret, whatever it looks like."""
_COMMAND_SECRET: Final = "|".join(
    [
        *(rf"(?:{commands})(?:[ \t]{_SAME_COMMAND}{{0,160}}?)??[ \t]{option}" for option, commands in _OPTIONS.items()),
        r"sshpass[ \t]+(?:-[a-oq-zA-Z]+[ \t]+){0,3}-p[ \t]{0,2}",
        r"htpasswd[ \t]+-[a-mo-zB]{0,4}b[a-mo-zB]{0,4}[ \t]+[^\s]{1,200}[ \t]+[^\s]{1,100}[ \t]+",
        r"sqlplus[ \t]+(?:-[a-zA-Z]+[ \t]+){0,3}[A-Za-z0-9_]{1,64}/",
        r"(?:requirepass|masterauth|rootpw|r[ow]community)[ \t]{1,8}",
        r"securestring[ \t]{1,3}(?:-string[ \t]{1,3})?(?=[\"'])",
        r"alias[ \t]+set[ \t]+[^\s]{1,64}[ \t]+https?://[^\s]{1,200}[ \t]+[^\s]{1,100}[ \t]+",
        r"reset-admin-password[ \t]{1,3}",
        r"(?<=[0-9]> )auth[ \t]{1,3}(?:[a-z0-9_-]{1,40}[ \t]{1,3})??",
        r"(?<=::)add-mask::",
        r"(?<=--)(?:password-stdin|with-token)[ \t]{0,3}<<<[ \t]{0,3}",
    ]
)
_GIVEN_LAST: Final = (
    r"(?:htpasswd[ \t]+-[a-zB]{0,4}n[a-zB]{0,4}[ \t]+[^\s]{1,100}|rabbitmqctl[ \t]+(?:add_user|change_password)[ \t]+[^\s]{1,64}"
    r"|vault[ \t]+login|rclone[ \t]+obscure|poetry[ \t]+config[ \t]+http-basic\.[^\s]{1,64}[ \t]+[^\s]{1,64})[ \t]{1,3}(?!-)"
)
"""The words before a secret that a sentence may have, too."""
_COMMANDS_WITH_SECRETS: Final = (
    "mysql", "mariadb", "sshpass", "redis-cli", "mongo", "ldapsearch", "ldapmodify", "ldapadd", "sqlcmd", "docker", "podman", "nerdctl", "helm", "twine",
    "htpasswd", "openssl", "smbclient", "ipmitool", "7z", "zip", "unzip", "sqlplus", "requirepass", "masterauth", "auth", "add-mask", "password-stdin",
    "with-token", "cqlsh", "bcp", "mosquitto_", "kadmin", "snmp", "netlify", "poetry", "rabbitmqadmin", "winrm", "psexec", "keychain", "plink", "pscp",
    "xfreerdp", "lftp", "bearer", "generic-password", "internet-password", "rootpw", "rocommunity", "rwcommunity", "securestring", "alias", "reset-admin-password",
)  # fmt: skip
_READS_A_SECRET: Final = (
    r"(?:(?:sudo[ \t]+)?chpasswd|sudo[ \t]+-S|passwd[ \t]+--stdin|kinit|gh[ \t]+(?:auth|secret)|(?:npx[ \t]+)?wrangler[ \t]+secret|(?:docker|podman)[ \t]+secret[ \t]+create|gcloud[ \t]+secrets"
    rf"|{_SAME_COMMAND}{{0,100}}--(?:password-stdin|with-token))"
)


_PHRASE_LEAD: Final = (
    r"(?:mnemonic|seed(?:[ _-]?phrase)?|(?<=recovery )phrase)\\{0,3}[\"']?[ \t]{0,3}(?:[:=]|is)[ \t]{0,3}\\{0,3}[\"'`]?"
)


# Checks


_PORT = Late(r"[0-9]{1,5}(?:[/,]|\Z)")
_USER_IS_TOKEN: Final = ("x-oauth-basic", "x-token-auth")


def _is_url_password(match: re.Match[str]) -> bool:
    secret = match["secret"]
    if secret == "tiger" and match[0].startswith("://scott:"):
        return False  # every database's documentation has it
    return (
        not values.is_no_secret(secret, uuid=False, chosen=True)
        and secret not in _USER_IS_TOKEN
        and not _PORT.match(secret)
    )


_WITH_SCHEME = Late(rf"{_SCHEME}[ \t]{{1,3}}", re.IGNORECASE)


def _is_header(match: re.Match[str]) -> bool:
    value = match["secret"]
    if values.is_no_secret(value, uuid=False) or len(value) < 8 or is_of_a_kind(match):
        return False
    if (
        "[" in value
        or value.startswith("AWS4-HMAC-")
        or (values.is_identifier(value) and not _WITH_SCHEME.search(match[0][: match.start("secret") - match.start()]))
    ):
        return False
    return values.is_random(value) or values.UUID.fullmatch(value) is not None or values.is_password(value)


def _is_given(match: re.Match[str]) -> bool:
    """What follows an option that is always a secret."""
    value = match["secret"]
    return (
        not values.is_no_secret(value, uuid=False, chosen=True)
        and not (value.isdigit() and len(value) < 6)
        and value != "-"
    )


def _is_sent(match: re.Match[str]) -> bool:
    """The answer of a script to a prompt for a password."""
    return "assword" in before(match, 120) and _is_given(match)


def _is_chosen(match: re.Match[str]) -> bool:
    value = match["secret"]
    return _is_given(match) and (values.is_password(value) or values.is_random(value))


def _is_phrase(match: re.Match[str]) -> bool:
    """Words that make no sentence."""
    return not values.is_sentence(" ".join(match["secret"].split()[:12]))


def _is_random(match: re.Match[str]) -> bool:
    value = match["secret"]
    return not values.is_no_secret(value, uuid=False) and values.is_random(value)


_FLAG = Late(r"(?:\A|[\s\"'`\[(,])-{1,2}[A-Za-z0-9-]{0,30}\Z")
_ANOTHER_OPTION = Late(r"-{1,2}[A-Za-z][A-Za-z-]*(?:=|\Z)")
_BLANK: Final = ("", " ", "\t", "\n")
_SETTING = Late(
    EDGE
    + r"(?:ENV|ARG|#?define|SetEnv|setenv|setx|set -g?x|set -xg|heroku config:set|(?P<prose>config(?:ure)?(?:[ \t]+--?[a-z]+)?(?:[ \t]+set)?))[ \t]+[^\s=]{0,80}\Z"
)


def _is_spaced(match: re.Match[str]) -> bool:
    """``--token X`` or ``ENV TOKEN X``."""
    text, end = match.string, match.start()
    start = max(0, end - 120)
    text = text[start:end]
    # Prose has these words all the time, and neither an option's dash nor a setting's command before them: each of those has
    # one of these in it.
    is_option = text[-1:] not in _BLANK and _FLAG.search(text) is not None
    may_set = (
        "set" in text or "config" in text or "ENV" in text or "ARG" in text or "SetEnv" in text or "define" in text
    )
    setting = _SETTING.search(text) if may_set and not is_option else None
    if not is_option and setting is None:
        return False
    value, name = match["secret"], match["name"].lower()
    chosen = any(word in name for word in values.PASSWORDS)
    if values.is_no_secret(value, uuid=identifies(match, name), chosen=chosen) or _ANOTHER_OPTION.match(value):
        return False
    is_public = before(match, 8).lower().rstrip("-_").endswith("public")
    if name[:3] == "key" and not is_kind_of_key(match) and (is_public or not values.is_random(value)):
        return False
    if name == "token" and is_of_a_page(match):
        return False
    if setting is not None and not setting["prose"]:
        return len(value) >= 4 and "(" not in value
    # "the config token parser" is prose, so the value decides.
    return values.is_password(value) or values.is_random(value)


# What may stand between words of a file: also line numbers, the signs of a diff, and escaped line breaks.
_PAIR = rf"(?:\\{{0,3}}[\"'`])?\]?(?:[ \t]{{0,3}}(?:=>|[:=,|>])[ \t]{{0,3}}|[ \t]{{1,3}}(?:is |to )?){COLOUR}{QUOTE}"
"""Between a name and its value."""
_GAP = r"(?:[\s>|+→-]|\\{1,3}[nrt]|(?<=[\s>|nt])[0-9]{1,6}(?=[\t→:\\])|(?<=[0-9]):|(?:(?<=\n)|(?<=\\n))[A-Za-z0-9_./-]{1,80}(?=:[0-9])|:(?=[0-9]{1,6}:))"
_LOGIN = Late(rf"(?:\A|\s|\\[nrt])(?:login|user|account)[ \t]{{1,8}}\S{{1,128}}?{_GAP}{{1,24}}\Z")
_MACHINE = Late(rf"(?:\A|[\s\"'`→>+-]|\\[nrt])(?:machine[ \t]{{1,8}}\S{{1,253}}?|default){_GAP}{{1,24}}\Z")
_VARIABLE = Late(r"variable[ \t]{1,4}\\{0,3}\"(?P<name>[^\"\n\\]{1,100})\\{0,3}\"[ \t]{0,4}\{[^}]{0,400}\Z")
_SECRET_WORD = Late(NAME, re.IGNORECASE)


def _is_netrc(match: re.Match[str]) -> bool:
    text, secret = before(match, 300), match["secret"]
    login = _LOGIN.search(text)
    if values.is_no_secret(secret, chosen=login is not None) or not (
        login or _MACHINE.search(text) or "nmcli " in text
    ):
        return False
    # Prose has these words too: then the value decides.
    return values.is_password(secret) or (login is not None and "machine " in text)


_AFTER_HOST = Late(
    r"(?:\A|[\s\"'`\\])(?:[^\s:\"'`\\]{1,90}:[0-9]{1,6}[:-])?[^\s:\"'`\\]{0,253}:?\Z|=[^\s:\"'`\\&?=]{0,253}:?\Z"
)
"""The first field of a line; a file and a line number may stand before it, as from grep."""


def _is_default(match: re.Match[str]) -> bool:
    """The default of a Terraform variable with a secret-looking name."""
    variable = _VARIABLE.search(before(match, 600))
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


_COOKIE = Late(r"(?P<name>[A-Za-z0-9_.$~!%*-]{1,100})=(?P<value>[^=;\s\"'\\,][^;\s\"'\\,]{5,4096})")
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


def _with_digits(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    """A match and the number before it."""
    text = before(match, 16)
    return [(match.start() - (len(text) - len(text.rstrip("0123456789"))), match.end())]


_KEY_LINE = Late(r"(?:\A|[\s→|:>+\"'`(m│-])(?P<line>[A-Za-z0-9+/]{4,80}={0,2})(?:[\s\"',│]|\x1b\[[0-9;]{0,16}m){0,6}\Z")
_ESCAPED_LINES = Late(
    r"(?P<lines>[A-Za-z0-9+/]{24,80}={0,2}(?:(?:\\{1,8}[nr]){1,2}[A-Za-z0-9+/]{4,80}={0,2}){0,100})(?:\\{1,8}[nr]){1,2}\Z"
)
"""The same in a JSON string."""
_LONGEST_ESCAPED: Final = 4000
_FULL_LINE: Final = 24
_LONGEST_LINE: Final = 200


def _lines_above(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    """The lines of a key whose beginning was cut off, above its last line."""
    text = match.string
    if text[max(0, match.start() - 2) : match.start()] in ("\\n", "\\r"):
        top = max(0, match.start() - _LONGEST_ESCAPED)
        escaped = _ESCAPED_LINES.search(text[top : match.start()])
        return [(top + escaped.start(), top + escaped.end("lines"))] if escaped else []
    first = last = 0
    at = text.rfind("\n", max(0, match.start() - _LONGEST_LINE), match.start()) + 1
    while at > 0:
        start = text.rfind("\n", max(0, at - _LONGEST_LINE), at - 1) + 1
        line = _KEY_LINE.search(text[start:at]) if start > 0 or at < _LONGEST_LINE else None
        if line is None or (last and len(line["line"]) < _FULL_LINE):
            break
        first, last, at = start + line.start("line"), last or start + line.end("line"), start
    return [(first, last)] if last - first >= _FULL_LINE else []


_DATA = Late(r"(?:(?<![A-Za-z])|(?<=\\n))(?:string)?data\\{0,3}[\"']?:(?:[ \t]*\{)?", re.IGNORECASE)
_DATA_PAIR = Late(
    r"(?:[\s,>|+→-]|\\{1,3}[nrt]|[0-9]{1,6}(?=[\t→:\\])){1,40}\\{0,3}[\"']?(?P<name>[A-Za-z0-9_.-]{1,100})\\{0,3}[\"']?:[ \t]*\\{0,3}[\"']?"
    r"(?P<value>[^\s\"',\\]{4,4096})[\"']?"
)
_DATA_FAR: Final = 1500
_OTHER_FIELDS: Final = ("kind", "metadata", "type", "apiVersion", "immutable")


def _kubernetes_data(match: re.Match[str]) -> Iterable[tuple[int, int]]:
    """The values of a Secret, after its kind or before: kubectl sorts the fields by name."""
    text, start = match.string, match.start()
    above = max(0, start - _DATA_FAR)
    last = max(text.rfind(name, above, start) for name in ("data", "Data"))
    found = (
        _DATA.search(text, max(0, last - 6), start) if last >= 0 else None,
        _DATA.search(text, match.end(), match.end() + _DATA_FAR),
    )
    for field in filter(None, found):
        pair = _DATA_PAIR.match(text, field.end())
        while pair is not None and pair["name"] not in _OTHER_FIELDS:
            if not values.is_no_secret(pair["value"]):
                yield pair.span("value")
            pair = _DATA_PAIR.match(text, pair.end())


def _is_key_body(match: re.Match[str]) -> bool:
    return len(re.sub(r"[^A-Za-z0-9+/]", "", match["secret"][:4096])) >= 32


_BASE64_LINE = r"[A-Za-z0-9+/=]"
# What may stand between the lines of a key: line breaks, also escaped, quotes, '+' of code and diffs, and line numbers (cat -n, 12→).
_BETWEEN = r"(?:\\{1,8}[nrt]|[\s|>\"',+:→│┃║-]|[0-9]{1,6}(?=[\s→|:\\])|\\{1,8}[\"']|\\{1,2}u2(?:192|502|503|551)|(?:(?<=\n)|(?<=\\n))[A-Za-z0-9_./-]{1,80}[:-][0-9]{1,6}[:-]|\\\n|(?:\x1b|\\u001b)\[[0-9;]{0,16}m)"
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?P<secret>"
    # Up to the end line. If the key was cut off, up to its last line.
    r"(?:(?!-----)[\s\S]){1,20000}(?=-----END )"
    rf"|(?:{_BETWEEN}{{0,24}}(?:Proc-Type|DEK-Info|Version|Comment)[^\n\\]{{1,100}}){{0,4}}"
    rf"(?:{_BETWEEN}{{0,24}}{_BASE64_LINE}{{16,1000}}){{1,400}}(?:{_BETWEEN}{{1,24}}{_BASE64_LINE}{{1,15}}(?=\s{{0,4}}\Z|\.\.\.|…))?)"
)

_CREDENTIAL = r"[^\s\"'\\,;<>{}()$\x1b]"
# A dollar sign that starts no variable is part of a password.
_OPTION = r"(?:[^\s\"'`\\|;<>{}$]|\$(?!(?-i:[A-Z_{(])))"
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
    Rule(
        "private-key", ("-----END",), r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
        ("...lkJ8s7fG\n«h2pQwErTyUiOpAsDfGhJkLzXc3VbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8k9Lo0\npQwErTyUiOpAsDfGhJkLzXc3VbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8k9Lo0h2»\n-----END RSA PRIVATE " "KEY-----",),
        ("looks for -----END RSA PRIVATE KEY----- in the text",), TEXT, None, parts=_lines_above,
    ),
    Rule(
        "private-key", ("Private-Lines",), rf"Private-Lines: [0-9]{{1,3}}(?P<secret>(?:{_BETWEEN}{{1,24}}{_BASE64_LINE}{{16,64}}){{1,400}})",
        ("Private-Lines: 2«\nh2pQwErTyUiOpAsDfGhJkLzXc3VbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8k9Lo0\npQwErTyUiOpAsDfGhJkLz" "Xc3VbNm1qAz2w»",),
        ("Private-Lines: 14\n",), TEXT, _is_key_body, rf"Private-Lines:(?P<secret>[^:]{{0,{LONGEST}}})\Z",
    ),
    Rule(
        "kubernetes-secret", ("kind",), r"kind\\{0,3}[\"']?:[ \t]{0,4}\\{0,3}[\"']?secret\b",
        ("kind: Secret\nmetadata:\n  name: db\ndata:\n  config: «azJKZFE4c0xaeFl2" "N1diTm0yUHQ=»\n", "data:\n  config: «azJKZFE4c0xaeFl2" "N1diTm0yUHQ=»\nkind: Secret\n"),
        ("kind: Secret\nmetadata:\n  name: db\n", "kind: SecretStore\ndata:\n  config: azJKZFE4c0xaeFl2N1diTm0yUHQ=\n"), FOLD, None, parts=_kubernetes_data,
        opening=r"kind: Secret\b(?P<secret>(?=[\s\S]{0,300}\bdata:)[\s\S]{0,900})\Z", needs="ecret",
    ),
    # Tokens that are recognised by something other than their beginning
    Rule("azure-secret", tuple(f"{digit}Q~" for digit in range(10)), r"(?<=[A-Za-z0-9_~.-]{3})[0-9]Q~(?P<secret>[A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])",
         ("abc8Q~«k2JdQ8sLZx" "Yv7WbNm2PtRf5GhTyUiOpAsD»",), ("8Q~x",), TEXT),
    Rule("azure-devops-token", ("AZDO",), r"(?<=[A-Za-z0-9]{76})AZDO[A-Za-z0-9]{4}(?![A-Za-z0-9])",
         ("«" + "k2JdQ8sLZxYv7WbNm2P" * 4 + "AZDO" "x1y2»",), ("AZDO1234",), parts=lambda match: [(match.start() - 76, match.end())]),
    Rule("terraform-token", (".atlasv1.",), r"(?<=[A-Za-z0-9]{14})\.atlasv1\.[A-Za-z0-9_=-]{60,400}",
         ("«k2JdQ8sLZxYv7W.atlasv1.bNm2PtRf5GhTyUiOp" "AsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8»",), ("x.atlasv1.y",),
         parts=lambda match: [(match.start() - 14, match.end())]),
    Rule("aws-secret-key", ("AKIA", "ASIA"), r"A[KS]IA[A-Z2-7]{16}[\"']?[,;:|\t ]{1,4}[\"']?(?P<tail>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])", ("«AKI" "AIOSFODNN7EXAMPLQ,wJalrXUtnFEMI/K7MDENG/" "bPxRfiCYzk2JdQ8sLZ»",), ("AKIAIOSFODNN7 is here",), TEXT,
         lambda match: values.is_random(match["tail"])),
    Rule("mailchimp-key", ("-us",), r"(?<=[0-9a-f]{32})-us[0-9]{1,2}(?![A-Za-z0-9])", ("«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54-us14»",), ("region-us1",),
         parts=lambda match: [(match.start() - 32, match.end())]),
    Rule("newrelic-key", ("NRAL",), r"(?<=[0-9a-zA-Z]{36})NRAL(?![A-Za-z0-9])", ("«eu01xx8e2b7c1d9f3a4056b8c7" "d2e1f0FFFFNRAL»",), ("the CENTRAL",),
         parts=lambda match: [(match.start() - 36, match.end())]),
    Rule("maxmind-key", ("_mmk",), r"(?<=[A-Za-z0-9]{6}_[A-Za-z0-9]{29})_mmk(?![A-Za-z0-9_])", ("«k2JdQ8_sLZxYv7WbNm2Pt" "Rf5GhTyUiOpAsDf_mmk»",), ("the_mmk",),
         parts=lambda match: [(match.start() - 36, match.end())]),
    Rule("telegram-token", (":A",), r"(?<=[0-9]{5}):(?P<tail>A[A-Za-z0-9_-]{33,34})(?![A-Za-z0-9_-])",
         ("«110201543:AAH" "dqTcvCH1vGWJxfSeofSAs0K5PALDsaw»",), ("12345678:AArdvark", "12345:A-rather-long-name-of-an-anchor-ab"), TEXT, lambda match: values.is_random(match["tail"]), parts=_with_digits),
    Rule("facebook-token", ("|",), r"(?<=[0-9]{15})\|(?P<tail>[A-Za-z0-9_-]{27,40})(?![A-Za-z0-9_-])",
         ("«515691231803570|k2JdQ8sLZxYv7WbNm" "2PtRf5GhTyU»",), ("123456789012345|a-rather-long-name-of-a-column",), TEXT, lambda match: values.is_random(match["tail"]), parts=_with_digits),
    Rule("discord-token", ("MD", "MT", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT"), BOUNDARY + r"[MNO][A-Za-z0-9]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}(?![A-Za-z0-9])",
         ("«MTIzNDU2Nzg5" "MDEyMzQ1Njc4.Gk2JdQ.sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLz»",), ("MTIzNDU2.x",), least=58),
    Rule("twitter-token", ("AAAAAAAAAAAAAAAAAAAAA",), BOUNDARY + r"A{21,22}(?=[A-Za-z0-9]{0,120}%)[A-Za-z0-9%]{60,200}",
         ("«AAAAAAAAAAAAAAAAAAAAA" "Ak2JdQ8sLZxYv7%3DWbNm2PtRf5GhTyUiOpAsDfGhJkLzXcVbNm1qAz2wSx3eD»",), ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",)),
    Rule("jwt", ("eyJ",), BOUNDARY + rf"(?<![_-])eyJ[A-Za-z0-9_-]{{8,65536}}\.eyJ[A-Za-z0-9_-]{{8,65536}}\.[A-Za-z0-9_-]{{8,{LONGEST}}}",
         ("«eyJ" "hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U»",),
         ("eyJhbGciOiJIUzI1NiJ9", "keyJson.keyJson.keyJson"), more="[A-Za-z0-9_-]"),
    # Addresses with a key in their path, webhooks and signed URLs
    form("url-key", ("infura.io", "alchemy.com", "alchemyapi.io", "quiknode.pro", "ankr.com"), r"(?:infura\.io|(?:alchemy\.com|alchemyapi\.io)|quiknode\.pro|ankr\.com)(?:/[a-z]{1,20})?/(?:v[0-9]/)?", r"[A-Za-z0-9_-]", (32, 64),
          ("https://mainnet.infura.io/v3/«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»", "https://eth-mainnet.g.alchemy.com/v2/«k2JdQ8sLZxYv7WbNm2Pt" "Rf5GhTyUiOpA»"), ("https://docs.infura.io/api/networks/ethereum/json-rpc-methods",), check=_is_random),
    form("aws-signature", ("signature",), r"Signature=", r"[0-9a-f]", (64, 64),
          ("AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host, Signature=«8e2b7c1d9f3a4056b8c7d2e1f0a93b54" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»",), ("Signature=sha256",), check=_is_random),
    form("slack-webhook", ("hooks.slack",), r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/", r"[A-Za-z0-9/]", (24, 200),
          ("https://hooks.slack.com/services/«T01ABCDEF" "/B02GHIJKL/k2JdQ8sLZxYv7WbNm2PtRf5G»",), ("https://hooks.slack.com/services/T000/B000/XXX",), check=lambda match: re.fullmatch("[A-Z0-9]{6,}/[A-Z0-9]{6,}/[A-Za-z0-9]{16,}", match["secret"]) is not None or values.is_random(match["secret"]), where=TEXT),
    form("discord-webhook", ("webhooks",), r"webhooks/[0-9]{15,22}/", r"[A-Za-z0-9_-]", (50, 200),
          ("https://discord.com/api/webhooks/123456789012345678/«k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOp" "AsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5»",), ("/api/webhooks/42/x",), check=lambda match: True, where=TEXT),
    form("teams-webhook", ("webhook",), r"webhook(?:b2)?/", r"[A-Za-z0-9@/_-]", (60, 400),
          ("https://acme.webhook.office.com/webhookb2/«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54@8e2b7c1d-9f3a-4056-b8c7-d2e1f0a93b54/IncomingWebhook/8e2b7c1d9f3a4056b8c7d2e1f0a93b54/8e2b7c1d-9f3a-4056-b8c7-d2e1f0a93b54»",),
          ("https://example.org/webhook/github",), check=lambda match: "IncomingWebhook/" in match["secret"], where=TEXT),
    form("zapier-webhook", ("hooks.zapier.com", "maker.ifttt.com"), r"(?:hooks\.zapier\.com/hooks/catch/|maker\.ifttt\.com/trigger/[^\s/]{1,100}/(?:json/)?with/key/)", r"[A-Za-z0-9/_-]", (10, 100),
          ("https://hooks.zapier.com/hooks/catch/«1234567/" "k2jdq8s/»",), ("https://hooks.zapier.com/hooks/",), check=lambda match: True, where=TEXT),
    form("signed-url", ("sig", "signature", "x-amz-", "x-goog-"),
          r"(?:(?<=[?&;])|(?<=u0026)|(?<=%26))(?:sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|x-oss-signature|x-ms-signature)(?:=|%3D)",
          r"[A-Za-z0-9%+/=_.~-]", (16, 4096),
          ("https://acme.blob.core.windows.net/c/f?sv=2024-01-01&sig=«k2JdQ8sLZxYv7WbNm2Pt" "Rf5GhTyUiOpAsDfGhJkLzXc%3D»",
           "https://b.s3.amazonaws.com/k?X-Amz-Date=20240115T000000Z&X-Amz-Signature=«8e2b7c1d9f3a4056b8c7d2e1f0a93b54" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»"),
          ("?signature=required", "the design=16 columns"), check=_is_random),
    form("url-key", ("key", "code", "auth"), r"(?:(?<=[?&])|(?<=u0026)|(?<=&amp;))(?:key|code|auth)(?:=|%3D)", r"[A-Za-z0-9%+/=_.~-]", (24, 400),
          ("https://maps.example.org/x?key=«k2JdQ8sLZxYv7WbNm2Pt" "Rf5G»", "https://app.azurewebsites.net/api/x?a=1&code=«k2JdQ8sLZxYv7WbNm2PtRf5GhTyU" "iOpAsDfGhJkLzXcVbNm1qAz2wSx3eDc4r==»"),
          ("?key=the-name-of-a-setting-in-a-file", "?key=8e2b7c1d9f3a4056", "?code=invalid_request_parameters_1"), check=lambda match: _is_random(match) and values.UUID.fullmatch(match["secret"]) is None, needs="://"),
    # URLs
    Rule("url-password", ("://",), rf"://[^\s:/@\"'`<>\\\[\]]{{0,128}}:(?![0-9]{{1,5}}/)(?P<secret>{_URL_TEXT}{{1,256}}?)@(?={_HOST})",
         ("postgres://app:«hunter2" "-Zx9»@db.internal:5432/app", "redis://:«p4ssZ" "ebra»@cache:6379", "https://bob:«s3cr3t" "Zebra»@example.org/x",
          "postgres://app:«p@ss/w0rd" "#Zx9»@db.internal:5432/app", "mysql://root:«a@b@" "c99»@localhost/x"),
         ("http://localhost:8080/a@b", "postgres://user:password@localhost/db", "postgres://app:$DB_PASSWORD@db/app", "oracle://scott:tiger@localhost/x", "https://example.org/~bob:x"), TEXT, _is_url_password,
         rf"://[^\s:/@\"'`<>\\\[\]]{{0,128}}:(?![0-9]{{1,5}}(?:/|\Z))(?P<secret>{_URL_TEXT}{{0,256}})\Z"),
    form("url-password", ("oracle",), r"oracle:thin:[A-Za-z0-9_]{1,64}/", r"[^\s\"'`@\\]", (3, 128),
         ("jdbc:oracle:thin:bob/«hunter2" "Zebra»@db:1521/x",), ("jdbc:oracle:thin:@db:1521/x",), check=_is_given, where=TEXT),
    Rule("url-token", ("://",), r"://(?P<secret>[A-Za-z0-9_.~%-]{16,256})(?::(?:x-oauth-basic|x-token-auth|))?@(?=[A-Za-z0-9\[])",
         ("git clone https://«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b548e2b7c1d»@github.com/acme/app.git", "https://«k2JdQ8sLZx" "Yv7WbNm2Pt»:x-oauth-basic@github.com/acme/app"),
         ("ssh://git@github.com/acme/app", "https://a-rather-long-user-name@example.org/"), TEXT, _is_random,
         r"://(?P<secret>[A-Za-z0-9_.~%-]{0,256}(?::[a-z-]{0,14})?@?)\Z"),
    # Headers
    form("authorization", ("authorization", "proxy-auth"), rf"(?:proxy-)?auth(?:orization)?{QUOTE}[ \t]{{0,3}}[:=,][ \t]{{0,3}}{COLOUR}{QUOTE}(?:{_SCHEME}[ \t]{{1,3}})?{COLOUR}",
          _CREDENTIAL, (8, LONGEST),
          ("Authorization: Bearer «k2JdQ8sLZx" "Yv7WbNm2Pt»", "-H 'authorization: Basic «Ym9iOmh1bnRl" "cjI=»'", '"Authorization": "token «8e2b7c1d9f3a' '4056»"',
           "Authorization: Bearer «8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»"),
          ("Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "authorization: required", "Authorization: Bearer YOUR_TOKEN", "authorization = request.headers['x']"),
          check=_is_header),
    form("bearer-token", ("bearer",), EDGE + r"bearer(?:[ ]{1,3}|%20|\+)", r"[A-Za-z0-9._~+/=-]", (16, LONGEST),
          ("send it as Bearer «k2JdQ8sLZx" "Yv7WbNm2Pt»", "Bearer «8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»"), ("the bearer of-this-letter-is-welcome", "Bearer authentication-scheme"),
          check=_is_random),
    Rule("cookie", ("cookie",), rf"(?:set-)?cookie2?{QUOTE}[ \t]{{0,3}}[:=,][ \t]{{0,3}}(?:\\{{0,3}}\"value\\{{0,3}}\"[ \t]?:[ \t]?)?{QUOTE}(?P<secret>[^\n\"'\\]{{8,{LONGEST}}})",
         ("Cookie: theme=dark; session=«k2JdQ8sLZx" "Yv7WbNm2Pt»", "Set-Cookie: sid=«s%3Ak2JdQ8sL" "ZxYv7WbNm2Pt.Rf5GhTyU»; Path=/; HttpOnly", '"cookie": "connect.sid=«k2JdQ8sLZx' 'Yv7WbNm2Pt»"'),
         ("Set-Cookie: theme=dark; Path=/; HttpOnly", "Cookie: lang=en-GB; consent=accepted", "document.cookie = 'a=' + name"), FOLD, None,
         rf"(?:set-)?cookie2?{QUOTE}[ \t]{{0,3}}[:=,][ \t]{{0,3}}{QUOTE}(?P<secret>[^\n\"'\\]{{0,{LONGEST}}})\Z", parts=_cookies),
    Rule("command-cookie", ("-b", "--cookie"), rf"(?<=[ \t])(?:-b[ \t]{{0,3}}|--cookie(?:[ \t]{{1,3}}|=)){QUOTE}(?P<secret>[A-Za-z0-9_.-]{{1,60}}=[^\n\"'\\|]{{6,{LONGEST}}})",
         ("curl -b 'session=«k2JdQ8sLZx" "Yv7WbNm2Pt»' https://example.org/", "curl --cookie 'sid=«k2JdQ8sLZx" "Yv7WbNm2Pt»' x"), ("git checkout -b feature=x", "curl -b cookies.txt x"), TEXT, None,
         rf"(?<=[ \t])(?:-b[ \t]{{0,3}}|--cookie(?:[ \t]{{1,3}}|=)){QUOTE}(?P<secret>[A-Za-z0-9_.-]{{1,60}}=[^\n\"'\\|]{{0,{LONGEST}}})\Z", parts=_cookies, needs="curl"),
    # Commands
    form("command-password", HINTS, NAME + r"[ \t]{1,3}" + QUOTE, _OPTION, (4, 400),
          ("mysql --user root --password «hunter2" "Zebra» app", "tool --api-key «k2JdQ8sLZx" "Yv7WbNm2Pt» run", "ENV DB_PASSWORD «hunter2" "Zebra»", "keytool -storepass «hunter2" "Zebra»",
           "setenv API_TOKEN «k2JdQ8sLZx" "Yv7WbNm2Pt»", "skopeo copy --src-creds «bob:hunter2" "Zebra» docker://a b"),
          ("--password PASSWORD", "--token TOKEN is required", "the layout of the config token parser", "--password-stdin", "--password $DB_PASSWORD", "keytool --genkey --token-type x", "ENV PASSWORD $X", "the password is", "--token-file path/to/file1"),
          check=_is_spaced),
    form("command-secret", _COMMANDS_WITH_SECRETS, EDGE + rf"(?:{_COMMAND_SECRET})" + QUOTE, _OPTION, (3, 400),
          ("mysql -u root -p«hunter2" "Zebra» app", "mysqldump -h db -p«S3cr" "3t!» x", "sshpass -p «hunter2" "Zebra» ssh bob@host", "sshpass -v -p '«hunter2" "Zebra»' ssh h", "redis-cli -h cache -a «hunter2" "Zebra» ping",
           "docker login -u bob -p «hunter2" "Zebra» registry.example.org", "openssl rsa -in k.pem -passin pass:«hunter2" "Zebra»", "ldapsearch -D cn=admin -w «hunter2" "Zebra» -b dc=x",
           "requirepass «hunter2" "Zebra»", "127.0.0.1:6379> AUTH «hunter2" "Zebra»", "docker login -u bob --password-stdin <<< '«hunter2" "Zebra»'", "::add-mask::«hunter2" "Zebra»",
           "unzip -P «hunter2" "Zebra» a.zip", "sqlplus scott/«hunter2" "Zebra»", "7z x -p«hunter2" "Zebra» a.7z", "cqlsh -u bob -p «hunter2" "Zebra»", "gh auth login --with-token <<< «hunter2" "Zebra»",
           "poetry publish -u bob -p «hunter2" "Zebra»", "security unlock-keychain -p «hunter2" "Zebra» login.keychain", "security add-generic-password -a bob -s x -w «hunter2" "Zebra»", "http -A bearer -a «k2JdQ8sLZx" "Yv7WbNm2Pt» example.org",
           "ConvertTo-SecureString '«hunter2" "Zebra»' -AsPlainText -Force", "mc alias set m https://s3.example.org bob «hunter2" "Zebra»", "lftp -u bob,«hunter2" "Zebra» ftp.example.org", "rocommunity «hunter2" "Zebra»"),
          ("ConvertTo-SecureString $pass", "alias set in the shell", "a bearer of bad news", "security-keychain -l", "poetry publish --build", "mysql -u root -p app", "requirepass $PASS", "docker run -p 8080:80 image", "mysql -P 3306 -p", "zip -r a.zip b", "docker login -p $PASS", "mongo --port 27017",), check=_is_given),
    form("command-secret", ("htpasswd", "rabbitmqctl", "vault", "rclone", "poetry"), EDGE + _GIVEN_LAST + QUOTE, _OPTION, (6, 400),
         ("rabbitmqctl add_user bob «hunter2" "Zebra»", "htpasswd -nb bob «hunter2" "Zebra»", "vault login «hunter2" "Zebra»", "poetry config http-basic.acme bob «hunter2" "Zebra»"),
         ("vault login -method=github", "after vault login, the tests passed", "htpasswd -c .htpasswd bob", "rabbitmqctl add_user bob"),
         check=lambda match: _is_given(match) and (values.is_password(match["secret"]) or values.is_random(match["secret"]))),
    form("command-secret", ("login", "secret"), rf"(?:(?<=az[ ])login(?:[ \t]{_SAME_COMMAND}{{0,160}}?)??[ \t]-p[ \t]{{1,2}}|(?<=gh[ ])secret[ \t]+set(?:[ \t]{_SAME_COMMAND}{{0,160}}?)??[ \t](?:-b|--body)(?:=|[ \t]{{1,2}})|(?<=keyvault[ ])secret[ \t]+set(?:[ \t]{_SAME_COMMAND}{{0,160}}?)??[ \t]--value(?:=|[ \t]{{1,2}}))" + QUOTE, _OPTION, (3, 400),
         ("az login -u app -p «hunter2" "Zebra» --tenant t", "gh secret set NPM -b «hunter2" "Zebra»", "az keyvault secret set --vault-name v -n db --value '«hunter2" "Zebra»'"), ("gh secret list", "az login"), check=_is_given),
    Rule("command-secret", ("echo", "printf"), EDGE + rf"(?:echo|printf)[ \t]+(?:-n[ \t]+)?(?:'\"'\"'|[\"'])?(?:[A-Za-z0-9_.-]{{1,64}}:)?(?P<secret>(?:[^\s\"'|$]|\$(?!(?-i:[A-Z_{{(]))){{4,200}})(?:'\"'\"'|[\"'])?[ \t]*\|[ \t]*{_READS_A_SECRET}",
         ("echo 'bob:«hunter2" "Zebra»' | chpasswd", "echo «hunter2" "Zebra» | docker login --password-stdin", "echo «hunter2" "Zebra» | sudo -S ls", "echo «hunter2" "Zebra» | gh secret set NPM", "echo «hunter2" "Zebra» | passwd --stdin bob"),
         ("echo done | tee log", "echo $PASS | sudo -S ls"), FOLD, _is_given,
         EDGE + r"(?:echo|printf)[ \t]+(?:-n[ \t]+)?(?P<secret>[^\n]{0,320})\Z"),
    form("command-secret", ("send",), r"send[ \t]{1,3}(?:--[ \t]{1,3})?\\{0,3}[\"']", r"[^\s\"'\\$]", (4, 200),
         ('expect "password:" { send "«hunter2' 'Zebra»\\r" }', 'expect "assword:"\nsend "«hunter2' 'Zebra»\\r"'), ('send "hello\\r"', 'expect "assword:"\nsend "$PASS\\r"'), check=_is_sent, tail=r"(?=\\{1,3}[rn])", needs="assword"),
    form("command-user", ("-u", "-U", "--user", "--proxy-user", "curl"), r"(?:(?<=[ \t\"'])-[uU][ \t]{0,2}|curl[ \t](?:" + _SAME_COMMAND + r"{0,160}?[ \t])??-[a-zA-Z#]{1,8}u[ \t]{0,2}|(?<=[ \t\"'])--(?:proxy-)?user(?:[ \t]{1,2}|=))(?:'\"'\"'|\\{0,3}[\"'])?(?:[A-Za-z0-9._-]{1,40}\\{1,4})?[A-Za-z0-9._@+%-]{0,64}:", r"(?:[^\s\"'`\\|;<>{}$/]|\$(?!(?-i:[A-Z_{(])))", (4, 255),
          ("curl -su bob:«hunter2" "Zebra» https://example.org/", "curl -u bob:«hunter2" "Zebra» https://example.org/", "curl -ubob:«hunter2" "Zebra» https://example.org/", "curl --user='bob:«hunter2" "Zebra»' https://example.org/", 'curl --user "bob:«hunter2' 'Zebra»" x',
           "curl -x proxy:3128 -U bob:«hunter2" "Zebra» x", "curl --ntlm -u 'ACME\\\\bob:«hunter2" "Zebra»' x"),
          ("docker run -u 1000:1000 image", "curl -u $USER:$PASS x", "docker run --user 1000:1000 x"), where=TEXT,
          check=lambda match: not match["secret"].isdigit() and not values.is_no_secret(match["secret"], uuid=False, chosen=True)),
    form("command-user", ("-a",), r"(?<=http )-a[ \t]{1,2}(?:\\{0,3}[\"'])?[A-Za-z0-9._@+%-]{0,64}:", r"[^\s\"'`\\|;<>{}$/]", (4, 255),
          ("http -a bob:«hunter2" "Zebra» example.org",), ("http -a $AUTH example.org",), where=TEXT, check=_is_given, needs="http -a"),
    form("command-user", ("-u", "--user"), r"(?<=[ \t\"'])(?:-u[ \t]{0,2}|--user(?:[ \t]{1,2}|=))(?:\\{0,3}[\"'])?", r"[A-Za-z0-9_.~-]", (12, 255),
         ("curl -u «k2JdQ8sLZx" "Yv7WbNm2Pt»: https://example.org/",), ("docker run -u appuser-of-the-image: x", "chown -u k2JdQ8sLZxYv7: x"), where=TEXT, check=_is_random, tail=r"(?=:(?:[\s\"'\\]|\Z))", needs="curl"),
    # Calls
    form("call-secret", ("auth", "basic_auth", "basicauth", "bearer_auth"), r"(?:(?<![A-Za-z0-9_.])auth[ ]?=[ ]?\(|basic_?auth\(|bearer_?auth\()(?:[ ]?[a-z]{0,2}\\{0,3}[\"'][^\"'\n]{0,100}[\"'],[ ]?)?(?:Some\()?[a-z]{0,2}\\{0,3}[\"']", r"[^\"'\s\\]", (6, 400),
         ("requests.get(url, auth=('bob', '«hunter2" "Zebra»'))", "HTTPBasicAuth('bob', '«hunter2" "Zebra»')", '.basic_auth("bob", Some("«hunter2' 'Zebra»"))', '.bearer_auth("«k2JdQ8sLZx' 'Yv7WbNm2Pt»")'),
         ("auth=('user', 'pass')", "auth=('user', PASSWORD)", "auth = ('basic', 'digest')", "basic_auth('user', 'password')"), check=_is_chosen, tail=r"(?=\\{0,3}[\"'])"),
    form("call-secret", ("getconnection", "pdo", "dbi", "wifi.begin", "secretstr"), r"(?:getConnection\((?:[^\"'\n,]{1,100}|\\{0,3}\"[^\"'\n]{1,200}\"),[ ]?\\{0,3}\"[^\"\n]{0,100}\",[ ]?|pdo\([ ]?[^\n,]{1,200},[ ]?[^\n,]{1,100},[ ]?|dbi->connect\([ ]?[^\n,]{1,200},[ ]?[^\n,]{1,100},[ ]?|wifi\.begin\([^\n,]{1,100},[ ]?|secretstr\([ ]?)\\{0,3}[\"']", r"[^\"'\s\\]", (6, 400),
         ('DriverManager.getConnection(url, "bob", "«hunter2' 'Zebra»")', "new PDO('mysql:host=x', 'bob', '«hunter2" "Zebra»')", 'WiFi.begin("Home", "«hunter2' 'Zebra»");', "SecretStr('«hunter2" "Zebra»')", 'DBI->connect("dbi:x", "bob", "«hunter2' 'Zebra»")'),
         ("new PDO($dsn, $user, $pass)", "SecretStr('**********')", 'getConnection(url, "user", "password")'), check=_is_chosen, tail=r"(?=\\{0,3}[\"'])"),
    Rule("recovery-phrase", ("mnemonic", "seed", "phrase"), _PHRASE_LEAD + r"(?P<secret>(?:[a-z]{3,8}[ ]){11}(?:(?:[a-z]{3,8}[ ]){12})?[a-z]{3,8})",
         ("seed phrase: «ripple velvet copper orchid saturn harbor walnut maple thunder " "quartz granite abandon»", 'MNEMONIC="«ripple velvet copper orchid saturn harbor walnut maple thunder ' 'quartz granite abandon»"'),
         ("seed = 42", "the seed phrase is a list of twelve words that open a wallet of yours, all of them are needed", "mnemonic: one word"), FOLD, _is_phrase,
         _PHRASE_LEAD + r"(?P<secret>[a-z ]{0,216})\Z"),
    # Files
    form("netrc-password", ("password", "passwd"), r"passw(?:or)?d[ \t]{1,8}", r"[^\s\"'\\]", (3, 400),
          ("machine api.example.org login bob password «hunter2" "Zebra»", "machine api.example.org\n  login bob\n  password «hunter2" "Zebra»"),
          ("the login page has a password field", "user bob password is required", "machine learning password reset"), check=_is_netrc),
    form("pgpass-password", (*_POSTGRES_PORTS, ":*:"), rf"(?:(?<=[A-Za-z0-9_.*-]:)(?:{'|'.join(_POSTGRES_PORTS)})|:\*)" r":[^:\s/\"']{1,64}:[^:\s/\"']{1,64}:", r"[^\s:\"'\\]", (4, 255),
          ("db.internal:5432:app:bob:«hunter2" "Zebra»", "*:*:*:bob:«hunter2" "Zebra»"), ("10:5432:20:30:40", "tcp:5432:x:y:", "arn:aws:rds:*:*:db:autoscaled-reader", "arn:aws:cloudwatch:*:*:alarm:eb-*"), where=TEXT,
          check=lambda match: _AFTER_HOST.search(before(match, 300)) is not None and not match["secret"].isdigit() and not values.is_no_secret(match["secret"], chosen=True) and "arn" not in before(match, 5)),
    form("docker-auth", ("auth",), r"(?<=[\"'])auth\\{0,3}[\"'][ \t]{0,3}:[ \t]{0,3}\\{0,3}[\"']", r"[A-Za-z0-9+/=]", (8, LONGEST),
          ('{"auths": {"registry.example.org": {"auth": "«Ym9iOmh1bnRl' 'cjJaZWJyYQ==»"}}}',), ('"auth": "required"', '"auth": "basic"'), check=_is_basic),
    form("composer-auth", ("github-oauth", "gitlab-token", "gitlab-oauth", "bitbucket-oauth", "bearer"), r"(?:git(?:hub|lab)-(?:oauth|token)|bearer)\\{0,3}\":\s{0,4}\{\s{0,20}\\{0,3}\"[A-Za-z0-9.-]{3,80}\\{0,3}\":[ ]?\\{0,3}\"", r"[A-Za-z0-9_-]", (16, 255),
          ('{"github-oauth": {"github.com": "«8e2b7c1d9f3a4056b8c7' 'd2e1f0a93b548e2b7c1d»"}}',), ('{"github-oauth": {"github.com": "token"}}',), check=_is_random),
    form("terraform-result", ("result",), r"result\\{0,3}\":[ ]?\\{0,3}\"", r"[^\"\s\\]", (8, 400),
          ('"type": "random_password", "instances": [{"attributes": {"result": "«k2JdQ8sLZx' 'Yv7WbNm2Pt»"}}]',), ('"random_password": {"result": "success"}',), check=_is_random, needs="random_password"),
    form("npmrc-auth", ("_auth",), r"(?:(?<![A-Za-z0-9.])|(?<=\\n)|(?<=\[[0-9]m)|(?<=\[[0-9]{2}m))_auth(?:token)?[\"']?(?:[ \t]{0,3}[:=][ \t]{0,3}|[ \t]{1,2})" + QUOTE, r"[A-Za-z0-9_+/=.~:-]", (8, 1000),
          ("//packages.shop.test/:_authToken=«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»", "_auth=«Ym9iOmh1bnRl" "cjJaZWJyYQ==»"), ("_authToken=${NPM_TOKEN}", "user_auth = authenticate"), check=_is_npm),
    form("gitlab-session", ("_gitlab_session",), r"_gitlab_session" + _PAIR, r"[0-9a-z]", (32, 32),
          ('"_gitlab_session": "«zah68ma7tk62nq03' '97smbgtecd0tx9sm»"',), ("_gitlab_session: expired",), check=_is_random),
    form("bundler-key", ("contribsys__com",), r"contribsys__com" + _PAIR, r"[0-9a-f:]", (17, 17),
          ("BUNDLE_ENTERPRISE__CONTRIBSYS__COM=«713e8faf" ":b934eccd»",), ("BUNDLE_GEMS__CONTRIBSYS__COM: x",), check=lambda match: match["secret"][8] == ":"),
    form("kubeconfig-key", ("client-key-data",), r"client-key-data(?:\\{0,3}[\"'])?:[ \t]{0,3}(?:\\{0,3}[\"'])?", r"[A-Za-z0-9+/=]", (32, LONGEST),
          ("    client-key-data: «LS0tLS1CRUdJTiBSU0EgUFJJVkFURSB" "LRVktLS0tLQpNSUlFb3dJQkFBS0NBUUVB»",), ("client-key-data: REDACTED",), check=lambda match: True),
    form("terraform-default", ("default",), r"default[ \t]{0,12}=[ \t]{0,3}\\{0,3}\"", r"[^\"\n\\]", (4, 400),
          ('variable "db_password" {\n  type    = string\n  default = "«hunter2' 'Zebra»"\n}',), ('variable "region" {\n  default = "eu-west-1"\n}', 'variable "db_password" {\n  default = "changeme"\n}'), check=_is_default, needs="variable "),
    form("sql-password", ("password", "identified"), r"(?:identified[ \t]{1,3}(?:with[ \t]{1,3}\S{1,40}[ \t]{1,3})?by|(?:with|encrypted|set)[ \t]{1,3}password(?:[ \t]{1,2}for[ \t]{1,2}[^\s=]{1,100})?(?:[ \t]{0,2}=)?|password(?:[ \t]{1,2}for[ \t]{1,2}[^\s=]{1,100}[ \t]{0,2}=)?)[ \t]{1,3}\\{0,3}'", r"[^'\n\\]", (4, 255),
          ("CREATE USER bob IDENTIFIED BY '«hunter2" "Zebra»'", "ALTER ROLE bob WITH PASSWORD '«hunter2" "Zebra»'", "SET PASSWORD FOR bob@localhost = '«hunter2" "Zebra»'"), ("identified by 'password'", "the password 'admin' is weak"), check=lambda match: not values.is_no_secret(match["secret"]) and values.is_password(match["secret"])),
    form("form-password", ("form-data",), r"form-data;[ \t]{0,2}name=\\{0,3}[\"'][A-Za-z0-9_.-]{0,40}(?:passw(?:or)?d|passphrase|secret|token|api_?key)\\{0,3}[\"'](?:(?:\s|\\{1,3}[rn]){1,2}[A-Za-z-]{1,40}:[^\n\\]{0,100})?(?:\s|\\{1,3}[rn]){2,6}", r"[^\s\"'\\]", (6, 400),
         ('Content-Disposition: form-data; name="password"\r\n\r\n«hunter2' 'Zebra»\r\n--x',), ('form-data; name="password"\n\n<p>',), check=lambda match: not values.is_no_secret(match["secret"]) and values.is_password(match["secret"])),
    form("wifi-password", ("psk",), EDGE + r"(?:psk|wpa_passphrase|wpa-psk)\\{0,3}[\"']?[ \t]{0,3}[=: ][ \t]{0,3}" + QUOTE, r"[^\s\"'\\;,<>(){}]", (8, 64),
         ('ssid="x"\npsk="«hunter2' 'Zebra»"', "wpa-psk «hunter2" "Zebra»"), ("psk=PSKmodulation", "psk: None"), check=lambda match: not values.is_no_secret(match["secret"]) and values.is_password(match["secret"])),
    Rule(SPOKEN_SECRET, HINTS, SPOKEN + rf"(?P<secret>{SPOKEN_VALUE}{{6,400}})",
         ("API key: «k2JdQ8sLZx" "Yv7WbNm2Pt»", "AWS Secret Access Key [None]: «wJalrXUtnFEMI/K7MDENG/" "bPxRfiCYzk2JdQ8sLZ»", "the password for bob is «hunter2" "-Zebra»", "Your access token:\n  «k2JdQ8sLZx" "Yv7WbNm2Pt»",
          "| API key | «k2JdQ8sLZx" "Yv7WbNm2Pt» |", "**Password:** `«hunter2" "Zebra9»`", "my auth token is «k2JdQ8sLZx" "Yv7WbNm2Pt».", "private key -> «8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»",
          "Set the datadog key to `«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»` first", "Using meraki key: «8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»"),
         ("the password is case-sensitive", "the token is base64-encoded", "password is SHA256-hashed", "a secret is a dangerous-thing2", "| token | string |", "token: the-next-word", "the api key is missing", "password for the app is required",
          "session token is 123e4567-e89b-12d3-a456-426614174000", "foreign key: 8e2b7c1d9f3a4056b8c7d2e1f0a93b54", "set the token to the-next-value", '{"username": UserName, "password": Password}', "'MYSQL_NATIVE_PASSWORD'|'POSTGRES_SCRAM_SHA_256'",
          't?"use-credentials":""),u=e,d=i'), FOLD, is_spoken,
         SPOKEN + rf"(?P<secret>{SPOKEN_VALUE}{{0,400}})\Z", parts=spoken_parts),
    Rule(ASSIGNED, HINTS, NAME + SEPARATOR + VALUE,
         ("DB_PASSWORD=«hunter" "2x»", "export API_KEY=«8e2b7c1d9f3a" "4056b8c7d2e1f0a93b54»", '{"client_secret": "«k2JdQ8sLZx' 'Yv7WbNm2Pt»"}',
          "password: «Tr0ub4dor" "-3»", "aws_secret_access_key = «wJalrXUtnFEMI/K7MDENG/" "bPxRfiCYzk2JdQ8sLZ»", "password = '«correct horse" " battery staple 9»'",
          "password: password=«hunter2" "Zebra»", "token: api_token=«k2JdQ8sLZx" "Yv7WbNm2Pt»",
          "STRIPE_KEY=«k2JdQ8sLZx" "Yv7WbNm2»", "<password>«Zebra-" "2024-x»</password>", "https://api.example.org/?access_token=«k2JdQ8sLZx" "Yv7WbNm2Pt»&x=1",
          "DB_PASSWORD=«!Zebra" "2024»", "HEROKU_API_KEY=«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»", "password=\x1b[32m«hunter2" "Zebra9»\x1b[0m", "define('DB_PASSWORD', '«hunter2" "-Zebra»');",
          "ansible_become_pass: «hunter2" "-Zebra»", '<add key="DbPassword" value="«hunter2' '-Zebra»"/>', "let api_key: &str = \"«k2JdQ8sLZx" "Yv7WbNm2Pt»\";",
          'const APIKey string = "«k2JdQ8sLZx' 'Yv7WbNm2Pt»"', "datadog_key: «8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»", "ASANA_TOKEN=«48291" "73650192847»", "airtable_api_key: «yf04bzoc" "807256ta2»"),
         ("tokens: 12345", "max_tokens=4096", "token = tokenizer.next_token()", "password = os.environ['DB_PASSWORD']", "password = getpass.getpass()", "password: str",
          '"password": "Password"', "DB_PASSWORD=$SECRET", "API_KEY=your-api-key-here", "token_count = 128_000_128", "secret_name = 'prod/db/main-1'", "PWD=/home/bob/src/app1",
          "session_token: 123e4567-e89b-12d3-a456-426614174000", "if token == expected_token:", "primary_key = True", "cache_key=8e2b7c1d9f3a4056b8c7d2e1f0a93b54", "password=<password>",
          "token: string", "SECRET_KEY_FILE=/run/secrets/key1", "TOKEN=${GITHUB_TOKEN}", "password_hash = '8e2b7c1d9f3a4056b8c7'", "PASSWORD=********", 'getpass("Password: ")',
          "password1 = password2", 'token="production-database-2"', "password: !vault |", '"password": "At least 8 characters"',
          'names: ["_email", "_password", "_tenantId"]', 'names: ["endNameToken", "htmlBuilder$5"]', 'DEFAULT_SLACK_KEY="__DEFAULT__"', 'input[type="x"]{password:"[type=password]"}',
          'output_token:"NextToken",result_key:"Ipv6CidrAssociations"', "    password = utils$1.getSafeProp(settings)", "token_count = 100000000000000000",
          "f(ACCESS_KEY=credentials['x'], b=1)", "private_key: PKCS7PrivateKeyTypes", '"NextToken": "CpHNsscimcV5oH7bSbub03CI2Qms5"', "('--ask-vault-password', '--ask-vault-pass')"), FOLD,
         is_assigned,
         NAME + SEPARATOR + OPEN_VALUE, parts=assigned_parts),
    Rule(ASSIGNED, ("_PAT", "_AUTH"), r"(?<=[A-Z])(?P<name>_PAT|_AUTH)" + SEPARATOR + VALUE, ("GITHUB_PAT=«k2JdQ8sLZx" "Yv7WbNm2»", "BASIC_AUTH=«bob:k2JdQ8sLZx" "Yv7WbNm2»"), ("LD_LIBRARY_PATH=/usr/lib64", "DISABLE_AUTH=everything"), TEXT,
         lambda match: environment_name(match) and is_assigned(match), r"(?<=[A-Z])(?P<name>_PAT|_AUTH)" + SEPARATOR + OPEN_VALUE, parts=assigned_parts),
    Rule(VENDOR, tuple(VENDORS), rf"(?P<name>(?:{'|'.join(VENDORS)})(?=(?P<more>[A-Za-z0-9_.-]{{0,40}}))(?P=more))" + VENDOR_SEPARATOR + VALUE,
         ("datadog: «8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»", 'heroku = "«8e2b7c1d-9f3a-4056-b8c7-' 'd2e1f0a93b54»"', "SNYK=«8e2b7c1d-9f3a-4056-b8c7-" "d2e1f0a93b54»", "| datadog | «8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54» |",
          "ADOBE_CLIENT_ID=«8e2b7c1d9f3a4056" "b8c7d2e1f0a93b54»"),
         ("azure: eu-west", "discord_id: 8e2b7c1d9f3a4056b8c7d2e1f0a93b54", "heroku_commit=8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d", "netlify: https://example.org/8e2b7c1d9f3a4056", "AZURE_CLIENT_ID=8e2b7c1d-9f3a-4056-b8c7-d2e1f0a93b54"), FOLD,
         is_vendors,
         rf"(?P<name>(?:{'|'.join(VENDORS)})(?=(?P<more>[A-Za-z0-9_.-]{{0,40}}))(?P=more))" + VENDOR_SEPARATOR + OPEN_VALUE, parts=assigned_parts),
)  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (*(token(*row) for row in TOKENS), *_FORMS)
NAMES: Final = tuple(dict.fromkeys(rule.name for rule in RULES))
