"""rawko history export: tasks in other forms."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli.project import complete_ids, store_of
from rawko_state.errors import InvalidValue, StorageError

if TYPE_CHECKING:
    from rawko_state.backends.local import LocalStore

_ENDINGS = {"json": "json", "jsonl": "jsonl", "md": "md", "html": "html", "task": "task"}


@click.command(name="export")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--format", "form", type=click.Choice(list(_ENDINGS)), default="json", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file; a folder for one file a task.")
@click.option("--as-is", is_flag=True, help="Also what looks like a secret.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], form: str, output: Path | None, as_is: bool) -> None:
    """Export tasks to a file or standard output.

    \b
    json, jsonl  everything; `rawko import` makes the same file of it again, byte for byte
    md           Markdown
    html         one page, nothing loaded from anywhere, to be sent to somebody
    task         the task file itself

    Secrets that an older version recorded are left out of md and html; the other forms are exact, so they are refused with such.
    """
    store = store_of(ctx)
    ids = [store.find(task_id).id for task_id in task_ids]
    if not as_is and form not in ("md", "html"):
        _check(store, ids)
    if output is not None and output.is_dir():
        for task_id in ids:
            target = output / f"{_plain_name(store, task_id).removesuffix('.task')}.{_ENDINGS[form]}"
            _to_file(target, _pieces(store, task_id, form, as_is))
            click.echo(str(target))
        return
    if len(ids) > 1 and form in ("html", "md", "task"):
        raise click.UsageError(f"several tasks as {form} need a folder: -o DIR", ctx)
    pieces = (
        _several(store, ids)
        if form == "json" and len(ids) > 1
        else (p for i in ids for p in _pieces(store, i, form, as_is))
    )
    if output is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        _to_file(output, pieces)


def _check(store: LocalStore, ids: list[str]) -> None:
    for task_id in ids:
        found = store.redact(task_id, dry_run=True).rules
        if found:
            told = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
            raise InvalidValue(
                f"task {task_id} holds secrets ({told}): 'rawko redact {task_id}' takes them out; or --as-is"
            )


def _plain_name(store: LocalStore, task_id: str) -> str:
    return store.find(task_id).filename.removesuffix(".gz")


def _pieces(store: LocalStore, task_id: str, form: str, as_is: bool) -> Iterator[bytes]:
    if form == "task":
        with store.reader(task_id) as reader:
            offset = 0
            while piece := reader.fetch(offset, 1 << 20):
                yield piece
                offset += len(piece)
        return
    if form in ("json", "jsonl"):
        yield json.dumps(_object(store, task_id), indent=1 if form == "json" else None).encode() + b"\n"
        return
    summary = store.summary(task_id)
    entries = (entry if as_is else store.redactor.entry(entry) for _, entry in store.entries(task_id))
    if form == "md":
        from rawko_state.exchange.markdown import markdown as render
    else:
        from rawko_state.exchange.page import page as render
    for text in render(summary.id, summary.status, entries):
        yield text.encode("utf-8", "replace")


def _object(store: LocalStore, task_id: str) -> dict[str, object]:
    from rawko_state.exchange.plain import records_object, task_object

    summary = store.summary(task_id)
    entries = (entry for _, entry in store.entries(task_id))
    task = task_object(task_id, summary.status, entries)
    with store.reader(task_id) as reader:
        whole = records_object(
            task_id, _plain_name(store, task_id), reader.records(), reader.fetch, store.blobs_of(task_id)
        )
    return {**whole, "task": task}


def _several(store: LocalStore, ids: list[str]) -> Iterator[bytes]:
    yield b"[\n"
    for number, task_id in enumerate(ids):
        yield (b",\n" if number else b"") + json.dumps(_object(store, task_id), indent=1).encode()
    yield b"\n]\n"


def _to_file(path: Path, pieces: Iterator[bytes]) -> None:
    try:
        with open(path, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", str(path), error.errno) from error
