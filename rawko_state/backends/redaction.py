"""Redaction: a project's redactor, and counting the secrets in existing tasks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from rawko_state.config.schema import OwnPattern
from rawko_state.config.secret import keyed, user_key
from rawko_state.config.settings import load
from rawko_state.model.entries import Blob, Entry, Note, ToolCall, Turn
from rawko_state.redact.patterns import Pattern, Refused
from rawko_state.redact.redactor import Redactor, walked
from rawko_state.redact.rules import ASSIGNED, NAMES


def redactor_for(root: Path, warn: Callable[[str], None]) -> Redactor:
    settings = load(root)
    for problem in settings.problems:
        # A settings file that could not be read at all may also contain redaction settings.
        if not problem.key or problem.key.partition(".")[0] == "redact":
            warn(str(problem))
    # Without a place to store a key, a secret's tag is stable only within this process.
    key = user_key() or os.urandom(32)
    off = set(settings["redact.off"])
    for name in sorted(off - set(NAMES) - {"all"}):
        warn(f"redact.off: there is no rule {name!r}; see docs/rules.md")
    return Redactor(
        lambda secret: keyed("redact", secret, key)[:4],
        off=NAMES if "all" in off else off,
        patterns=_own_patterns(settings["redact.patterns"], warn),
        literals={_rule_name(name): os.environ[name] for name in settings["redact.env"] if os.environ.get(name)},
        allowed=settings["redact.allow"],
    )


def _own_patterns(given: Mapping[str, OwnPattern], warn: Callable[[str], None]) -> dict[str, Pattern]:
    """The user's patterns, tested with their own samples. One that is refused is not applied; one that fails its samples is."""
    found = {}
    for name, own in given.items():
        try:
            pattern = found[name] = Pattern(own.pattern)
        except Refused as refused:
            warn(f"redact.patterns.{name} is not applied: {refused}; rewrite it without that")
            continue
        for sample in own.match:
            if not any(True for _ in pattern.spans(sample)):
                warn(f"redact.patterns.{name} does not match its own sample {sample!r}")
        for sample in own.never:
            if any(True for _ in pattern.spans(sample)):
                warn(f"redact.patterns.{name} matches {sample!r}, which it must not")
    return found


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

    def named(self, key: str, value: str) -> str | None:
        new = self._redactor.named(key, value)
        if new is not None:
            self._found.rules[ASSIGNED] += 1
        return new

    def entry(self, entry: Entry) -> Entry:
        new = walked(entry, self)
        if isinstance(new, Turn):
            tools = tuple(self._tool(call) if isinstance(call, ToolCall) else call for call in new.tools)
            if any(one is not other for one, other in zip(tools, new.tools, strict=True)):
                new = replace(new, tools=tools)
        assert isinstance(new, Entry)
        return new

    def _tool(self, call: ToolCall) -> ToolCall:
        if call.blob is None:
            return call
        data = self._outputs.blob_bytes(call.blob)
        if data is None:
            return call  # missing; verify reports it
        output = data.decode("utf-8", "surrogateescape")
        new = self.text(output)
        if new == output:
            return call
        self.replaced.add(call.blob.sha256)
        kept = self._outputs.put_blob(new.encode("utf-8", "surrogateescape")) if self._write else Blob("0" * 64, 0)
        return replace(call, blob=kept)


def noted(found: Found, changed: int, by: str | None) -> Note:
    """The note that records a rewrite in the task."""
    data = {"blocks": changed, "secrets": dict(sorted(found.rules.items()))}
    return Note(at=datetime.now(timezone.utc).replace(microsecond=0), by=by, kind="redacted", data=data)
