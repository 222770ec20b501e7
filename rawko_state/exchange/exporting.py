"""Exports a task in pieces: as lossless JSON, Markdown, one HTML page, a trajectory (ATIF), or the task file itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

from rawko_state.errors import RawkoError
from rawko_state.exchange.facts import Estimate, facts_of
from rawko_state.exchange.json_form import records_object, task_object
from rawko_state.exchange.shown import Shown
from rawko_state.exchange.withheld import note_of, pieces_of
from rawko_state.format.reader import MemoryBytes, TaskReader
from rawko_state.format.taken_back import TakenBack
from rawko_state.format.text import visible
from rawko_state.model.entries import Entry
from rawko_state.store.contract import Store

EXACT: Final = ("json", "jsonl", "task")
READABLE: Final = ("md", "html")


def exported(
    store: Store, task_id: str, form: str, *, as_is: bool = False, estimate: Estimate | None = None
) -> Iterator[bytes]:
    """Omits secrets that an older version recorded. Exact formats cannot omit them, so they are refused."""
    if form in READABLE:
        return readable(store, [task_id], form, as_is=as_is, estimate=estimate)
    if form in EXACT and not as_is:
        check(store, task_id)
    return _pieces(store, task_id, form, as_is)


def readable(
    store: Store,
    task_ids: Sequence[str],
    form: str,
    *,
    as_is: bool = False,
    brief: bool = False,
    estimate: Estimate | None = None,
) -> Iterator[bytes]:
    """Tasks for people, in one file: as Markdown, or as a page."""
    if form == "md":
        from rawko_state.exchange.markdown import markdown as render
    else:
        from rawko_state.exchange.html_export import page as render
    tasks = [_shown(store, task_id, as_is, estimate) for task_id in task_ids]
    for text in render(tasks, brief=brief):
        yield visible(text).encode("utf-8", "replace")


def _shown(store: Store, task_id: str, as_is: bool, estimate: Estimate | None) -> Shown:
    def entries() -> Iterator[Entry]:
        return (entry if as_is else store.redactor.entry(entry) for _, entry in store.entries(task_id))

    summary = store.summary(task_id)
    facts = facts_of(entries(), estimate)
    title = summary.title or summary.request or ""
    title = title if as_is else store.redactor.text(title)
    within = facts.header.cwd if facts.header is not None else None
    return Shown(summary.id, summary.status, title, summary.duration_ms, facts, entries, within)


def redacted_object(store: Store, task_id: str) -> dict[str, Any]:
    """The readable form without secrets. It lacks the exact records, so it can't be imported again."""
    summary = store.summary(task_id)
    entries = (store.redactor.entry(entry) for _, entry in store.entries(task_id))
    return task_object(task_id, summary.status, entries)


def check(store: Store, task_id: str) -> None:
    found = store.redact(task_id, dry_run=True).rules
    if found:
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
        raise RawkoError(
            f"Task {task_id} contains secrets ({rules}).\n  Remove them: rawko redact {task_id} · Export it anyway: --as-is"
        )


def plain_name(store: Store, task_id: str) -> str:
    return store.find(task_id).filename.removesuffix(".gz")


def _pieces(store: Store, task_id: str, form: str, as_is: bool) -> Iterator[bytes]:
    if form == "task":
        with store.reader(task_id) as reader:
            yield from pieces_of(reader)
        return
    if form in ("json", "jsonl"):
        yield json.dumps(whole_object(store, task_id), indent=1 if form == "json" else None).encode() + b"\n"
        return
    if form == "atif":
        from rawko_state.exchange.atif import trajectory

        for text in trajectory(store, task_id, (lambda entry: entry) if as_is else store.redactor.entry):
            yield text.encode()
        yield b"\n"


def whole_object(store: Store, task_id: str) -> dict[str, Any]:
    """The lossless form, with the readable form beside it."""
    summary, name, blobs = store.summary(task_id), plain_name(store, task_id), store.blobs_of(task_id)
    with store.reader(task_id) as reader:
        taken = TakenBack(reader)
        if taken:
            reader = TaskReader(reader.path, MemoryBytes(b"".join(pieces_of(reader))))
        whole = records_object(task_id, name, reader.records(), reader.fetch, blobs)
    entries = chain((entry for _, entry in store.entries(task_id)), [note_of(taken)] if taken else [])
    return {**whole, "task": task_object(task_id, summary.status, entries)}
