"""Exports a task in pieces: as lossless JSON, Markdown, one HTML page, or the task file itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.exchange.json_form import records_object, task_object
from rawko_state.format.text import visible
from rawko_state.store.contract import Store

EXACT: Final = ("json", "jsonl", "task")
_PIECE: Final = 1 << 20


def exported(store: Store, task_id: str, form: str, *, as_is: bool = False) -> Iterator[bytes]:
    """Omits secrets that an older version recorded. Exact formats cannot omit them, so they are refused."""
    if form in EXACT and not as_is:
        check(store, task_id)
    return _pieces(store, task_id, form, as_is)


def check(store: Store, task_id: str) -> None:
    found = store.redact(task_id, dry_run=True).rules
    if found:
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
        raise InvalidValue(
            f"task {task_id} holds secrets ({rules}): 'rawko redact {task_id}' takes them out; or --as-is"
        )


def plain_name(store: Store, task_id: str) -> str:
    return store.find(task_id).filename.removesuffix(".gz")


def _pieces(store: Store, task_id: str, form: str, as_is: bool) -> Iterator[bytes]:
    if form == "task":
        with store.reader(task_id) as reader:
            offset = 0
            while piece := reader.fetch(offset, _PIECE):
                yield piece
                offset += len(piece)
        return
    if form in ("json", "jsonl"):
        yield json.dumps(whole_object(store, task_id), indent=1 if form == "json" else None).encode() + b"\n"
        return
    summary = store.summary(task_id)
    entries = (entry if as_is else store.redactor.entry(entry) for _, entry in store.entries(task_id))
    if form == "md":
        from rawko_state.exchange.markdown import markdown as render
    else:
        from rawko_state.exchange.page import page as render
    for text in render(summary.id, summary.status, entries):
        yield visible(text).encode("utf-8", "replace")


def whole_object(store: Store, task_id: str) -> dict[str, Any]:
    """The lossless form, with the readable form beside it."""
    summary = store.summary(task_id)
    task = task_object(task_id, summary.status, (entry for _, entry in store.entries(task_id)))
    with store.reader(task_id) as reader:
        whole = records_object(
            task_id, plain_name(store, task_id), reader.records(), reader.fetch, store.blobs_of(task_id)
        )
    return {**whole, "task": task}
