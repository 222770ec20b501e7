"""Redaction: a project's redactor, and counting the secrets in existing tasks."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from rawko_state.config.secret import keyed, user_key
from rawko_state.config.settings import Settings, load
from rawko_state.errors import InvalidValue, TaskExists
from rawko_state.format.reader import TaskReader
from rawko_state.format.rewriting import Rewriting, with_note
from rawko_state.journal.reader import open_reader
from rawko_state.late import late
from rawko_state.model.entries import Blob, Entry, Note, Turn, blobs_of
from rawko_state.model.long_texts import with_blobs_changed
from rawko_state.model.names import TaskName, parse_name
from rawko_state.redact.named import ASSIGNED
from rawko_state.redact.patterns import Pattern, Refused
from rawko_state.redact.redactor import Redactor, walked
from rawko_state.redact.rules import NAMES

_PIECE: Final = 1 << 20


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
        warn(f"redact.off: there is no rule {name!r}; see docs/reference/redaction-rules.md")
    return Redactor(
        lambda secret: keyed("redact", secret, key)[:4],
        off=NAMES if "all" in off else off,
        patterns=_own_patterns(settings, warn),
        literals={_rule_name(name): os.environ[name] for name in settings["redact.env"] if os.environ.get(name)},
        allowed=settings["redact.allow"],
    )


def own_pattern_problems(settings: Settings) -> list[str]:
    problems: list[str] = []
    _own_patterns(settings, problems.append)
    return problems


def check_own_pattern(pattern: str) -> None:
    try:
        Pattern(pattern)
    except Refused as refused:
        raise InvalidValue(f"This pattern is refused: {refused}. Rewrite it without that.") from None


def _own_patterns(settings: Settings, warn: Callable[[str], None]) -> dict[str, Pattern]:
    """The user's patterns, tested with their own samples. One that is refused is not applied; one that fails its samples is."""
    found = {}
    for name, pattern in settings["redact.patterns"].items():
        try:
            found[name] = Pattern(pattern)
        except Refused as refused:
            warn(f"redact.patterns.{name} is not applied: {refused}; rewrite it without that")
    for setting, wanted, said in (("match", True, "does not match its sample"), ("never", False, "must not match")):
        for name, sample in settings[f"redact.samples.{setting}"].items():
            if name in found and any(True for _ in found[name].spans(sample)) is not wanted:
                warn(f"redact.patterns.{name} {said} {sample!r}")
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
        self.renamed: dict[str, str] = {}
        """Blobs that contain secrets, and those without that replace them."""

    @property
    def replaced(self) -> set[str]:
        return set(self.renamed)

    def text(self, text: str) -> str:
        spans = self._redactor.spans(text)
        if not spans:
            return text
        self._found.rules.update(span.rule for span in spans)
        return self._redactor.text(text)

    def named(self, key: str, value: str) -> str | None:
        new = self._redactor.named(key, value)
        if new is not None:
            self._found.rules[ASSIGNED] += 1
        return new

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
        kept = self._outputs.put_blob(new.encode("utf-8", "surrogateescape")) if self._write else Blob("0" * 64, 0)
        self.renamed[blob.sha256] = kept.sha256
        return kept


class Explained(NamedTuple):
    """One redaction: the rule, where it is, and the text around it, without the secret."""

    rule: str
    tag: str
    """What ``redact.allow`` takes."""
    place: str
    before: str
    after: str
    removed: bool
    """Whether it was removed already."""


_AROUND: Final = 60
_TAG = late(r"\[redacted:([a-z0-9-]{1,40}):([0-9a-f]{4})\]")


class _Explaining:
    """A redactor that collects what it finds."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.found: list[tuple[str, str, str, str, bool]] = []

    def text(self, text: str) -> str:
        # Secrets first, so that no surrounding text shows one.
        clean = self._redactor.text(text)
        if "[redacted:" in clean:
            self._add(clean, text)
        return text

    def named(self, key: str, value: str) -> str | None:
        new = self._redactor.named(key, value)
        if new is not None:
            self._add(f"{key}: {new}", value)
        return new

    def _add(self, clean: str, original: str) -> None:
        for match in _TAG.finditer(clean):
            before, after = (
                clean[max(0, match.start() - _AROUND) : match.start()],
                clean[match.end() : match.end() + _AROUND],
            )
            self.found.append((match[1], f"{match[1]}:{match[2]}", before, after, match[0] in original))


def explained(store: Outputs | None, redactor: Redactor, reader: TaskReader) -> Iterator[Explained]:
    """Every redaction in a task, in order."""
    turns = 0
    for record in reader.records():
        for block in record.blocks:
            entry = block.entry(reader.fetch)
            place = type(entry).__name__.lower()
            if isinstance(entry, Turn):
                turns += 1
                place = f"turn {entry.number or turns}"
            work = _Explaining(redactor)
            walked(entry, work)
            for blob in blobs_of(entry) if isinstance(entry, Turn) else ():
                data = store.blob_bytes(blob) if store is not None else None
                work.text((data or b"").decode("utf-8", "surrogateescape"))
            for rule, tag, before, after, removed in work.found:
                yield Explained(rule, tag, f"{place}, at byte {block.offset}", before, after, removed)


class Places(Outputs, Protocol):
    """Where a whole task is put."""

    def add_file(
        self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()
    ) -> TaskName | None: ...

    def reader(self, prefix: str) -> TaskReader: ...


def add_clean(
    store: Places, redactor: Redactor, filename: str, path: Path, by: str | None
) -> tuple[TaskName | None, Found]:
    """Adds a task file without its secrets: they are removed on the way, so that nothing is stored before. Byte for byte if it
    has none."""
    name = parse_name(filename)
    if name is None:
        raise InvalidValue(f"Not a task file name: {filename!r}.")
    found = Found(name.id)
    with open_reader(path) as reader:
        counting = Counting(store, redactor, found, write=False)
        for _ in Rewriting(counting.entry, counting.text).pieces(reader):
            pass
    if not found.rules:
        with open(path, "rb") as stream:
            return store.add_file(filename, iter(lambda: stream.read(_PIECE), b"")), found
    again = Found(name.id)
    with open_reader(path) as reader:
        counting = Counting(store, redactor, again, write=True)
        work = Rewriting(counting.entry, counting.text)
        try:
            placed = store.add_file(filename, with_note(work, reader, lambda changed: noted(again, changed, by)))
        except TaskExists:
            # The note says when, so the same file sent again differs in it.
            if not _is_there(store, redactor, name, path):
                raise
            placed = None
    again.changed = work.changed
    return placed, again


def _is_there(store: Places, redactor: Redactor, name: TaskName, path: Path) -> bool:
    """Whether the stored task is this file without its secrets, and what was added since."""
    with open_reader(path) as reader, store.reader(name.id) as there:
        at = 0
        counting = Counting(store, redactor, Found(name.id), write=True)
        for piece in Rewriting(counting.entry, counting.text).pieces(reader):
            if there.fetch(at, len(piece)) != piece:
                return False
            at += len(piece)
    return True


def count_draft(lines: Iterable[bytes], counting: Counting) -> list[Any]:
    """The events of a draft without their secrets, which are counted."""
    found = []
    for line in lines:
        try:
            found.append(walked(json.loads(line), counting))
        except ValueError:
            continue  # torn
    return found


def noted(found: Found, changed: int, by: str | None) -> Note:
    """The note that records a rewrite in the task."""
    data = {"blocks": changed, "secrets": dict(sorted(found.rules.items()))}
    return Note(at=datetime.now(timezone.utc).replace(microsecond=0), by=by, kind="redacted", data=data)
