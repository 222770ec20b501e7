"""The redactor of a project: the rules, what the settings add to them, and the user's key for the tags."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from rawko_state.config.secret import keyed, user_key
from rawko_state.config.settings import load
from rawko_state.redact.redactor import Redactor
from rawko_state.redact.rules import RULES


def redactor_for(root: Path, tell: Callable[[str], None]) -> Redactor:
    settings = load(root)
    for problem in settings.problems:
        # Of a file that could not be read at all nobody knows what it says of secrets.
        if not problem.key or "redact" in problem.message:
            tell(str(problem))
    # Without a place to keep a key, tags are the same for the same secret only as long as this process lives.
    key = user_key() or os.urandom(32)
    off = set(settings["redact.off"])
    known = {rule.name for rule in RULES}
    for name in sorted(off - known - {"all"}):
        tell(f"redact.off: there is no rule {name!r}; see docs/keeping.md")
    return Redactor(
        lambda secret: keyed("redact", secret, key)[:4],
        off=known if "all" in off else off,
        patterns={name: re.compile(pattern) for name, pattern in settings["redact.patterns"].items()},
        literals={_rule_name(name): os.environ[name] for name in settings["redact.env"] if os.environ.get(name)},
    )


def _rule_name(variable: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-")[:40] or "env"
