"""Taking secrets out of tasks that were recorded before their format was known, or by a version that did not look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Protocol

from rawko_state.backends.catalogue import Catalogue
from rawko_state.errors import RawkoError
from rawko_state.index import holding
from rawko_state.journal import blobs, trash
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.journal.locks import gate
from rawko_state.journal.rewrite import Rewriting, rewrite
from rawko_state.model.entries import Blob, Entry, Note, ToolCall, Turn
from rawko_state.redact.redactor import Redactor, walked


class Outputs(Protocol):
    """Where long outputs are kept."""

    def blob_bytes(self, blob: Blob) -> bytes | None: ...
    def put_blob(self, data: bytes) -> Blob: ...


@dataclass(slots=True)
class Found:
    """The secrets of one task."""

    task: str
    rules: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    """How many blocks of the file were written anew."""


class Counting:
    """A redactor that counts what it finds, and reads the long outputs too."""

    def __init__(self, outputs: Outputs, redactor: Redactor, found: Found, *, write: bool) -> None:
        self._outputs, self._redactor, self._found, self._write = outputs, redactor, found, write
        self.replaced: set[str] = set()
        """Blobs that hold secrets."""

    def text(self, text: str) -> str:
        self._found.rules.update(span.rule for span in self._redactor.spans(text))
        return self._redactor.text(text)

    def whole(self, secret: str, rule: str) -> str:
        self._found.rules[rule] += 1
        return self._redactor.whole(secret, rule)

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
            return call  # it is missing, which verify says
        output = data.decode("utf-8", "surrogateescape")
        new = self.text(output)
        if new == output:
            return call
        self.replaced.add(call.blob.sha256)
        kept = self._outputs.put_blob(new.encode("utf-8", "surrogateescape")) if self._write else Blob("0" * 64, 0)
        return replace(call, blob=kept)


def look(catalogue: Catalogue, redactor: Redactor, name: TaskName) -> Found:
    """What is in a task, and nothing changed."""
    found = Found(name.id)
    counting = Counting(catalogue.journal, redactor, found, write=False)
    with catalogue.journal.reader(name) as reader:
        for _ in Rewriting(counting.entry, counting.text).pieces(reader):
            pass
    return found


def redact(catalogue: Catalogue, redactor: Redactor, name: TaskName, by: str | None) -> Found:
    """Writes a task's file anew without its secrets, if it has any. The caller holds its lease."""
    found = Found(name.id)
    counting = Counting(catalogue.journal, redactor, found, write=True)

    with catalogue.journal.keeping_blobs():
        found.changed = rewrite(
            catalogue.journal.layout, name, counting.entry, counting.text, lambda changed: noted(found, changed, by)
        )
    if counting.replaced:
        _drop(catalogue, counting.replaced)
    return found


def noted(found: Found, changed: int, by: str | None) -> Note:
    """What a task says of having been rewritten."""
    data = {"blocks": changed, "secrets": dict(sorted(found.rules.items()))}
    return Note(at=datetime.now(timezone.utc).replace(microsecond=0), by=by, kind="redacted", data=data)


def finish(catalogue: Catalogue, redactor: Redactor) -> None:
    """What a redaction that was killed had not come to: old long outputs with secrets, whose tasks name the new ones already."""
    layout = catalogue.journal.layout
    left = {name for name in blobs.names(layout) if _has_secret(layout, redactor, name)}
    if left:
        _drop(catalogue, left)


def _has_secret(layout: Layout, redactor: Redactor, name: str) -> bool:
    try:
        data = blobs.get_bytes(layout, Blob(name, (layout.blobs / name).stat().st_size))
    except (RawkoError, OSError):
        return False
    return bool(redactor.spans(data.decode("utf-8", "surrogateescape")))


def _drop(catalogue: Catalogue, replaced: set[str]) -> None:
    """The old long outputs, unless another task, or one in the trash, refers to them."""
    layout = catalogue.journal.layout
    with trash.locked(layout), gate(layout.live / "blobs.lock"):
        index = catalogue.fresh()
        if catalogue.knows_all():
            free = holding.unused(index, replaced) - {blob for each in trash.listed(layout) for blob in each.blobs}
            trash.delete_blobs(layout, free)
