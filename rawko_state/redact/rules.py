"""The table of secret formats. Each row: a name, the literals that every match contains, the pattern, and samples.

A pattern is tried only where one of its hints occurs, and continues after what it has consumed, so that the time for all of them
is proportional to the length of any text. Its group ``secret`` is removed; without that group, the whole match. The samples are
tested alone and inside a paragraph, a JSON string and a URL. They are written in two halves, so that this file contains nothing
that looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rawko_state.redact import values

RUN: Final = "run"
"""The hint is inside a run of at least 20 letters, digits, '_', '-' and '.'. Such runs are searched first, which is fast."""
TEXT: Final = "text"
"""The hint may be anywhere."""
FOLD: Final = "fold"
"""Anywhere, in upper or lower case."""


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    samples: tuple[str, ...]
    """Each contains one secret between '«' and '»', which are not part of the text."""
    never: tuple[str, ...] = ()
    """Texts that must not match."""
    where: str = RUN
    check: Callable[[re.Match[str]], bool] | None = None
    opening: re.Pattern[str] | None = None
    """Matches the end of a text if a secret may follow. A stream holds back the text from its group ``secret`` on."""


BOUNDARY: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\x[0-9a-fA-F]{2})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\[m)|(?<=\[[0-9]m)|(?<=\[[0-9]{2}m)|(?<=;[0-9]m)|(?<=;[0-9]{2}m)|(?<=;[0-9]{3}m))"
)
"""A token must not continue a word. The end of a JSON or URL escape, or of a terminal colour code, may precede it."""


def _rule(
    name: str, hints: str, pattern: str, samples: tuple[str, ...], never: tuple[str, ...] = (), where: str = RUN
) -> Rule:
    """A token that is recognised by its prefix and is not part of a longer word."""
    compiled = re.compile(rf"{BOUNDARY}(?:{pattern})", re.ASCII)
    return Rule(name, tuple(hints.split()), compiled, samples, never, where)


# Names and values

# Words before 'key' that make it a secret. Each is a lookbehind, because a match starts at the hint.
_KINDS = ["api", "access", "private", "auth", "encryption", "signing", "account", "master"]
_KEY = "(?:(?P<kind>" + "|".join(f"(?<={kind})|(?<={kind}[_-])" for kind in _KINDS) + ")|(?<=[_-]))key"
_HINTS = ("passw", "passphrase", "pwd", "secret", "token", "credential", "key")
_NAME = (
    rf"(?P<name>(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|{_KEY})"
    r"(?:[_-]?(?:key|token|secret|value|string|base64|b64|prod|dev|live|test|production|staging|[0-9]{1,2})){0,4})"
)
# The closing quote of the name, a type, and the separator between name and value; all on one line.
_SEPARATOR = (
    r"(?:\\{0,3}[\"'`])?\]?(?P<gap>[ \t]{0,4})(?::[ \t]{0,2}(?:str|string|String|bytes|Optional\[str\]|str \| None)[ \t]{1,2}(?==))?"
    r"(?P<sep>=>|:=|===?|=|:|>)[ \t]{0,4}"
    # The apparent value is itself a name, followed by the value: password: db_password=...
    r"(?:[A-Za-z_-]{0,30}(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|key)[=:][ \t]{0,4}(?![=:\s]))?"
)
_BARE = r"[^\s\"'`\\,;&<>(){}\[\]=]"
# After an unescaped quote, an escaped quote is part of the value. An escaped newline ends it, like a real one.
_DOUBLE, _SINGLE = (rf"(?:[^{quote}\\\n]|\\[^nrt\n])" for quote in "\"'")
_VALUE = (
    rf"(?:[bfru]{{0,2}}(?:\"(?P<double>{_DOUBLE}{{1,400}})|'(?P<single>{_SINGLE}{{1,400}})"
    r"|\\{1,3}\"(?P<inner_double>[^\"\\\n]{1,400})|\\{1,3}'(?P<inner_single>[^'\\\n]{1,400}))|`(?P<back>[^`\\\n]{1,400})"
    rf"|(?P<bare>{_BARE}{{1,400}}={{0,2}}))"
)
# A partial value at the end of a text.
_OPEN_VALUE = (
    rf"(?P<secret>[bfru]{{0,2}}(?:\"{_DOUBLE}{{0,400}}\\?|'{_SINGLE}{{0,400}}\\?"
    r"|\\{1,3}\"[^\"\\\n]{0,400}|\\{1,3}'[^'\\\n]{0,400}|\\{1,3})|`[^`\\\n]{0,400}"
    rf"|{_BARE}{{0,400}}={{0,2}})\Z"
)
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,60}\Z")


def _environment_name(match: re.Match[str]) -> bool:
    """Whether the name is written as in an .env file: all capitals, directly followed by '=', no space."""
    name = match["name"]
    if match["sep"] != "=" or match["gap"] or name != name.upper():
        return False
    start = match.start("name")
    before = match.string[max(0, start - 60) : start]
    return _ENV_NAME.search(before + name) is not None


def _is_assigned(match: re.Match[str]) -> bool:
    group = match.lastgroup
    assert group is not None
    name, value = match["name"], match[group]
    following = match.string[match.end() : match.end() + 1]
    if group == "bare" and following in ("(", "[", "{"):
        return False  # a call or an index in code
    environment = _environment_name(match)
    if name[:3].lower() == "key" and match["kind"] is None and not (environment and values.is_random(value)):
        return False
    return values.assigned(name, value, quoted=group != "bare", environment=environment)


def _is_url_password(match: re.Match[str]) -> bool:
    return not values.is_no_secret(match["secret"])


def _is_header(match: re.Match[str]) -> bool:
    value = match["secret"]
    return not values.is_no_secret(value) and len(value) >= 8


def _is_key_body(match: re.Match[str]) -> bool:
    return len(re.sub(r"[^A-Za-z0-9+/]", "", match["secret"][:4096])) >= 32


_PRIVATE_KEY = re.compile(
    # Up to the end line. If the key was cut off, up to its last line.
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?P<secret>"
    r"(?:(?!-----).){1,20000}(?=-----END )|(?:(?:\\[nrt]|[\s|>\"',+]){0,16}[A-Za-z0-9+/=]{16,100}){1,400})",
    re.DOTALL,
)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "private-key", ("-----BEGIN ",), _PRIVATE_KEY,
        ("-----BEGIN RSA PRIVATE " "KEY-----«\nMIIEowIBAAKCAQEAn4Zq0vYyQbX3c9T1\nlkJ8s7fGh2pQwErTyUiOpAsDfGhJkLzX\n»-----END RSA PRIVATE KEY-----",
         "-----BEGIN OPENSSH PRIVATE " "KEY-----«\\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtz\\n»-----END OPENSSH PRIVATE KEY-----",
         "-----BEGIN PRIVATE " "KEY-----«\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj»"),
        ("-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu1SU1LfVLPHCozMxH2Mo\n-----END PUBLIC KEY-----",
         "looks for -----BEGIN RSA PRIVATE KEY----- in the text", "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYDVQQGEwJJ\n-----END CERTIFICATE-----"),
        TEXT, _is_key_body,
    ),
    # Clouds
    _rule("aws-access-key", "AKIA ASIA ABIA ACCA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])",
          ("«AKIA" "QYLPMN5HHHFPZAM2»", "«ASIA" "J7KMN2PQR4STUVW5»"), ("AKIAIMPORTANT", "MAKIA2345678901234567")),
    _rule("google-api-key", "AIza", r"AIza[0-9A-Za-z_-]{35}(?![A-Za-z0-9_-])", ("«AIza" "SyD3kQ7vXc9TfGh2pLwErTyUiOpAsDfGhJk»",), ("AIzaShort",)),
    _rule("google-oauth", "ya29. GOCSPX-", r"ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{28}",
          ("«ya29." "a0AfH6SMBx7Qk2vTz9LmNpRs4WyXc1»", "«GOCSPX-" "k3Jd8sLq0ZxYv7WbNm2PtRf5GhTy»"), ("ya29.x",)),
    Rule("azure-secret", ("8Q~", "7Q~"), re.compile(r"(?<=[A-Za-z0-9_~.-]{3})[78]Q~(?P<secret>[A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])"),
         ("abc8Q~«k2JdQ8sLZx" "Yv7WbNm2PtRf5GhTyUiOpAsD»",), ("8Q~x",), TEXT),
    _rule("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{64}",
          ("«dop_v1_" "3f1c9b7e5d2a8046c1e9f7b3a5d8024e6c1f9b7e3d5a8042c6e1f9b7d3a5802e»",), ("dop_v1_abc",)),
    _rule("databricks-token", "dapi", r"dapi[0-9a-f]{32}(?:-[0-9])?(?![A-Za-z0-9])", ("«dapi" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»",), ("dapinterface",)),
    _rule("vault-token", "hvs. hvb. hvr.", r"hv[sbr]\.[A-Za-z0-9_-]{24,}", ("«hvs." "CAESIJ2k9QxVtLmNpRs4WyXc1Zb8Hd»",), ("hvs.Client",)),
    Rule("terraform-token", (".atlasv1.",), re.compile(r"(?<=[A-Za-z0-9]{14})\.atlasv1\.(?P<secret>[A-Za-z0-9_-]{60,})"),
         ("k2JdQ8sLZxYv7W.atlasv1.«bNm2PtRf5GhTyUiOp" "AsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8»",), ("x.atlasv1.y",)),
    _rule("flyio-token", "fo1_ fm2_", r"fo1_[\w-]{43}|fm2_[A-Za-z0-9+/=_-]{60,}", ("«fo1_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXc»",), where=TEXT),
    _rule("netlify-token", "nfp_", r"nfp_[A-Za-z0-9]{36}", ("«nfp_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfG»",)),
    _rule("planetscale-token", "pscale_tkn_ pscale_pw_", r"pscale_(?:tkn|pw)_[\w.-]{32,}", ("«pscale_tkn_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDf»",)),
    _rule("supabase-token", "sbp_ sb_secret_", r"sbp_[0-9a-f]{40}|sb_secret_[A-Za-z0-9_-]{20,}", ("«sbp_" "8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d»",)),
    # Code and packages
    _rule("github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{50,255}",
          ("«ghp_" "16C7e42F292c6912E7710c838347Ae178B4a»", "«github_pat_" "11ABCDEFG0k2JdQ8sLZxYv7_WbNm2PtRf5GhTyUiOpAsDfGhJkLzXcVbNm1qAz2wSx»"),
          ("ghp_short", "the ghp_ prefix")),
    _rule("gitlab-token", "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent-",
          r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_-]{20,}", ("«glpat-" "k2JdQ8sLZxYv7WbNm2Pt»",), ("glpat-x",)),
    _rule("bitbucket-token", "ATBB", r"ATBB[A-Za-z0-9]{32}(?![A-Za-z0-9])", ("«ATBB" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpA»",)),
    _rule("atlassian-token", "ATATT3 ATCTT3", r"AT[AC]TT3[A-Za-z0-9_=-]{50,}", ("«ATATT3" "xFfGF0k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXcVbNm1qAz»",)),
    _rule("npm-token", "npm_", r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])", ("«npm_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfG»",), ("npm_config_registry",)),
    _rule("pypi-token", "pypi-AgE", r"pypi-AgE[A-Za-z0-9_-]{50,}", ("«pypi-AgE" "IcHlwaS5vcmcCJGk2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLz»",), ("pypi-AgEx",)),
    _rule("rubygems-token", "rubygems_", r"rubygems_[0-9a-f]{48}", ("«rubygems_" "8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d9f3a4056»",)),
    _rule("docker-token", "dckr_pat_ dckr_oat_", r"dckr_[po]at_[A-Za-z0-9_-]{27,}", ("«dckr_pat_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTy»",)),
    # Chat and mail
    _rule("slack-token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxe- xoxe. xapp-", r"xox[abeprs][-.][A-Za-z0-9.-]{20,}|xapp-[0-9]-[A-Za-z0-9-]{20,}",
          ("«xoxb-" "123456789012-1234567890123-k2JdQ8sLZxYv7WbNm2PtRf5G»", "«xapp-1-" "A012BCDEFGH-1234567890123-8e2b7c1d9f3a4056»"), ("xoxb-your-token",)),
    Rule("slack-webhook", ("hooks.slack.com/services/",), re.compile(r"hooks\.slack\.com/services/(?P<secret>T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,})"),
         ("https://hooks.slack.com/services/«T01ABCDEF" "/B02GHIJKL/k2JdQ8sLZxYv7WbNm2PtRf5G»",), ("https://hooks.slack.com/services/T000/B000/XXX",), TEXT),
    Rule("discord-webhook", ("/api/webhooks/",), re.compile(r"/api/webhooks/[0-9]{15,22}/(?P<secret>[A-Za-z0-9_-]{50,})"),
         ("https://discord.com/api/webhooks/123456789012345678/«k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOp" "AsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5»",), ("/api/webhooks/42/x",), TEXT),
    Rule("telegram-token", (":AA",), re.compile(r"(?<=[0-9]{8}):(?P<secret>AA[A-Za-z0-9_-]{32,33})(?![A-Za-z0-9_-])"),
         ("110201543:«AAH" "dqTcvCH1vGWJxfSeofSAs0K5PALDsaw»",), ("12345678:AArdvark",), TEXT),
    _rule("sendgrid-key", "SG.", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}", ("«SG." "k2JdQ8sLZxYv7WbNm2PtRf.5GhTyUiOpAsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv»",), ("SG.Point.x",)),
    _rule("mailgun-key", "key-", r"key-[0-9a-f]{32}(?![A-Za-z0-9])", ("«key-" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»",), ("key-value-store-implementation",)),
    _rule("twilio-key", "SK", r"SK[0-9a-f]{32}(?![A-Za-z0-9])", ("«SK" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»",), ("SKIPPED_BECAUSE_OF_REASONS",)),
    # Models
    _rule("anthropic-key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{20,}", ("«sk-ant-" "api03-k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXc»",), ("sk-ant-key",)),
    _rule("openrouter-key", "sk-or-v1-", r"sk-or-v1-[0-9a-f]{40,}", ("«sk-or-v1-" "8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d9f3a4056b8c7d2e1f0a93b54»",)),
    _rule("openai-key", "sk-", r"sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}|(?=[A-Za-z]{0,60}[0-9])[A-Za-z0-9]{20,}(?![A-Za-z0-9_-]))",
          ("«sk-proj-" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXc»", "«sk-" "k2JdQ8sLZxYv7WbNm2PtT3BlbkFJRf5GhTyUiOpAsDfGhJkL»"),
          ("task-k2JdQ8sLZxYv7WbNm2PtT3Blbk", "sk-learn-contrib-package-name", "the sk-learn library")),
    _rule("huggingface-token", "hf_ api_org_", r"hf_[A-Za-z0-9]{30,}(?![A-Za-z0-9_])|api_org_[A-Za-z0-9]{34}", ("«hf_" "kJdQsLZxYvWbNmPtRfGhTyUiOpAsDfGhJk»",), ("hf_hub_download_with_progress",)),
    _rule("groq-key", "gsk_", r"gsk_[A-Za-z0-9]{40,}", ("«gsk_" "k2JdQ8sLZxYv7WbNm2PtWGdyb3FYRf5GhTyUiOpAsDfGhJkLzXcV»",)),
    _rule("replicate-token", "r8_", r"r8_[A-Za-z0-9]{37,}", ("«r8_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGh»",)),
    _rule("xai-key", "xai-", r"xai-[A-Za-z0-9]{60,}", ("«xai-" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXcVbNm1qAz2wSx3eDc4rFv5tGb6yHn7»",)),
    _rule("perplexity-key", "pplx-", r"pplx-[A-Za-z0-9]{40,}", ("«pplx-" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXcVbNm1»",)),
    # Payment and other company services
    _rule("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{16,}",
          ("«sk_live_" "k2JdQ8sLZxYv7WbNm2PtRf5G»", "«whsec_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpA»"), ("pk_live_k2JdQ8sLZxYv7WbNm2PtRf5G", "sk_test_x"), TEXT),
    _rule("shopify-token", "shpat_ shpss_ shpca_ shppa_", r"shp(?:at|ss|ca|pa)_[0-9a-fA-F]{32}", ("«shpat_" "8e2b7c1d9f3a4056b8c7d2e1f0a93b54»",)),
    _rule("square-token", "sq0atp- sq0csp-", r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,}", ("«sq0atp-" "k2JdQ8sLZxYv7WbNm2PtRf»",)),
    _rule("linear-key", "lin_api_ lin_oauth_", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}", ("«lin_api_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkL»",)),
    _rule("notion-token", "ntn_ secret_", r"ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43}(?![A-Za-z0-9_])", ("«ntn_" "123456789012k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsD»",), ("secret_store_backend_configuration_loader_x",)),
    _rule("figma-token", "figd_ figo_", r"fig[do]_[A-Za-z0-9_-]{40,}", ("«figd_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXc»",)),
    _rule("sentry-token", "sntrys_ sntryu_", r"sntry[su]_[A-Za-z0-9+/=_-]{60,}", ("«sntryu_" "8e2b7c1d9f3a4056b8c7d2e1f0a93b548e2b7c1d9f3a4056b8c7d2e1f0a93b54»",)),
    _rule("newrelic-key", "NRAK- NRII- NRJS-", r"NR(?:AK|II|JS)-[A-Za-z0-9_-]{19,}", ("«NRAK-" "K2JDQ8SLZXYV7WBNM2PTRF5GHTY»",)),
    _rule("grafana-token", "glc_ glsa_", r"glc_[A-Za-z0-9+/=]{40,}|glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}", ("«glsa_" "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpA_8e2b7c1d»",)),
    _rule("postman-key", "PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}", ("«PMAK-" "8e2b7c1d9f3a4056b8c7d2e1-f0a93b548e2b7c1d9f3a4056b8c7d2e1f0»",)),
    _rule("doppler-token", "dp.pt. dp.st. dp.ct. dp.sa.", r"dp\.(?:pt|st|ct|sa)\.[A-Za-z0-9_.-]{40,}", ("«dp.pt." "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXc»",)),
    _rule("age-key", "AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{58}", ("«AGE-SECRET-KEY-1" "QK2JDQ8SLZXYV7WBNM2PTRF5GHTYUIPASDFGHJKLZXCVNM3QAZ2WSX4EDC»",)),
    # Shapes
    Rule("jwt", ("eyJ",), re.compile(BOUNDARY + r"(?<![_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
         ("«eyJ" "hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U»",),
         ("eyJhbGciOiJIUzI1NiJ9", "keyJson.keyJson.keyJson")),
    Rule("url-password", ("://",), re.compile(r"://[^\s:/@\"'`<>\\\[\]]{0,128}:(?P<secret>[^\s/@\"'`<>\\\[\]{}]{1,256})@(?=[A-Za-z0-9\[_.-])"),
         ("postgres://app:«hunter2" "-Zx9»@db.internal:5432/app", "redis://:«p4ssZ" "ebra»@cache:6379", "https://bob:«s3cr3t" "Zebra»@example.org/x"),
         ("http://localhost:8080/a@b", "postgres://user:password@localhost/db", "postgres://app:$DB_PASSWORD@db/app", "https://example.org/~bob:x"), TEXT, _is_url_password,
         re.compile(r"://[^\s:/@\"'`<>\\\[\]]{0,128}:(?P<secret>[^\s/@\"'`<>\\\[\]{}]{0,256}@?)\Z")),
    Rule("authorization", ("authorization",), re.compile(
            r"authorization(?:\\{0,3}[\"'])?[ \t]{0,3}[:=][ \t]{0,3}(?:\\{0,3}[\"'])?(?:(?:bearer|basic|token|digest|apikey|negotiate|bot|key)[ \t]{1,3})?"
            r"(?P<secret>[^\s\"'\\,;<>{}()$]{8,4096})", re.IGNORECASE),
         ("Authorization: Bearer «k2JdQ8sLZx" "Yv7WbNm2Pt»", "-H 'authorization: Basic «Ym9iOmh1bnRl" "cjI=»'", '"Authorization": "token «8e2b7c1d9f3a' '4056»"'),
         ("Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "authorization: required", "Authorization: Bearer YOUR_TOKEN"), FOLD,
         lambda match: _is_header(match) and (values.is_random(match["secret"]) or values.is_password(match["secret"])),
         re.compile(r"authorization(?:\\{0,3}[\"'])?[ \t]{0,3}[:=][ \t]{0,3}(?:\\{0,3}[\"'])?(?:(?:bearer|basic|token|digest|apikey|negotiate|bot|key)[ \t]{1,3})?"
                    r"(?P<secret>[^\s\"'\\,;<>{}()$]{0,4096})\Z", re.IGNORECASE)),
    Rule("bearer-token", ("bearer ",), re.compile(r"(?<![A-Za-z])bearer[ ]{1,3}(?P<secret>[A-Za-z0-9._~+/=-]{16,4096})", re.IGNORECASE),
         ("send it as Bearer «k2JdQ8sLZx" "Yv7WbNm2Pt»",), ("the bearer of-this-letter-is-welcome", "Bearer authentication-scheme"), FOLD,
         lambda match: values.is_random(match["secret"]) and not values.is_no_secret(match["secret"]),
         re.compile(r"(?<![A-Za-z])bearer[ ]{1,3}(?P<secret>[A-Za-z0-9._~+/=-]{0,4096})\Z", re.IGNORECASE)),
    Rule("command-password", ("--pass", "--token", "--secret", "--api-key"), re.compile(
            r"--(?:password|passphrase|pass|token|secret|api-key)[ ]{1,3}[\"']?(?P<secret>[^\s\"'`\\|;&<>(){}$-][^\s\"'`\\|;&<>(){}$]{3,255})", re.IGNORECASE),
         ("mysql --user root --password «hunter2" "Zebra» app",), ("--password PASSWORD", "--token TOKEN is required", "--password-stdin", "--password $DB_PASSWORD"), FOLD,
         lambda match: not values.is_no_secret(match["secret"]) and values.is_password(match["secret"]),
         re.compile(r"--(?:password|passphrase|pass|token|secret|api-key)[ ]{1,3}[\"']?(?P<secret>[^\s\"'`\\|;&<>(){}$]{0,256})\Z", re.IGNORECASE)),
    Rule("command-user", (" -u ", "--user "), re.compile(r"(?: -u |--user )[\"']?[A-Za-z0-9._@-]{1,64}:(?P<secret>[^\s\"'`\\|;&<>(){}$/]{4,255})"),
         ("curl -u bob:«hunter2" "Zebra» https://example.org/", ), ("docker run -u 1000:1000 image", "curl -u $USER:$PASS x", "docker run --user 1000:1000 x"), TEXT,
         lambda match: not match["secret"].isdigit() and not values.is_no_secret(match["secret"]),
         re.compile(r"(?: -u |--user )[\"']?[A-Za-z0-9._@-]{1,64}:(?P<secret>[^\s\"'`\\|;&<>(){}$/]{0,255})\Z")),
    Rule("assigned-secret", _HINTS, re.compile(_NAME + _SEPARATOR + _VALUE, re.IGNORECASE),
         ("DB_PASSWORD=«hunter" "2x»", "export API_KEY=«8e2b7c1d9f3a" "4056b8c7d2e1f0a93b54»", '{"client_secret": "«k2JdQ8sLZx' 'Yv7WbNm2Pt»"}',
          "password: «Tr0ub4dor" "-3»", "aws_secret_access_key = «wJalrXUtnFEMI/K7MDENG/" "bPxRfiCYzk2JdQ8sLZ»", "password = '«correct horse" " battery staple 9»'",
          "password: password=«hunter2" "Zebra»", "token: api_token=«k2JdQ8sLZx" "Yv7WbNm2Pt»",
          "STRIPE_KEY=«k2JdQ8sLZx" "Yv7WbNm2»", "<password>«Zebra-" "2024-x»</password>", "https://api.example.org/?access_token=«k2JdQ8sLZx" "Yv7WbNm2Pt»&x=1"),
         ("tokens: 12345", "max_tokens=4096", "token = tokenizer.next_token()", "password = os.environ['DB_PASSWORD']", "password = getpass.getpass()", "password: str",
          '"password": "Password"', "DB_PASSWORD=$SECRET", "API_KEY=your-api-key-here", "token_count = 128_000_128", "secret_name = 'prod/db/main-1'", "PWD=/home/bob/src/app1",
          "session_token: 123e4567-e89b-12d3-a456-426614174000", "if token == expected_token:", "primary_key = True", "cache_key=8e2b7c1d9f3a4056b8c7d2e1f0a93b54", "password=<password>",
          "token: string", "SECRET_KEY_FILE=/run/secrets/key1", "TOKEN=${GITHUB_TOKEN}", "password_hash = '8e2b7c1d9f3a4056b8c7'", "PASSWORD=********"), FOLD,
         _is_assigned,
         re.compile(_NAME + _SEPARATOR + _OPEN_VALUE, re.IGNORECASE)),
)  # fmt: skip

SECRET_NAME: Final = re.compile(r".{0,200}?" + _NAME, re.IGNORECASE | re.DOTALL)
"""A whole name whose value may be a secret; its group ``name`` says of which kind."""
ASSIGNED: Final = "assigned-secret"


def is_named_secret(name: str, value: str) -> bool:
    """Whether the value of a key in structured data is a secret."""
    match = SECRET_NAME.fullmatch(name[-200:])
    if match is None or (match["name"][:3].lower() == "key" and match["kind"] is None):
        return False
    return values.assigned(match["name"], value, quoted=True, environment=False)
