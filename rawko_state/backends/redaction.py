"""Redaction: a project's redactor, and counting the secrets in existing tasks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from rawko_state.config.secret import keyed, user_key
from rawko_state.config.settings import load
from rawko_state.model.entries import Blob, Entry, Note, Turn
from rawko_state.model.long_texts import with_blobs_changed
from rawko_state.redact.redactor import Redactor, walked
from rawko_state.redact.rules import RULES


def redactor_for(root: Path, warn: Callable[[str], None]) -> Redactor:
    settings = load(root)
    for problem in settings.problems:
        # A settings file that could not be read at all may also contain redaction settings.
        if not problem.key or problem.key.partition(".")[0] == "redact":
            warn(str(problem))
    # Without a place to store a key, a secret's tag is stable only within this process.
    key = user_key() or os.urandom(32)
    off = set(settings["redact.off"])
    known = {rule.name for rule in RULES}
    for name in sorted(off - known - {"all"}):
        warn(f"redact.off: there is no rule {name!r}; see docs/keeping.md")
    return Redactor(
        lambda secret: keyed("redact", secret, key)[:4],
        off=known if "all" in off else off,
        patterns={name: re.compile(pattern) for name, pattern in settings["redact.patterns"].items()},
        literals={_rule_name(name): os.environ[name] for name in settings["redact.env"] if os.environ.get(name)},
    )


def _rule_name(variable: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-")[:40] or "env"


class Outputs(Protocol):
    """Where blobs are stored."""

    def blob_bytes(self, blob: Blob) -> bytes | None: ...
    def put_blob(self, data: bytes) -> Blob: ...


@dataclass(slots=True)
class Found:
    """Secrets found in one task."""

    task: str
    rules: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    """Number of blocks rewritten."""


class Counting:
    """A redactor that counts its findings and also processes blobs."""

    def __init__(self, outputs: Outputs, redactor: Redactor, found: Found, *, write: bool) -> None:
        self._outputs, self._redactor, self._found, self._write = outputs, redactor, found, write
        self.replaced: set[str] = set()
        """Blobs that contain secrets."""

    def text(self, text: str) -> str:
        self._found.rules.update(span.rule for span in self._redactor.spans(text))
        return self._redactor.text(text)

    def whole(self, secret: str, rule: str) -> str:
        self._found.rules[rule] += 1
        return self._redactor.whole(secret, rule)

    def entry(self, entry: Entry) -> Entry:
        new = walked(entry, self)
        assert isinstance(new, Entry)
        return with_blobs_changed(new, self._blob) if isinstance(new, Turn) else new

    def _blob(self, blob: Blob) -> Blob:
        data = self._outputs.blob_bytes(blob)
        if data is None:
            return blob  # missing; verify reports it
        text = data.decode("utf-8", "surrogateescape")
        new = self.text(text)
        if new == text:
            return blob
        self.replaced.add(blob.sha256)
        return self._outputs.put_blob(new.encode("utf-8", "surrogateescape")) if self._write else Blob("0" * 64, 0)


def noted(found: Found, changed: int, by: str | None) -> Note:
    """The note that records a rewrite in the task."""
    data = {"blocks": changed, "secrets": dict(sorted(found.rules.items()))}
    return Note(at=datetime.now(timezone.utc).replace(microsecond=0), by=by, kind="redacted", data=data)
